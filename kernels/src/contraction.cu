// Untiled contraction dw[o,i] = sum_k dy[k,o] x[k,i]: one thread an output cell; dy (k, m), x (k, n), dw (m, n).
//
// BLOCK_X, BLOCK_Y  cells of a block along i and o; they divide n and m exactly
// SPREAD            0 (aligned): every block starts at k = 0; 1 (spread): each block starts at its own k and wraps
//
// x goes past L1, so that blocks which share a multiprocessor can't serve each other and the cache that is measured is
// the device's; dy is one element a warp and step, a broadcast through L1.
#include "device.cuh"

#define UNROLL 8

static __device__ __forceinline__ float
partial_sum(const float *__restrict__ dy, const float *__restrict__ x, Extent m, Extent n, Extent begin, Extent end,
            float sum)
{
#pragma unroll UNROLL
    for (Extent step = begin; step < end; ++step)
        sum += dy[step * m] * LOAD_PAST_L1(x + step * n);
    return sum;
}

#if SPREAD
// A two-dimensional Weyl sequence (Roberts' R2: the fractions 0.7549 and 0.5698 in units of 2^-32) scatters the starts
// of all blocks, and of those of one panel of x or dy, evenly over the reduction. UNROLL divides the start.
static __device__ __forceinline__ Extent spread_start(Extent k)
{
    const unsigned turn = blockIdx.x * 3242174889u + blockIdx.y * 2447445414u;
    return (Extent)(((unsigned long long)turn * (unsigned long long)(k / UNROLL)) >> 32) * UNROLL;
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
contraction(const float *__restrict__ dy, const float *__restrict__ x, float *__restrict__ dw, Extent m, Extent n,
            Extent k)
{
    const Extent i = (Extent)blockIdx.x * BLOCK_X + threadIdx.x;
    const Extent o = (Extent)blockIdx.y * BLOCK_Y + threadIdx.y;
#if SPREAD
    const Extent start = spread_start(k);
    float sum = partial_sum(dy + o, x + i, m, n, start, k, 0.0f);
    sum = partial_sum(dy + o, x + i, m, n, 0, start, sum);
#else
    const float sum = partial_sum(dy + o, x + i, m, n, 0, k, 0.0f);
#endif
    dw[o * n + i] = sum;
}
