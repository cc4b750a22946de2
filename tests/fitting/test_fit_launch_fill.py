"""The launch-fill fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitting import (
    DEFAULT_FILL_CANDIDATES,
    FillFit,
    FillUnfittable,
    LaunchContext,
    LaunchPoint,
    fit_fill,
)
from fitting.launch_fill import lead_line

OPS = 1000


def point(threads: int, blocks: int, ms: float, *, geometry: str | None = None, mma_ops: int = 0) -> LaunchPoint:
    return LaunchPoint(geometry or f"T{threads}", 1, 1, 1, (LaunchContext(blocks, threads, OPS, mma_ops),), ms)


TWO_CORES = [  # 2 multiprocessors, one block fills one: 1000 op/ms in the narrow geometry, 2000 in the wide
    *(point(64, blocks, ms) for blocks, ms in ((1, 2.0), (2, 1.0), (4, 1.0))),
    *(point(256, blocks, ms) for blocks, ms in ((1, 1.0), (2, 0.5), (4, 0.5))),
]


def test_a_sweep_of_two_cores_bounds_t_by_its_narrowest_block() -> None:
    outcome = fit_fill(TWO_CORES, multiprocessors=2, candidates=[256, 128, 64, 32])

    assert isinstance(outcome, FillFit)
    # t = 32 and 64 both give fills 1/2 1 1 in both geometries; the smallest is served and both are told
    assert (outcome.cores, outcome.saturation, outcome.tied_candidates) == (2, 32, (32, 64))
    assert outcome.rate == pytest.approx(1e6)  # the lead's 1000 operations a millisecond
    assert outcome.max_residual == pytest.approx(0.0, abs=1e-12)
    assert (outcome.partial_points, outcome.points, outcome.starved_points) == (2, 6, 0)
    # fill 1: op/ms are 500 1000 1000, so the line has sum(z) / sum(z^2) = 2500 / 2250000 = 1/900: worst 500/900 - 1
    assert outcome.raw_rate == pytest.approx(9e5)
    assert outcome.raw_residual == pytest.approx(4 / 9)


def test_the_uncapped_form_is_reported_beside_the_capped() -> None:
    # 4 multiprocessors of 128 threads: 512 fill the device. All of a wide block's threads count: fills B 256 / 512
    narrow = [point(64, blocks, 1 / min(1, blocks * 64 / 512)) for blocks in (1, 4, 16, 64)]
    wide = [point(256, blocks, 1 / min(1, blocks * 256 / 512)) for blocks in (1, 2, 4)]

    outcome = fit_fill([*narrow, *wide], multiprocessors=4, candidates=[64, 128, 256])

    assert isinstance(outcome, FillFit)
    assert outcome.uncapped is not None
    assert outcome.uncapped[0] == 128
    assert outcome.uncapped[1] == pytest.approx(0.0, abs=1e-12)
    assert outcome.max_residual > 0.01


def test_blocks_no_wider_than_t_give_both_forms_the_same() -> None:
    points = [point(64, blocks, 1 / min(1, blocks * 64 / 256)) for blocks in (1, 2, 4, 16)]

    outcome = fit_fill(points, multiprocessors=2, candidates=[128])

    assert isinstance(outcome, FillFit)
    assert outcome.uncapped == (outcome.saturation, outcome.max_residual)


def test_the_rate_is_the_first_geometrys() -> None:
    outcome = fit_fill(TWO_CORES[3:] + TWO_CORES[:3], multiprocessors=2, candidates=[64])

    assert isinstance(outcome, FillFit)
    assert outcome.rate == pytest.approx(2e6)


def test_starved_points_are_left_out_and_counted() -> None:
    starved = point(64, 1, 8.1)  # 123 op/ms, below an eighth of 1000
    kept = point(64, 1, 8.0)  # exactly an eighth

    with_starved = fit_fill([*TWO_CORES, starved], multiprocessors=2, candidates=[64])
    with_kept = fit_fill([*TWO_CORES, kept], multiprocessors=2, candidates=[64])

    assert isinstance(with_starved, FillFit)
    assert isinstance(with_kept, FillFit)
    assert (with_starved.points, with_starved.starved_points) == (6, 1)
    assert (with_kept.points, with_kept.starved_points) == (7, 0)
    assert with_starved.rate == pytest.approx(1e6)


def test_the_residuals_are_relative_to_the_measured_time() -> None:
    # one geometry, all partial but two: z = op/ms over fill: 1000 1000 1100; s = 3100 / (1e6 + 1e6 + 1.21e6)
    points = [point(64, 1, 4.0), point(64, 2, 2.0), point(64, 4, 1 / 1.1)]

    outcome = fit_fill(points, multiprocessors=4, candidates=[64])

    slope = 3100 / 3.21e6
    assert isinstance(outcome, FillFit)
    assert outcome.rate == pytest.approx(1e3 / slope)
    assert outcome.max_residual == pytest.approx(slope * 1100 - 1)
    line = lead_line(points, outcome)
    assert line is not None
    sse = 2 * (slope * 1000 - 1) ** 2 + (slope * 1100 - 1) ** 2
    assert line.slope_error == pytest.approx(math.sqrt(sse / 2 / 3.21e6))


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([], "too few points: 0"),
        ([point(64, 1, 1.0)], "too few points: 1"),
        ([point(64, 1, 1.0), point(64, 1, 0.0), point(64, 1, math.inf), point(64, 0, 1.0)], "too few points: 1"),
        ([point(64, 1, 100.0), point(64, 4, 1.0)], "too few points: 1"),  # the other is starved
        ([*TWO_CORES, point(64, 4, 1.0, mma_ops=1)], "tile-MMA"),
        ([point(64, blocks, 1.0) for blocks in (100, 200, 400)], "never leaves full fill"),
        ([point(64, 1, 2.0), point(64, 2, 1.0), point(64, 4, 1.0)], "never leaves full fill: 1 of 3"),
        ([point(64, 1, 2.0, geometry="a"), point(64, 1, 2.0, geometry="b")], "both sides"),
    ],
)
def test_what_identifies_no_saturation_says_why(points: list[LaunchPoint], reason: str) -> None:
    outcome = fit_fill(points, multiprocessors=2, candidates=[64])

    assert isinstance(outcome, FillUnfittable)
    assert reason in outcome.reason


def test_a_geometry_that_is_full_and_one_that_is_partial_identify_nothing() -> None:
    full = [point(64, blocks, 1.0) for blocks in (4, 8)]
    partial = [point(32, 1, 2.0, geometry="partial"), point(32, 2, 1.0, geometry="partial")]

    outcome = fit_fill([*full, *partial], multiprocessors=2, candidates=[64])

    assert isinstance(outcome, FillUnfittable)
    assert "its rate would absorb any saturation" in outcome.reason


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"multiprocessors": 0}, "multiprocessors"),
        ({"multiprocessors": 2.0}, "multiprocessors"),
        ({"multiprocessors": 2, "candidates": []}, "candidates"),
        ({"multiprocessors": 2, "candidates": [64, -1]}, "candidate"),
        ({"multiprocessors": 2, "starved": 1.0}, "starved"),
        ({"multiprocessors": 2, "starved": -0.1}, "starved"),
        ({"multiprocessors": 2, "starved": math.nan}, "starved"),
    ],
)
def test_nonsense_is_refused_by_name(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        fit_fill([], **arguments)  # type: ignore[arg-type]


def test_the_default_candidates_are_twenty_multiples_of_a_warp() -> None:
    assert DEFAULT_FILL_CANDIDATES == (
        32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048,
    )  # fmt: skip


def planted_sweep(multiprocessors: int, saturation: int, rates: Sequence[float]) -> list[LaunchPoint]:
    """Time the default geometries at sizes 32 to 4096 on a device that obeys the fill model exactly."""
    points = []
    for (label, tile, threads), rate in zip((("32x32", 32, 64), ("64x64", 64, 256)), rates, strict=True):
        for size in (32, 64, 128, 256, 512, 1024, 2048, 4096):
            if size < tile:
                continue
            blocks = (size // tile) ** 2
            busy = blocks * (saturation if threads > saturation else threads)
            full_ms = 2**31 / rate * 1e3
            slowdown = max(1.0, multiprocessors * saturation / busy)
            context = LaunchContext(blocks, threads, 2**31)
            points.append(LaunchPoint(label, size, size, 2**30 // size**2, (context,), full_ms * slowdown))
    return points


@settings(max_examples=50)
@given(
    multiprocessors=st.integers(2, 200),
    saturation=st.sampled_from(DEFAULT_FILL_CANDIDATES),
    rates=st.tuples(st.floats(1e9, 1e14), st.floats(1e9, 1e14)),
)
def test_a_planted_saturation_comes_back_or_ties_with_the_one_that_does(
    multiprocessors: int, saturation: int, rates: tuple[float, float]
) -> None:
    outcome = fit_fill(planted_sweep(multiprocessors, saturation, rates), multiprocessors=multiprocessors)

    assert isinstance(outcome, FillFit)
    assert saturation in outcome.tied_candidates
    assert outcome.saturation == outcome.tied_candidates[0]
    assert outcome.max_residual < 1e-6
    assert outcome.rate == pytest.approx(rates[0], rel=1e-6)


@settings(max_examples=50)
@given(noise=st.lists(st.floats(1.0, 1.01), min_size=15, max_size=15))
def test_a_planted_saturation_survives_a_one_sided_slowdown_of_one_percent(noise: list[float]) -> None:
    exact = planted_sweep(132, 512, (4e13, 5e13))
    noisy = [
        LaunchPoint(p.geometry, p.m, p.n, p.k, p.contexts, p.ms * slower)
        for p, slower in zip(exact, noise, strict=True)
    ]

    outcome = fit_fill(noisy, multiprocessors=132)

    assert isinstance(outcome, FillFit)
    assert outcome.saturation == 512
    assert outcome.rate == pytest.approx(4e13, rel=0.02)


wild_counts = st.integers(-1, 2**70) | st.just(10**400)
contexts = st.builds(LaunchContext, wild_counts, wild_counts, wild_counts)
wild_points = st.builds(
    LaunchPoint,
    st.sampled_from("ab"),
    st.just(1),
    st.just(1),
    st.just(1),
    st.lists(contexts, max_size=2).map(tuple),
    st.floats() | st.just(0.0),
)


@given(st.lists(wild_points, max_size=8), st.integers(1, 1000))
def test_any_points_give_a_finite_outcome(points: list[LaunchPoint], multiprocessors: int) -> None:
    outcome = fit_fill(points, multiprocessors=multiprocessors)

    if isinstance(outcome, FillFit):
        numbers = [value for value in vars(outcome).values() if isinstance(value, int | float)]
        assert all(math.isfinite(value) for value in [*numbers, *(outcome.uncapped or ())])
