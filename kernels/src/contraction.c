/* The untiled contraction dw[o,i] = sum_k dy[k,o] x[k,i]: a block is COLUMNS cells of one row o.
 *
 * Blocks run one after another, o fastest, each from k = 0 to the end by one thread. A block reads its COLUMNS floats
 * of every row of x anew: nothing is staged, which is what the working-set sweep is about. The sums lie in L1 and STEPS
 * rows are added in one pass over them, so the reads of x, not the sums, set the pace at every cache level.
 */
#include "calibrate.h"

#define COLUMNS 512
#define STEPS 4

int untiled_columns(void) { return COLUMNS; }

static void block(float *restrict dw, const float *restrict dy, const float *restrict x, int64_t m, int64_t n,
                  int64_t k) {
    float sum[COLUMNS] __attribute__((aligned(64)));
    for (int i = 0; i < COLUMNS; i++) sum[i] = 0.0f;
    int64_t row = 0;
    for (; row + STEPS <= k; row += STEPS) {
        const float d0 = dy[row * m], d1 = dy[(row + 1) * m], d2 = dy[(row + 2) * m], d3 = dy[(row + 3) * m];
        const float *x0 = x + row * n, *x1 = x0 + n, *x2 = x1 + n, *x3 = x2 + n;
        for (int i = 0; i < COLUMNS; i++) sum[i] += d0 * x0[i] + d1 * x1[i] + d2 * x2[i] + d3 * x3[i];
    }
    for (; row < k; row++)
        for (int i = 0; i < COLUMNS; i++) sum[i] += dy[row * m] * x[row * n + i];
    for (int i = 0; i < COLUMNS; i++) dw[i] = sum[i];
}

static void blocks(float *dw, const float *dy, const float *x, int64_t m, int64_t n, int64_t k) {
    const share mine = share_of(m * (n / COLUMNS));
    for (int64_t b = mine.begin; b < mine.end; b++) {
        const int64_t o = b % m, i = b / m * COLUMNS;
        block(dw + o * n + i, dy + o, x + i, m, n, k);
    }
}

double untiled(float *dw, const float *dy, const float *x, int64_t m, int64_t n, int64_t k, int threads,
               int64_t batch) {
    double elapsed;
    TIMED(elapsed, threads, batch, blocks(dw, dy, x, m, n, k));
    return elapsed;
}
