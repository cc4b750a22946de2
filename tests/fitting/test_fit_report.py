"""Constants as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitting import CONSTANTS, GROUPS, constant_lines, format_constant, format_number

VALUES = {
    "model_fill_threads": 128,
    "model_multiprocessors": 132,
    "model_issue_rate": 4.25e13,
    "model_cache_bandwidth": 5.5e12,
    "model_cache_capacity": 36141663,
    "model_peak_flops": 6.0e13,
    "model_peak_memory_bandwidth": 4.2e12,
}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8.4e11, "8.400000e+11"),
        (1e-3, "1.000000e-3"),
        (1.0, "1.000000e+0"),
        (123456789.0, "1.234568e+8"),
        (1e100, "1.000000e+100"),
        (5e-324, "4.940656e-324"),
    ],
)
def test_a_number_has_seven_digits_and_no_leading_zero_in_its_exponent(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_no_constant_can_be_is_not_written(value: float) -> None:
    with pytest.raises(ValueError, match="finite number above zero"):
        format_number(value)


def test_only_the_peaks_are_bumped_and_take_the_margin() -> None:
    assert constant_lines(VALUES, "config", margin=2.0) == [
        "model_peak_memory_bandwidth=8.400017e+12",
        "model_peak_flops=1.200002e+14",
        "model_cache_capacity=36141663",
        "model_cache_bandwidth=5.500000e+12",
        "model_issue_rate=4.250000e+13",
        "model_multiprocessors=132",
        "model_fill_threads=128",
    ]


def test_the_same_constants_are_written_for_the_environment_and_as_flags() -> None:
    peak = {"model_peak_flops": 8.4e11}

    assert constant_lines(peak, "env") == ["OCANNL_MODEL_PEAK_FLOPS=8.400017e+11"]
    assert constant_lines(peak, "flags") == ["--ocannl_model_peak_flops=8.400017e+11"]


def test_an_integer_constant_that_a_table_gave_back_as_a_float_is_plain() -> None:
    assert format_constant("model_multiprocessors", 132.0) == "132"


def test_an_unknown_constant_or_form_is_refused() -> None:
    with pytest.raises(ValueError, match="model_speed is no constant"):
        constant_lines({"model_speed": 1.0})
    with pytest.raises(ValueError, match="form must be one of config, env, flags"):
        constant_lines({}, "yaml")  # type: ignore[arg-type]


def test_a_margin_that_leaves_the_range_of_a_float_is_refused() -> None:
    with pytest.raises(ValueError, match="finite number above zero"):
        constant_lines({"model_peak_flops": 1e300}, "config", margin=1e300)


@given(st.floats(1e-300, 1e300))
def test_no_peak_prints_below_the_fitted_one(peak: float) -> None:
    assert float(format_constant("model_peak_flops", peak)) > peak


def test_the_groups_hold_the_seven_constants_once() -> None:
    assert [name for names in GROUPS.values() for name in names] == list(CONSTANTS)
    assert GROUPS["issue"] == ("model_issue_rate", "model_multiprocessors", "model_fill_threads")
