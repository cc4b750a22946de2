"""Which constants a run serves, with their evidence, and why the others are absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from statistics import stdev

from fitting._checks import is_positive
from fitting.calibration import (
    Fit,
    Measured,
    Measurements,
    backend_envelope,
    fit_records,
    grid_points,
    has_stream_rows,
    is_servable_fill,
)
from fitting.capacity import (
    AllCached,
    AllSpilled,
    CapacityFit,
    NoTransition,
    TooFewPoints,
    Transition,
    cached_rates,
    rated_points,
)
from fitting.constants import CONSTANTS
from fitting.cost_model import FillModel
from fitting.envelope import Witnessed, bytes_rate, flops_rate, leading_row
from fitting.issue_rate import IssueFit, issue_line
from fitting.launch_fill import FillFit, admitted_series, geometry_fills, lead_line
from fitting.points import WorkingSetPoint
from fitting.rows import CalibrationRow
from fitting.served import Constant, ConstantValue, ServedOutcome, absent_constant, rate_spread, served_constant

LEAST_CACHE_CONTRAST = 1.2
"""Fastest requested rate over the DRAM rate below which the kernel is not limited by memory in cache."""

LARGE_RESIDUAL = 0.5
"""Relative error of a fitted line from which its rate is called into question: half as much again, or as little."""

_MEDIAN_ERROR = 1.2533141373155003
"""sqrt(pi / 2): the standard error of a median over that of a mean, for many normal readings."""

_CAPACITY_REASONS: dict[type[CapacityFit], str] = {
    AllCached: "all_cached",
    AllSpilled: "all_spilled",
    NoTransition: "no_transition",
    TooFewPoints: "too_few_points",
}


def constants_of(fits: Iterable[Fit], measurements: Measurements) -> dict[str, Constant]:
    """Read the constants off a run's fits.

    Parameters
    ----------
    fits : iterable of Fit
        What `fit_calibration` returned for these measurements.
    measurements : Measurements
        The records that were fitted, for the evidence.

    Returns
    -------
    dict of str to ConstantValue or Absent
        In display order; only names whose group this run measured: memory by a stream sweep, compute by a stream
        sweep or the `fma` kernel, cache by a working-set sweep, issue by an issue or a launch sweep.

    Notes
    -----
    A constant is left out rather than served doubtful where it would be unsound: a compute peak without a compute-bound
    row understates it, a capacity below the contrast of DRAM and cache is one of the kernel, a t that one full reading
    decides is luck.
    """
    by_kind = {(fit.kind, fit.phase): fit for fit in fits}
    constants: list[Constant] = []
    envelope = by_kind.get(("envelope", None))
    if envelope:
        constants += _peaks(envelope, measurements)
    capacity, grid = by_kind.get(("capacity", "aligned")), by_kind.get(("cache_rate", "aligned"))
    if capacity:
        constants += _cache(capacity, grid, measurements)
    issue, fill = by_kind.get(("issue_rate", None)), by_kind.get(("fill", None))
    if issue or fill:
        constants += _issue(issue, fill, measurements)
    found = {constant.name: constant for constant in constants}
    return {name: found[name] for name in CONSTANTS if name in found}


def _peaks(fit: Fit, measurements: Measurements) -> list[Constant]:
    envelope = backend_envelope(fit)
    streamed = has_stream_rows(measurements)
    compute_bound = any(row.routine == "fma" and flops_rate(row) is not None for row in fit_records(measurements.rows))
    constants: list[Constant] = []
    if streamed:
        name = "model_peak_memory_bandwidth"
        peak = envelope.peak_memory_bandwidth if envelope else None
        constants.append(
            _peak(name, peak, fit, measurements, bytes_rate) or absent_constant(name, "no_exact_rows", envelope)
        )
    if streamed or compute_bound:
        name = "model_peak_flops"
        peak = envelope.peak_flops if envelope and compute_bound else None
        constants.append(
            _peak(name, peak, fit, measurements, flops_rate) or absent_constant(name, "no_compute_bound_rows", envelope)
        )
    return constants


def _peak(
    name: str,
    peak: Witnessed | None,
    fit: Fit,
    measurements: Measurements,
    rate_of: Callable[[CalibrationRow], float | None],
) -> ConstantValue | None:
    """Return a peak with the rates of its witness's windows as spread."""
    envelope = backend_envelope(fit)
    if peak is None or envelope is None:
        return None
    value, witness = peak
    windows = _witness_windows(measurements.rows, envelope.backend, rate_of)
    best = min(windows, default=0.0)
    quality = {
        "spread": [value * (best / max(windows)), value] if len(windows) > 1 else None,
        "witness": witness,
        "window_ms": list(windows),
        "rows": envelope.rows,
        "fission_slack": envelope.fission_slack[0] if envelope.fission_slack else None,
    }
    warnings = [f"{envelope.violations} rows beat their recorded bound"] if envelope.violations else []
    return served_constant(name, value, fit, envelope, quality, warnings=warnings)


