"""Planted constants, measured by the real sweeps and fitted by the real fits, are found again."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitting import DEFAULT_FILL_CANDIDATES, fit_to_json, refit
from kernels.backends.simulated import describe
from kernels.backends.truth import Truth, parse_truth
from kernels.calibration import calibrate

RESIDENT_BLOCKS = 8  # of 256 threads a multiprocessor of 2048
PANEL_BYTES = 4 * 257  # a step of k reads 256 elements of x and one of dy


@pytest.fixture(scope="module")
def locks(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("locks")


def calibrated(locks: Path, **planted: Any) -> tuple[Truth, dict[str, Any]]:
    truth = parse_truth({"name": "planted", **planted})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALIBRATE_LOCK_DIR", str(locks))
        patch.setenv("CALIBRATE_HOST_ID", "test-host")
        patch.setenv("CALIBRATE_SIMULATED", json.dumps([{"name": "planted", **planted}]))
        document = calibrate(describe(truth).key, on_event=lambda sweep, event: None, in_process=True)
    return truth, document


def served(document: dict[str, Any]) -> dict[str, float]:
    return {name: c["value"] for name, c in document["constants"].items() if c["value"] is not None}


def reasons(document: dict[str, Any]) -> dict[str, str]:
    return {name: c["reason"] for name, c in document["constants"].items() if c["value"] is None}


def outcome(document: dict[str, Any], kind: str, phase: str | None = None) -> dict[str, Any]:
    return next(fit for fit in document["fits"] if (fit["kind"], fit["phase"]) == (kind, phase))


@st.composite
def truths(draw: st.DrawFn) -> dict[str, Any]:
    """Devices whose kernels are limited by what each sweep is to find, and whose launches are short beside them."""
    multiprocessors = draw(st.integers(8, 160))
    memory = multiprocessors * draw(st.floats(1e10, 5e10))
    cache = memory * draw(st.floats(2.0, 6.0))
    issue = multiprocessors * draw(st.floats(1e11, 2e11))
    spilled_from_k = draw(st.floats(300.0, 60_000.0))
    working_set_a_step = PANEL_BYTES * min(1024, multiprocessors * RESIDENT_BLOCKS)
    shortest_ms = 1e3 * PANEL_BYTES * 256 * 1024 / cache
    return {
        "multiprocessors": multiprocessors,
        "peak_memory_bandwidth": memory,
        "cache_bandwidth": cache,
        "cache_capacity": int(spilled_from_k * working_set_a_step),
        "issue_rate": issue,
        "peak_flops": issue * draw(st.floats(2.0, 4.0)),
        "fill_threads": draw(st.sampled_from([t for t in DEFAULT_FILL_CANDIDATES if t <= 1024])),
        "launch_latency_ms": shortest_ms * draw(st.floats(0.0, 0.002)),
        "noise": draw(st.floats(0.0, 0.01)),
        "seed": draw(st.integers(0, 1000)),
    }


def fills(truth: Truth, document: dict[str, Any]) -> dict[str, list[float]]:
    """The share of the device that each launch point uses, by geometry, from the planted P and t."""
    (launch,) = [sweep for sweep in document["sweeps"] if sweep["sweep"] == "launch"]
    series: dict[str, list[float]] = {}
    for entry in launch["points"]:
        if entry["reading"]["role"] == "grid":
            (context,) = entry["point"]["contexts"]
            useful = context["blocks"] * min(context["threads"], truth.fill_threads)
            room = truth.multiprocessors * truth.fill_threads
            series.setdefault(entry["point"]["geometry"], []).append(min(1.0, useful / room))
    return series


def is_identifiable(series: dict[str, list[float]]) -> bool:
    """Two full points in a geometry that also has partial ones, two partial points in all; with room for noise."""
    admitted = {label: [fill for fill in shares if fill > max(shares) / 8 * 1.03] for label, shares in series.items()}
    partial = [fill for shares in admitted.values() for fill in shares if fill < 0.87]
    return len(partial) >= 2 and any(
        sum(fill == 1.0 for fill in shares) >= 2 and min(shares) < 0.87 for shares in admitted.values()
    )


@settings(max_examples=60, deadline=None)
@given(planted=truths())
def test_planted_constants_are_found_again(locks, planted):
    truth, document = calibrated(locks, **planted)
    found = served(document)

    assert found["model_peak_memory_bandwidth"] == pytest.approx(truth.peak_memory_bandwidth, rel=0.02)
    assert found["model_peak_flops"] == pytest.approx(truth.peak_flops, rel=0.02)
    least_ms = min(row["row"]["measured_ms"] for sweep in document["sweeps"] for row in sweep["rows"])
    floored = 1 + 1.01e-6 / least_ms  # a row's time is floored at 1e-6 ms: by no more may a peak pass the truth
    assert found["model_peak_memory_bandwidth"] <= truth.peak_memory_bandwidth * floored
    assert found["model_peak_flops"] <= truth.peak_flops * floored

    split = outcome(document, "capacity", "aligned")["result"]
    assert split["monotone"]
    assert split["cached_ws"] <= truth.cache_capacity < split["spilled_ws"]
    assert split["spilled_ws"] / split["cached_ws"] < 1.15  # 1.1, and the rounding of k to 8 at k = 300
    assert found["model_cache_bandwidth"] == pytest.approx(truth.cache_bandwidth, rel=0.02)

    series = fills(truth, document)
    fill = outcome(document, "fill")
    if "model_fill_threads" in found:
        assert truth.fill_threads in fill["result"]["tied_candidates"]
        assert found["model_multiprocessors"] == truth.multiprocessors
        full = 1.0
    else:
        assert not is_identifiable(series)
        useful = 256 * min(64, truth.fill_threads)  # 512 x 512 in tiles of 32 x 32, 64 threads a block
        full = min(1.0, useful / (truth.multiprocessors * truth.fill_threads))
    assert found["model_issue_rate"] == pytest.approx(truth.issue_rate * full, rel=0.02)

    assert all(sweep["doubtful"] == [] for sweep in document["sweeps"])


def test_the_document_refits_to_the_last_digit(locks):
    _, document = calibrated(locks, noise=0.01)
    again = json.loads(json.dumps(document, allow_nan=False))
    assert [fit_to_json(fit) for fit in refit(again)] == document["fits"]


def test_a_realistic_launch_latency_costs_no_constant_more_than_two_percent(locks):
    truth, document = calibrated(locks, launch_latency_ms=0.004, noise=0.01)
    found = served(document)
    assert found["model_cache_bandwidth"] == pytest.approx(truth.cache_bandwidth, rel=0.02)
    assert found["model_issue_rate"] == pytest.approx(truth.issue_rate, rel=0.02)
    assert found["model_peak_flops"] == pytest.approx(truth.peak_flops, rel=0.02)
    assert found["model_fill_threads"] == truth.fill_threads
    latency_ms = outcome(document, "issue_rate")["result"]["latency_ms"]
    assert latency_ms == pytest.approx(0.004, rel=0.25)


def test_a_cache_that_nothing_spills_serves_its_bandwidth_and_no_capacity(locks):
    truth, document = calibrated(locks, cache_capacity=None)
    assert outcome(document, "capacity", "aligned")["outcome"] == "AllCached"
    assert reasons(document)["model_cache_capacity"] == "all_cached"
    assert served(document)["model_cache_bandwidth"] == pytest.approx(truth.cache_bandwidth, rel=0.02)


def test_a_cache_smaller_than_every_point_serves_neither(locks):
    _, document = calibrated(locks, cache_capacity=1 << 20)
    assert outcome(document, "capacity", "aligned")["outcome"] == "AllSpilled"
    assert reasons(document)["model_cache_capacity"] == "all_spilled"
    assert reasons(document)["model_cache_bandwidth"] == "all_spilled"


def test_a_cache_hardly_faster_than_memory_serves_neither(locks):
    _, document = calibrated(locks, cache_bandwidth=1.1 * 1.5e12)
    assert reasons(document)["model_cache_capacity"] == "low_contrast"
    assert reasons(document)["model_cache_bandwidth"] == "low_contrast"


def test_the_spread_control_shows_the_physical_cache_and_is_never_served(locks):
    # 8 rows and 32768 columns: 32 MiB hold 4 (32776 k + 262144) bytes up to k = 247; the plain plan spills from 2 GiB
    truth, document = calibrated(locks)
    control = outcome(document, "capacity", "spread")["result"]
    cached_k, spilled_k = (control[end] / (PANEL_BYTES * 864) for end in ("cached_ws", "spilled_ws"))
    assert cached_k <= 247 < spilled_k <= 1.1 * cached_k + 8
    assert served(document)["model_cache_capacity"] == pytest.approx(truth.cache_capacity, rel=0.1)


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param({"multiprocessors": 1, "fill_threads": 32, "peak_memory_bandwidth": 2e11}, id="always full"),
        pytest.param({"multiprocessors": 4000, "fill_threads": 2048}, id="never full"),
    ],
)
def test_a_sweep_that_does_not_cross_full_fill_serves_no_saturation(locks, planted):
    _, document = calibrated(locks, **planted, issue_rate=1e12, peak_flops=2e12)
    assert {"model_multiprocessors", "model_fill_threads"} <= set(reasons(document))
    assert "model_issue_rate" in served(document)


def test_a_subset_of_sweeps_serves_only_its_own_groups(locks):
    truth = parse_truth({"name": "planted"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALIBRATE_LOCK_DIR", str(locks))
        patch.setenv("CALIBRATE_HOST_ID", "test-host")
        patch.setenv("CALIBRATE_SIMULATED", '[{"name": "planted"}]')
        document = calibrate(
            describe(truth).key,
            ["working_set"],
            on_event=lambda sweep, event: None,
            in_process=True,
            constants={"model_peak_memory_bandwidth": 1e12},
        )
    assert set(document["constants"]) == {"model_cache_capacity", "model_cache_bandwidth"}
    assert document["sweeps"][0]["constants_in_force"] == {"model_peak_memory_bandwidth": 1e12}
    assert outcome(document, "capacity", "aligned")["inputs"]["dram_rate"] == 1e12


def test_each_sweep_is_priced_under_the_constants_of_the_sweeps_before_it(locks):
    _, document = calibrated(locks)
    in_force = [set(sweep["constants_in_force"]) for sweep in document["sweeps"]]
    assert in_force[0] == set()
    assert "model_peak_memory_bandwidth" in in_force[1]
    assert {"model_cache_capacity", "model_cache_bandwidth"} <= in_force[2]
    assert {"model_issue_rate", "model_multiprocessors", "model_fill_threads"} <= in_force[3]
    points = document["sweeps"][3]["points"]
    assert all(entry["point"]["rank_ms"] > entry["point"]["bound_ms"] > 0 for entry in points)
