"""One run's measurements, and every fit they allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fitting.capacity import CapacityFit, fit_capacity
from fitting.cost_model import FillModel
from fitting.envelope import EnvelopeFit, fit_envelope
from fitting.issue_rate import IssueRateFit, fit_issue_rate
from fitting.launch_fill import (
    DEFAULT_FILL_CANDIDATES,
    DEFAULT_STARVED,
    FillFit,
    FillOutcome,
    admitted_series,
    fit_fill,
    geometry_fills,
)
from fitting.points import IssuePoint, LaunchPoint, WorkingSetPoint
from fitting.rows import CalibrationRow

Record = TypeVar("Record", CalibrationRow, WorkingSetPoint, IssuePoint, LaunchPoint)

Outcome = list[EnvelopeFit] | CapacityFit | IssueRateFit | FillOutcome
"""What a fit returns; an envelope is one EnvelopeFit a backend."""

LEAST_FULL_POINTS = 2
"""Full points that an identifying geometry needs before its t is served: one may be a lucky reading."""


@dataclass(frozen=True)
class Measured(Generic[Record]):
    """A record and the facts of its reading that fits and qualities use.

    Parameters
    ----------
    record : CalibrationRow, WorkingSetPoint, IssuePoint or LaunchPoint
        What was measured.
    role : str
        `grid`, `refine`, `repeat`, `seed` or `fma`; a `repeat` watches drift and enters no fit.
    phase : str or None
        `aligned`, `spread`, or None where there is one phase only (counts as aligned).
    window_ms : tuple of float
        The best time of each window, milliseconds.
    """

    record: Record
    role: str = "grid"
    phase: str | None = None
    window_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Measurements:
    """Everything one run measured; `rows` are those of every sweep."""

    rows: tuple[Measured[CalibrationRow], ...] = ()
    working_set: tuple[Measured[WorkingSetPoint], ...] = ()
    issue: tuple[Measured[IssuePoint], ...] = ()
    launch: tuple[Measured[LaunchPoint], ...] = ()


@dataclass(frozen=True)
class Fit:
    """One fit of a run.

    Parameters
    ----------
    kind : str
        `envelope`, `capacity`, `cache_rate` (the capacity fit over grid points alone), `fill` or `issue_rate`.
    sweep : str
        The sweep whose records were fitted.
    phase : str or None
        `aligned` or `spread` for the working-set fits.
    outcome : Outcome
        What the fit returned.
    inputs : dict
        JSON values: the keywords that went in beside the records.
    """

    kind: str
    sweep: str
    phase: str | None
    outcome: Outcome
    inputs: Mapping[str, Any] = field(default_factory=dict)


def fit_calibration(
    measurements: Measurements, *, backend: str, multiprocessors: int, in_force: Mapping[str, float]
) -> list[Fit]:
    """Run every fit that a run's measurements allow.

    Parameters
    ----------
    measurements : Measurements
        Only kinds that have records are fitted.
    backend : str
        The device's backend: whose envelope gives the DRAM rate.
    multiprocessors : int
        The device's P.
    in_force : mapping of str to float
        The constants that were active before the run, unbumped.

    Returns
    -------
    list of Fit
        In the order that lets each use the ones before it: envelope, capacity (aligned, then spread), cache_rate,
        fill, issue_rate.

    Raises
    ------
    ValueError
        When `multiprocessors` is not a positive integer and the launch sweep has records, or a constant in force that
        is used is not a finite number above zero.

    Notes
    -----
    The DRAM rate is this run's peak memory bandwidth, where its stream sweep gave one, else the one in force, else
    None. The issue fit runs under this run's fill if that can be served, else under the active fill, else plain.
    """
    fits: list[Fit] = []
    rows = fit_records(measurements.rows)
    if rows:
        fits.append(Fit("envelope", _row_sweep(measurements), None, fit_envelope(rows), {"backend": backend}))
    dram_rate = _run_bandwidth(measurements, fits) or in_force.get("model_peak_memory_bandwidth")
    for phase in ("aligned", "spread"):
        points = fit_records(measurements.working_set, phase)
        if points:
            outcome = fit_capacity(points, dram_rate)
            fits.append(Fit("capacity", "working_set", phase, outcome, {"dram_rate": dram_rate}))
    grid = fit_records(grid_points(measurements.working_set), "aligned")
    if grid:
        outcome = fit_capacity(grid, dram_rate)
        fits.append(Fit("cache_rate", "working_set", "aligned", outcome, {"dram_rate": dram_rate}))
    fill = _fit_launch(measurements, multiprocessors)
    if fill:
        fits.append(fill)
    if fit_records(measurements.issue):
        fits.append(_fit_issue(measurements, fill, in_force))
    return fits


def fit_records(measured: Iterable[Measured[Record]], phase: str | None = None) -> list[Record]:
    """Return the records that may enter a fit: never a repeat, and of one phase where one is asked for."""
    return [item.record for item in measured if item.role != "repeat" and phase in (None, item.phase or "aligned")]


def grid_points(measured: Iterable[Measured[WorkingSetPoint]]) -> list[Measured[WorkingSetPoint]]:
    """Return the power-of-two grid without the refinement, whose shoulder points would drag the median rate down."""
    return [item for item in measured if item.role == "grid"]


def has_stream_rows(measurements: Measurements) -> bool:
    """Tell whether the stream sweep ran; only its rows may set the memory peak of a device."""
    return any(row.routine.startswith("stream_") for row in fit_records(measurements.rows))


def backend_envelope(fit: Fit) -> EnvelopeFit | None:
    """Return the envelope of the device's own backend."""
    fits = fit.outcome if isinstance(fit.outcome, list) else []
    return next((envelope for envelope in fits if envelope.backend == fit.inputs.get("backend")), None)