def _witness_windows(
    rows: Iterable[Measured[CalibrationRow]], backend: str, rate_of: Callable[[CalibrationRow], float | None]
) -> tuple[float, ...]:
    own = [item for item in rows if item.record.backend == backend and item.role != "repeat"]
    lead = leading_row([item.record for item in own], rate_of)
    windows = next((item.window_ms for item in own if lead and item.record is lead[1]), ())
    return tuple(filter(is_positive, windows))


def _cache(fit: Fit, grid: Fit | None, measurements: Measurements) -> list[Constant]:
    names = ("model_cache_capacity", "model_cache_bandwidth")
    outcome = _capacity_outcome(fit)
    points = fit_records(measurements.working_set, "aligned")
    dram_rate = fit.inputs.get("dram_rate")
    fastest = max((rate for rate, _ in rated_points(points)), default=0.0)
    if not isinstance(outcome, Transition | AllCached):
        return [absent_constant(name, _CAPACITY_REASONS[type(outcome)], outcome) for name in names]
    grid_rate = getattr(grid.outcome, "cache_rate", fastest) if grid else fastest
    if dram_rate is not None and min(fastest, grid_rate) < LEAST_CACHE_CONTRAST * dram_rate:
        return [absent_constant(name, "low_contrast", outcome) for name in names]
    return [_capacity(fit, outcome, points), _cache_bandwidth(grid, measurements)]


def _capacity_outcome(fit: Fit | None) -> CapacityFit:
    outcome = fit.outcome if fit else None
    return outcome if isinstance(outcome, CapacityFit) else TooFewPoints()


def _capacity(fit: Fit, outcome: Transition | AllCached, points: Sequence[WorkingSetPoint]) -> Constant:
    if isinstance(outcome, AllCached):
        return absent_constant("model_cache_capacity", "all_cached", outcome)
    ends = sorted((outcome.cached_ws, outcome.spilled_ws))
    quality = {
        "spread": ends,
        "distinct_bytes": [max(p.distinct for p in points if p.working_set == end) for end in ends],
        "monotone": outcome.monotone,
        "points": len(rated_points(points)),
        "dram_rate": fit.inputs.get("dram_rate"),
    }
    doubtful = () if outcome.monotone else ("the rates do not split cleanly by working set: the capacity is a guess",)
    return served_constant("model_cache_capacity", outcome.capacity, fit, outcome, quality, doubtful=doubtful)


def _cache_bandwidth(grid: Fit | None, measurements: Measurements) -> Constant:
    name = "model_cache_bandwidth"
    outcome = _capacity_outcome(grid)
    if grid is None or not isinstance(outcome, Transition | AllCached):
        return absent_constant(name, _CAPACITY_REASONS[type(outcome)], outcome)
    dram_rate = grid.inputs.get("dram_rate")
    points = fit_records(grid_points(measurements.working_set), "aligned")
    rates = cached_rates(points, dram_rate)
    contrast = outcome.cache_rate / dram_rate if dram_rate else 0.0
    error = _MEDIAN_ERROR * stdev(rates) / sqrt(len(rates)) if len(rates) > 1 else None
    quality = {
        **rate_spread(outcome.cache_rate, error),
        "points": len(rates),
        "dram_rate": dram_rate,
        "contrast": contrast if is_positive(contrast) else None,
    }
    clean = not isinstance(outcome, Transition) or outcome.monotone
    doubtful = () if clean else ("the rates do not split cleanly by working set",)
    return served_constant(name, outcome.cache_rate, grid, outcome, quality, doubtful=doubtful)


