/* The contraction dw[o,i] = sum_k dy[k,o] x[k,i], register-blocktiled at a geometry BM x BN x BK / TM x TN.
 *
 * A block is one BM x BN tile of dw, computed from k = 0 to the end by one thread. It stages panels of PANEL rows of
 * its dy and x columns side by side in L1 (the rows lie m and n floats apart: read in place they would fall into few
 * cache sets), then runs register tiles of ROWS x COLUMNS over the panel, ROWS a multiple of TM and COLUMNS of TN: the
 * (BM/TM) x (BN/TN) "threads" of the geometry are the lanes and registers of one core. BK rows are unrolled. While a
 * panel is computed its successor is prefetched, one cache line a step, spread over the register tiles.
 */
#include "calibrate.h"

#define PANEL (BK * ((128 + BK - 1) / BK))

/* Half of the registers hold sums, the rest operands: two FMA units need 8 to 10 sums in flight. */
#define VECTORS ((BN / VECTOR) % 2 == 0 ? 2 : 1)
#define COLUMNS (VECTORS * VECTOR)
#define MOST_ROWS (VECTOR_REGISTERS / 2 / VECTORS)
#define ROWS (BM % MOST_ROWS == 0 && MOST_ROWS % TM == 0 ? MOST_ROWS : TM)

#define LINE 16 /* floats in a cache line */
#define LINES ((BM + LINE - 1) / LINE + (BN + LINE - 1) / LINE)
#define TILES ((BM / ROWS) * (BN / COLUMNS))
#define LINES_A_TILE ((LINES + TILES - 1) / TILES)

_Static_assert(BN % VECTOR == 0 && BM % ROWS == 0 && ROWS % TM == 0 && COLUMNS % TN == 0, "no such register tile");

typedef struct {
    float dy[PANEL][BM], x[PANEL][BN];
} panel __attribute__((aligned(64)));

static inline void stage(panel *restrict to, const float *dy, const float *x, int64_t m, int64_t n, int64_t rows) {
    for (int64_t k = 0; k < rows; k++) {
        for (int o = 0; o < BM; o++) to->dy[k][o] = dy[k * m + o];
        for (int i = 0; i < BN; i++) to->x[k][i] = x[k * n + i];
    }
}

/* Adds a panel's products to one register tile of sums; `ahead` prefetches the next panel, LINES_A_TILE lines a row. */
static inline void tile(float *restrict sums, const panel *restrict from, int o, int i, int64_t rows,
                        const float *const *ahead, const int64_t *stride) {
    vector sum[ROWS][VECTORS];
    _Pragma("GCC unroll 64") for (int r = 0; r < ROWS; r++)
        _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++)
            sum[r][v] = *(const vector *)(sums + r * BN + v * VECTOR);
    for (int64_t k = 0; k < rows; k += BK) {
        _Pragma("GCC unroll 64") for (int s = 0; s < BK; s++) {
            const float *x = &from->x[k + s][i], *dy = &from->dy[k + s][o];
            _Pragma("GCC unroll 4") for (int l = 0; l < LINES_A_TILE; l++)
                __builtin_prefetch(ahead[l] + (k + s) * stride[l], 0, 2);
            _Pragma("GCC unroll 64") for (int r = 0; r < ROWS; r++)
                _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++)
                    sum[r][v] += dy[r] * *(const vector *)(x + v * VECTOR);
        }
    }
    _Pragma("GCC unroll 64") for (int r = 0; r < ROWS; r++)
        _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++)
            *(vector *)(sums + r * BN + v * VECTOR) = sum[r][v];
}

static void block(float *restrict dw, const float *dy, const float *x, int64_t m, int64_t n, int64_t k) {
    panel staged;
    float sums[BM * BN] __attribute__((aligned(64)));
    for (int c = 0; c < BM * BN; c++) sums[c] = 0.0f;
    for (int64_t row = 0; row < k; row += PANEL) {
        const int64_t rows = k - row < PANEL ? k - row : PANEL;
        stage(&staged, dy + row * m, x + row * n, m, n, rows);
        int line = 0;
        for (int o = 0; o < BM; o += ROWS)
            for (int i = 0; i < BN; i += COLUMNS) {
                const float *ahead[LINES_A_TILE];
                int64_t stride[LINES_A_TILE];
                for (int l = 0; l < LINES_A_TILE; l++, line = (line + 1) % LINES) {
                    const int in_dy = line < (BM + LINE - 1) / LINE;
                    stride[l] = in_dy ? m : n;
                    ahead[l] = in_dy ? dy + (row + PANEL) * m + line * LINE
                                     : x + (row + PANEL) * n + (line - (BM + LINE - 1) / LINE) * LINE;
                }
                tile(sums + o * BN + i, &staged, o, i, rows, ahead, stride);
            }
    }
    for (int o = 0; o < BM; o++)
        for (int i = 0; i < BN; i++) dw[o * n + i] = sums[o * BN + i];
}

static void blocks(float *dw, const float *dy, const float *x, int64_t m, int64_t n, int64_t k) {
    const share mine = share_of((m / BM) * (n / BN));
    for (int64_t b = mine.begin; b < mine.end; b++) {
        const int64_t o = b % (m / BM) * BM, i = b / (m / BM) * BN;
        block(dw + o * n + i, dy + o, x + i, m, n, k);
    }
}

double blocktile(float *dw, const float *dy, const float *x, int64_t m, int64_t n, int64_t k, int threads,
                 int64_t batch) {
    double elapsed;
    TIMED(elapsed, threads, batch, blocks(dw, dy, x, m, n, k));
    return elapsed;
}
