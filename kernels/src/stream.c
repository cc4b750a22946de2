/* copy, scale, add and triad over float32 arrays, for one candidate BLOCK x VECTOR x PER_THREAD.
 *
 * A thread walks its contiguous share in chunks of BLOCK vectors. Within a chunk it loads PER_THREAD vectors of each
 * input before it stores any, and prefetches the same place of the next chunk, so BLOCK is the prefetch distance too.
 * Elements past the last whole chunk (a guarded tail) go to one thread, one at a time.
 *
 * Arrays are 64-byte aligned; shares start at whole chunks, hence at whole vectors.
 */
#include "calibrate.h"

#define CHUNK ((int64_t)BLOCK * VECTOR)
#define GROUP ((int64_t)PER_THREAD * VECTOR)

#define PREFETCH(at) __builtin_prefetch((at), 0, 3)
#define LOAD(at) (*(const vector *)(at))

/* `value(i)` computes from LOAD, `element(i)` from one float; `ahead(i)` prefetches the inputs. */
#define STREAM(name, output, ahead, value, element)                                                                   \
    static void name##_share(float *restrict output, const float *restrict p, const float *restrict q,                \
                             int64_t elems) {                                                                         \
        const int64_t chunks = elems / CHUNK;                                                                         \
        const share mine = share_of(chunks);                                                                          \
        (void)q;                                                                                                      \
        for (int64_t chunk = mine.begin; chunk < mine.end; chunk++) {                                                 \
            for (int64_t group = chunk * CHUNK; group < (chunk + 1) * CHUNK; group += GROUP) {                        \
                vector result[PER_THREAD];                                                                            \
                _Pragma("GCC unroll 16") for (int u = 0; u < PER_THREAD; u++) {                                       \
                    const int64_t i = group + u * VECTOR;                                                             \
                    ahead;                                                                                            \
                    result[u] = value;                                                                                \
                }                                                                                                     \
                _Pragma("GCC unroll 16") for (int u = 0; u < PER_THREAD; u++)                                         \
                    store_streaming(output + group + u * VECTOR, result[u]);                                          \
            }                                                                                                         \
        }                                                                                                             \
        if (omp_get_thread_num() == omp_get_num_threads() - 1)                                                        \
            for (int64_t i = chunks * CHUNK; i < elems; i++) output[i] = element;                                     \
        fence_streaming();                                                                                            \
    }                                                                                                                 \
    double stream_##name(float *output, const float *p, const float *q, int64_t elems, int threads, int64_t batch) {  \
        double elapsed;                                                                                               \
        TIMED(elapsed, threads, batch, name##_share(output, p, q, elems));                                            \
        return elapsed;                                                                                               \
    }

#define AHEAD_ONE PREFETCH(p + i + CHUNK)
#define AHEAD_TWO PREFETCH(p + i + CHUNK), PREFETCH(q + i + CHUNK)

STREAM(copy, out, AHEAD_ONE, LOAD(p + i), p[i])
STREAM(scale, out, AHEAD_ONE, 0.5f * LOAD(p + i), 0.5f * p[i])
STREAM(add, out, AHEAD_TWO, LOAD(p + i) + LOAD(q + i), p[i] + q[i])
STREAM(triad, out, AHEAD_TWO, LOAD(p + i) + 0.5f * LOAD(q + i), p[i] + 0.5f * q[i])
