"""The STREAM sweep: copy, scale, add, triad; every timed candidate is a calibration row."""

from __future__ import annotations

from typing import Any, get_args

from kernels.backends.base import StreamCandidate, StreamKernel, StreamName, StreamProblem, Workload
from kernels.errors import NoExactRowsError
from kernels.events import RowMeasured, SweepResult
from kernels.sweeps.rows import calibration_row
from kernels.sweeps.run import Case, Stopwatch, SweepRun
from kernels.timing import stream_policy

NAMES: tuple[StreamName, ...] = get_args(StreamName)


def sweep_stream(run: SweepRun) -> SweepResult:
    """
    Time every candidate of the four STREAM kernels over `elems` float32 elements an array.

    Raises
    ------
    NoExactRowsError
        When no candidate divides `elems`, after its approximate rows were emitted.
    ContendedError
        When no candidate whose bytes are exact has an admitted window.
    MeasureError
        As the device says: out of memory, compile, verification, timeout.

    Notes
    -----
    Bytes are 2, 2, 3 and 3 arrays, operations 0, 1, 1 and 2 an element, both exact where no bounds guard is needed.

    References
    ----------
    calibration-rows.md, "Stream kernels and why their rows count", "Timing that may enter a row".
    """
    elems = run.parameters["elems"]
    stopwatch = Stopwatch(run, stream_policy(run.parameters["repeats"]))
    with run.device.open_workload(StreamProblem(elems)) as workload:
        cases = stopwatch.add(
            _case(run, workload, name, elems, candidate)
            for name in NAMES
            for candidate in run.device.stream_candidates(elems)
        )
        stopwatch.passes(cases)
        repeat = stopwatch.repeat(cases[0])
    for case in (*cases, repeat):
        _emit(run, case, elems)
    _check_legs(stopwatch, cases, elems)
    winners = [winner for name in NAMES if (winner := _winner(cases, name)) is not None]
    return stopwatch.result(winners, best={case.routine: _best(case) for case in winners})


def _case(run: SweepRun, workload: Workload, name: StreamName, elems: int, candidate: StreamCandidate) -> Case:
    with run.point_limit():
        kernel = workload.prepare(StreamKernel(name, elems, candidate))
    return Case(kernel, f"stream_{name}", kernel.facts.label, role="seed")


def _emit(run: SweepRun, case: Case, elems: int) -> None:
    if case.best_ms is None:
        return
    row = calibration_row(
        run.device.description.backend,
        case.routine,
        case.label,
        case.kernel.facts,
        case.best_ms,
        run.constants,
        extents=f"elems={elems}",
    )
    run.emit(RowMeasured(row, case.reading()))


def _check_legs(stopwatch: Stopwatch, cases: list[Case], elems: int) -> None:
    exact = [case for case in cases if not case.kernel.facts.bytes_approx]
    if not exact:
        raise NoExactRowsError(
            f"no candidate's blocks divide {elems} elements, so every kernel needs a bounds guard and its bytes are"
            " only an upper bound, which can't set the memory leg; choose a power of two, such as"
            f" {1 << elems.bit_length()}"
        )
    if all(case.best_ms is None for case in exact):
        raise stopwatch.contended("no stream candidate has an admitted reading")


def _winner(cases: list[Case], name: StreamName) -> Case | None:
    timed = [(case.best_ms, case) for case in cases if case.routine == f"stream_{name}" and case.best_ms is not None]
    return min(timed, key=lambda pair: pair[0])[1] if timed else None


def _best(case: Case) -> dict[str, Any]:
    best_ms = case.best_ms or 0.0
    return {"label": case.label, "ms": best_ms, "bytes_per_s": case.kernel.facts.bytes / best_ms * 1e3}
