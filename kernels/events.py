"""What a running sweep tells its caller, and the JSON form in which a device child says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fitting import (
    CalibrationRow,
    IssuePoint,
    LaunchPoint,
    WorkingSetPoint,
    point_from_json,
    record_to_json,
    row_from_json,
)
from kernels.device import DeviceDescription, Discovery, UnusableBackend
from kernels.parameters import DeviceLimits

Point = WorkingSetPoint | IssuePoint | LaunchPoint


@dataclass(frozen=True)
class SweepRequest:
    """One sweep to measure: `parameters` resolved, `constants` in force (model_* -> value), limits in seconds."""

    device: str
    sweep: str
    parameters: Mapping[str, Any]
    constants: Mapping[str, float] = field(default_factory=dict)
    time_limit_s: float = 900.0
    point_time_limit_s: float = 120.0


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps of this sweep, and what is happening in words."""

    done: int
    total: int
    message: str


@dataclass(frozen=True)
class Reading:
    """How a stored time was measured; JSON values only.

    `role` grid | refine | repeat | seed | fma; `phase` aligned | spread | None; `order` position in the first pass;
    `median_ms`, `spread` (relative interquartile range, None under 4 samples); `windows` a list of dicts:
    best_ms, median_ms, samples, started_at (RFC 3339 UTC), refused (reason or None), conditions before and after.
    """

    role: str
    phase: str | None
    order: int
    repeats_done: int
    median_ms: float
    spread: float | None
    device_ms: float | None
    windows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class RowMeasured:
    """A calibration row and how it was timed."""

    row: CalibrationRow
    reading: Reading


@dataclass(frozen=True)
class PointMeasured:
    """A sweep point and how it was timed."""

    point: Point
    reading: Reading


Event = Progress | RowMeasured | PointMeasured


@dataclass(frozen=True)
class SweepResult:
    """What is known once a sweep is done.

    `doubtful` reasons (empty = good), `notes` in words (skipped geometries, cut repeats, refused candidates),
    `facts` JSON: multiprocessors used, provenance, window conditions summary, best candidates.
    """

    doubtful: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def event_to_json(event: Event) -> dict[str, Any]:
    """Return an event as JSON values: one key, `progress`, `row` or `point`, beside `reading`."""
    if isinstance(event, Progress):
        return {"progress": asdict(event)}
    if isinstance(event, RowMeasured):
        return {"row": record_to_json(event.row), "reading": reading_to_json(event.reading)}
    return {"point": record_to_json(event.point), "reading": reading_to_json(event.reading)}


def event_from_json(sweep: str, message: Mapping[str, Any]) -> Event:
    """Return the event that `event_to_json` wrote; `sweep` tells which point it is."""
    if "progress" in message:
        return Progress(**message["progress"])
    reading = reading_from_json(message["reading"])
    if "row" in message:
        return RowMeasured(row_from_json(message["row"]), reading)
    return PointMeasured(point_from_json(sweep, message["point"]), reading)


def reading_to_json(reading: Reading) -> dict[str, Any]:
    """Return a reading's fields; tuples become lists."""
    return {**asdict(reading), "windows": [dict(window) for window in reading.windows]}


def reading_from_json(message: Mapping[str, Any]) -> Reading:
    """Return the reading that `reading_to_json` wrote."""
    return Reading(**{**message, "windows": tuple(message["windows"])})


def result_to_json(result: SweepResult) -> dict[str, Any]:
    """Return a sweep's result as JSON values."""
    return {"doubtful": list(result.doubtful), "notes": list(result.notes), "facts": dict(result.facts)}


def result_from_json(message: Mapping[str, Any]) -> SweepResult:
    """Return the result that `result_to_json` wrote."""
    return SweepResult(tuple(message["doubtful"]), tuple(message["notes"]), message["facts"])


def request_to_json(request: SweepRequest) -> dict[str, Any]:
    """Return a request as JSON values."""
    return {**asdict(request), "parameters": dict(request.parameters), "constants": dict(request.constants)}


def request_from_json(message: Mapping[str, Any]) -> SweepRequest:
    """Return the request that `request_to_json` wrote."""
    return SweepRequest(**message)


def device_to_json(device: DeviceDescription) -> dict[str, Any]:
    """Return a device's description as JSON values."""
    return asdict(device)


def device_from_json(message: Mapping[str, Any]) -> DeviceDescription:
    """Return the description that `device_to_json` wrote."""
    limits = dict(message["limits"])
    limits["sweeps"], limits["geometries"] = tuple(limits["sweeps"]), tuple(limits["geometries"])
    return DeviceDescription(**{**message, "limits": DeviceLimits(**limits)})


def discovery_to_json(discovery: Discovery) -> dict[str, Any]:
    """Return what a backend found as JSON values."""
    return {
        "devices": [device_to_json(device) for device in discovery.devices],
        "unusable": [asdict(item) for item in discovery.unusable],
    }


def discovery_from_json(message: Mapping[str, Any]) -> Discovery:
    """Return the discovery that `discovery_to_json` wrote."""
    return Discovery(
        devices=tuple(device_from_json(device) for device in message["devices"]),
        unusable=tuple(UnusableBackend(**item) for item in message["unusable"]),
    )
