"""The working-set sweep: the untiled contraction on both sides of the cache's capacity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fitting import Transition, UntiledTraffic, WorkingSetPoint, fit_capacity, untiled_traffic
from kernels.backends.base import ContractionProblem, Phase, UntiledKernel, Workload
from kernels.errors import OutOfMemoryError, UnsupportedError
from kernels.events import SweepResult
from kernels.parameters import UNTILED_K_STEP
from kernels.sweeps.contraction import emit_point, require_points
from kernels.sweeps.rows import bound_ms, rank_ms
from kernels.sweeps.run import Case, Stopwatch, SweepRun
from kernels.timing import repeats_policy

REFINED_RATIO = 1.1
"""Ratio of neighbouring working sets around a split: the capacity, a geometric mean, is then known to about 5 %."""
REFINING_SHARE = 0.5
"""The part of the time left that refinement may take."""
CONTROL_ROWS = 8


def sweep_working_set(run: SweepRun) -> SweepResult:
    """
    Time the untiled contraction at each reduction extent, then more closely around the split.

    Raises
    ------
    ContendedError
        When fewer than two points of the plain plan have an admitted window.
    MeasureError
        As the device says: out of memory, compile, verification, timeout.

    Notes
    -----
    The plain plan (`aligned`: all blocks start at k = 0) is what is served. Where the device can, a second series of
    the same blocks and about the same distinct bytes starts each block at its own phase (`spread`), so that the blocks'
    operands are live at once: the control which shows the physical cache (`control_shape`).

    References
    ----------
    calibrate-module.txt, `working_set`, `fit_capacity`.
    """
    m, n, ks = run.parameters["m"], run.parameters["n"], run.parameters["ks"]
    stopwatch = Stopwatch(run, repeats_policy(run.parameters["repeats"]))
    with run.device.open_workload(ContractionProblem(m, n, max(ks))) as workload:
        plain = _Series(run, stopwatch, workload, m, n)
        aligned = plain.grid(ks, "aligned")
        require_points(stopwatch, list(aligned.values()), "working_set")
        plain.refine(aligned, "aligned")
        repeat = stopwatch.repeat(aligned[min(aligned)])
    timed = [(plain, k, case) for k, case in aligned.items()]
    rows, columns = control_shape(m, n)
    try:
        extents = control_extents(ks, (m + n) / (rows + columns))
        with run.device.open_workload(ContractionProblem(rows, columns, max(extents))) as workload:
            control = _Series(run, stopwatch, workload, rows, columns)
            spread = control.grid(extents, "spread")
            control.refine(spread, "spread")
            timed += [(control, k, case) for k, case in spread.items()]
    except (UnsupportedError, OutOfMemoryError) as error:
        stopwatch.notes.append(f"no spread control: {error}")
    for series, k, case in (*sorted(timed, key=lambda item: item[2].order), (plain, min(aligned), repeat)):
        if case.best_ms is not None:
            emit_point(run, case, series.point(k, case))
    return stopwatch.result(list(aligned.values()), control={"m": rows, "n": columns}, **plain.facts(aligned))


def control_shape(m: int, n: int) -> tuple[int, int]:
    """
    Return the output shape of the spread control: as many blocks, `CONTROL_ROWS` of them on each column of x.

    Notes
    -----
    Blocks that read the same column of x and run within a cache's reach of each other fall in step: the one behind
    finds in the cache what the one ahead has fetched, catches up, and shares it. With 256 rows they start 1/256 of k
    apart and do so; with 8 they stay apart. On an H200, whose cache holds 60 MiB, the rate fell half way to DRAM's at
    141 MiB with 256 rows and between 63 and 71 MiB with 8 (docs/gpu-results.md).
    """
    return (CONTROL_ROWS, m // CONTROL_ROWS * n) if m % CONTROL_ROWS == 0 else (m, n)


def control_extents(ks: Sequence[int], factor: float) -> list[int]:
    """Return the extents at which the control has about the distinct bytes that the plain plan has at `ks`."""
    steps = {max(1, int(k * factor / UNTILED_K_STEP)) for k in ks}
    return [UNTILED_K_STEP * step for step in sorted(steps)]


class _Series:
    """The points of one output shape, by phase."""

    def __init__(self, run: SweepRun, stopwatch: Stopwatch, workload: Workload, m: int, n: int) -> None:
        self._run = run
        self._stopwatch = stopwatch
        self._workload = workload
        self._m = m
        self._n = n

    def grid(self, ks: Sequence[int], phase: Phase) -> dict[int, Case]:
        """Verify and time the asked extents."""
        return self._time(ks, phase, "grid")

    def refine(self, cases: dict[int, Case], phase: Phase) -> None:
        """Add points between the two sides of a split, if time allows."""
        by_k = {k: self.point(k, case) for k, case in cases.items() if case.best_ms is not None}
        fit = fit_capacity(list(by_k.values()), self._run.constants.get("model_peak_memory_bandwidth"))
        if not isinstance(fit, Transition) or not fit.monotone:
            return
        low = next(k for k, point in by_k.items() if point.working_set == fit.cached_ws)
        high = next(k for k, point in by_k.items() if point.working_set == fit.spilled_ws)
        ks = refined_extents(low, high)
        samples = 2 * (self._run.parameters["repeats"] + 2)
        cost_s = len(ks) * samples * by_k[high].ms / 1e3
        if cost_s > REFINING_SHARE * self._run.left_s:
            self._stopwatch.notes.append(f"{phase}: no points between k={low} and k={high}, as the time limit is near")
            return
        cases.update(self._time(ks, phase, "refine"))

    def point(self, k: int, case: Case) -> WorkingSetPoint:
        """Return the point of a timed case."""
        facts, traffic = case.kernel.facts, self._traffic(k, case)
        return WorkingSetPoint(
            k=k,
            loops=(k, self._m, self._n),
            working_set=traffic.working_set,
            requested=traffic.requested,
            distinct=traffic.distinct,
            ms=case.best_ms or 0.0,
            rank_ms=rank_ms(facts, self._run.constants, requested=traffic.requested, working_set=traffic.working_set),
            bound_ms=bound_ms(facts, self._run.constants),
        )

    def facts(self, cases: dict[int, Case]) -> dict[str, Any]:
        """Return the launch shape that the byte charges follow from."""
        facts = next(iter(cases.values())).kernel.facts
        shape = {"blocks": facts.blocks, "threads": facts.threads, "resident_blocks": facts.resident_blocks}
        return {"m": self._m, "n": self._n, **shape, "resources": dict(facts.resources)}

    def _time(self, ks: Sequence[int], phase: Phase, role: str) -> dict[int, Case]:
        cases = {k: self._case(k, phase, role) for k in ks}
        self._stopwatch.passes(self._stopwatch.add(cases.values()))
        return cases

    def _case(self, k: int, phase: Phase, role: str) -> Case:
        with self._run.point_limit():
            kernel = self._workload.prepare(UntiledKernel(self._m, self._n, k, phase))
        return Case(kernel, f"working_set_{phase}", f"k={k}", role, phase)

    def _traffic(self, k: int, case: Case) -> UntiledTraffic:
        facts = case.kernel.facts
        return untiled_traffic(self._m, self._n, k, resident_blocks=facts.resident_blocks, bx=facts.threads)


def refined_extents(low: int, high: int) -> list[int]:
    """
    Return extents strictly between two, about `REFINED_RATIO` apart, on the kernel's reduction step.

    Notes
    -----
    The ratio is evened out, so that every interval is the same and none is wider than `REFINED_RATIO` but for rounding.
    """
    intervals = math.ceil(math.log(high / low) / math.log(REFINED_RATIO))
    raw = (low * (high / low) ** (step / intervals) for step in range(1, intervals))
    rounded = {UNTILED_K_STEP * round(k / UNTILED_K_STEP) for k in raw}
    return sorted(k for k in rounded if low < k < high)
