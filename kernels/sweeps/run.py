"""What the four sweeps share: verify all, time all in two passes, keep what is admitted, say what is doubtful."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from kernels.backends.base import Conditions, OpenDevice, PreparedKernel
from kernels.errors import ContendedError, PointTimeoutError
from kernels.events import Event, Progress, Reading, SweepResult
from kernels.timing import Clock, Policy, Window, measure_window, warm_up

TRIES = 3
"""Windows tried in a pass before a kernel goes without one."""
WINDOWS_AGREE = 0.10
DRIFT = {"cc": 0.10}
DRIFT_GPU = 0.02
STEAL, PRESSURE = 0.05, 0.10
CLOCKS_AGREE = 0.03


@dataclass(frozen=True)
class SweepRun:
    """
    One sweep under way.

    Parameters
    ----------
    parameters : mapping
        Resolved by `kernels.parameters`.
    constants : mapping
        `model_*` constants in force, unbumped.
    deadline : float
        On `clock.monotonic`; the sweep fails past it.
    point_limit : callable
        Returns the context in which one point is prepared, checked or timed.
    """

    device: OpenDevice
    parameters: Mapping[str, Any]
    constants: Mapping[str, float]
    emit: Callable[[Event], None]
    clock: Clock = field(default_factory=Clock)
    deadline: float = math.inf
    point_limit: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def left_s(self) -> float:
        """Seconds to the deadline."""
        return self.deadline - self.clock.monotonic()


@dataclass
class Case:
    """A kernel to time: the `routine` it computes, a `label` that tells it apart, and the windows it got."""

    kernel: PreparedKernel
    routine: str
    label: str
    role: str
    phase: str | None = None
    order: int = 0
    windows: list[Window] = field(default_factory=list)

    @property
    def admitted(self) -> list[Window]:
        """The windows that count."""
        return [window for window in self.windows if window.refused is None]

    @property
    def best_ms(self) -> float | None:
        """The least admitted time, milliseconds; None without any."""
        return min((min(window.readings_ms) for window in self.admitted), default=None)

    @property
    def disagreement(self) -> float:
        """By what fraction the second best window's reading exceeds the best; 0 with fewer than two."""
        bests = sorted(min(window.readings_ms) for window in self.admitted)
        return bests[1] / bests[0] - 1 if len(bests) > 1 else 0.0

    @property
    def name(self) -> str:
        """Routine and label, for people."""
        return f"{self.routine} {self.label}"

    def reading(self) -> Reading:
        """Return how the case was measured; needs an admitted window."""
        samples = [sample for window in self.admitted for sample in window.readings_ms]
        device_ms = [window.device_ms for window in self.admitted if window.device_ms is not None]
        return Reading(
            role=self.role,
            phase=self.phase,
            order=self.order,
            repeats_done=len(samples),
            median_ms=statistics.median(samples),
            spread=relative_spread(samples),
            device_ms=min(device_ms, default=None),
            windows=tuple(window.to_json() for window in self.windows),
        )


def relative_spread(samples: Sequence[float]) -> float | None:
    """Return the interquartile range over the median; None under four samples, which have no quartiles to speak of."""
    if len(samples) < 4:
        return None
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / statistics.median(samples)


