"""Windows: how many samples, what is refused, that every loop ends."""

import itertools
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kernels.backends.base import Conditions, LaunchFacts, Sample
from kernels.backends.simulated import SimulatedDevice
from kernels.backends.truth import Truth
from kernels.device import DeviceDescription
from kernels.parameters import DeviceLimits
from kernels.timing import (
    Clock,
    measure_window,
    refusal,
    repeats_policy,
    stream_policy,
    warm_up,
)

DEVICE = SimulatedDevice(Truth("scripted", multiprocessors=1))
FACTS = LaunchFacts(label="scripted", blocks=1, threads=1, flops=1000, bytes=1000, resident_blocks=1)


class FakeTime:
    """Time that moves only when a test moves it."""

    seconds = 0.0

    def clock(self):
        return Clock(lambda: self.seconds, lambda: datetime(2025, 1, 1, tzinfo=UTC), lambda seconds: None)


class ScriptedKernel:
    """Answers the given wall times in turn, for ever; counts its launches."""

    facts = FACTS

    def __init__(self, *walls_ms, device_share=None):
        self.walls_ms = itertools.cycle(walls_ms)
        self.device_share = device_share
        self.launches = 0
        self.batches = []

    def verify(self):
        pass

    def sample(self):
        return self.sample_queued(1)

    def sample_queued(self, batch):
        self.launches += batch
        self.batches.append(batch)
        wall_ms = next(self.walls_ms)
        return Sample(wall_ms, None if self.device_share is None else wall_ms * self.device_share)


class ConditionedDevice:
    """A device whose conditions are scripted, the last for ever."""

    description = DEVICE.description

    def __init__(self, *conditions):
        self.script = list(conditions)

    def conditions(self):
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


def window(kernel, policy, device=DEVICE, **options):
    return measure_window(kernel, policy, device, FakeTime().clock(), **options)


def test_a_stream_window_goes_on_until_25_ms_of_kernel_time():
    # 1 ms a run: 16 samples are 16 ms, so it goes on to 25
    assert len(window(ScriptedKernel(1.0), stream_policy(16)).readings_ms) == 25


def test_a_stream_window_of_long_kernels_has_16_samples():
    assert len(window(ScriptedKernel(3.0), stream_policy(16)).readings_ms) == 16


def test_a_stream_window_of_short_kernels_ends_at_64_samples():
    assert len(window(ScriptedKernel(0.2), stream_policy(16)).readings_ms) == 64


def test_a_stream_window_has_16_samples_however_slow_the_kernel():
    measured = window(ScriptedKernel(600.0), stream_policy(16))
    assert (len(measured.readings_ms), measured.cut) == (16, False)
    assert len(window(ScriptedKernel(600.0), stream_policy(16), known_ms=600.0).readings_ms) == 16


def test_more_samples_than_16_are_taken_when_asked_for():
    assert len(window(ScriptedKernel(3.0), stream_policy(100)).readings_ms) == 100


def test_kernels_under_100_us_are_queued_in_batches_of_about_a_millisecond():
    kernel = ScriptedKernel(0.01)
    measured = window(kernel, stream_policy(16))
    assert measured.batch == 100  # 1 ms / 0.01 ms
    assert len(measured.readings_ms) == 25  # each sample is 1 ms of kernel time
    assert kernel.batches == [1] + [100] * 25


def test_stream_reads_the_device_clock_and_the_other_sweeps_the_wall_clock():
    assert window(ScriptedKernel(3.0, device_share=0.5), stream_policy(16)).best_ms == 1.5
    measured = window(ScriptedKernel(3.0, device_share=0.5), repeats_policy(10))
    assert (measured.best_ms, measured.device_ms) == (3.0, 1.5)


def test_other_sweeps_take_exactly_the_asked_repeats_after_one_warm_up_run():
    kernel = ScriptedKernel(9.0, 2.0, 3.0, 4.0)
    measured = window(kernel, repeats_policy(3))
    assert measured.readings_ms == (2.0, 3.0, 4.0)
    assert measured.best_ms == 2.0


def test_past_half_a_second_a_run_three_samples_are_enough_and_the_cut_is_told():
    kernel = ScriptedKernel(501.0)
    measured = window(kernel, repeats_policy(10))
    assert (len(measured.readings_ms), kernel.launches, measured.cut) == (3, 3, True)
    again = ScriptedKernel(501.0)
    assert window(again, repeats_policy(10), known_ms=501.0).cut
    assert again.launches == 3


def test_fewer_repeats_than_three_are_never_raised_by_slowness():
    measured = window(ScriptedKernel(900.0), repeats_policy(2))
    assert (len(measured.readings_ms), measured.cut) == (2, False)


def test_the_majority_rule_refuses_when_half_the_samples_exceed_twice_the_minimum():
    assert refusal((1.0, 1.0, 2.1, 2.1), FACTS, DEVICE.description, Conditions(), Conditions()).startswith("contended")
    assert refusal((1.0, 1.0, 1.0, 2.1), FACTS, DEVICE.description, Conditions(), Conditions()) is None
    assert refusal((1.0, 2.0, 2.0, 2.0), FACTS, DEVICE.description, Conditions(), Conditions()) is None


