"""The four sweeps over a simulated device: what they emit and what they refuse."""

import itertools
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fitting import CalibrationRow
from kernels.backends.base import Conditions
from kernels.backends.simulated import SimulatedDevice
from kernels.backends.truth import Failure, Truth
from kernels.errors import (
    CompileError,
    ContendedError,
    NoExactRowsError,
    OutOfMemoryError,
    PointTimeoutError,
    VerificationError,
)
from kernels.events import PointMeasured, Progress, RowMeasured
from kernels.parameters import SWEEPS
from kernels.sweeps.run import drift_ms, relative_spread
from kernels.sweeps.working_set import control_extents, control_shape, refined_extents
from kernels.timing import Clock, Window
from tests.kernels.recorded import recorded


def test_every_stream_candidate_is_a_row_with_exact_counts():
    sweep = recorded("stream", {"elems": 1 << 26}).run()
    seeds = [event for event in sweep.rows if event.reading.role == "seed"]
    assert len(seeds) == 24  # four kernels, six candidates
    elems = 1 << 26
    counts = {(event.row.routine, event.row.bytes, event.row.flops) for event in seeds}
    assert counts == {
        ("stream_copy", 2 * 4 * elems, 0),
        ("stream_scale", 2 * 4 * elems, elems),
        ("stream_add", 3 * 4 * elems, elems),
        ("stream_triad", 3 * 4 * elems, 2 * elems),
    }
    assert not any(event.row.bytes_approx or event.row.flops_approx or event.row.opaque for event in seeds)
    assert len({event.row.digest for event in seeds}) == 24
    assert {event.row.backend for event in seeds} == {"simulated"}


def test_the_stream_winner_of_each_kernel_is_reported():
    best = recorded("stream").run().result.facts["best"]
    assert set(best) == {"stream_copy", "stream_scale", "stream_add", "stream_triad"}
    assert {winner["label"] for winner in best.values()} == {"block=256,vec=4,ept=4"}  # slowed by a factor of 1.00


def test_every_kernel_is_verified_before_any_is_timed():
    messages = [event.message for event in recorded("launch").run().events if isinstance(event, Progress)]
    first_timed = next(index for index, message in enumerate(messages) if message.startswith("timing"))
    base = 11  # 32 .. 1024 by the first geometry, 64 .. 1024 by the second
    assert all(message.startswith("checking") for message in messages[:base])
    assert first_timed == base


def test_progress_never_runs_backwards_or_past_its_total():
    for sweep in SWEEPS:
        steps = [event for event in recorded(sweep).run().events if isinstance(event, Progress)]
        assert [step.done for step in steps] == list(range(len(steps)))
        assert all(step.done < step.total for step in steps)


def test_each_point_has_two_windows_taken_in_opposite_orders():
    sweep = recorded("issue").run()
    grid = [event.reading for event in sweep.points if event.reading.role == "grid"]
    starts = [[window["started_at"] for window in reading.windows] for reading in grid]
    assert all(len(start) == 2 for start in starts)
    assert [start[0] for start in starts] == sorted(start[0] for start in starts)
    assert [start[1] for start in starts] == sorted((start[1] for start in starts), reverse=True)
    assert [reading.order for reading in grid] == list(range(8))


def test_the_first_point_is_repeated_at_the_end():
    for sweep, points in (("working_set", 1), ("issue", 1), ("launch", 1)):
        repeats = [event for event in recorded(sweep).run().points if event.reading.role == "repeat"]
        assert len(repeats) == points
        assert len(repeats[0].reading.windows) == 1


def test_a_working_set_point_by_hand():
    # P = 4, 8 blocks of 256 threads a multiprocessor: 32 of the 1024 blocks at once
    device = SimulatedDevice(Truth("toy", multiprocessors=4, cache_capacity=None, peak_memory_bandwidth=1e11))
    sweep = recorded("working_set", {"ks": [256]}, device, {"model_peak_memory_bandwidth": 1e11}).run()
    point = sweep.points[0].point
    per_block = 4 * 256 * (256 + 1)
    assert point.loops == (256, 256, 1024)
    assert point.working_set == per_block * 32
    assert point.requested == per_block * 1024
    assert point.distinct == 4 * (256 * 1280 + 256 * 1024)
    assert point.bound_ms == pytest.approx(1e3 * point.distinct / 1e11)
    assert point.rank_ms == point.bound_ms  # without a capacity in force re-reads are free


def test_prices_are_null_where_no_constants_are_in_force():
    points = [event.point for event in recorded("working_set").run().points]
    assert {(point.rank_ms, point.bound_ms) for point in points} == {(None, None)}
    assert {event.row.model_ms for event in recorded("stream").run().rows} == {None}


def test_rows_carry_the_bound_under_the_constants_in_force():
    sweep = recorded("stream", constants={"model_peak_memory_bandwidth": 1e12}).run()
    row = sweep.rows[0].row
    assert row.model_ms == 0.53687  # 8 * 2^26 bytes at 1e12 byte/s are 0.536870912 ms, floored as in a row file
    assert CalibrationRow.from_line(row.to_line()) == row


