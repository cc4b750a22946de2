"""The capacity fit: where a working-set sweep falls from the cache rate to the DRAM rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isqrt, sqrt

from fitting._checks import checked_positive, is_count, is_positive
from fitting.points import WorkingSetPoint

LEAST_CONTRAST = 2.0
"""Fastest over slowest rate below which a sweep without a DRAM rate can't tell its side of the capacity."""


@dataclass(frozen=True)
class Transition:
    """The sweep crosses the capacity; byte counts in bytes, `cache_rate` in bytes/s.

    Parameters
    ----------
    cached_ws : int
        Largest working set still served at the cache rate.
    spilled_ws : int
        Smallest working set served at the DRAM rate.
    capacity : int
        Their geometric mean: the fitted `model_cache_capacity`.
    monotone : bool
        Every cached point's working set is below every spilled point's; False means the capacity is a guess.
    cache_rate : float
        Median requested rate of the cached points: the fitted `model_cache_bandwidth`.
    """

    cached_ws: int
    spilled_ws: int
    capacity: int
    monotone: bool
    cache_rate: float


@dataclass(frozen=True)
class AllCached:
    """Every point is served at the cache rate: the capacity is at least `largest_ws`, and no more is known."""

    largest_ws: int
    cache_rate: float


@dataclass(frozen=True)
class AllSpilled:
    """Every point is served at the DRAM rate: the capacity is below `smallest_ws`."""

    smallest_ws: int


@dataclass(frozen=True)
class NoTransition:
    """Without a DRAM rate, the fastest and slowest rates differ by `contrast` < 2: no side of the capacity is known."""

    contrast: float


@dataclass(frozen=True)
class TooFewPoints:
    """Fewer than two valid points."""


CapacityFit = Transition | AllCached | AllSpilled | NoTransition | TooFewPoints


def fit_capacity(points: Iterable[WorkingSetPoint], dram_rate: float | None = None) -> CapacityFit:
    """Fit the cache capacity and the cache bandwidth that a working-set sweep implies.

    Parameters
    ----------
    points : iterable of WorkingSetPoint
        One phase of a sweep, in any order. Points without a finite time above zero and positive working set and
        requested bytes are dropped.
    dram_rate : float or None
        Calibrated DRAM bandwidth, bytes/s.

    Returns
    -------
    Transition
        Points on both sides of the threshold.
    AllCached, AllSpilled
        Points on one side only. One kept point is judged too when there is a `dram_rate`.
    NoTransition
        No `dram_rate`, and a contrast below 2.
    TooFewPoints
        Fewer than two valid points.

    Raises
    ------
    ValueError
        When `dram_rate` is not a finite number above zero.

    Notes
    -----
    A point's rate is requested bytes / time. Points with a smaller working set than the fastest one's (of equally
    fast points the smallest) are dropped first: a kernel too short to amortise its launch is slow for a reason that
    is not the cache. Of the rest a point is cached when its rate is at least the geometric mean of the fastest rate
    and `dram_rate`, or without one of the fastest and the slowest. The geometric mean is the middle of two rates
    that differ by a factor.

    References
    ----------
    calibrate-module.txt, "Cache-capacity calibration".
    """
    if dram_rate is not None:
        checked_positive("dram_rate", dram_rate)
    rated = rated_points(points)
    if len(rated) < 2:
        return TooFewPoints()
    kept = kept_points(rated)
    fastest, slowest = max(rate for rate, _ in kept), min(rate for rate, _ in kept)
    if dram_rate is None and fastest / slowest < LEAST_CONTRAST:
        return NoTransition(fastest / slowest)
    threshold = _threshold(kept, dram_rate)
    cached = [(rate, point.working_set) for rate, point in kept if rate >= threshold]
    spilled = [point.working_set for rate, point in kept if rate < threshold]
    if not cached:
        return AllSpilled(min(spilled))
    cached_ws = max(working_set for _, working_set in cached)
    cache_rate = _median([rate for rate, _ in cached])
    if not spilled:
        return AllCached(cached_ws, cache_rate)
    spilled_ws = min(spilled)
    capacity = _integer_geometric_mean(cached_ws, spilled_ws)
    return Transition(cached_ws, spilled_ws, capacity, cached_ws < spilled_ws, cache_rate)


def cached_rates(points: Iterable[WorkingSetPoint], dram_rate: float | None = None) -> list[float]:
    """Return the rates, bytes/s, of the points that `fit_capacity` calls cached; for their spread."""
    rated = rated_points(points)
    kept = kept_points(rated) if rated else []
    return [rate for rate, _ in kept if rate >= _threshold(kept, dram_rate)]


def rated_points(points: Iterable[WorkingSetPoint]) -> list[tuple[float, WorkingSetPoint]]:
    """Return the valid points, each behind its requested rate in bytes/s."""
    valid = [
        point for point in points if is_positive(point.ms) and is_count(point.working_set) and is_count(point.requested)
    ]
    rated = [(point.requested * 1e3 / point.ms, point) for point in valid]
    return [(rate, point) for rate, point in rated if is_positive(rate)]


def kept_points(rated: Sequence[tuple[float, WorkingSetPoint]]) -> list[tuple[float, WorkingSetPoint]]:
    """Drop the points with a smaller working set than the fastest one; `rated` must not be empty."""
    fastest = max(rate for rate, _ in rated)
    smallest = min(point.working_set for rate, point in rated if rate == fastest)
    return [(rate, point) for rate, point in rated if point.working_set >= smallest]


def _threshold(kept: Sequence[tuple[float, WorkingSetPoint]], dram_rate: float | None) -> float:
    """Return the least cached rate: the geometric mean of the fastest rate and of DRAM's, or else the slowest."""
    rates = [rate for rate, _ in kept]
    return _geometric_mean(max(rates), min(rates) if dram_rate is None else dram_rate)


def _geometric_mean(a: float, b: float) -> float:
    """Return sqrt(a b); by parts only where the product leaves a float's range, as the product is exact for a = b."""
    product = a * b
    return sqrt(product) if is_positive(product) else sqrt(a) * sqrt(b)


def _integer_geometric_mean(a: int, b: int) -> int:
    """Return sqrt(a b) rounded to the nearest integer, exactly."""
    root = isqrt(a * b)
    return root + 1 if a * b - root * root > root else root


def _median(values: Iterable[float]) -> float:
    """Return the median; the middle of two as `a + (b - a) / 2`, which can't overflow."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low + (high - low) / 2
