"""The issue-rate fit: the slope of time against scalar operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fitting._checks import is_count, is_positive
from fitting._least_squares import Line, fit_line
from fitting.cost_model import FillModel, launch_fill
from fitting.points import IssuePoint, LaunchContext


@dataclass(frozen=True)
class IssueFit:
    """The fitted line `time = latency + ops / rate`.

    Parameters
    ----------
    rate : float
        Scalar operations/s: the fitted `model_issue_rate`.
    latency_ms : float
        Intercept, milliseconds: time not proportional to the operations. The score does not price it.
    max_residual : float
        Largest absolute relative residual (predicted - measured) / measured, a fraction.
    points : int
        Points fitted.
    """

    rate: float
    latency_ms: float
    max_residual: float
    points: int


@dataclass(frozen=True)
class IssueUnfittable:
    """Why no line fits."""

    reason: str


IssueRateFit = IssueFit | IssueUnfittable


def fit_issue_rate(points: Iterable[IssuePoint], fill: FillModel | None = None) -> IssueRateFit:
    """Fit the effective issue rate of an issue sweep.

    Parameters
    ----------
    points : iterable of IssuePoint
        Points without a finite time above zero and positive scalar operations are dropped.
    fill : FillModel or None
        With it, each point's operations are divided by its launch fill: the rate of a full device.

    Returns
    -------
    IssueFit
        A rising line.
    IssueUnfittable
        Fewer than two valid points, one operation count only, or times that do not grow with the operations.

    Notes
    -----
    Ordinary least squares of time on operations; rate = 1 / slope.

    References
    ----------
    calibrate-module.txt, "Issue-rate calibration".
    """
    work, times = timed_work(points, fill)
    if len(work) < 2:
        return IssueUnfittable(f"too few points: {len(work)} timed with operations, two are needed")
    if min(work) == max(work):
        return IssueUnfittable("no growth: every point has the same operations, so they give no slope")
    line = fit_line(work, times)
    if line is None:
        return IssueUnfittable("no growth: the times do not rise with the operations")
    residual = max(abs(line.intercept + line.slope * ops - ms) / ms for ops, ms in zip(work, times, strict=True))
    rate = 1e3 / line.slope
    if not is_positive(rate) or not residual < float("inf"):
        return IssueUnfittable("no finite fit: the times or operations leave a float's range")
    return IssueFit(rate, line.intercept, residual, len(work))


def issue_line(points: Iterable[IssuePoint], fill: FillModel | None = None) -> Line | None:
    """Return the line behind `fit_issue_rate`: milliseconds on operations, with the slope's standard error."""
    return fit_line(*timed_work(points, fill))


def timed_work(points: Iterable[IssuePoint], fill: FillModel | None) -> tuple[list[float], list[float]]:
    """Return the operations, divided by the launch fill if there is a model, and the times of the valid points."""
    valid = [
        point
        for point in points
        if is_positive(point.ms)
        and is_count(point.scalar_ops)
        and (fill is None or all(map(is_launchable, point.contexts)))
    ]
    return [point.scalar_ops / _filled(point, fill) for point in valid], [point.ms for point in valid]


def is_launchable(context: LaunchContext) -> bool:
    """Tell whether a context has positive blocks and threads and no negative operations."""
    return (
        is_count(context.blocks)
        and is_count(context.threads)
        and (context.scalar_ops == 0 or is_count(context.scalar_ops))
    )


def _filled(point: IssuePoint, fill: FillModel | None) -> float:
    if fill is None:
        return 1.0
    return launch_fill(point.contexts, multiprocessors=fill.multiprocessors, fill_threads=fill.fill_threads)
