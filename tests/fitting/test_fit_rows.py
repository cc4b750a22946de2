"""Calibration rows: the three generations of a line, flooring, and files that mix everything."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitting import MAX_COUNT, CalibrationRow, ParsedRows, floor_milliseconds, parse_rows

ROW = CalibrationRow(
    "cc", "9f3a", "stream_triad", "block=256,vec=4,ept=1", 12.5, 11.25, 1, 134217728, 805306368, False, False, False
)
LINE = (
    "cc\t9f3a\tstream_triad\tblock=256,vec=4,ept=1\t12.500000\t11.250000\t1\t134217728\t805306368\tfalse\tfalse\tfalse"
)
COLUMNS = LINE.split("\t")


def line_with(**changes: str) -> str:
    names = ["backend", "digest", "routine", "label", "measured_ms", "model_ms", "kernels", "flops", "bytes"]
    names += ["flops_approx", "bytes_approx", "opaque"]
    return "\t".join(changes.get(name, text) for name, text in zip(names, COLUMNS, strict=True))


def test_a_floored_time_is_what_a_row_file_gives_back():
    assert floor_milliseconds(0.1273919939994812) == 0.127391
    assert floor_milliseconds(0.127391) == 0.127391
    assert floor_milliseconds(9.9e-7) == 0.0
    with pytest.raises(ValueError, match="finite"):
        floor_milliseconds(math.inf)


def test_a_twelve_column_line_is_read() -> None:
    assert CalibrationRow.from_line(LINE) == ROW


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_any_line_end_is_accepted(end: str) -> None:
    assert CalibrationRow.from_line(LINE + end) == ROW


def test_a_row_is_written_as_twelve_columns_with_six_decimals() -> None:
    assert ROW.to_line() == LINE


def test_an_eleven_column_line_has_an_empty_routine() -> None:
    row = CalibrationRow.from_line("\t".join(COLUMNS[:2] + COLUMNS[3:]))

    assert row is not None
    assert (row.routine, row.label, row.flops) == ("", "block=256,vec=4,ept=1", 134217728)


def test_an_empty_bound_is_no_coverage_both_ways() -> None:
    row = CalibrationRow.from_line(line_with(model_ms=""))

    assert row is not None
    assert row.model_ms is None
    assert row.to_line() == line_with(model_ms="")


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "-1", "-0.0", "+1", " 1", "1 ", "1_000", "1e999", "0x1p3", "1,5", "٣", "1e", "."]
)
def test_a_number_that_is_no_plain_decimal_is_malformed(text: str) -> None:
    assert CalibrationRow.from_line(line_with(measured_ms=text)) is None


@pytest.mark.parametrize("text", ["", "1.0", "-1", "+1", " 1", "1_000", "9223372036854775808", "9" * 5000, "1e3"])
@pytest.mark.parametrize("column", ["kernels", "flops", "bytes"])
def test_a_count_that_is_no_plain_integer_to_2_63_is_malformed(column: str, text: str) -> None:
    assert CalibrationRow.from_line(line_with(**{column: text})) is None


@pytest.mark.parametrize("text", ["True", "FALSE", "1", "", " true"])
@pytest.mark.parametrize("column", ["flops_approx", "bytes_approx", "opaque"])
def test_a_flag_that_is_not_true_or_false_is_malformed(column: str, text: str) -> None:
    assert CalibrationRow.from_line(line_with(**{column: text})) is None


def test_the_largest_count_is_read() -> None:
    row = CalibrationRow.from_line(line_with(bytes="9223372036854775807"))

    assert row is not None
    assert row.bytes == 2**63 - 1


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.1234567, "0.123456"),
        (0.9999999, "0.999999"),
        (1e-7, "0.000000"),
        (0.000249, "0.000249"),  # 0.000249 * 1e6 is 248.99999999999997: flooring that would lose a digit
        (2.0, "2.000000"),
        (1e22, "10000000000000000000000.000000"),
    ],
)
def test_a_time_is_floored_at_the_sixth_decimal_of_its_shortest_form(milliseconds: float, text: str) -> None:
    row = CalibrationRow("cc", "d", "r", "l", milliseconds, None, 1, 0, 0, False, False, False)

    assert row.to_line().split("\t")[4] == text


def test_tabs_and_line_ends_in_a_text_become_spaces() -> None:
    row = CalibrationRow("cc", "d", "a\tb", "c\nd\re", 1.0, None, 1, 0, 0, False, False, False)

    assert row.to_line().split("\t")[2:4] == ["a b", "c d e"]


@pytest.mark.parametrize("milliseconds", [math.nan, math.inf, -1.0])
def test_a_time_that_could_not_be_read_back_is_not_written(milliseconds: float) -> None:
    row = CalibrationRow("cc", "d", "r", "l", milliseconds, None, 1, 0, 0, False, False, False)

    with pytest.raises(ValueError, match="measured_ms"):
        row.to_line()


@pytest.mark.parametrize("count", [-1, 2**63])
def test_a_count_that_could_not_be_read_back_is_not_written(count: int) -> None:
    row = CalibrationRow("cc", "d", "r", "l", 1.0, None, 1, count, 0, False, False, False)

    with pytest.raises(ValueError, match="flops"):
        row.to_line()


texts = st.text(st.characters(exclude_characters="\t\n\r\x00", exclude_categories=("Cs",)))
times = st.floats(0, 1.7e308)
counts = st.integers(0, MAX_COUNT)


@given(
    st.builds(
        CalibrationRow,
        *[texts] * 4,
        times,
        st.none() | times,
        *[counts] * 3,
        *[st.booleans()] * 3,
    )
)
def test_a_written_row_reads_back_up_to_the_flooring(row: CalibrationRow) -> None:
    back = CalibrationRow.from_line(row.to_line() + "\n")

    assert back is not None
    assert back.to_line() == row.to_line()
    assert 0 <= Decimal(repr(row.measured_ms)) - Decimal(row.to_line().split("\t")[4]) < Decimal("0.000001")
    assert back.measured_ms <= row.measured_ms
    assert (back.backend, back.digest, back.routine, back.label) == (row.backend, row.digest, row.routine, row.label)
    assert (back.kernels, back.flops, back.bytes) == (row.kernels, row.flops, row.bytes)
    assert (back.flops_approx, back.bytes_approx, back.opaque) == (row.flops_approx, row.bytes_approx, row.opaque)


def test_a_file_of_all_generations_gives_its_rows_and_the_numbers_of_the_other_lines() -> None:
    nine = "\t".join(["cc", "d", "label", "1.0", "", "1", "2", "3", "true"])
    lines = [
        LINE + "\n",  # 1
        "\n",  # 2: blank
        "\t".join(COLUMNS[:2] + COLUMNS[3:]) + "\r\n",  # 3: eleven columns
        nine + "\n",  # 4: legacy
        "garbage\n",  # 5
        "   \r\n",  # 6: blank
        line_with(measured_ms="1_000") + "\n",  # 7
        LINE + "\textra\n",  # 8: thirteen columns
        line_with(label="\ud800") + "\n",  # 9: a byte that is not UTF-8, read with surrogateescape
        nine,  # 10: legacy, no line end
    ]

    parsed = parse_rows(lines)

    assert [row.routine for row in parsed.rows] == ["stream_triad", ""]
    assert parsed.legacy == (4, 10)
    assert parsed.malformed == (5, 7, 8, 9)


def test_a_file_without_lines_has_no_rows() -> None:
    assert parse_rows([]) == ParsedRows((), (), ())
