"""The issue-rate fit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitting import FillModel, IssueFit, IssuePoint, IssueUnfittable, LaunchContext, fit_issue_rate
from fitting.issue_rate import issue_line


def point(ops: int, ms: float, *contexts: LaunchContext) -> IssuePoint:
    return IssuePoint(1, ops, 0, 1, ms, contexts=contexts)


def test_points_on_a_line_give_its_slope_and_intercept() -> None:
    # 0.5 ms latency, 1e9 operations a millisecond
    outcome = fit_issue_rate([point(10**9, 1.5), point(2 * 10**9, 2.5), point(3 * 10**9, 3.5)])

    assert isinstance(outcome, IssueFit)
    assert outcome.rate == pytest.approx(1e12, rel=1e-12)
    assert outcome.latency_ms == pytest.approx(0.5, rel=1e-12)
    assert outcome.max_residual == pytest.approx(0.0, abs=1e-12)
    assert outcome.points == 3


def test_points_off_a_line_give_the_least_squares_line_and_its_largest_relative_residual() -> None:
    # ops 1 2 3 (1e9), ms 2 3 5: slope 1.5, intercept 1/3, predictions 11/6 20/6 29/6; the worst is (1/3) / 3
    points = [point(10**9, 2.0), point(2 * 10**9, 3.0), point(3 * 10**9, 5.0)]

    outcome = fit_issue_rate(points)

    assert isinstance(outcome, IssueFit)
    assert outcome.rate == pytest.approx(1e12 / 1.5)
    assert outcome.latency_ms == pytest.approx(1 / 3)
    assert outcome.max_residual == pytest.approx(1 / 9)
    # residuals 1/6 1/3 1/6: s^2 = (6/36) / (3 - 2), s_xx = 2e18, so the slope's error is sqrt(1/12) / 1e9
    line = issue_line(points)
    assert line is not None
    assert line.slope_error == pytest.approx(math.sqrt(1 / 12) / 1e9)


def test_two_points_have_no_standard_error() -> None:
    line = issue_line([point(10, 1.0), point(20, 2.0)])

    assert line is not None
    assert line.slope_error is None


def test_a_fill_model_gives_the_rate_of_a_full_device() -> None:
    # 2 blocks of 64 on 4 multiprocessors of 64 threads: half the device, so its rate is half of a full one's
    half = LaunchContext(2, 64, 10**9)
    points = [point(10**9, 1.0, half), point(2 * 10**9, 2.0, LaunchContext(2, 64, 2 * 10**9))]

    plain, filled = fit_issue_rate(points), fit_issue_rate(points, FillModel(4, 64))

    assert isinstance(plain, IssueFit)
    assert isinstance(filled, IssueFit)
    assert plain.rate == pytest.approx(1e12)
    assert filled.rate == pytest.approx(2e12)


def test_a_full_launch_is_priced_the_same_with_and_without_a_fill_model() -> None:
    points = [point(ops, ops / 1e9, LaunchContext(1000, 64, ops)) for ops in (10**9, 2 * 10**9)]

    assert fit_issue_rate(points, FillModel(4, 64)) == fit_issue_rate(points)


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([], "too few points: 0"),
        ([point(10, 1.0)], "too few points: 1"),
        ([point(10, 1.0), point(0, 1.0), point(20, 0.0), point(30, math.nan)], "too few points: 1"),
        ([point(10, 1.0), point(10, 2.0)], "same operations"),
        ([point(10, 0.1), point(20, 0.1), point(30, 0.1)], "do not rise"),
        ([point(10, 3.0), point(20, 2.0), point(30, 1.0)], "do not rise"),
    ],
)
def test_what_no_line_fits_says_why(points: list[IssuePoint], reason: str) -> None:
    outcome = fit_issue_rate(points)

    assert isinstance(outcome, IssueUnfittable)
    assert reason in outcome.reason


def test_a_context_that_can_not_run_drops_its_point_under_a_fill_model_only() -> None:
    points = [point(10, 1.0, LaunchContext(0, 64, 10)), point(20, 2.0, LaunchContext(1, 64, 20))]

    assert isinstance(fit_issue_rate(points), IssueFit)
    assert isinstance(fit_issue_rate(points, FillModel(4, 64)), IssueUnfittable)


@given(
    rate=st.floats(1e9, 1e14),
    latency_ms=st.floats(0, 0.1),
    multiprocessors=st.integers(1, 200),
    fill_threads=st.sampled_from([32, 64, 100, 512]),
)
def test_a_planted_rate_and_latency_come_back(
    rate: float, latency_ms: float, multiprocessors: int, fill_threads: int
) -> None:
    blocks = 256  # of 64 threads
    fill = min(1.0, blocks * min(64, fill_threads) / (multiprocessors * fill_threads))
    points = []
    for k in range(8, 16):
        ops = 2 * 512 * 512 * 2**k
        points.append(point(ops, latency_ms + ops / (rate * fill) * 1e3, LaunchContext(blocks, 64, ops)))

    outcome = fit_issue_rate(points, FillModel(multiprocessors, fill_threads))

    assert isinstance(outcome, IssueFit)
    assert outcome.rate == pytest.approx(rate, rel=1e-9)
    assert outcome.latency_ms == pytest.approx(latency_ms, abs=1e-9 * points[-1].ms)


wild_counts = st.integers(-1, 2**70) | st.just(10**400)
contexts = st.builds(LaunchContext, wild_counts, wild_counts, wild_counts)
wild_points = st.builds(
    IssuePoint,
    st.just(1),
    wild_counts,
    st.just(0),
    st.just(1),
    st.floats() | st.just(0.0),
    contexts=st.lists(contexts, max_size=2).map(tuple),
)


@given(st.lists(wild_points, max_size=6), st.none() | st.just(FillModel(132, 512)))
def test_any_points_give_a_finite_outcome(points: list[IssuePoint], fill: FillModel | None) -> None:
    outcome = fit_issue_rate(points, fill)

    if isinstance(outcome, IssueFit):
        assert all(math.isfinite(value) for value in vars(outcome).values())
