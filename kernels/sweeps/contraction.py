"""What the working_set, issue and launch sweeps share: the contraction `dw[o,i] = sum_k dy[k,o] x[k,i]`."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.backends.base import BlocktileKernel, Workload
from kernels.events import Point, PointMeasured, RowMeasured
from kernels.parameters import Geometry
from kernels.sweeps.rows import calibration_row
from kernels.sweeps.run import Case, Stopwatch, SweepRun


def blocktile_case(
    run: SweepRun, workload: Workload, geometry: Geometry, m: int, n: int, k: int, *, routine: str
) -> Case:
    """Prepare the register-blocktiled contraction at a pinned geometry."""
    with run.point_limit():
        kernel = workload.prepare(BlocktileKernel(geometry, m, n, k))
    return Case(kernel, routine, f"{geometry.label},m={m},n={n},k={k}", role="grid")


def emit_row(run: SweepRun, case: Case) -> None:
    """Emit the calibration row of a timed case; a refused one gives none."""
    if case.best_ms is None:
        return
    backend = run.device.description.backend
    facts = case.kernel.facts
    row = calibration_row(backend, case.routine, case.label, facts, case.best_ms, run.constants, extents=case.label)
    run.emit(RowMeasured(row, case.reading()))


def emit_point(run: SweepRun, case: Case, point: Point) -> None:
    """Emit the point of a timed case."""
    run.emit(PointMeasured(point, case.reading()))


def require_points(stopwatch: Stopwatch, cases: Sequence[Case], sweep: str) -> None:
    """
    Raise where a sweep asked for more points than it got readings of, and got fewer than two.

    Raises
    ------
    ContendedError
        With the reasons of the refusals.
    """
    admitted = sum(case.best_ms is not None for case in cases)
    if admitted < min(2, len(cases)):
        raise stopwatch.contended(f"{admitted} of {len(cases)} {sweep} points have an admitted reading")