def test_points_around_the_split_are_a_ratio_of_about_a_tenth_apart():
    sweep = recorded("working_set", constants={"model_peak_memory_bandwidth": 1.5e12}).run()
    aligned = [event for event in sweep.points if event.reading.phase == "aligned"]
    refined = [event.point.k for event in aligned if event.reading.role == "refine"]
    # 2 GiB over 4 * 257 bytes * 864 resident blocks: spills past k = 2417, between 2048 and 4096
    assert refined == [2232, 2432, 2656, 2896, 3160, 3448, 3760]


def test_refined_extents_cover_an_octave_in_steps_of_at_most_a_tenth():
    extents = [2048, *refined_extents(2048, 4096), 4096]
    assert all(k % 8 == 0 for k in extents)
    assert max(b / a for a, b in itertools.pairwise(extents)) < 1.105
    assert refined_extents(256, 264) == []


def test_both_phases_are_measured_where_the_device_has_both():
    phases = {event.reading.phase for event in recorded("working_set").run().points}
    assert phases == {"aligned", "spread"}


def test_the_control_has_the_same_blocks_and_about_the_same_distinct_bytes_on_eight_rows():
    assert control_shape(256, 1024) == (8, 32768)
    assert control_shape(20, 1024) == (20, 1024)  # 8 does not divide 20
    # 1280 / 32776 of k, down to a multiple of 8 but never under it: 256 gives 9.99, 65536 gives 2559.4
    assert control_extents([256, 512, 65536], 1280 / 32776) == [8, 16, 2552]
    points = [event.point for event in recorded("working_set").run().points if event.reading.phase == "spread"]
    assert {point.loops[1:] for point in points} == {(8, 32768)}
    # 1024 blocks, 864 of them resident on 108 multiprocessors of 8, each reading 4 (256 + 1) bytes a step of k
    assert all(point.requested == 1024 * 4 * 257 * point.k for point in points)
    assert all(point.working_set == 864 * 4 * 257 * point.k for point in points)


class Clocked(SimulatedDevice):
    """Has a device clock, and a clock rate that falls under the control."""

    def __init__(self, truth):
        super().__init__(truth)
        self.control = False

    def open_workload(self, problem):
        self.control = getattr(problem, "m", 0) == 8
        return super().open_workload(problem)

    def conditions(self):
        return replace(super().conditions(), sm_clock_mhz=1485.0 if self.control else 1980.0)


def test_clocks_that_fall_under_the_control_are_no_doubt_on_what_is_served():
    result = recorded("working_set", device=Clocked(Truth("toy"))).run().result
    assert result.doubtful == ()
    assert result.facts["sm_clock_mhz"] == (1485.0, 1980.0)


def test_drift_is_read_off_the_device_clock_where_there_is_one():
    surroundings = Conditions()
    window = Window((0.0347,), 0.0288, 1, None, False, datetime.now(UTC), 1.0, surroundings, surroundings)
    assert drift_ms(window) == 0.0288
    assert drift_ms(replace(window, device_ms=None)) == 0.0347


def test_no_refinement_is_begun_that_the_time_left_would_not_hold():
    now = [0.0]
    clock = Clock(lambda: now[0], lambda: datetime.now(UTC), lambda seconds: None)
    device = SimulatedDevice(Truth("toy", noise=0.0))
    # the spilled side, k = 4096, takes 2.9 ms: 7 points x 24 runs x 2.9 ms = 0.49 s, over half of 0.9 s
    sweep = recorded(
        "working_set",
        None,
        device,
        {"model_peak_memory_bandwidth": 1.5e12},
        clock=clock,
        deadline=0.9,
    ).run()
    assert "refine" not in {event.reading.role for event in sweep.points if event.reading.phase == "aligned"}
    assert any("time limit" in note for note in sweep.result.notes)


def test_issue_and_launch_kernels_give_calibration_rows_with_exact_operations():
    issue = recorded("issue", {"ks": [256, 512]}).run()
    rows = {(event.row.routine, event.row.flops) for event in issue.rows if event.reading.role == "grid"}
    assert rows == {("issue_contraction", 2 * 512 * 512 * 256), ("issue_contraction", 2 * 512 * 512 * 512)}
    (fma,) = [event for event in issue.rows if event.reading.role == "fma"]
    assert fma.row.routine == "fma"
    launch = recorded("launch").run()
    assert len([e for e in launch.rows if e.reading.role == "grid"]) == len(
        [e for e in launch.points if e.reading.role == "grid"]
    )


def test_the_fma_kernel_runs_long_enough_to_hide_its_launch():
    (fma,) = [event.row for event in recorded("issue").run().rows if event.row.routine == "fma"]
    assert fma.measured_ms >= 10.0


def test_launch_operations_double_until_the_fastest_point_takes_fifty_latencies():
    # at 1.2e13 op/s 2^31 operations take 0.18 ms and 2^32 take 0.36 ms: with 4 us only the second are 50 latencies
    facts = recorded("launch").run().result.facts
    assert facts["target_ops"] == 1 << 32


