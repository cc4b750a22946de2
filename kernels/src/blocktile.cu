// Register-blocktiled contraction dw[o,i] = sum_k dy[k,o] x[k,i] at one geometry BM x BN x BK / TM x TN.
//
// A block owns BM x BN cells of dw, a thread TM x TN of them in registers. BK rows of both operands are staged in
// shared memory at a time. Everything moves as float4: BM, BN, BK divide m, n, k and TM, TN are multiples of 4, so that
// nothing is guarded. Geometry is by macro and thread indices are unsigned: signed ones took 62 registers where these
// take 56, and a template spilled on sm_90.
#include "device.cuh"

#define THREADS ((BM / TM) * (BN / TN))

// Copies BK rows of WIDTH floats into a tile. The caller counts the threads from opposite ends for the two operands, so
// that where a tile has fewer vectors than the block has threads each half of the block makes one load.
#define STAGE(tile, from, stride, WIDTH, thread)                                                                       \
    _Pragma("unroll") for (unsigned each = 0; each * THREADS < BK * WIDTH / 4; ++each)                                 \
    {                                                                                                                  \
        const unsigned at = each * THREADS + (thread);                                                                 \
        if (BK * WIDTH / 4 % THREADS == 0 || at < BK * WIDTH / 4)                                                      \
            tile[at] = *(const float4 *)((from) + at / (WIDTH / 4) * (stride) + at % (WIDTH / 4) * 4);                 \
    }

#define MULTIPLY_ADD(sum, left, right)                                                                                 \
    sum.x += (left) * right.x, sum.y += (left) * right.y, sum.z += (left) * right.z, sum.w += (left) * right.w

extern "C" __global__ void __launch_bounds__(THREADS)
blocktile(const float *__restrict__ dy, const float *__restrict__ x, float *__restrict__ dw, Extent m, Extent n,
          Extent k)
{
    __shared__ float4 dy_tile[BK * BM / 4];
    __shared__ float4 x_tile[BK * BN / 4];
    const unsigned thread = threadIdx.x;
    const unsigned column = thread % (BN / TN) * TN;
    const unsigned row = thread / (BN / TN) * TM;
    const Extent o = (Extent)blockIdx.y * BM;
    const Extent i = (Extent)blockIdx.x * BN;
    float4 sum[TM][TN / 4] = {};

    for (Extent step = 0; step < k; step += BK) {
        STAGE(dy_tile, dy + step * m + o, m, BM, thread)
        STAGE(x_tile, x + step * n + i, n, BN, THREADS - 1 - thread)
        __syncthreads();
#pragma unroll
        for (unsigned inner = 0; inner < BK; ++inner) {
            float4 left[TM / 4], right[TN / 4];
#pragma unroll
            for (unsigned each = 0; each < TM / 4; ++each)
                left[each] = dy_tile[inner * (BM / 4) + row / 4 + each];
#pragma unroll
            for (unsigned each = 0; each < TN / 4; ++each)
                right[each] = x_tile[inner * (BN / 4) + column / 4 + each];
#pragma unroll
            for (unsigned y = 0; y < TM / 4; ++y)
#pragma unroll
                for (unsigned z = 0; z < TN / 4; ++z) {
                    MULTIPLY_ADD(sum[4 * y][z], left[y].x, right[z]);
                    MULTIPLY_ADD(sum[4 * y + 1][z], left[y].y, right[z]);
                    MULTIPLY_ADD(sum[4 * y + 2][z], left[y].z, right[z]);
                    MULTIPLY_ADD(sum[4 * y + 3][z], left[y].w, right[z]);
                }
        }
        __syncthreads();
    }

    // Indexed in units of float4: through a float pointer NVRTC splits these stores into scalars.
    float4 *__restrict__ cells = (float4 *)dw + ((o + row) * n + i + column) / 4;
#pragma unroll
    for (unsigned y = 0; y < TM; ++y)
#pragma unroll
        for (unsigned z = 0; z < TN / 4; ++z)
            cells[y * (n / 4) + z] = sum[y][z];
}
