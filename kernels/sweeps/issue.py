"""The issue sweep: the blocktiled contraction at the lead geometry over reduction extents, and the FMA kernel."""

from __future__ import annotations

from fitting import IssuePoint
from kernels.backends.base import ContractionProblem, FmaKernel, FmaProblem, PreparedKernel
from kernels.events import SweepResult
from kernels.parameters import LEAD
from kernels.sweeps.contraction import blocktile_case, emit_point, emit_row, require_points
from kernels.sweeps.rows import bound_ms, launch_context, rank_ms
from kernels.sweeps.run import Case, Stopwatch, SweepRun
from kernels.timing import repeats_policy

FMA_STEPS, FMA_STEPS_MOST = 1 << 12, 1 << 23
"""Chains count their steps in float32, exact below 2^24 (`verification.fma_reference`)."""
FMA_LEAST_MS = 10.0
"""The FMA kernel's least time: its rate is read off synced wall time, in which a launch of 10 us is then 0.1 %."""


def sweep_issue(run: SweepRun) -> SweepResult:
    """
    Time the lead geometry at each reduction extent, and the register-only FMA chains.

    Raises
    ------
    ContendedError
        When fewer than two points, or the FMA kernel, have no admitted window.
    MeasureError
        As the device says: out of memory, compile, verification, timeout.

    Notes
    -----
    The points fit the issue rate; the FMA row alone may set the arithmetic peak, which STREAM rows would understate.

    References
    ----------
    calibrate-module.txt, `issue_sweep`, `fit_issue_rate`.
    """
    m, n, ks = run.parameters["m"], run.parameters["n"], run.parameters["ks"]
    stopwatch = Stopwatch(run, repeats_policy(run.parameters["repeats"]))
    with (
        run.device.open_workload(ContractionProblem(m, n, max(ks))) as workload,
        run.device.open_workload(FmaProblem()) as fma_workload,
    ):
        cases = {k: blocktile_case(run, workload, LEAD, m, n, k, routine="issue_contraction") for k in ks}
        points = list(cases.values())
        with run.point_limit():
            steps = FMA_STEPS
            kernel = fma_workload.prepare(FmaKernel(steps))
            while steps < FMA_STEPS_MOST and _least_ms(kernel) < FMA_LEAST_MS:
                steps *= 2
                kernel = fma_workload.prepare(FmaKernel(steps))
        fma = Case(kernel, "fma", kernel.facts.label, role="fma")
        stopwatch.passes(stopwatch.add([*points, fma]))
        repeat = stopwatch.repeat(points[0])
    require_points(stopwatch, points, "issue")
    if fma.best_ms is None:
        raise stopwatch.contended("the fma kernel has no admitted reading")
    for k, case in [*cases.items(), (ks[0], repeat)]:
        if case.best_ms is not None:
            emit_point(run, case, _point(run, k, case, case.best_ms))
        emit_row(run, case)
    emit_row(run, fma)
    resources = {case.label: dict(case.kernel.facts.resources) for case in (points[0], fma)}
    return stopwatch.result([*points, fma], m=m, n=n, geometry=LEAD.label, fma_steps=steps, resources=resources)


def _least_ms(kernel: PreparedKernel) -> float:
    """Return the least of a few times: the first is that of an idle clock."""
    return min(kernel.sample().wall_ms for _ in range(3))


def _point(run: SweepRun, k: int, case: Case, best_ms: float) -> IssuePoint:
    facts = case.kernel.facts
    return IssuePoint(
        k=k,
        scalar_ops=facts.flops,
        mma_ops=0,
        kernels=facts.kernels,
        ms=best_ms,
        rank_ms=rank_ms(facts, run.constants),
        bound_ms=bound_ms(facts, run.constants),
        contexts=(launch_context(facts),),
    )
