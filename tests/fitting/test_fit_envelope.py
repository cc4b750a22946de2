"""The envelope fit and its report."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitting import CalibrationRow, EnvelopeFit, fit_envelope, roofline_seconds

ROW = CalibrationRow("cc", "d", "routine", "label", 1.0, None, 1, 0, 0, False, False, False)


def row(label: str, **changes: object) -> CalibrationRow:
    return replace(ROW, label=label, digest=f"d-{label}", **changes)  # type: ignore[arg-type]


def fit_one(*rows: CalibrationRow) -> EnvelopeFit:
    (fit,) = fit_envelope(rows)
    return fit


def test_each_leg_is_the_largest_count_over_time_of_its_exact_rows() -> None:
    fit = fit_one(
        row("slow", measured_ms=2.0, flops=3000, bytes=8000),
        row("fast", measured_ms=1.0, flops=1000, bytes=5000),
        row("inexact", measured_ms=1.0, flops=10**9, bytes=6000, flops_approx=True),
    )

    assert fit.peak_flops == (1.5e6, "routine/slow (d-slow)")
    assert fit.peak_memory_bandwidth == (6e6, "routine/inexact (d-inexact)")
    assert (fit.rows, fit.opaque, fit.flops_approx, fit.bytes_approx) == (3, 0, 1, 0)


def test_opaque_and_untimed_rows_set_no_peak() -> None:
    fit = fit_one(
        row("opaque", flops=10**6, opaque=True),
        row("zero", measured_ms=0.0, flops=10**6),
        row("nan", measured_ms=math.nan, flops=10**6),
        row("infinite", measured_ms=math.inf, flops=10**6),
        row("good", flops=10),
    )

    assert fit.peak_flops == (1e4, "routine/good (d-good)")
    assert (fit.rows, fit.opaque) == (1, 1)


def test_a_leg_without_an_exact_positive_count_has_no_peak() -> None:
    fit = fit_one(row("copy", bytes=1000), row("guarded", flops=5, flops_approx=True))

    assert fit.peak_flops is None
    assert fit.peak_memory_bandwidth == (1e6, "routine/copy (d-copy)")


def test_the_first_of_equally_fast_rows_is_the_witness() -> None:
    fit = fit_one(row("first", flops=10), row("second", flops=20, measured_ms=2.0))

    assert fit.peak_flops == (1e4, "routine/first (d-first)")


def test_a_row_without_a_routine_is_named_by_its_label() -> None:
    assert fit_one(row("old", routine="", flops=1)).peak_flops == (1e3, "old (d-old)")


def test_backends_are_fitted_apart_in_order_of_first_appearance() -> None:
    fits = fit_envelope([row("a", backend="hip", flops=1), row("b", flops=2), row("c", backend="hip", flops=3)])

    assert [(fit.backend, fit.rows) for fit in fits] == [("hip", 2), ("cc", 1)]


def test_no_rows_give_no_fits() -> None:
    assert fit_envelope([]) == []


def test_slack_of_multi_kernel_rows_multiplies_both_peaks() -> None:
    # peaks 1e6 op/s and 1e6 byte/s; the pair does 0.8 + 0.7 = 1.5 seconds of bound in one
    fit = fit_one(
        row("compute", flops=1000),
        row("memory", bytes=1000),
        row("pair", kernels=2, flops=800, bytes=700),
    )

    assert fit.fission_slack == (1.5, "routine/pair (d-pair)")
    assert fit.peak_flops == (1.5e6, "routine/compute (d-compute)")
    assert fit.peak_memory_bandwidth == (1.5e6, "routine/memory (d-memory)")
    assert fit.multi_kernel == 1


def test_slack_of_one_or_less_is_none_even_for_the_witness_itself() -> None:
    fit = fit_one(row("pair", kernels=2, flops=500, measured_ms=0.5), row("memory", bytes=1000))

    assert fit.fission_slack is None
    assert fit.peak_flops == (1e6, "routine/pair (d-pair)")


def test_slack_needs_both_legs_and_both_counts_exact() -> None:
    one_leg = fit_one(row("compute", flops=1000), row("pair", kernels=2, flops=900))
    inexact = fit_one(
        row("compute", flops=1000),
        row("memory", bytes=1000),
        row("pair", kernels=2, flops=800, bytes=700, bytes_approx=True),
    )

    assert one_leg.fission_slack is None
    assert inexact.fission_slack is None


def test_a_violation_is_an_exact_row_that_beat_its_recorded_bound() -> None:
    fit = fit_one(
        row("beaten", model_ms=1.1),
        row("equal", model_ms=1.0),
        row("inexact", model_ms=2.0, bytes_approx=True),
        row("uncovered"),
        row("infinite bound", model_ms=math.inf),
    )

    assert fit.violations == 1


def test_a_rate_out_of_range_is_left_out() -> None:
    fit = fit_one(row("subnormal", measured_ms=5e-324, flops=10**6), row("good", flops=10))

    assert fit.peak_flops == (1e4, "routine/good (d-good)")


counts = st.integers(0, 10**15)
rows = st.builds(
    CalibrationRow,
    backend=st.just("cc"),
    digest=st.just("d"),
    routine=st.just("r"),
    label=st.just("l"),
    measured_ms=st.floats(1e-6, 1e6),
    model_ms=st.none(),
    kernels=st.integers(1, 4),
    flops=counts,
    bytes=counts,
    flops_approx=st.booleans(),
    bytes_approx=st.booleans(),
    opaque=st.booleans(),
)


@given(st.lists(rows, min_size=1))
def test_under_the_fitted_peaks_no_bound_exceeds_a_measured_time(measured: list[CalibrationRow]) -> None:
    fit = fit_one(*measured)

    flops = fit.peak_flops[0] if fit.peak_flops else None
    memory = fit.peak_memory_bandwidth[0] if fit.peak_memory_bandwidth else None
    for item in measured:
        if item.opaque or item.flops_approx or item.bytes_approx or flops is None or memory is None:
            continue
        seconds = roofline_seconds(flops=item.flops, bytes=item.bytes, peak_flops=flops, peak_memory_bandwidth=memory)
        if item.kernels > 1:
            seconds = item.flops / flops + item.bytes / memory
        assert seconds is not None
        assert seconds * 1e3 <= item.measured_ms * (1 + 1e-12)


def test_the_report_is_comments_and_one_line_a_constant() -> None:
    fit = fit_one(
        row("compute", flops=1000),
        row("memory", bytes=1000),
        row("pair", kernels=2, flops=800, bytes=700, model_ms=1.25),
        row("guarded", bytes=1, bytes_approx=True),
        row("hidden", opaque=True),
    )

    assert fit.report().split("\n") == [
        "# cc: rows timed 4, opaque 1",
        "# of the timed: approximate in operations 0, in bytes 1, multi-kernel 1",
        "# violations 1: rows beat their recorded bound, the constants then were too low",
        "# fission slack 1.500000 on both peaks, set by routine/pair (d-pair)",
        "# model_peak_flops is set by routine/compute (d-compute)",
        "model_peak_flops=1.500003e+6",
        "# model_peak_memory_bandwidth is set by routine/memory (d-memory)",
        "model_peak_memory_bandwidth=1.500003e+6",
    ]


def test_a_leg_without_a_constant_is_said_in_a_comment() -> None:
    assert fit_one(row("copy", bytes=840000000)).report().split("\n") == [
        "# cc: rows timed 1, opaque 0",
        "# of the timed: approximate in operations 0, in bytes 0, multi-kernel 0",
        "# model_peak_flops: none, no timed row has an exact, positive count of operations",
        "# model_peak_memory_bandwidth is set by routine/copy (d-copy)",
        "model_peak_memory_bandwidth=8.400017e+11",
    ]


def test_the_margin_multiplies_both_peaks_and_is_said() -> None:
    lines = fit_one(row("both", flops=1000, bytes=2000)).report(margin=1.1).split("\n")

    assert "# margin 1.1 on both peaks" in lines
    assert [line for line in lines if not line.startswith("#")] == [
        "model_peak_flops=1.100002e+6",
        "model_peak_memory_bandwidth=2.200004e+6",
    ]


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf])
def test_a_margin_that_is_no_factor_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        fit_one(row("copy", bytes=1)).report(margin)


def test_a_label_can_not_smuggle_a_line_into_the_report() -> None:
    report = fit_one(row("x\nmodel_peak_flops=1\u2028y", bytes=1000)).report()

    assert [line for line in report.splitlines() if not line.startswith("#")] == [
        "model_peak_memory_bandwidth=1.000002e+6"
    ]
