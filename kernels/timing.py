"""Timing windows: how many samples, what is refused, when the clocks are steady. Every loop here ends.

A *window* is one series of samples of one kernel; its reading is the minimum, since noise only ever adds time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from kernels.backends.base import Conditions, LaunchFacts, OpenDevice, PreparedKernel, Sample
from kernels.device import DeviceDescription

STREAM_LEAST, STREAM_MOST, STREAM_KERNEL_MS = 16, 64, 25.0
"""At least 16 samples, and on until 25 ms of kernel time or 64 samples (the reference's timing rule)."""
QUEUE_BELOW_MS, QUEUED_MS, QUEUE_MOST = 0.1, 1.0, 1000
"""Kernels under 100 us are queued in batches of about 1 ms, so that the clock's grain and the launch don't show."""
SLOW_MS, SLOW_SAMPLES = 500.0, 3
"""Past half a second a run, three samples: a neighbour's burst is shorter than that. STREAM rows keep their rule."""
CONTENDED_RATIO = 2.0
WARM_UP_MS, WARM_UP_MOST_MS, WARM_UP_RUNS, STEADY = 200.0, 1000.0, 20_000, 0.01
"""Clocks of idle processors rise within some 100 ms; steady means two readings within 1 %."""
REFUSED_THROTTLE = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})
MOST_BYTES_PER_S, MOST_OPS_PER_S = 1e12, 1e13
"""No multiprocessor or core comes near these (an H200's moves 4e10 byte/s and does 5e11 op/s): a time that implies more
is that of a launch which nobody waited for."""


ABOVE_ATTRIBUTE_PEAK = 1.05
"""Over the memory's own peak by more than the clock's tolerance, part of the bytes came from a cache."""


@dataclass(frozen=True)
class Clock:
    """Time as the sweeps see it, so that tests need not wait."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Policy:
    """
    When a window has enough samples.

    Parameters
    ----------
    least, most : int
        Bounds on the samples.
    kernel_ms : float
        Kernel time, milliseconds, after which `least` samples are enough.
    queued : bool
        Device time of queued batches is the reading; else the synced wall time of single launches.
    """

    least: int
    most: int
    kernel_ms: float
    queued: bool


def stream_policy(repeats: int) -> Policy:
    """Return the rule of STREAM rows: at least 16 samples or the asked repeats, to 25 ms or 64 samples; never fewer."""
    least = max(STREAM_LEAST, repeats)
    return Policy(least, max(STREAM_MOST, least), STREAM_KERNEL_MS, queued=True)


def repeats_policy(repeats: int) -> Policy:
    """Return the rule of the other sweeps: exactly `repeats` samples, fewer only for slow kernels."""
    return Policy(repeats, repeats, 0.0, queued=False)


@dataclass(frozen=True)
class Window:
    """
    One series of samples of one kernel.

    Parameters
    ----------
    readings_ms : tuple of float
        One launch each, milliseconds, in order.
    device_ms : float or None
        The least device time; None without a device clock.
    batch : int
        Launches a sample.
    refused : str or None
        Why the window does not count; None when it does.
    cut : bool
        Whether slowness cut the samples.
    elapsed_s : float
        Wall time of the window, seconds.
    """

    readings_ms: tuple[float, ...]
    device_ms: float | None
    batch: int
    refused: str | None
    cut: bool
    started_at: datetime
    elapsed_s: float
    before: Conditions
    after: Conditions

    @property
    def best_ms(self) -> float | None:
        """The minimum; None where the window is refused."""
        return None if self.refused else min(self.readings_ms)

    def to_json(self) -> dict[str, Any]:
        """Return the window's facts as JSON values."""
        usable = [reading for reading in self.readings_ms if math.isfinite(reading)]
        return {
            "best_ms": min(usable, default=None),
            "median_ms": statistics.median(usable) if usable else None,
            "samples": len(self.readings_ms),
            "batch": self.batch,
            "started_at": self.started_at.isoformat(),
            "refused": self.refused,
            "before": conditions_to_json(self.before),
            "after": conditions_to_json(self.after),
        }


def conditions_to_json(conditions: Conditions) -> dict[str, Any]:
    """Return conditions as JSON values; what is unknown is null, with its reason under `unknown`."""
    fields = asdict(conditions)
    throttle = conditions.throttle
    return {**fields, "throttle": None if throttle is None else list(throttle), "unknown": dict(conditions.unknown)}


