"""What makes a sweep over a simulated device doubtful, and what does not."""

from datetime import UTC, datetime

import pytest

from kernels.backends.base import Conditions
from kernels.backends.simulated import SimulatedDevice
from kernels.backends.truth import Truth
from kernels.parameters import SWEEPS
from kernels.timing import Clock
from tests.kernels.recorded import recorded


class Drifting(SimulatedDevice):
    """Slows down by a thousandth a sample."""

    samples = 0

    def slowdown(self):
        self.samples += 1
        return 1.0 + 1e-3 * self.samples


def test_drift_makes_a_sweep_doubtful():
    doubtful = recorded("issue", {"ks": [8192, 16384, 32768]}, Drifting(Truth("toy"))).run().result.doubtful
    assert any("drifted by" in reason for reason in doubtful)


def test_a_quiet_device_is_not_doubtful():
    for sweep in SWEEPS:
        assert recorded(sweep).run().result.doubtful == ()


class Moody(SimulatedDevice):
    """Each window runs at a speed of its own; `moods` in turn."""

    moods = (1.0, 1.3, 1.6)
    windows = -1

    def conditions(self):
        self.windows += 0.5
        return super().conditions()

    def slowdown(self):
        return self.moods[int(self.windows) % len(self.moods)]


def test_windows_that_differ_make_a_sweep_doubtful_and_are_all_kept():
    sweep = recorded("issue", {"ks": [8192, 16384]}, Moody(Truth("toy"))).run()
    assert any("windows differ by more than 10%" in reason for reason in sweep.result.doubtful)
    assert any(len(event.reading.windows) == 3 for event in sweep.points)


def test_a_third_window_may_confirm_the_better_of_two():
    class Once(Moody):
        def slowdown(self):
            return 1.5 if int(self.windows) == 3 else 1.0  # some one window of the first pass

    assert recorded("issue", {"ks": [8192, 16384]}, Once(Truth("toy", noise=0.0))).run().result.doubtful == ()


class Observed(SimulatedDevice):
    """Conditions that a test scripts by the number of readings so far."""

    def __init__(self, truth, script):
        super().__init__(truth)
        self.script = script
        self.readings = 0

    def conditions(self):
        self.readings += 1
        return self.script(self.readings)


def test_points_that_no_second_window_confirms_make_a_sweep_doubtful():
    # two readings of the warm-up, then two a window: three windows of the first pass are cool
    def hot_later(n):
        return Conditions(throttle=("hw_slowdown",) if n > 2 + 3 * 2 else ())

    doubtful = recorded("issue", {"ks": [8192, 16384]}, Observed(Truth("gpu"), hot_later)).run().result.doubtful
    assert doubtful == (
        "fewer than two windows were admitted on 3 of 3 points, so nothing confirms them"
        " (first: issue_contraction 32x32x8/4x4,m=512,n=512,k=8192)",
        "issue_contraction 32x32x8/4x4,m=512,n=512,k=8192 has no admitted window at the start or at the end, so drift"
        " is unknown",
    )


def test_stolen_processor_time_makes_a_sweep_doubtful():
    device = Observed(Truth("vm"), lambda n: Conditions(cpu_steal_ticks=6 * n, cpu_total_ticks=100 * n))
    sweep = recorded("issue", device=device).run()
    assert sweep.result.facts["steal_share"] == pytest.approx(0.06)
    assert any("6% of the processor time was stolen" in reason for reason in sweep.result.doubtful)


def test_waiting_tasks_make_a_sweep_doubtful():
    now = [0.0]

    def wait_half(n):
        now[0] += 1.0
        return Conditions(cpu_pressure_some_us=500_000 * n)

    clock = Clock(lambda: now[0], lambda: datetime.now(UTC), lambda seconds: None)
    sweep = recorded("issue", device=Observed(Truth("host"), wait_half), clock=clock).run()
    assert sweep.result.facts["cpu_pressure_share"] == pytest.approx(0.5)
    assert any("tasks waited for a processor 50% of the time" in reason for reason in sweep.result.doubtful)


def test_clocks_three_percent_apart_make_a_sweep_doubtful():
    device = Observed(Truth("gpu"), lambda n: Conditions(sm_clock_mhz=1980.0 if n < 20 else 1900.0))
    assert any(
        "clocks ranged from 1900 to 1980 MHz" in reason
        for reason in recorded("issue", device=device).run().result.doubtful
    )
    steady = Observed(Truth("gpu"), lambda n: Conditions(sm_clock_mhz=1980.0 if n < 20 else 1950.0))
    assert recorded("issue", device=steady).run().result.doubtful == ()
