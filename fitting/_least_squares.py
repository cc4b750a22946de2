"""The two least-squares fits, in exact sums so that a fit recomputed elsewhere agrees to the last digit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from fitting._checks import is_positive


@dataclass(frozen=True)
class Line:
    """`y = intercept + slope x`; `slope_error` is the slope's standard error, None with two points."""

    intercept: float
    slope: float
    slope_error: float | None


@dataclass(frozen=True)
class Proportion:
    """`y = slope x`; `sse` and `max_residual` of the relative residuals; `slope_error` None with one point."""

    slope: float
    sse: float
    max_residual: float
    slope_error: float | None


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """Fit `y = intercept + slope x` with the smallest squared residuals, for positive x and y.

    Returns None where no rising line exists: fewer than two points, one x, no growth, or out of a float's range.
    """
    if len(x) < 2 or not all(map(is_positive, [*x, *y])):
        return None
    scale_x, scale_y = max(x), max(y)
    u = [value / scale_x for value in x]
    v = [value / scale_y for value in y]
    mean_u, mean_v = fsum(u) / len(u), fsum(v) / len(v)
    from_mean = [value - mean_u for value in u]
    s_uu = fsum(d * d for d in from_mean)
    if min(u) == max(u) or s_uu == 0:
        return None
    # v is taken from its first value: sum(d) = 0, so nothing changes, and equal times give a slope of exactly zero
    slope = fsum(d * (value - v[0]) for d, value in zip(from_mean, v, strict=True)) / s_uu
    intercept = mean_v - slope * mean_u
    sse = fsum((intercept + slope * a - b) ** 2 for a, b in zip(u, v, strict=True))
    error = sqrt(sse / (len(u) - 2) / s_uu) if len(u) > 2 else None
    back = scale_y / scale_x
    if not is_positive(slope * back):
        return None
    return Line(intercept * scale_y, slope * back, None if error is None else error * back)


def fit_proportion(x: Sequence[float], y: Sequence[float]) -> Proportion | None:
    """Fit `y = slope x` with the smallest squared relative residuals `(slope x - y) / y`, for positive x and y.

    Returns None without points or out of a float's range.

    Notes
    -----
    With z = x / y the residual is `slope z - 1`, so slope = sum(z) / sum(z^2).
    """
    ratios = [a / b for a, b in zip(x, y, strict=True)]
    if not ratios or not all(map(is_positive, ratios)):
        return None
    largest = max(ratios)
    scaled = [ratio / largest for ratio in ratios]
    s_zz = fsum(q * q for q in scaled)
    slope = fsum(scaled) / s_zz
    residuals = [slope * q - 1 for q in scaled]
    sse = fsum(r * r for r in residuals)
    error = sqrt(sse / (len(scaled) - 1) / s_zz) / largest if len(scaled) > 1 else None
    if not is_positive(slope / largest):
        return None
    return Proportion(slope / largest, sse, max(map(abs, residuals)), error)
