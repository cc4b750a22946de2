/* The contraction dw[o,i] = sum_k dy[k,o] x[k,i], register-blocktiled at a geometry BM x BN x BK / TM x TN.
 *
 * A block is one BM x BN tile of dw, computed from k = 0 to the end by one thread. Its columns of dy and x are staged,
 * PANEL rows at a time and side by side, in L1: the rows lie m and n floats apart and would fall into few cache sets if
 * they were read in place. Register tiles of ROWS x COLUMNS then run over the panel, BK rows unrolled, while they copy
 * the next panel, a vector a step, and prefetch a later one. The (BM/TM) x (BN/TN) "threads" of the geometry are the
 * lanes and registers of one core, so TM and TN do not show in the code.
 *
 * A thread has up to RESIDENT blocks in flight, one below the other, panel by panel, as a multiprocessor has: what they
 * all read of x then comes from its own caches, even where rows lie a power of two apart and L2, which maps them to few
 * sets, could not keep it from one whole block to the next.
 */
#include "calibrate.h"

#define WIDTH (BM + BN) /* floats in a staged row: dy's, then x's */
#define PANEL_BYTES 16384 /* two of them fill the smallest L1 in use */
#define PANEL_GROUPS (PANEL_BYTES / 4 / WIDTH / BK)
#define PANEL (BK * (PANEL_GROUPS < 1 ? 1 : PANEL_GROUPS))

#define RESIDENT (8192 / (BM * BN) < 1 ? 1 : 8192 / (BM * BN)) /* their sums take at most 32 KiB, or one block's */

/* Two FMA units of latency 4 or 5 need 10 sums in flight: 8 x 2 vectors, or 6 x 2 where there are only 16 registers.
 * The last tiles of a column have GRAIN rows less where ROWS does not divide BM. */
#define VECTORS ((BN / VECTOR) % 2 == 0 ? 2 : 1)
#define COLUMNS (VECTORS * VECTOR)
#define ROWS (VECTOR_REGISTERS == 32 ? 8 : 6)
#define GRAIN 2
#define ROW_TILES ((BM + ROWS - 1) / ROWS)
#define FEWER_TILES ((ROW_TILES * ROWS - BM) / GRAIN)
#define TILES (ROW_TILES * (BN / COLUMNS))

/* Vectors to copy a row, and how many of them a tile copies. */
#define COPIES (WIDTH / VECTOR)
#define COPIES_A_TILE ((COPIES + TILES - 1) / TILES)

_Static_assert(BN % COLUMNS == 0 && BM % VECTOR == 0 && BM % GRAIN == 0 && FEWER_TILES <= ROW_TILES, "no such tile");

typedef float panel[PANEL][WIDTH];

typedef struct {
    const float *from;
    int64_t stride;
    float *to;
} copy;

static inline void stage(panel to, const float *dy, const float *x, int64_t m, int64_t n, int64_t rows) {
    for (int64_t k = 0; k < rows; k++) {
        for (int o = 0; o < BM; o++) to[k][o] = dy[k * m + o];
        for (int i = 0; i < BN; i++) to[k][BM + i] = x[k * n + i];
    }
}

/* Adds a panel's products to one tile of sums; `height` and `copying` are constants where this is inlined. */
__attribute__((always_inline)) static inline void tile(const int height, const int copying, float *restrict sums,
                                                       const float *dy, const float *x, int64_t rows,
                                                       const copy *next) {
    vector sum[ROWS][VECTORS];
    _Pragma("GCC unroll 16") for (int r = 0; r < height; r++)
        _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)
            sum[r][v] = *(const vector *)(sums + r * BN + v * VECTOR);
    for (int64_t k = 0; k < rows; k += BK) {
        _Pragma("GCC unroll 64") for (int64_t s = k; s < k + BK; s++) {
            if (copying) {
                _Pragma("GCC unroll 4") for (int c = 0; c < COPIES_A_TILE; c++) {
                    const float *from = next[c].from + s * next[c].stride;
                    *(vector *)(next[c].to + s * WIDTH) = *(const vector *)from;
                    __builtin_prefetch(from + PANEL * next[c].stride, 0, 2);
                }
            }
            _Pragma("GCC unroll 16") for (int r = 0; r < height; r++)
                _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)
                    sum[r][v] += dy[s * WIDTH + r] * *(const vector *)(x + s * WIDTH + v * VECTOR);
        }
    }
    _Pragma("GCC unroll 16") for (int r = 0; r < height; r++)
        _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)
            *(vector *)(sums + r * BN + v * VECTOR) = sum[r][v];
}