def test_launch_sizes_double_until_the_throughput_rises_by_less_than_five_percent():
    # P t = 27648 threads, 432 blocks of 64: size 512 has 256 blocks, 1024 has 1024, and 2048 shows no rise
    assert recorded("launch").run().result.facts["sizes"] == [32, 64, 128, 256, 512, 1024, 2048]
    wide = SimulatedDevice(Truth("wide", multiprocessors=1000, fill_threads=1024, issue_rate=1e14, peak_flops=1e15))
    assert recorded("launch", device=wide).run().result.facts["sizes"][-1] == 4096


def test_launch_sizes_end_where_the_memory_does():
    # two pilots, the second after the operations doubled, and six sizes before the first extended one
    failure = Failure("out_of_memory", "32x32x8/4x4", at=2 + 6 + 1)
    result = recorded("launch", device=SimulatedDevice(Truth("toy", failures=(failure,)))).run().result
    assert result.facts["sizes"] == [32, 64, 128, 256, 512, 1024]
    assert "sizes end below 2048: 32x32x8/4x4: planted allocation failure" in result.notes


def test_asked_launch_sizes_are_not_extended():
    assert recorded("launch", {"sizes": [64, 128]}).run().result.facts["sizes"] == [64, 128]


def test_skipped_pairs_are_listed():
    assert recorded("launch").run().result.facts["skipped"] == ["64x64x8/4x4 does not tile 32 x 32"]


def test_an_extent_that_no_candidate_divides_gives_approximate_rows_and_fails_with_cause_and_remedy():
    sweep = recorded("stream", {"elems": 100_000_007})
    with pytest.raises(
        NoExactRowsError, match=r"no candidate's blocks divide 100000007 .* power of two, such as 134217728"
    ):
        sweep.run()
    assert len(sweep.rows) == 25
    assert all(event.row.bytes_approx for event in sweep.rows)
    assert {event.row.flops_approx for event in sweep.rows if event.row.routine == "stream_copy"} == {False}


class Interrupted(SimulatedDevice):
    """Two of three samples share the device with a neighbour, from sample `first` to `last`."""

    first, last = 0, math.inf
    samples = 0

    def slowdown(self):
        self.samples += 1
        return 3.0 if self.first <= self.samples < self.last and self.samples % 3 else 1.0


def test_a_device_that_never_rests_is_contended_in_bounded_time():
    for sweep in SWEEPS:
        device = Interrupted(Truth("busy"))
        with pytest.raises(ContendedError, match="Stop other work"):
            recorded(sweep, device=device).run()


def test_a_device_always_throttled_is_contended_with_the_reason():
    device = SimulatedDevice(Truth("hot", throttle=("hw_thermal_slowdown",)))
    with pytest.raises(ContendedError, match="throttled: hw_thermal_slowdown"):
        recorded("issue", device=device).run()


def test_refused_windows_give_no_row_and_are_counted():
    device = Interrupted(Truth("toy", noise=0.0))
    device.first, device.last = 1000, 1300
    sweep = recorded("stream", device=device).run()
    refused = [window for event in sweep.rows for window in event.reading.windows if window["refused"]]
    assert refused
    assert sweep.result.facts["refused_windows"] >= len(refused)
    assert any("windows refused: contended" in note for note in sweep.result.notes)


def test_a_wrong_result_fails_the_sweep_before_any_row():
    device = SimulatedDevice(Truth("toy", failures=(Failure("verification", "stream", at=20),)))
    sweep = recorded("stream", device=device)
    with pytest.raises(VerificationError, match="planted wrong result"):
        sweep.run()
    assert sweep.rows == []


@pytest.mark.parametrize(("mode", "error"), [("compile", CompileError), ("out_of_memory", OutOfMemoryError)])
def test_what_the_device_says_passes_through(mode, error):
    device = SimulatedDevice(Truth("toy", failures=(Failure(mode, "64x64x8/4x4", at=2),)))
    with pytest.raises(error, match="planted"):
        recorded("launch", device=device).run()


def test_the_deadline_ends_a_sweep_and_names_the_point():
    now = [0.0]

    class Slow(SimulatedDevice):
        def slowdown(self):
            now[0] += 0.01
            return 1.0

    clock = Clock(lambda: now[0], lambda: datetime.now(UTC), lambda seconds: None)
    with pytest.raises(PointTimeoutError, match=r"timing working_set_aligned k="):
        recorded("working_set", device=Slow(Truth("toy")), clock=clock, deadline=1.5).run()


def test_a_single_asked_point_is_no_contention():
    assert len(recorded("working_set", {"ks": [256], "repeats": 1}).run().points) >= 2


def test_spread_is_null_under_four_samples_and_a_fraction_from_there():
    assert relative_spread([1.0]) is None
    assert relative_spread([1.0, 1.0, 2.0]) is None
    # quartiles of 1 2 3 4 5 by linear interpolation: 2 and 4; median 3
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)


def test_nothing_emitted_is_ever_non_finite():
    for sweep in SWEEPS:
        for event in recorded(sweep, {"repeats": 1}).run().events:
            if isinstance(event, RowMeasured | PointMeasured):
                assert math.isfinite(event.reading.median_ms)
