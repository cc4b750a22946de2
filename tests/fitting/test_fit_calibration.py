"""From one run's measurements to its fits and the constants it serves."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from fitting import (
    CONSTANTS,
    Absent,
    AllCached,
    AllSpilled,
    Constant,
    ConstantValue,
    EnvelopeFit,
    FillFit,
    FillUnfittable,
    Fit,
    IssueFit,
    IssuePoint,
    IssueUnfittable,
    Measured,
    Measurements,
    NoTransition,
    TooFewPoints,
    Transition,
    constant_to_json,
    constants_of,
    fit_calibration,
    fit_to_json,
)


def fit_all(measurements: Measurements, in_force: dict[str, float] | None = None) -> dict[tuple[str, str | None], Fit]:
    fits = fit_calibration(measurements, backend="simulated", multiprocessors=8, in_force=in_force or {})
    return {(fit.kind, fit.phase): fit for fit in fits}


def serve(measurements: Measurements, in_force: dict[str, float] | None = None) -> dict[str, Constant]:
    fits = fit_calibration(measurements, backend="simulated", multiprocessors=8, in_force=in_force or {})
    return constants_of(fits, measurements)


def value(constant: Constant) -> ConstantValue:
    assert isinstance(constant, ConstantValue)
    return constant


def absent(constant: Constant) -> Absent:
    assert isinstance(constant, Absent)
    return constant


def only_working_set(run: Measurements, *, role: str | None = None) -> Measurements:
    kept = tuple(item for item in run.working_set if role is None or item.role == role)
    return Measurements(working_set=kept)


def test_every_sweep_is_fitted_in_the_order_of_use(full_run: Measurements) -> None:
    fits = fit_calibration(full_run, backend="simulated", multiprocessors=8, in_force={})

    assert [(fit.kind, fit.sweep, fit.phase) for fit in fits] == [
        ("envelope", "stream", None),
        ("capacity", "working_set", "aligned"),
        ("capacity", "working_set", "spread"),
        ("cache_rate", "working_set", "aligned"),
        ("fill", "launch", None),
        ("issue_rate", "issue", None),
    ]


def test_nothing_measured_is_nothing_fitted() -> None:
    assert fit_calibration(Measurements(), backend="cc", multiprocessors=1, in_force={}) == []
    assert constants_of([], Measurements()) == {}


def test_the_planted_device_comes_back_as_seven_constants(full_run: Measurements) -> None:
    constants = serve(full_run)

    assert list(constants) == list(CONSTANTS)
    served = {name: value(constant).value for name, constant in constants.items()}
    assert served == {
        "model_peak_memory_bandwidth": pytest.approx(1e11),
        "model_peak_flops": pytest.approx(2e12),
        "model_cache_capacity": 3_046_309,  # sqrt(2_900_000 * 3_200_000) = 3_046_309.2
        "model_cache_bandwidth": pytest.approx(4e11),
        "model_issue_rate": pytest.approx(1e12),
        "model_multiprocessors": 8,
        "model_fill_threads": 128,
    }
    assert all(constant.doubtful == () for constant in map(value, constants.values()))


def test_the_dram_rate_is_this_runs_peak_before_the_one_in_force(full_run: Measurements) -> None:
    in_force = {"model_peak_memory_bandwidth": 7e10}

    assert fit_all(full_run, in_force)["capacity", "aligned"].inputs["dram_rate"] == pytest.approx(1e11)
    assert fit_all(only_working_set(full_run), in_force)["capacity", "aligned"].inputs["dram_rate"] == 7e10
    assert fit_all(only_working_set(full_run))["capacity", "aligned"].inputs["dram_rate"] is None


def test_rows_of_other_sweeps_set_no_memory_peak(full_run: Measurements) -> None:
    compute_only = Measurements(rows=full_run.rows[2:3], working_set=full_run.working_set)

    assert fit_all(compute_only)["capacity", "aligned"].inputs["dram_rate"] is None
    assert "model_peak_memory_bandwidth" not in serve(compute_only)
    assert value(serve(compute_only)["model_peak_flops"]).value == pytest.approx(2e12)


def test_a_phase_that_is_not_told_counts_as_aligned(full_run: Measurements) -> None:
    untold = tuple(replace(item, phase=None) for item in full_run.working_set if item.phase == "aligned")

    outcome = fit_all(Measurements(working_set=untold))["capacity", "aligned"].outcome

    assert outcome == fit_all(only_working_set(full_run))["capacity", "aligned"].outcome


def test_the_spread_phase_is_fitted_and_never_served(full_run: Measurements) -> None:
    spread = Measurements(working_set=tuple(item for item in full_run.working_set if item.phase == "spread"))

    fits = fit_all(spread)

    assert isinstance(fits["capacity", "spread"].outcome, Transition)
    assert list(fits) == [("capacity", "spread")]
    assert serve(spread) == {}


def test_the_cache_bandwidth_is_the_grids_alone(full_run: Measurements) -> None:
    slow_shoulder = tuple(
        replace(item, record=replace(item.record, ms=item.record.ms * 1.5)) if item.role == "refine" else item
        for item in full_run.working_set
    )

    constants = serve(replace(full_run, working_set=slow_shoulder))

    assert value(constants["model_cache_bandwidth"]).value == pytest.approx(4e11)
    assert value(constants["model_cache_bandwidth"]).kind == "cache_rate"


def test_a_peak_tells_its_witness_and_the_rates_of_its_windows(full_run: Measurements) -> None:
    peak = value(serve(full_run)["model_peak_memory_bandwidth"])

    assert isinstance(peak.outcome, EnvelopeFit)
    assert (peak.unit, peak.kind) == ("byte/s", "envelope")
    assert peak.quality["witness"] == "stream_triad/block=64 (d-triad)"
    assert peak.quality["window_ms"] == pytest.approx([10.0, 12.5])
    assert peak.quality["spread"] == pytest.approx([8e10, 1e11])  # the second window is a quarter slower
    assert peak.quality["rows"] == 3


def test_evidence_out_of_a_floats_range_stays_finite(full_run: Measurements) -> None:
    slow = replace(full_run.rows[1], window_ms=(1e300, 1e308))  # a hundred millionth of the peak
    run = Measurements(rows=(slow,), working_set=full_run.working_set[:2])

    peak = value(serve(run)["model_peak_memory_bandwidth"])
    _, bandwidth = cache_answer(full_run, [4e11, 4e11], 1e-300)

    assert peak.quality["spread"] == pytest.approx([1e3, 1e11])
    assert value(bandwidth).quality["contrast"] is None


def test_a_capacity_tells_its_two_sides(full_run: Measurements) -> None:
    capacity = value(serve(full_run)["model_cache_capacity"])

    assert isinstance(capacity.outcome, Transition)
    assert capacity.quality["spread"] == [2_900_000, 3_200_000]
    assert capacity.quality["distinct_bytes"] == [290_000, 320_000]
    assert capacity.quality["monotone"] is True
    assert capacity.quality["points"] == 12


def test_a_capacity_that_is_a_guess_is_doubtful(full_run: Measurements) -> None:
    late = full_run.working_set[6]  # 16 MiB at the cache rate, past the spilled points
    guess = replace(late, record=replace(late.record, ms=late.record.ms / 4))

    capacity = value(serve(replace(full_run, working_set=(*full_run.working_set, guess)))["model_cache_capacity"])

    assert capacity.quality["monotone"] is False
    assert "guess" in capacity.doubtful[0]


def test_a_cache_rate_tells_the_standard_error_of_its_median(full_run: Measurements) -> None:
    rates = [4e11, 3e11, 3.5e11, 1e11]
    points = tuple(
        replace(item, record=replace(item.record, ms=item.record.requested / rate * 1e3))
        for item, rate in zip(full_run.working_set, rates, strict=False)
    )

    bandwidth = value(serve(Measurements(working_set=points))["model_cache_bandwidth"])

    error = math.sqrt(math.pi / 2) * 5e10 / math.sqrt(3)  # the three cached rates are 5e10 apart
    assert bandwidth.value == pytest.approx(3.5e11)
    assert bandwidth.quality["standard_error"] == pytest.approx(error)
    assert bandwidth.quality["spread"] == pytest.approx([3.5e11 - error, 3.5e11 + error])


def test_a_saturation_tells_its_ties_and_full_points(full_run: Measurements) -> None:
    constants = serve(full_run)
    threads, rate = value(constants["model_fill_threads"]), value(constants["model_issue_rate"])

    assert threads.quality["spread"] == [128, 128]
    assert threads.quality["tied_candidates"] == [128]
    # full are 1024 threads: 16 blocks of 64 or 8 of the wide one, which counts 128 a block
    assert threads.quality["full_points"] == {"32x32x8/4x4": 4, "64x64x8/4x4": 3}
    assert (rate.kind, rate.quality["fill"]) == ("issue_rate", "this_run")
    assert rate.quality["latency_ms"] == pytest.approx(0.01)


def test_stream_rows_alone_serve_no_compute_peak(full_run: Measurements) -> None:
    constants = serve(Measurements(rows=full_run.rows[:2]))

    assert absent(constants["model_peak_flops"]).reason == "no_compute_bound_rows"
    assert list(constants) == ["model_peak_memory_bandwidth", "model_peak_flops"]


def test_approximate_fma_rows_serve_no_compute_peak(full_run: Measurements) -> None:
    fma = full_run.rows[2]
    guarded = replace(fma, record=replace(fma.record, flops_approx=True))

    assert absent(serve(replace(full_run, rows=(*full_run.rows[:2], guarded)))["model_peak_flops"]).reason == (
        "no_compute_bound_rows"
    )


def test_stream_rows_without_exact_bytes_serve_no_memory_peak(full_run: Measurements) -> None:
    guarded = tuple(replace(item, record=replace(item.record, bytes_approx=True)) for item in full_run.rows[:2])

    assert absent(serve(Measurements(rows=guarded))["model_peak_memory_bandwidth"]).reason == "no_exact_rows"


def cache_answer(run: Measurements, rates: list[float], dram_rate: float | None) -> tuple[Constant, Constant]:
    points = tuple(
        replace(item, record=replace(item.record, ms=item.record.requested / rate * 1e3))
        for item, rate in zip(run.working_set, rates, strict=False)
    )
    constants = serve(
        Measurements(working_set=points), {"model_peak_memory_bandwidth": dram_rate} if dram_rate else None
    )
    return constants["model_cache_capacity"], constants["model_cache_bandwidth"]


def test_all_cached_serves_the_bandwidth_only(full_run: Measurements) -> None:
    capacity, bandwidth = cache_answer(full_run, [4e11, 4e11, 4e11], 1e11)

    assert absent(capacity).reason == "all_cached"
    assert absent(capacity).outcome == AllCached(2**20, pytest.approx(4e11))  # type: ignore[arg-type]
    assert value(bandwidth).value == pytest.approx(4e11)
    assert value(bandwidth).quality["contrast"] == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("rates", "dram_rate", "reason", "outcome"),
    [
        ([1.19e11, 1.1e11], 1e11, "low_contrast", AllCached),
        ([1.15e11, 0.9e11], 1e11, "low_contrast", Transition),
        ([0.9e11, 0.8e11], 1e11, "all_spilled", AllSpilled),
        ([1.5e11, 1e11], None, "no_transition", NoTransition),
        ([1e11], None, "too_few_points", TooFewPoints),
    ],
)
def test_a_working_set_sweep_that_shows_no_cache_serves_neither(
    full_run: Measurements, rates: list[float], dram_rate: float | None, reason: str, outcome: type
) -> None:
    for constant in cache_answer(full_run, rates, dram_rate):
        assert absent(constant).reason == reason
        assert isinstance(absent(constant).outcome, outcome)


def test_a_grid_that_hardly_beats_memory_serves_neither_whatever_its_refinement_reads(full_run: Measurements) -> None:
    rates = {"grid": [1.1e11, 1.05e11, 0.9e11], "refine": [1.9e11, 1.8e11]}
    points = tuple(
        replace(item, record=replace(item.record, ms=item.record.requested / rate * 1e3))
        for role, wanted in rates.items()
        for item, rate in zip([i for i in full_run.working_set if i.role == role], wanted, strict=False)
        if item.phase == "aligned"
    )

    constants = serve(Measurements(working_set=points), {"model_peak_memory_bandwidth": 1e11})

    assert absent(constants["model_cache_bandwidth"]).reason == "low_contrast"
    assert absent(constants["model_cache_capacity"]).reason == "low_contrast"


def test_a_line_that_misses_its_points_is_warned_of() -> None:
    # 0.1, 2.05, 4 ms at 1, 2, 4 x 10^9 ops: slope 1.25357, intercept -0.875, so 0.37857 ms at the first: 279 % off
    times = {1: 0.1, 2: 2.05, 4: 4.0}
    points = tuple(Measured(IssuePoint(k, k * 10**9, 0, 1, ms)) for k, ms in times.items())

    rate = value(serve(Measurements(issue=points))["model_issue_rate"])

    assert rate.quality["warnings"] == [
        "the fitted latency is negative",
        "the line misses a point by 279%: the rate changes over the sweep",
    ]


def test_without_an_issue_sweep_the_rate_is_the_fill_fits(full_run: Measurements) -> None:
    rate = value(serve(Measurements(launch=full_run.launch))["model_issue_rate"])

    assert (rate.kind, rate.quality["fill"]) == ("fill", "this_run")
    assert isinstance(rate.outcome, FillFit)
    assert rate.value == pytest.approx(1e12)


def test_an_issue_sweep_without_growth_leaves_the_rate_to_the_fill_fit(full_run: Measurements) -> None:
    flat = tuple(replace(item, record=replace(item.record, ms=1.0)) for item in full_run.issue)

    run = Measurements(issue=flat, launch=full_run.launch)

    assert isinstance(fit_all(run)["issue_rate", None].outcome, IssueUnfittable)
    assert value(serve(run)["model_issue_rate"]).kind == "fill"


def test_an_issue_sweep_alone_is_fitted_under_the_active_fill_if_it_is_whole(full_run: Measurements) -> None:
    run = Measurements(issue=full_run.issue)
    # 256 blocks of 64 threads on 8 multiprocessors of 4096 threads fill half the device
    half = {"model_multiprocessors": 8.0, "model_fill_threads": 4096.0}

    active, plain = serve(run, half), serve(run, {"model_multiprocessors": 8.0})

    assert value(active["model_issue_rate"]).quality["fill"] == "active"
    assert value(active["model_issue_rate"]).value == pytest.approx(2e12)
    assert value(plain["model_issue_rate"]).quality["fill"] == "none"
    assert value(plain["model_issue_rate"]).value == pytest.approx(1e12)
    assert absent(active["model_fill_threads"]).reason == "not_measured"


def test_an_unfittable_launch_sweep_says_why_and_leaves_the_issue_fit_plain(full_run: Measurements) -> None:
    full_only = tuple(item for item in full_run.launch if item.record.m >= 512)

    constants = serve(Measurements(issue=full_run.issue, launch=full_only))

    assert value(constants["model_issue_rate"]).quality["fill"] == "none"
    for name in ("model_multiprocessors", "model_fill_threads"):
        assert absent(constants[name]).reason.startswith("unfittable: the sweep never leaves full fill")
        assert isinstance(absent(constants[name]).outcome, FillUnfittable)


def test_one_full_point_in_each_identifying_geometry_serves_no_saturation(full_run: Measurements) -> None:
    # 128 is the lead's first full size (16 blocks of 64), 256 the wide geometry's (16 blocks that count 128)
    few = tuple(item for item in full_run.launch if item.record.m <= (128 if item.record.geometry[:2] == "32" else 256))

    constants = serve(Measurements(launch=few))

    assert {absent(constant).reason for constant in constants.values()} == {"few_full_points"}


def test_an_unserved_saturation_is_not_what_the_issue_fit_runs_under(full_run: Measurements) -> None:
    few = tuple(item for item in full_run.launch if item.record.m <= (128 if item.record.geometry[:2] == "32" else 256))

    fits = fit_all(Measurements(issue=full_run.issue, launch=few))

    assert isinstance(fits["fill", None].outcome, FillFit)
    assert isinstance(fits["issue_rate", None].outcome, IssueFit)
    assert fits["issue_rate", None].inputs["fill"] == "none"


def test_repeats_alone_are_fitted_nowhere(full_run: Measurements) -> None:
    repeats = Measurements(
        rows=tuple(replace(item, role="repeat") for item in full_run.rows),
        issue=tuple(replace(item, role="repeat") for item in full_run.issue),
        launch=tuple(replace(item, role="repeat") for item in full_run.launch),
    )

    assert fit_all(repeats) == {}


def test_fits_and_constants_are_strict_json(full_run: Measurements) -> None:
    fits = fit_calibration(full_run, backend="simulated", multiprocessors=8, in_force={})
    forms = [fit_to_json(fit) for fit in fits]
    forms += [constant_to_json(constant) for constant in constants_of(fits, full_run).values()]
    forms += [constant_to_json(absent(serve(Measurements(rows=full_run.rows[:2]))["model_peak_flops"]))]

    assert json.loads(json.dumps(forms, allow_nan=False)) == forms
