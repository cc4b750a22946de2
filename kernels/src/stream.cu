// STREAM: copy c = a, scale b = 0.5 a, add c = a + b, triad a = b + 0.5 c; arguments are the inputs, then the output.
//
// VECTOR      float32 lanes a vector: 1, 2 or 4
// BLOCK       threads a block
// PER_THREAD  vectors a thread, BLOCK apart, so that each access of a warp is contiguous
// GUARDED     0: the grid covers `elems` exactly and no access is guarded; 1: every access is guarded
//
// All loads of a thread are issued before its first store.
#include "device.cuh"

#define SCALAR 0.5f

struct __attribute__((aligned(4 * VECTOR))) Lanes {
    float lane[VECTOR];
};

static __device__ __forceinline__ Extent first_vector()
{
    return (Extent)blockIdx.x * (BLOCK * PER_THREAD) + threadIdx.x;
}

static __device__ __forceinline__ void load(Lanes (&to)[PER_THREAD], const Lanes *__restrict__ from, Extent elems)
{
    const Extent first = first_vector();
#pragma unroll
    for (int each = 0; each < PER_THREAD; ++each) {
        const Extent at = first + each * BLOCK;
#if GUARDED
        if ((at + 1) * VECTOR <= elems)
            to[each] = from[at];
        else
            for (int lane = 0; lane < VECTOR; ++lane)
                to[each].lane[lane] = at * VECTOR + lane < elems ? ((const float *)from)[at * VECTOR + lane] : 0.0f;
#else
        to[each] = from[at];
#endif
    }
}

static __device__ __forceinline__ void store(Lanes *__restrict__ to, const Lanes (&from)[PER_THREAD], Extent elems)
{
    const Extent first = first_vector();
#pragma unroll
    for (int each = 0; each < PER_THREAD; ++each) {
        const Extent at = first + each * BLOCK;
#if GUARDED
        if ((at + 1) * VECTOR <= elems)
            to[at] = from[each];
        else
            for (int lane = 0; lane < VECTOR; ++lane)
                if (at * VECTOR + lane < elems)
                    ((float *)to)[at * VECTOR + lane] = from[each].lane[lane];
#else
        to[at] = from[each];
#endif
    }
}

#define EACH_LANE                                                                                                      \
    _Pragma("unroll") for (int each = 0; each < PER_THREAD; ++each)                                                    \
        _Pragma("unroll") for (int lane = 0; lane < VECTOR; ++lane)

extern "C" __global__ void __launch_bounds__(BLOCK)
stream_copy(const Lanes *__restrict__ a, Lanes *__restrict__ c, Extent elems)
{
    Lanes value[PER_THREAD];
    load(value, a, elems);
    store(c, value, elems);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
stream_scale(const Lanes *__restrict__ a, Lanes *__restrict__ b, Extent elems)
{
    Lanes value[PER_THREAD];
    load(value, a, elems);
    EACH_LANE value[each].lane[lane] = SCALAR * value[each].lane[lane];
    store(b, value, elems);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
stream_add(const Lanes *__restrict__ a, const Lanes *__restrict__ b, Lanes *__restrict__ c, Extent elems)
{
    Lanes left[PER_THREAD], right[PER_THREAD];
    load(left, a, elems);
    load(right, b, elems);
    EACH_LANE left[each].lane[lane] += right[each].lane[lane];
    store(c, left, elems);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
stream_triad(const Lanes *__restrict__ b, const Lanes *__restrict__ c, Lanes *__restrict__ a, Extent elems)
{
    Lanes left[PER_THREAD], right[PER_THREAD];
    load(left, b, elems);
    load(right, c, elems);
    EACH_LANE left[each].lane[lane] += SCALAR * right[each].lane[lane];
    store(a, left, elems);
}
