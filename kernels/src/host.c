/* The host's side of a device: what the target has, the team of threads, first touch and fill. */
#define _GNU_SOURCE
#include "calibrate.h"

#include <math.h>
#include <sched.h>

int widest_vector(void) { return WIDEST; }
int streaming_stores(void) { return STREAMING_STORES; }

const char *instruction_set(void) {
#if defined(__AVX512F__)
    return "avx512";
#elif defined(__AVX2__)
    return "avx2";
#elif defined(__AVX__)
    return "avx";
#elif defined(__x86_64__)
    return "sse2";
#elif defined(__aarch64__)
    return "neon";
#else
    return "generic";
#endif
}

/* How many threads a team asked for `threads` really gets: OMP_THREAD_LIMIT can cut it. */
int team_size(int threads) {
    int size = 1;
    omp_set_dynamic(0);
#pragma omp parallel num_threads(threads)
#pragma omp single
    size = omp_get_num_threads();
    return size;
}

static int allow(const int *cores, int count) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < count; i++) CPU_SET(cores[i], &set);
    return sched_setaffinity(0, sizeof set, &set) != 0;
}

/* Binds thread i of the team to the core cores[i]; returns how many could not be bound. Thread 0 is the caller's own:
 * it stays free, as what it starts later would inherit its core, and the core left over draws it anyway. */
int bind_team(int threads, const int *cores) {
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(+ : failed)
    if (omp_get_thread_num() > 0) failed += allow(cores + omp_get_thread_num(), 1);
    return failed;
}

/* Lets every thread of the team but the caller's run on all `count` cores again. */
int unbind_team(int threads, const int *cores, int count) {
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(+ : failed)
    if (omp_get_thread_num() > 0) failed += allow(cores, count);
    return failed;
}

/* splitmix64 (Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195) as a counter-based generator: element i of a seed
 * is always the same, whichever thread makes it. */
static inline uint64_t random_bits(uint64_t seed, uint64_t counter) {
    uint64_t z = seed + (counter + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1), multiples of 2^-23: exact in float32. */
static inline float uniform(uint64_t seed, int64_t i) {
    return (float)((int32_t)(random_bits(seed, (uint64_t)i) >> 40) - (1 << 23)) * 0x1p-23f;
}

void fill_uniform(float *restrict at, int64_t elems, uint64_t seed, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const share mine = share_of(elems);
        for (int64_t i = mine.begin; i < mine.end; i++) at[i] = uniform(seed, i);
    }
}

/* How many elements are no longer what `fill_uniform` made them; NaN is none of those. */
int64_t changed(const float *at, int64_t elems, uint64_t seed, int threads) {
    int64_t count = 0;
#pragma omp parallel num_threads(threads) reduction(+ : count)
    {
        const share mine = share_of(elems);
        for (int64_t i = mine.begin; i < mine.end; i++) count += at[i] != uniform(seed, i);
    }
    return count;
}

/* NaN everywhere, so that an element that a kernel leaves out can't look right. */
void poison(float *restrict at, int64_t elems, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const share mine = share_of(elems);
        for (int64_t i = mine.begin; i < mine.end; i++) at[i] = NAN;
    }
}

static void nothing(void) { __asm__ volatile("" ::: "memory"); }

/* An empty launch: the cost of a team's start and end. */
double empty(int threads, int64_t batch) {
    double elapsed;
    TIMED(elapsed, threads, batch, nothing());
    return elapsed;
}
