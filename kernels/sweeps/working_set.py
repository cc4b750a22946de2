"""The working-set sweep: the untiled contraction on both sides of the cache's capacity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fitting import Transition, UntiledTraffic, WorkingSetPoint, fit_capacity, untiled_traffic
from kernels.backends.base import ContractionProblem, Phase, UntiledKernel, Workload
from kernels.errors import UnsupportedError
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
    The plain plan (`aligned`: all blocks start at k = 0) is what is served. Where the device can, a second series
    starts each block at its own phase (`spread`), so that the blocks' operands are live at once: the control which
    shows the physical cache.

    References
    ----------
    calibrate-module.txt, `working_set`, `fit_capacity`.
    """
    m, n, ks = run.parameters["m"], run.parameters["n"], run.parameters["ks"]
    stopwatch = Stopwatch(run, repeats_policy(run.parameters["repeats"]))
    with run.device.open_workload(ContractionProblem(m, n, max(ks))) as workload:
        sweep = _Series(run, stopwatch, workload, m, n)
        aligned = sweep.grid(ks, "aligned")
        require_points(stopwatch, list(aligned.values()), "working_set")
        sweep.refine(aligned, "aligned")
        try:
            spread = sweep.grid(ks, "spread")
        except UnsupportedError as error:
            spread = {}
            stopwatch.notes.append(f"no spread control: {error}")
        sweep.refine(spread, "spread")
        repeat = stopwatch.repeat(aligned[min(aligned)])
    timed = sorted((case.order, k, case) for series in (aligned, spread) for k, case in series.items())
    for _, k, case in (*timed, (0, min(aligned), repeat)):
        if case.best_ms is not None:
            emit_point(run, case, sweep.point(k, case))
    return stopwatch.result(list(aligned.values()), **sweep.facts(aligned))


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
