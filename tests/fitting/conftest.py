"""A whole calibration of a device that obeys the model exactly, made without the model's code.

Device: 100 GB/s DRAM, 400 GB/s cache, cliff at 3 MB, 1e12 op/s at full fill, 2e12 op/s in registers, 8 multiprocessors
saturated by 128 threads.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings

from fitting import (
    CalibrationRow,
    IssuePoint,
    LaunchContext,
    LaunchPoint,
    Measured,
    Measurements,
    WorkingSetPoint,
)

# a busy machine must not turn an example's time into a failure
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

FULL_THREADS = 8 * 128


def stream_row(name: str, bytes_per_s: float) -> Measured[CalibrationRow]:
    moved = 10**9
    ms = moved / bytes_per_s * 1e3
    row = CalibrationRow(
        "simulated", f"d-{name}", f"stream_{name}", "block=64", ms, None, 1, 0, moved, False, False, False
    )
    return Measured(row, role="seed", window_ms=(ms, ms * 1.25))


def fma_row(ops_per_s: float) -> Measured[CalibrationRow]:
    ops = 10**10
    ms = ops / ops_per_s * 1e3
    row = CalibrationRow("simulated", "d-fma", "fma", "steps=1", ms, None, 1, ops, 4096, False, False, False)
    return Measured(row, role="fma", window_ms=(ms, ms))


def working_set_point(size: int, role: str, phase: str | None = "aligned") -> Measured[WorkingSetPoint]:
    rate = 4e11 if size <= 3_000_000 else 1e11
    point = WorkingSetPoint(1, (1, 1, 1), size, 10 * size, size // 10, 10 * size / rate * 1e3)
    return Measured(point, role=role, phase=phase)


def issue_point(k: int) -> Measured[IssuePoint]:
    ops = 2 * 512 * 512 * k  # 16 x 16 blocks of 64 threads: 16384 threads, full
    ms = 0.01 + ops / 1e12 * 1e3
    return Measured(IssuePoint(k, ops, 0, 1, ms, contexts=(LaunchContext(256, 64, ops),)))


def launch_point(label: str, tile: int, threads: int, rate: float, size: int) -> Measured[LaunchPoint]:
    blocks = (size // tile) ** 2
    busy = blocks * min(threads, 128)
    ms = 2**31 / rate * 1e3 * max(1.0, FULL_THREADS / busy)
    return Measured(LaunchPoint(label, size, size, 1, (LaunchContext(blocks, threads, 2**31),), ms))


def sizes(tile: int) -> list[int]:
    return [size for size in (32, 64, 128, 256, 512, 1024) if size >= tile]


@pytest.fixture
def full_run() -> Measurements:
    """All four sweeps, with a refinement point, a spread phase, and wild repeats that must enter no fit."""
    grid = [working_set_point(2**power, "grid") for power in range(18, 25)]
    refined = [working_set_point(size, "refine") for size in (2_300_000, 2_600_000, 2_900_000, 3_200_000, 3_600_000)]
    spread = [working_set_point(2**power, "grid", "spread") for power in range(18, 23)]
    wild = working_set_point(2**18, "repeat")
    wild_row = stream_row("copy", 9e15)
    lead = [launch_point("32x32x8/4x4", 32, 64, 1e12, size) for size in sizes(32)]
    wide = [launch_point("64x64x8/4x4", 64, 256, 1.5e12, size) for size in sizes(64)]
    return Measurements(
        rows=(
            stream_row("copy", 8e10),
            stream_row("triad", 1e11),
            fma_row(2e12),
            replace(wild_row, role="repeat"),
        ),
        working_set=(*grid, *refined, *spread, replace(wild, record=replace(wild.record, ms=1e-9))),
        issue=tuple(issue_point(2**power) for power in range(8, 16)),
        launch=(*lead, *wide),
    )
