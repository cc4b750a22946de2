"""The capacity fit: every outcome, by hand, from planted devices and from published GPU measurements."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitting import (
    AllCached,
    AllSpilled,
    NoTransition,
    TooFewPoints,
    Transition,
    WorkingSetPoint,
    fit_capacity,
)

PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "gpu_read_rates.json"


def point(working_set: int, rate: float, requested: int = 1000) -> WorkingSetPoint:
    """Make a point whose requested rate is `rate` bytes/s."""
    return WorkingSetPoint(1, (1, 1, 1), working_set, requested, requested, requested / rate * 1e3)


def sweep(*pairs: tuple[int, float]) -> list[WorkingSetPoint]:
    return [point(working_set, rate) for working_set, rate in pairs]


def test_the_capacity_is_the_geometric_mean_of_the_two_sides() -> None:
    # threshold without a DRAM rate: sqrt(800 * 50) = 200, so 250 is cached and 100 spilled; sqrt(200 * 800) = 400
    outcome = fit_capacity(sweep((100, 800.0), (200, 250.0), (800, 100.0), (1600, 50.0)))

    assert outcome == Transition(200, 800, 400, monotone=True, cache_rate=525.0)


def test_a_dram_rate_moves_the_threshold() -> None:
    # threshold sqrt(800 * 200) = 400: 250 is spilled now; sqrt(100 * 200) = 141.42
    outcome = fit_capacity(sweep((100, 800.0), (200, 250.0), (800, 200.0)), dram_rate=200.0)

    assert outcome == Transition(100, 200, 141, monotone=True, cache_rate=800.0)


def test_points_below_the_fastest_one_are_dropped() -> None:
    # the launch-bound point at 50 would read as spilled and make the fit non-monotone
    outcome = fit_capacity(sweep((50, 60.0), (100, 800.0), (200, 700.0), (400, 50.0)))

    assert outcome == Transition(200, 400, 283, monotone=True, cache_rate=750.0)  # sqrt(80000) = 282.84


def test_of_equally_fast_points_the_smallest_working_set_leads() -> None:
    outcome = fit_capacity(sweep((100, 512.0), (200, 512.0), (400, 512.0), (800, 32.0)))

    assert outcome == Transition(400, 800, 566, monotone=True, cache_rate=512.0)  # sqrt(320000) = 565.69


def test_rates_that_do_not_split_by_working_set_are_not_monotone() -> None:
    outcome = fit_capacity(sweep((100, 800.0), (200, 50.0), (400, 700.0), (800, 50.0)))

    assert outcome == Transition(400, 200, 283, monotone=False, cache_rate=750.0)


def test_one_working_set_on_both_sides_is_not_monotone() -> None:
    outcome = fit_capacity(sweep((100, 800.0), (200, 800.0), (200, 50.0)))

    assert outcome == Transition(200, 200, 200, monotone=False, cache_rate=800.0)


def test_a_sweep_above_the_threshold_is_all_cached() -> None:
    assert fit_capacity(sweep((100, 800.0), (400, 600.0)), dram_rate=100.0) == AllCached(400, 700.0)


def test_a_sweep_slower_than_dram_is_all_spilled() -> None:
    assert fit_capacity(sweep((100, 80.0), (400, 60.0)), dram_rate=100.0) == AllSpilled(100)


def test_a_contrast_below_two_without_a_dram_rate_tells_nothing() -> None:
    assert fit_capacity(sweep((100, 750.0), (400, 500.0))) == NoTransition(1.5)


def test_a_contrast_of_two_is_enough() -> None:
    assert isinstance(fit_capacity(sweep((100, 1024.0), (400, 512.0))), Transition)


def test_one_point_after_the_drop_is_judged_by_the_dram_rate_alone() -> None:
    rising = sweep((100, 64.0), (400, 128.0))

    assert fit_capacity(rising) == NoTransition(1.0)
    assert fit_capacity(rising, dram_rate=128.0) == AllCached(400, 128.0)
    assert fit_capacity(rising, dram_rate=129.0) == AllSpilled(400)


def test_fewer_than_two_valid_points_are_too_few() -> None:
    good = point(100, 800.0)

    assert fit_capacity([]) == TooFewPoints()
    assert fit_capacity([good]) == TooFewPoints()
    for bad in (
        WorkingSetPoint(1, (), 100, 100, 100, 0.0),
        WorkingSetPoint(1, (), 100, 100, 100, -1.0),
        WorkingSetPoint(1, (), 100, 100, 100, math.nan),
        WorkingSetPoint(1, (), 100, 100, 100, math.inf),
        WorkingSetPoint(1, (), 0, 100, 100, 1.0),
        WorkingSetPoint(1, (), 100, 0, 100, 1.0),
        WorkingSetPoint(1, (), 100, 10**400, 100, 1.0),
        WorkingSetPoint(1, (), 100, 100, 100, 5e-324),
    ):
        assert fit_capacity([good, bad]) == TooFewPoints()


def test_equal_times_are_no_transition() -> None:
    assert fit_capacity([WorkingSetPoint(1, (), 2**k, 100, 100, 1.0) for k in range(5)]) == NoTransition(1.0)


@pytest.mark.parametrize("dram_rate", [0.0, -1.0, math.nan, math.inf, True])
def test_a_dram_rate_that_is_none_is_refused(dram_rate: float) -> None:
    with pytest.raises(ValueError, match="dram_rate"):
        fit_capacity([], dram_rate)


@pytest.mark.parametrize(
    ("device", "capacity_kib", "cache_rate_gb"),
    [("A100 80GB", 35_295, 5_405), ("L40", 105_104, 5_222), ("H100 PCIe", 46_034, 6_993)],
)
def test_published_read_rates_of_real_gpus_give_their_capacities(
    device: str, capacity_kib: int, cache_rate_gb: int
) -> None:
    measured = json.loads(PUBLISHED.read_text())["devices"][device]

    outcome = fit_capacity([point(size, rate, requested=size) for size, rate in measured])

    assert isinstance(outcome, Transition)
    assert outcome.monotone
    assert round(outcome.capacity / 1024) == capacity_kib
    assert round(outcome.cache_rate / 1e9) == cache_rate_gb


@given(
    capacity=st.integers(3000, 2**34),
    cache_rate=st.floats(1e9, 1e13),
    contrast=st.floats(2.5, 50),
    with_dram=st.booleans(),
)
def test_a_planted_cliff_is_found_between_its_two_points(
    capacity: int, cache_rate: float, contrast: float, with_dram: bool
) -> None:
    sizes = [2**k for k in range(10, 37)]
    points = [point(size, cache_rate if size <= capacity else cache_rate / contrast, size) for size in sizes]

    outcome = fit_capacity(points, cache_rate / contrast if with_dram else None)

    below, above = next(pair for pair in pairwise(sizes) if pair[0] <= capacity < pair[1])
    assert isinstance(outcome, Transition)
    assert (outcome.cached_ws, outcome.spilled_ws, outcome.monotone) == (below, above, True)
    assert outcome.capacity == round(below * math.sqrt(2))
    assert outcome.cache_rate == pytest.approx(cache_rate)


wild_counts = st.integers(-1, 2**70) | st.just(10**400)
wild_points = st.builds(
    WorkingSetPoint, st.just(1), st.just(()), wild_counts, wild_counts, st.just(1), st.floats() | st.just(0.0)
)


@given(st.lists(wild_points, max_size=6), st.none() | st.floats(5e-324, 1.7e308))
def test_any_points_give_a_finite_outcome(points: list[WorkingSetPoint], dram_rate: float | None) -> None:
    outcome = fit_capacity(points, dram_rate)

    assert all(math.isfinite(value) for value in vars(outcome).values())
