// What CUDA and HIP spell differently, and the 64-bit extent that every kernel counts with.
typedef long long Extent;

#if defined(__HIP__)
// HIP has no __ldcg; a relaxed load at device scope is served past the per-unit cache in the same way.
#define LOAD_PAST_L1(pointer) __hip_atomic_load((pointer), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)
#else
#define LOAD_PAST_L1(pointer) __ldcg(pointer)
#endif
