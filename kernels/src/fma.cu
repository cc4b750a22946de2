// Register-only FMA chains: acc = acc x factor + addend, CHAINS a thread, `steps` times; one store a thread.
//
// factor and addend reach the kernel at run time (both are 1), so that no compiler can fold a chain. The chains of a
// thread are independent: with four warps a scheduler they hide the latency of an FMA many times over.
#include "device.cuh"

#define STEPS_UNROLLED 8

extern "C" __global__ void __launch_bounds__(BLOCK)
fma_chains(float *__restrict__ out, float factor, float addend, Extent steps)
{
    const Extent thread = (Extent)blockIdx.x * BLOCK + threadIdx.x;
    float chain[CHAINS];
#pragma unroll
    for (int each = 0; each < CHAINS; ++each)
        chain[each] = (float)(threadIdx.x % 32 + each);
#pragma unroll STEPS_UNROLLED
    for (Extent step = 0; step < steps; ++step)
#pragma unroll
        for (int each = 0; each < CHAINS; ++each)
            chain[each] = chain[each] * factor + addend;
    float sum = chain[0];
#pragma unroll
    for (int each = 1; each < CHAINS; ++each)
        sum += chain[each];
    out[thread] = sum;
}

extern "C" __global__ void empty()
{
}