def measure_window(
    kernel: PreparedKernel, policy: Policy, device: OpenDevice, clock: Clock, *, known_ms: float | None = None
) -> Window:
    """
    Sample a kernel once by a policy.

    Parameters
    ----------
    kernel : PreparedKernel
        Verified before.
    policy : Policy
        How many samples.
    device : OpenDevice
        Whose conditions are read before and after.
    known_ms : float or None
        Its time from an earlier window: a slow kernel then needs no warm-up run.

    Notes
    -----
    The first run warms up and tells how long one takes; it counts only where a run is slow and the rule allows fewer.
    """
    before, started_at, start = device.conditions(), clock.now(), clock.monotonic()
    samples: list[Sample] = []
    batch, least, most = 1, policy.least, policy.most
    slow = not policy.queued and known_ms is not None and known_ms > SLOW_MS
    if not slow:
        pilot = _sample(kernel, policy, 1)
        pilot_ms = _reading(pilot, policy)
        if policy.queued and 0 < pilot_ms < QUEUE_BELOW_MS:
            batch = min(QUEUE_MOST, math.ceil(QUEUED_MS / pilot_ms))
        if not policy.queued and pilot_ms > SLOW_MS:
            slow = True
            samples.append(pilot)
    cut = slow and most > SLOW_SAMPLES
    if cut:
        least, most = min(least, SLOW_SAMPLES), SLOW_SAMPLES
    spent_ms = sum(_reading(sample, policy) for sample in samples)
    while len(samples) < least or (len(samples) < most and spent_ms < policy.kernel_ms):
        samples.append(_sample(kernel, policy, batch))
        spent_ms += _reading(samples[-1], policy) * batch
        if not _is_time(_reading(samples[-1], policy)):
            break
    after = device.conditions()
    readings = tuple(_reading(sample, policy) for sample in samples)
    return Window(
        readings_ms=readings,
        device_ms=min(
            (s.device_ms for s in samples if s.device_ms is not None and _is_time(s.device_ms)), default=None
        ),
        batch=batch,
        refused=refusal(readings, kernel.facts, device.description, before, after),
        cut=cut,
        started_at=started_at,
        elapsed_s=clock.monotonic() - start,
        before=before,
        after=after,
    )


def refusal(
    readings_ms: tuple[float, ...],
    facts: LaunchFacts,
    description: DeviceDescription,
    before: Conditions,
    after: Conditions,
) -> str | None:
    """
    Return why a window does not count, or None when it does.

    Notes
    -----
    Refused: a reading that is no positive time; half or more of the samples over twice the minimum, which measured the
    host and not the kernel; a hardware or thermal slowdown before or after; a time no device could reach.
    """
    if not readings_ms or not all(map(_is_time, readings_ms)):
        return "invalid: a reading is not a positive time"
    best_ms = min(readings_ms)
    slow = sum(reading > CONTENDED_RATIO * best_ms for reading in readings_ms)
    if 2 * slow >= len(readings_ms):
        return f"contended: {slow} of {len(readings_ms)} samples took over twice the least"
    slowdown = sorted(REFUSED_THROTTLE & {*(before.throttle or ()), *(after.throttle or ())})
    if slowdown:
        return f"throttled: {', '.join(slowdown)}"
    seconds, multiprocessors = best_ms / 1e3, max(1, description.limits.multiprocessors)
    if facts.bytes > most_bytes_per_s(facts, description) * seconds:
        return f"implausible: {facts.bytes / seconds:.1e} byte/s"
    if facts.flops > MOST_OPS_PER_S * multiprocessors * seconds:
        return f"implausible: {facts.flops / seconds:.1e} op/s"
    return None


def most_bytes_per_s(facts: LaunchFacts, description: DeviceDescription) -> float:
    """
    Return the rate over which a kernel's distinct bytes are not believed, byte/s.

    Notes
    -----
    Past 4 x the last-level cache, where an NVIDIA driver tells clock and bus: 1.05 x 2 transfers a clock x bus width.
    Else 1e12 a multiprocessor; AMD's memory clocks count transfers in other multiples.
    """
    loose = MOST_BYTES_PER_S * max(1, description.limits.multiprocessors)
    clock_mhz = description.facts.get("max_memory_clock_mhz")
    bus_bits = description.facts.get("memory_bus_width_bits")
    from_memory = facts.bytes >= 4 * description.limits.last_level_cache_bytes
    if description.backend != "cuda" or not clock_mhz or not bus_bits or not from_memory:
        return loose
    return min(loose, ABOVE_ATTRIBUTE_PEAK * 2e6 * float(clock_mhz) * float(bus_bits) / 8)


def warm_up(kernel: PreparedKernel, device: OpenDevice, clock: Clock) -> bool:
    """
    Run a kernel until the clock is steady; return whether it is.

    Notes
    -----
    Steady: after 200 ms of kernel time, two successive clock readings, or without a readable clock the least times of
    two successive stretches of 100 ms, agree within 1 %. It ends after 1 s of kernel time or of wall time, or 20,000
    runs, regardless.
    """
    total_ms, runs = 0.0, 0
    give_up = clock.monotonic() + WARM_UP_MOST_MS / 1e3
    previous: float | None = None
    while total_ms < WARM_UP_MOST_MS and runs < WARM_UP_RUNS and clock.monotonic() < give_up:
        stretch_ms, least_ms = 0.0, math.inf
        while stretch_ms < WARM_UP_MS / 2 and runs < WARM_UP_RUNS and clock.monotonic() < give_up:
            wall_ms = kernel.sample().wall_ms
            runs += 1
            if not _is_time(wall_ms):
                return False  # the window will refuse it
            stretch_ms, least_ms = stretch_ms + wall_ms, min(least_ms, wall_ms)
        total_ms += stretch_ms
        clock_mhz = device.conditions().sm_clock_mhz
        current = least_ms if clock_mhz is None else clock_mhz
        if previous and total_ms >= WARM_UP_MS and abs(current / previous - 1) <= STEADY:
            return True
        previous = current
    return False


def _sample(kernel: PreparedKernel, policy: Policy, batch: int) -> Sample:
    return kernel.sample_queued(batch) if policy.queued else kernel.sample()


def _reading(sample: Sample, policy: Policy) -> float:
    return sample.device_ms if policy.queued and sample.device_ms is not None else sample.wall_ms


def _is_time(milliseconds: float) -> bool:
    return math.isfinite(milliseconds) and milliseconds > 0
