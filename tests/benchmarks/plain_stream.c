/* A plain STREAM, the peer: what anyone writes in C with OpenMP, at the same bytes counted and the same threads. */
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>

static float *a, *b, *c;
static int64_t n;

#define FOR _Pragma("omp parallel for schedule(static) num_threads(threads)") for (int64_t i = 0; i < n; i++)

int plain_open(int64_t elems, int threads) {
    n = elems;
    a = malloc(sizeof *a * (size_t)n);
    b = malloc(sizeof *b * (size_t)n);
    c = malloc(sizeof *c * (size_t)n);
    if (!a || !b || !c) return 1;
    FOR {
        a[i] = 0.0f;
        b[i] = (float)(i % 1021) / 1021.0f;
        c[i] = (float)(i % 2039) / 2039.0f - 0.5f;
    }
    return 0;
}

void plain_close(void) {
    free(a);
    free(b);
    free(c);
}

const float *plain_array(int which) { return which == 0 ? a : which == 1 ? b : c; }

void plain_copy(int threads) { FOR c[i] = a[i]; }
void plain_scale(int threads) { FOR b[i] = 0.5f * a[i]; }
void plain_add(int threads) { FOR c[i] = a[i] + b[i]; }
void plain_triad(int threads) { FOR a[i] = b[i] + 0.5f * c[i]; }
