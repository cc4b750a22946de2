// Register-only FMA chains: acc = acc x factor + addend, CHAINS a thread, `steps` times; one store a chain at the end.
//
// factor and addend reach the kernel at run time (both are 1), so that no compiler can fold a chain. The chains of a
// thread are independent: with those of the other warps they hide the latency of an FMA many times over.
#include "device.cuh"

#define STEPS_UNROLLED 8

extern "C" __global__ void __launch_bounds__(BLOCK)
fma_chains(float *__restrict__ out, float factor, float addend, Extent steps)
{
    const Extent thread = (Extent)blockIdx.x * BLOCK + threadIdx.x;
    const Extent threads = (Extent)gridDim.x * BLOCK;
    float chain[CHAINS];
#pragma unroll
    for (int each = 0; each < CHAINS; ++each)
        chain[each] = (float)(threadIdx.x + each);
#pragma unroll STEPS_UNROLLED
    for (Extent step = 0; step < steps; ++step)
#pragma unroll
        for (int each = 0; each < CHAINS; ++each)
            chain[each] = chain[each] * factor + addend;
#pragma unroll
    for (int each = 0; each < CHAINS; ++each)
        out[each * threads + thread] = chain[each];
}

extern "C" __global__ void empty()
{
}