def is_servable_fill(fill: FillFit, points: Iterable[LaunchPoint]) -> bool:
    """Tell whether an identifying geometry has the two full points without which t is not served."""
    series, _ = admitted_series(points)
    fills = geometry_fills(series, multiprocessors=fill.cores, fill_threads=fill.saturation)
    return any(item.identifying and item.full >= LEAST_FULL_POINTS for item in fills)


def _row_sweep(measurements: Measurements) -> str:
    """Name the sweep that an envelope belongs to: the one that can set a peak, where there is one."""
    if has_stream_rows(measurements):
        return "stream"
    return "launch" if measurements.launch and not measurements.issue else "issue"


def _run_bandwidth(measurements: Measurements, fits: Iterable[Fit]) -> float | None:
    if not has_stream_rows(measurements):
        return None
    for fit in fits:
        envelope = backend_envelope(fit)
        if envelope and envelope.peak_memory_bandwidth:
            return envelope.peak_memory_bandwidth[0]
    return None


def _fit_launch(measurements: Measurements, multiprocessors: int) -> Fit | None:
    points = fit_records(measurements.launch)
    if not points:
        return None
    inputs = {
        "multiprocessors": multiprocessors,
        "candidates": list(DEFAULT_FILL_CANDIDATES),
        "starved": DEFAULT_STARVED,
    }
    return Fit("fill", "launch", None, fit_fill(points, multiprocessors=multiprocessors), inputs)


def _fit_issue(measurements: Measurements, launch: Fit | None, in_force: Mapping[str, float]) -> Fit:
    source, model = "none", None
    active = (in_force.get("model_multiprocessors"), in_force.get("model_fill_threads"))
    if (
        launch
        and isinstance(launch.outcome, FillFit)
        and is_servable_fill(launch.outcome, fit_records(measurements.launch))
    ):
        source, model = "this_run", FillModel(launch.outcome.cores, launch.outcome.saturation)
    elif active[0] is not None and active[1] is not None:
        source, model = "active", FillModel(round(active[0]), round(active[1]))
    inputs = {
        "fill": source,
        "multiprocessors": model.multiprocessors if model else None,
        "fill_threads": model.fill_threads if model else None,
    }
    return Fit("issue_rate", "issue", None, fit_issue_rate(fit_records(measurements.issue), model), inputs)