def _issue(issue: Fit | None, fill: Fit | None, measurements: Measurements) -> list[Constant]:
    launch = _servable_fill(fill, measurements)
    rate = _issue_rate(issue, measurements)
    if rate is None and fill and launch:
        rate = _fill_rate(fill, launch, measurements)
    if rate is None:
        source = issue or fill
        rate = absent_constant("model_issue_rate", *_unfitted(source))
    names = ("model_multiprocessors", "model_fill_threads")
    if fill is None or launch is None:
        return [rate, *(absent_constant(name, *_unfitted(fill)) for name in names)]
    return [rate, *_fill_constants(fill, launch, measurements)]


def _servable_fill(fill: Fit | None, measurements: Measurements) -> FillFit | None:
    outcome = fill.outcome if fill else None
    if isinstance(outcome, FillFit) and is_servable_fill(outcome, fit_records(measurements.launch)):
        return outcome
    return None


def _unfitted(fit: Fit | None) -> tuple[str, ServedOutcome | None]:
    """Return why an issue or fill fit serves nothing, and its outcome."""
    if fit is None or isinstance(fit.outcome, list):
        return "not_measured", None
    reason = getattr(fit.outcome, "reason", None)
    return (f"unfittable: {reason}" if reason else "few_full_points"), fit.outcome


def _issue_rate(fit: Fit | None, measurements: Measurements) -> Constant | None:
    if fit is None or not isinstance(fit.outcome, IssueFit):
        return None
    outcome, inputs = fit.outcome, fit.inputs
    fitted_under = inputs["multiprocessors"], inputs["fill_threads"]
    model = None if None in fitted_under else FillModel(*fitted_under)
    line = issue_line(fit_records(measurements.issue), model)
    error = None if line is None or line.slope_error is None else outcome.rate * line.slope_error / line.slope
    quality = {
        **rate_spread(outcome.rate, error),
        "max_residual": outcome.max_residual,
        "latency_ms": outcome.latency_ms,
        "points": outcome.points,
        "fill": inputs["fill"],
    }
    warnings = ["the fitted latency is negative"] if outcome.latency_ms < 0 else []
    if outcome.max_residual > LARGE_RESIDUAL:
        warnings.append(f"the line misses a point by {outcome.max_residual:.0%}: the rate changes over the sweep")
    return served_constant("model_issue_rate", outcome.rate, fit, outcome, quality, warnings=warnings)


def _fill_rate(fit: Fit, outcome: FillFit, measurements: Measurements) -> Constant:
    line = lead_line(fit_records(measurements.launch), outcome)
    error = None if line is None or line.slope_error is None else outcome.rate * line.slope_error / line.slope
    quality = {
        **rate_spread(outcome.rate, error),
        "max_residual": outcome.max_residual,
        "points": outcome.points,
        "fill": "this_run",
    }
    return served_constant("model_issue_rate", outcome.rate, fit, outcome, quality)


def _fill_constants(fit: Fit, outcome: FillFit, measurements: Measurements) -> list[Constant]:
    series, _ = admitted_series(fit_records(measurements.launch))
    fills = geometry_fills(series, multiprocessors=outcome.cores, fill_threads=outcome.saturation)
    tied = outcome.tied_candidates
    quality = {
        "spread": [tied[0], tied[-1]],
        "tied_candidates": list(tied),
        "max_residual": outcome.max_residual,
        "points": outcome.points,
        "partial_points": outcome.partial_points,
        "full_points": {item.geometry: item.full for item in fills if item.identifying},
        "starved_points": outcome.starved_points,
        "raw_residual": outcome.raw_residual,
        "uncapped": list(outcome.uncapped) if outcome.uncapped else None,
    }
    bounded = [f"t is only bounded: {tied[0]} to {tied[-1]} threads fit equally well"] if len(tied) > 1 else []
    return [
        served_constant(
            "model_multiprocessors", outcome.cores, fit, outcome, {"spread": None, "points": outcome.points}
        ),
        served_constant("model_fill_threads", outcome.saturation, fit, outcome, quality, warnings=bounded),
    ]
