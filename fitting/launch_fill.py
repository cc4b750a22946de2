"""The launch-fill fit: at how many threads a multiprocessor is saturated.

Symbols: P multiprocessors (given), t threads that saturate one (fitted); a launch's fill is `cost_model.context_fill`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from fitting._checks import checked_count, is_count, is_positive
from fitting._least_squares import Proportion, fit_proportion
from fitting.cost_model import FillForm, effective_ops, launch_fill
from fitting.issue_rate import is_launchable
from fitting.points import LaunchPoint

DEFAULT_FILL_CANDIDATES = (
    *(32, 64, 96, 128, 160, 192, 224, 256, 320, 384),
    *(448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048),
)
"""Warp multiples up to the 2048 threads a multiprocessor of today's GPUs holds, in steps of an eighth to a third."""

DEFAULT_STARVED = 0.125
FULL = 0.9
"""Launch fill from which a point counts as full."""

LEAST_PARTIAL = 2

Series = Mapping[str, Sequence[LaunchPoint]]
"""Geometry -> its points, the lead geometry first."""


@dataclass(frozen=True)
class FillFit:
    """The saturation that a launch sweep shows.

    Parameters
    ----------
    cores : int
        The P the fit was given: `model_multiprocessors`.
    saturation : int
        The fitted t: `model_fill_threads`.
    rate : float
        Scalar operations/s of a full device in the lead geometry.
    max_residual : float
        Largest absolute relative residual over the fitted points.
    partial_points : int
        Points below 0.9 fill under the fitted t.
    points, starved_points : int
        Points fitted; points left out below `starved` of their geometry's best throughput.
    raw_rate, raw_residual : float or None
        The same with every fill 1: what a fit blind to the launch reads (lead's rate, worst residual of all).
    uncapped : (int, float) or None
        Best t and its largest residual under the uncapped form.
    tied_candidates : tuple of int
        The candidates that fit equally well, smallest first; more than one means t is only bounded.
    """

    cores: int
    saturation: int
    rate: float
    max_residual: float
    partial_points: int
    points: int
    starved_points: int
    raw_rate: float | None
    raw_residual: float | None
    uncapped: tuple[int, float] | None
    tied_candidates: tuple[int, ...]


@dataclass(frozen=True)
class FillUnfittable:
    """Why no saturation is identified."""

    reason: str


FillOutcome = FillFit | FillUnfittable


@dataclass(frozen=True)
class GeometryFill:
    """How many fitted points of a geometry are full (0.9 fill or more) and partial under a t."""

    geometry: str
    full: int
    partial: int

    @property
    def identifying(self) -> bool:
        """The geometry's own points both reach full fill and fall below it, so its rate can't absorb t."""
        return self.full > 0 and self.partial > 0


@dataclass(frozen=True)
class _Score:
    """One candidate's fit: the lines by geometry, and over all points the squared and the largest residual."""

    candidate: int
    lines: Mapping[str, Proportion]
    sse: float
    max_residual: float


def fit_fill(
    points: Iterable[LaunchPoint],
    *,
    multiprocessors: int,
    candidates: Sequence[int] = DEFAULT_FILL_CANDIDATES,
    starved: float = DEFAULT_STARVED,
) -> FillOutcome:
    """Fit the saturation t of a device with P multiprocessors.

    Parameters
    ----------
    points : iterable of LaunchPoint
        Points of one or more geometries. Points without a finite time above zero and positive counts are dropped.
    multiprocessors : int
        P.
    candidates : sequence of int
        The t tried, in threads.
    starved : float
        In [0, 1): points below this part of their geometry's best throughput are left out. A few warps with no latency
        hidden sit on a regime that fill does not model, and fitting them inflates t.

    Returns
    -------
    FillFit
        The candidate with the smallest summed squared relative residuals; of tied ones the smallest.
    FillUnfittable
        Tile-MMA work, too few points, no finite fit, fewer than two points below 0.9 fill under the best t, or no
        geometry with points on both sides of it.

    Raises
    ------
    ValueError
        When P or a candidate is not a positive integer, there is no candidate, or `starved` is not in [0, 1).

    Notes
    -----
    For each t and each geometry, time = effective_ops / rate by least squares of the relative residuals: by geometry,
    as a wider tile reuses more and runs at its own rate while t is the device's; relative, as times span orders of
    magnitude; through the origin, as the sweep holds the operations fixed and an intercept would trade against the
    rate. Tied: SSE <= best (1 + 1e-9) + points x 1e-18.

    References
    ----------
    calibrate-module.txt, "Launch-fill calibration".
    """
    tried = _checked_arguments(multiprocessors, candidates, starved)
    given = list(points)
    if any(context.mma_ops for point in given for context in point.contexts):
        return FillUnfittable("a point has tile-MMA work, which the scalar fill does not price")
    series, starved_points = admitted_series(given, starved)
    count = sum(map(len, series.values()))
    if count < 2:
        return FillUnfittable(f"too few points: {count} timed and not starved, two are needed")
    tied = _tied_best(series, multiprocessors, tried, "capped")
    if not tied:
        return FillUnfittable("no finite fit under any candidate")
    best = tied[0]
    fills = geometry_fills(series, multiprocessors=multiprocessors, fill_threads=best.candidate)
    partial = sum(fill.partial for fill in fills)
    if partial < LEAST_PARTIAL:
        return FillUnfittable(
            f"the sweep never leaves full fill: {partial} of {count} points below {FULL} fill "
            f"under the best t of {best.candidate}, two are needed"
        )
    if not any(fill.identifying for fill in fills):
        return FillUnfittable(
            f"no geometry has points on both sides of {FULL} fill under the best t of {best.candidate}, "
            "so its rate would absorb any saturation"
        )
    lead = next(iter(series))
    rate = 1e3 / best.lines[lead].slope
    raw = _score({name: _work(members) for name, members in series.items()}, series, 0)
    uncapped = _tied_best(series, multiprocessors, tried, "uncapped")
    return FillFit(
        cores=int(multiprocessors),
        saturation=best.candidate,
        rate=rate,
        max_residual=best.max_residual,
        partial_points=partial,
        points=count,
        starved_points=starved_points,
        raw_rate=1e3 / raw.lines[lead].slope if raw else None,
        raw_residual=raw.max_residual if raw else None,
        uncapped=(uncapped[0].candidate, uncapped[0].max_residual) if uncapped else None,
        tied_candidates=tuple(score.candidate for score in tied),
    )


