"""One sweep in a spawned device child, supervised: events out, cancel and time limits in.

`measure_sweep` runs in a process that never touches a device. The child takes the device's file lock, runs the sweep,
and streams events; whatever happens to it (segfault, hang, poisoned context) ends as a MeasureError here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fitting import CalibrationRow, IssuePoint, LaunchPoint, WorkingSetPoint

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


def measure_sweep(
    request: SweepRequest, *, on_event: Callable[[Event], None], cancelled: Callable[[], bool]
) -> SweepResult:
    """Measure in a child process; calls `on_event` in this thread; polls `cancelled` every 0.25 s; raises MeasureError."""
    raise RuntimeError("to be written")
