/* Independent register-only FMA chains: acc = acc * multiplier + addend, CHAINS vectors a thread.
 *
 * Two FMA units of latency 4 or 5 need 10 chains in flight; CHAINS fills most of the register file and leaves two for
 * the operands. Both operands arrive at run time, so no chain can be folded. One store a chain at the end.
 */
#include "calibrate.h"

#define CHAINS (VECTOR_REGISTERS / 4 * 3)

int fma_cells(void) { return CHAINS * VECTOR; } /* a thread */

static void chains(float *restrict out, const float *restrict start, int64_t steps, float multiplier, float addend) {
    const int64_t first = (int64_t)omp_get_thread_num() * CHAINS;
    const vector by = multiplier - (vector){0}, plus = addend - (vector){0};
    vector acc[CHAINS];
    _Pragma("GCC unroll 64") for (int c = 0; c < CHAINS; c++) acc[c] = ((const vector *)start)[first + c];
    for (int64_t step = 0; step < steps; step++) {
        _Pragma("GCC unroll 64") for (int c = 0; c < CHAINS; c++) acc[c] = acc[c] * by + plus;
    }
    _Pragma("GCC unroll 64") for (int c = 0; c < CHAINS; c++) ((vector *)out)[first + c] = acc[c];
}

double fma_chains(float *out, const float *start, int64_t steps, float multiplier, float addend, int threads,
                  int64_t batch) {
    double elapsed;
    TIMED(elapsed, threads, batch, chains(out, start, steps, multiplier, addend));
    return elapsed;
}