/* All tiles of a block over one panel; with `copying` they fill `to` from the next step's `dy` and `x`. */
__attribute__((always_inline)) static inline void tiles(const int copying, float *sums, panel staged, int64_t rows,
                                                        panel to, const float *dy, const float *x, int64_t m,
                                                        int64_t n) {
    int copied = 0;
    for (int i = 0; i < BN; i += COLUMNS) {
        for (int t = 0, o = 0; t < ROW_TILES; t++) {
            copy next[COPIES_A_TILE];
            const int busy = copying && copied < COPIES;
            for (int c = 0; busy && c < COPIES_A_TILE; c++, copied++) {
                const int at = copied % COPIES * VECTOR;
                next[c] = at < BM ? (copy){dy + at, m, to[0] + at} : (copy){x + at - BM, n, to[0] + at};
            }
            const int fewer = t >= ROW_TILES - FEWER_TILES;
            float *tile_sums = sums + o * BN + i;
            const float *tile_dy = staged[0] + o, *tile_x = staged[0] + BM + i;
            if (!fewer && busy) tile(ROWS, 1, tile_sums, tile_dy, tile_x, rows, next);
            if (!fewer && !busy) tile(ROWS, 0, tile_sums, tile_dy, tile_x, rows, next);
            if (fewer && busy) tile(ROWS - GRAIN, 1, tile_sums, tile_dy, tile_x, rows, next);
            if (fewer && !busy) tile(ROWS - GRAIN, 0, tile_sums, tile_dy, tile_x, rows, next);
            o += fewer ? ROWS - GRAIN : ROWS;
        }
    }
}

int blocktile_resident(void) { return RESIDENT; } /* blocks a thread */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* `count` blocks of one column of tiles, the first at dw, dy and x. The steps run over blocks first, panels second; each
 * copies what the next step needs where that is a whole panel, and leaves it to be staged in one go where it is not. */
static void column(float *restrict dw, const float *dy, const float *x, int64_t m, int64_t n, int64_t k,
                   int64_t count) {
    panel staged[2] __attribute__((aligned(64)));
    float sums[RESIDENT][BM * BN] __attribute__((aligned(64)));
    int turn = 0;
    for (int64_t b = 0; b < count; b++)
        for (int c = 0; c < BM * BN; c++) sums[b][c] = 0.0f;
    stage(staged[0], dy, x, m, n, least(k, PANEL));
    for (int64_t row = 0; row < k; row += PANEL) {
        const int64_t rows = least(k - row, PANEL);
        for (int64_t b = 0; b < count; b++, turn = 1 - turn) {
            const int64_t next_block = (b + 1) % count, next_row = next_block == 0 ? row + PANEL : row;
            const int64_t next_rows = least(k - next_row, PANEL); /* none behind the last step */
            const float *next_dy = dy + next_row * m + next_block * BM, *next_x = x + next_row * n;
            if (rows == PANEL && next_rows == PANEL) {
                tiles(1, sums[b], staged[turn], PANEL, staged[1 - turn], next_dy, next_x, m, n);
            } else {
                tiles(0, sums[b], staged[turn], rows, staged[1 - turn], next_dy, next_x, m, n);
                stage(staged[1 - turn], next_dy, next_x, m, n, next_rows);
            }
        }
    }
    for (int64_t b = 0; b < count; b++)
        for (int o = 0; o < BM; o++)
            for (int i = 0; i < BN; i++) dw[(b * BM + o) * n + i] = sums[b][o * BN + i];
}

static void blocks(float *dw, const float *dy, const float *x, int64_t m, int64_t n, int64_t k) {
    const share mine = share_of((m / BM) * (n / BN));
    for (int64_t b = mine.begin, count; b < mine.end; b += count) {
        const int64_t o = b % (m / BM), i = b / (m / BM);
        count = least(RESIDENT, least(m / BM - o, mine.end - b));
        column(dw + o * BM * n + i * BN, dy + o * BM, x + i * BN, m, n, k, count);
    }
}

double blocktile(float *dw, const float *dy, const float *x, int64_t m, int64_t n, int64_t k, int threads,
                 int64_t batch) {
    double elapsed;
    TIMED(elapsed, threads, batch, blocks(dw, dy, x, m, n, k));
    return elapsed;
}
