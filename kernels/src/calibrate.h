/* What every C kernel shares: the clock, the static partition, vectors and streaming stores.
 *
 * VECTOR is the number of floats in a vector. A source that leaves it undefined gets the widest that the target has:
 * wider ones than the registers would be split and spilled.
 */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include <omp.h>
#include <stdint.h>
#include <time.h>

#if defined(__AVX512F__)
#define WIDEST 16
#define VECTOR_REGISTERS 32
#elif defined(__AVX__)
#define WIDEST 8
#define VECTOR_REGISTERS 16
#elif defined(__aarch64__)
#define WIDEST 4
#define VECTOR_REGISTERS 32
#else
#define WIDEST 4
#define VECTOR_REGISTERS 16
#endif

#ifndef VECTOR
#define VECTOR WIDEST
#endif

typedef float vector __attribute__((vector_size(VECTOR * 4)));

/* Streaming stores bypass the caches: without them each stored line is first read, and a kernel moves more bytes than
 * it counts. */
#if defined(__x86_64__)
#include <immintrin.h>
#define STREAMING_STORES 1
static inline void store_streaming(float *at, vector value) {
#if VECTOR == 16
    _mm512_stream_ps(at, (__m512)value);
#elif VECTOR == 8
    _mm256_stream_ps(at, (__m256)value);
#else
    _mm_stream_ps(at, (__m128)value);
#endif
}
static inline void fence_streaming(void) { _mm_sfence(); }
#else
#define STREAMING_STORES 0
static inline void store_streaming(float *at, vector value) { *(vector *)at = value; }
static inline void fence_streaming(void) {}
#endif

static inline double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

typedef struct {
    int64_t begin, end;
} share;

/* The calling thread's contiguous share of `items`: the same for the threads that first touch an array and for those
 * that compute on it, so that pages lie in the memory nearest to their user. */
static inline share share_of(int64_t items) {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const share mine = {items * thread / threads, items * (thread + 1) / threads};
    return mine;
}

/* Runs `call` in a team of `threads`, `batch` times, and leaves in `elapsed` the milliseconds of all of them. */
#define TIMED(elapsed, threads, batch, call)                                                                          \
    do {                                                                                                              \
        const double begin_ms = now_ms();                                                                             \
        for (int64_t launch = 0; launch < (batch); launch++) {                                                        \
            _Pragma("omp parallel num_threads(threads)") { call; }                                                    \
        }                                                                                                             \
        (elapsed) = now_ms() - begin_ms;                                                                              \
    } while (0)

#endif