@pytest.mark.parametrize("reading", [0.0, -1.0, math.nan, math.inf])
def test_a_reading_that_is_no_positive_time_ends_and_refuses_the_window(reading):
    measured = window(ScriptedKernel(5.0, reading), stream_policy(16))
    assert measured.refused.startswith("invalid")
    assert measured.best_ms is None
    assert len(measured.readings_ms) == 1
    assert all(value is None or math.isfinite(value) for value in _numbers(measured.to_json()))


def _numbers(form):
    return [value for value in form.values() if isinstance(value, int | float)]


@pytest.mark.parametrize(
    ("reason", "refuses"),
    [("hw_slowdown", True), ("hw_thermal_slowdown", True), ("sw_thermal_slowdown", True), ("sw_power_cap", False)],
)
def test_hardware_and_thermal_slowdowns_refuse_a_window_and_a_power_cap_does_not(reason, refuses):
    device = ConditionedDevice(Conditions(), Conditions(throttle=(reason,)))
    measured = window(ScriptedKernel(3.0), repeats_policy(3), device)
    assert (measured.refused == f"throttled: {reason}") is refuses
    assert measured.to_json()["after"]["throttle"] == [reason]


def test_what_is_unknown_is_null_with_its_reason_and_never_zero():
    device = ConditionedDevice(Conditions(unknown={"sm_clock_mhz": "NVML is absent"}))
    before = window(ScriptedKernel(3.0), repeats_policy(3), device).to_json()["before"]
    assert before["sm_clock_mhz"] is None
    assert before["throttle"] is None
    assert before["unknown"] == {"sm_clock_mhz": "NVML is absent"}


def test_a_launch_that_nobody_waited_for_is_refused_as_implausible():
    # 3 x 2^30 bytes in 5 us are 6.4e14 byte/s, of one multiprocessor
    facts = LaunchFacts(label="", blocks=1, threads=1, flops=0, bytes=3 << 30, resident_blocks=1)
    told = refusal((0.005,), facts, DEVICE.description, Conditions(), Conditions())
    assert told == "implausible: 6.4e+14 byte/s"
    facts = LaunchFacts(label="", blocks=1, threads=1, flops=1 << 40, bytes=0, resident_blocks=1)
    told = refusal((0.005,), facts, DEVICE.description, Conditions(), Conditions())
    assert told == "implausible: 2.2e+17 op/s"


def test_a_rate_above_the_memory_of_an_nvidia_gpu_is_refused_once_the_bytes_leave_the_cache():
    # an H200's 6144 bits at 2 x 3201 MHz carry 4.917e12 byte/s, times 1.05: 5.163e12
    limits = DeviceLimits("cuda", 1 << 37, 50 << 20, 132, ("stream",), ())
    facts = {"max_memory_clock_mhz": 3201, "memory_bus_width_bits": 6144}
    h200 = DeviceDescription("GPU-a", "cuda", "gpu", "NVIDIA H200", False, limits, facts)
    triad = LaunchFacts(label="", blocks=1, threads=1, flops=0, bytes=3 << 28, resident_blocks=1)

    def ms_at(rate):
        return 1e3 * triad.bytes / rate

    assert refusal((ms_at(5.1e12),), triad, h200, Conditions(), Conditions()) is None
    assert refusal((ms_at(5.2e12),), triad, h200, Conditions(), Conditions()) == "implausible: 5.2e+12 byte/s"
    cached = replace(triad, bytes=100 << 20)
    assert refusal((1e3 * cached.bytes / 6e12,), cached, h200, Conditions(), Conditions()) is None
    unknown = replace(h200, facts={})
    assert refusal((ms_at(5.2e12),), triad, unknown, Conditions(), Conditions()) is None


def test_warm_up_ends_once_two_clock_readings_agree():
    clocks = [Conditions(sm_clock_mhz=mhz) for mhz in (300.0, 1200.0, 1980.0, 1975.0)]
    kernel = ScriptedKernel(10.0)
    assert warm_up(kernel, ConditionedDevice(*clocks), FakeTime().clock())
    assert kernel.launches == 40  # four stretches of 100 ms


def test_warm_up_without_a_clock_ends_once_two_stretches_agree():
    kernel = ScriptedKernel(10.0)
    assert warm_up(kernel, ConditionedDevice(Conditions()), FakeTime().clock())
    assert kernel.launches == 20


def test_warm_up_of_a_clock_that_never_settles_ends_after_a_second_of_kernel_time():
    restless = [Conditions(sm_clock_mhz=1000.0 * 1.1**step) for step in range(50)]
    kernel = ScriptedKernel(10.0)
    assert not warm_up(kernel, ConditionedDevice(*restless), FakeTime().clock())
    assert kernel.launches == 100


def test_warm_up_of_a_kernel_that_takes_no_time_ends():
    assert not warm_up(ScriptedKernel(0.0), ConditionedDevice(Conditions()), FakeTime().clock())


def test_warm_up_ends_by_the_wall_clock_where_samples_cost_more_than_they_say():
    time = FakeTime()

    class Slow(ScriptedKernel):
        def sample(self):
            time.seconds += 0.3
            return super().sample()

    kernel = Slow(0.001)
    assert not warm_up(kernel, ConditionedDevice(Conditions()), time.clock())
    assert kernel.launches == 4  # 1.2 s