def admitted_series(points: Iterable[LaunchPoint], starved: float = DEFAULT_STARVED) -> tuple[Series, int]:
    """Return the valid, not starved points by geometry, and how many were starved."""
    valid: dict[str, list[LaunchPoint]] = {}
    for point in points:
        if _is_valid(point):
            valid.setdefault(point.geometry, []).append(point)
    series = {}
    for geometry, members in valid.items():
        least = starved * max(_throughput(point) for point in members)
        series[geometry] = [point for point in members if _throughput(point) >= least]
    return series, sum(len(valid[geometry]) - len(series[geometry]) for geometry in valid)


def geometry_fills(series: Series, *, multiprocessors: int, fill_threads: int) -> list[GeometryFill]:
    """Count each geometry's full and partial points under P and t."""
    counts = []
    for geometry, members in series.items():
        full = sum(
            launch_fill(point.contexts, multiprocessors=multiprocessors, fill_threads=fill_threads) >= FULL
            for point in members
        )
        counts.append(GeometryFill(geometry, full, len(members) - full))
    return counts


def lead_line(points: Iterable[LaunchPoint], fit: FillFit, starved: float = DEFAULT_STARVED) -> Proportion | None:
    """Return the lead geometry's line behind a fit: milliseconds on effective operations, with its standard error."""
    series, _ = admitted_series(points, starved)
    lead = next(iter(series.values()))
    return fit_proportion(_effective(lead, fit.cores, fit.saturation, "capped"), [point.ms for point in lead])


def _checked_arguments(multiprocessors: int, candidates: Sequence[int], starved: float) -> list[int]:
    """Return the candidates without repeats, smallest first, or raise ValueError for a nonsense argument."""
    checked_count("multiprocessors", multiprocessors)
    tried = sorted({checked_count("a candidate", candidate) for candidate in candidates})
    if not tried:
        raise ValueError("candidates must hold at least one saturation to try")
    if not 0 <= starved < 1:
        raise ValueError(f"starved must be at least 0 and below 1, got {starved!r}")
    return tried


def _tied_best(series: Series, multiprocessors: int, candidates: Sequence[int], form: FillForm) -> list[_Score]:
    """Return the scores tied for the best, smallest candidate first; empty when none is finite."""
    scores = []
    for candidate in candidates:
        work = {name: _effective(members, multiprocessors, candidate, form) for name, members in series.items()}
        score = _score(work, series, candidate)
        if score:
            scores.append(score)
    count = sum(map(len, series.values()))
    limit = min((score.sse for score in scores), default=0.0) * (1 + 1e-9) + count * 1e-18
    return [score for score in scores if score.sse <= limit]


def _score(work: Mapping[str, Sequence[float]], series: Series, candidate: int) -> _Score | None:
    lines = {}
    for geometry, members in series.items():
        line = fit_proportion(work[geometry], [point.ms for point in members])
        if line is None or not is_positive(1e3 / line.slope):
            return None
        lines[geometry] = line
    return _Score(
        candidate,
        lines,
        fsum(line.sse for line in lines.values()),
        max(line.max_residual for line in lines.values()),
    )


def _effective(points: Sequence[LaunchPoint], multiprocessors: int, fill_threads: int, form: FillForm) -> list[float]:
    return [
        effective_ops(point.contexts, multiprocessors=multiprocessors, fill_threads=fill_threads, form=form)
        for point in points
    ]


def _work(points: Sequence[LaunchPoint]) -> list[float]:
    return [float(_scalar_ops(point)) for point in points]


def _scalar_ops(point: LaunchPoint) -> int:
    return sum(context.scalar_ops for context in point.contexts)


def _throughput(point: LaunchPoint) -> float:
    return _scalar_ops(point) / point.ms


def _is_valid(point: LaunchPoint) -> bool:
    return (
        is_positive(point.ms)
        and all(map(is_launchable, point.contexts))
        and is_count(_scalar_ops(point))
        and is_positive(_throughput(point))
    )