class Stopwatch:
    """Verifies and times the cases of one sweep and keeps count of it all."""

    def __init__(self, run: SweepRun, policy: Policy) -> None:
        """Time by `policy`."""
        self.run = run
        self.policy = policy
        self.cases: list[Case] = []
        self.notes: list[str] = []
        self._done = 0
        self._total = 0
        self._warm = False
        self._repeated: tuple[Case, Case] | None = None

    def add(self, cases: Iterable[Case]) -> list[Case]:
        """Take more cases, number them and verify each before any of them is timed.

        Raises
        ------
        VerificationError
            When a kernel's result is wrong; the sweep is over.
        """
        added = list(cases)
        self._total += 3 * len(added)
        for case in added:
            case.order = len(self.cases)
            self.cases.append(case)
            self._step(f"checking {case.name}")
            with self.run.point_limit():
                case.kernel.verify()
        return added

    def passes(self, cases: Sequence[Case]) -> None:
        """Time all cases twice, the second time in the other order, so that drift does not look like a slope.

        A case whose two windows differ by more than 10 % gets one more, which may confirm the better one.
        """
        self.forward(cases)
        self.backward(cases)

    def forward(self, cases: Sequence[Case]) -> None:
        """Give each case its first window."""
        for case in cases:
            self._time(case)

    def backward(self, cases: Sequence[Case]) -> None:
        """Give each case its second window, and a third where the two differ."""
        for case in reversed(cases):
            self._time(case)
        for case in cases:
            if case.disagreement > WINDOWS_AGREE:
                self._total += 1
                self._time(case)

    def repeat(self, case: Case) -> Case:
        """Time a case once more at the end, as a case of its own with the role `repeat`."""
        self._total += 1
        again = Case(case.kernel, case.routine, case.label, "repeat", case.phase, len(self.cases))
        self.cases.append(again)
        self._time(again)
        self._repeated = (case, again)
        return again

    def result(self, deciding: Sequence[Case], **facts: Any) -> SweepResult:
        """
        Return the sweep's result.

        Parameters
        ----------
        deciding : sequence of Case
            The cases whose windows must agree: those that set the constants.
        facts : dict
            JSON values of the sweep's own.
        """
        doubtful = [*self._disagreements(deciding), *self._drift(), *self._surroundings()]
        windows = [window for case in self.cases for window in case.windows]
        refused = Counter(window.refused.split(":")[0] for window in windows if window.refused)
        notes = list(self.notes)
        notes += [f"{count} of {len(windows)} windows refused: {reason}" for reason, count in sorted(refused.items())]
        cut = [case.name for case in self.cases if any(window.cut for window in case.windows)]
        if cut:
            notes.append(f"repeats cut to 3, as one run takes over 0.5 s: {', '.join(dict.fromkeys(cut))}")
        device = self.run.device
        return SweepResult(
            doubtful=tuple(doubtful),
            notes=tuple(notes),
            facts={
                "multiprocessors": device.description.limits.multiprocessors,
                "windows": len(windows),
                "refused_windows": sum(refused.values()),
                "steal_share": _steal_share(windows),
                "cpu_pressure_share": _pressure_share(windows),
                "sm_clock_mhz": _clock_range(windows),
                "provenance": dict(device.provenance()),
                **facts,
            },
        )

    def contended(self, what: str) -> ContendedError:
        """Return the error of a sweep left without enough readings, with the reasons."""
        reasons = Counter(window.refused for case in self.cases for window in case.windows if window.refused)
        listing = "; ".join(f"{reason} ({count} x)" for reason, count in reasons.most_common(3))
        return ContendedError(
            f"{what}: {listing or 'no window was admitted'}. Stop other work on the device, let it cool, and run again"
        )

    def _time(self, case: Case) -> None:
        run = self.run
        self._step(f"timing {case.name}")
        with run.point_limit():
            if not self._warm:
                self._warm = True
                if not warm_up(case.kernel, run.device, run.clock):
                    self.notes.append("the clock was not steady after the warm-up")
            for _ in range(TRIES):
                window = measure_window(case.kernel, self.policy, run.device, run.clock, known_ms=case.best_ms)
                case.windows.append(window)
                if window.refused is None:
                    break

    def _step(self, message: str) -> None:
        if self.run.left_s <= 0:
            raise PointTimeoutError(
                f"the sweep's time limit ran out while {message}; ask for fewer or smaller points, or a longer limit"
            )
        self.run.emit(Progress(self._done, max(self._total, self._done + 1), message))
        self._done += 1

    def _disagreements(self, cases: Sequence[Case]) -> list[str]:
        reasons = []
        apart = [case for case in cases if case.disagreement > WINDOWS_AGREE]
        if apart:
            worst = max(apart, key=lambda case: case.disagreement)
            reasons.append(
                f"windows differ by more than {WINDOWS_AGREE:.0%} on {len(apart)} of {len(cases)} points"
                f" (most: {worst.name}, {worst.disagreement:.0%})"
            )
        alone = [case.name for case in cases if len(case.admitted) < 2]
        if alone:
            reasons.append(
                f"fewer than two windows were admitted on {len(alone)} of {len(cases)} points, so nothing confirms them"
                f" (first: {alone[0]})"
            )
        return reasons

    def _drift(self) -> list[str]:
        if self._repeated is None:
            return []
        first, repeat = self._repeated
        if repeat.best_ms is None or not first.admitted:
            return [f"{first.name} has no admitted window at the start or at the end, so drift is unknown"]
        drift = abs(drift_ms(repeat.admitted[0]) / drift_ms(first.admitted[0]) - 1)
        allowed = DRIFT.get(self.run.device.description.backend, DRIFT_GPU)
        return [f"{first.name} drifted by {drift:.1%} from start to end"] if drift > allowed else []

    def _surroundings(self) -> list[str]:
        # The control serves nothing: that it draws the power which lowers the clocks is no doubt on what is served.
        windows = [window for case in self.cases if case.phase != "spread" for window in case.windows]
        reasons = []
        steal, pressure, clocks = _steal_share(windows), _pressure_share(windows), _clock_range(windows)
        if steal is not None and steal > STEAL:
            reasons.append(f"{steal:.0%} of the processor time was stolen by the hypervisor")
        if pressure is not None and pressure > PRESSURE:
            reasons.append(f"tasks waited for a processor {pressure:.0%} of the time: other work runs on this host")
        if clocks is not None and clocks[1] > clocks[0] * (1 + CLOCKS_AGREE):
            reasons.append(f"clocks ranged from {clocks[0]:.0f} to {clocks[1]:.0f} MHz")
        return reasons


def drift_ms(window: Window) -> float:
    """Return the device's time where it is known: a launch's share of the wall time jitters, and that is no drift."""
    return min(window.readings_ms) if window.device_ms is None else window.device_ms


def _difference(window: Window, count: Callable[[Conditions], int | None]) -> int | None:
    before, after = count(window.before), count(window.after)
    return None if before is None or after is None else after - before


def _steal_share(windows: Sequence[Window]) -> float | None:
    stolen = [_difference(window, lambda c: c.cpu_steal_ticks) for window in windows]
    total = [_difference(window, lambda c: c.cpu_total_ticks) for window in windows]
    known = [(s, t) for s, t in zip(stolen, total, strict=True) if s is not None and t is not None]
    ticks = sum(t for _, t in known)
    return sum(s for s, _ in known) / ticks if ticks else None


def _pressure_share(windows: Sequence[Window]) -> float | None:
    waited = [(_difference(window, lambda c: c.cpu_pressure_some_us), window.elapsed_s) for window in windows]
    known = [(microseconds, elapsed_s) for microseconds, elapsed_s in waited if microseconds is not None]
    elapsed_s = sum(elapsed_s for _, elapsed_s in known)
    return sum(microseconds for microseconds, _ in known) / 1e6 / elapsed_s if elapsed_s > 0 else None


def _clock_range(windows: Sequence[Window]) -> tuple[float, float] | None:
    clocks = [window.after.sm_clock_mhz for window in windows if window.after.sm_clock_mhz is not None]
    return (min(clocks), max(clocks)) if clocks else None
