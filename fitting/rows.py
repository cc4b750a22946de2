"""Calibration rows: one timed candidate a line of a tab-separated file that several builds append to."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal

from fitting.points import MAX_COUNT

COLUMNS = 12
COLUMNS_WITHOUT_ROUTINE = 11
COLUMNS_LEGACY = 9

_COUNT = re.compile(r"[0-9]+", re.ASCII)
_MILLISECONDS = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?", re.ASCII)
_BOOLEANS = {"true": True, "false": False}
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # no UTF-8 file or SQL text column gives these back
_SEPARATORS = str.maketrans("\t\n\r\x00", "    ")
_SIXTH_DECIMAL = Decimal("0.000001")
_EXACT = Context(prec=400)  # wide enough for the largest float written out with six decimals


@dataclass(frozen=True)
class CalibrationRow:
    """One timed candidate of a routine, as the autotuner's row file holds it.

    Parameters
    ----------
    backend : str
        `cuda`, `hip`, `cc`, `simulated`, ...; the envelope is fitted per backend.
    digest : str
        Short tag of the timed candidate.
    routine : str
        The computation timed, e.g. `stream_triad`; may be empty.
    label : str
        The candidate within it, e.g. `block=256,vec=4,ept=1`.
    measured_ms : float
        Best time, milliseconds.
    model_ms : float or None
        Roofline bound under the constants in force at the time, milliseconds; None = no coverage.
    kernels : int
        Kernels the routine launched.
    flops : int
        Operations summed over the kernels; an FMA counts two.
    bytes : int
        Distinct bytes read and written, summed over the kernels.
    flops_approx, bytes_approx : bool
        The count is an upper bound, so it proves no rate.
    opaque : bool
        Part of the code was invisible to the counting.

    References
    ----------
    calibration-rows.md, "The row file".
    """

    backend: str
    digest: str
    routine: str
    label: str
    measured_ms: float
    model_ms: float | None
    kernels: int
    flops: int
    bytes: int
    flops_approx: bool
    bytes_approx: bool
    opaque: bool

    @classmethod
    def from_line(cls, line: str) -> CalibrationRow | None:
        """Read one line of a row file.

        Parameters
        ----------
        line : str
            Tab-separated, with or without its line end (LF or CR LF).

        Returns
        -------
        CalibrationRow or None
            The row of a 12-column line, or of an 11-column one with an empty routine; None for anything else.

        Notes
        -----
        Numbers are plain ASCII decimals. What Python's own conversions also take (`1_000`, ` 1`, `+1`, `nan`) is
        refused: no writer of such files makes it, so a line that holds it is damaged.
        """
        columns = line.removesuffix("\n").removesuffix("\r").split("\t")
        if len(columns) == COLUMNS_WITHOUT_ROUTINE:
            columns.insert(2, "")
        if len(columns) != COLUMNS or _UNSTORABLE.search(line):
            return None
        measured_ms = _parse_milliseconds(columns[4])
        model_ms = _parse_milliseconds(columns[5]) if columns[5] else None
        counts = [_parse_count(text) for text in columns[6:9]]
        flags = [_BOOLEANS.get(text) for text in columns[9:12]]
        if measured_ms is None or (columns[5] and model_ms is None) or None in counts or None in flags:
            return None
        kernels, flops, moved = (count for count in counts if count is not None)
        flops_approx, bytes_approx, opaque = (flag for flag in flags if flag is not None)
        backend, digest, routine, label = columns[:4]
        return cls(
            backend,
            digest,
            routine,
            label,
            measured_ms,
            model_ms,
            kernels,
            flops,
            moved,
            flops_approx,
            bytes_approx,
            opaque,
        )

    def to_line(self) -> str:
        """Write the row as a 12-column line without a line end.

        Returns
        -------
        str
            Milliseconds floored at the sixth decimal; tabs and line ends inside a text column become spaces.

        Raises
        ------
        ValueError
            When a time or a count could not be read back: negative, not finite, or a count over 2^63-1.

        Notes
        -----
        A stored time must not exceed the measured one, or a rate fitted from the file would be lower than the rate
        seen. The shortest decimal form is floored, because `floor(x * 1e6)` drifts on values that were read back.
        """
        texts = [text.translate(_SEPARATORS) for text in (self.backend, self.digest, self.routine, self.label)]
        times = [
            _format_milliseconds("measured_ms", self.measured_ms),
            "" if self.model_ms is None else _format_milliseconds("model_ms", self.model_ms),
        ]
        counts = [
            _format_count(name, value)
            for name, value in (("kernels", self.kernels), ("flops", self.flops), ("bytes", self.bytes))
        ]
        flags = ["true" if flag else "false" for flag in (self.flops_approx, self.bytes_approx, self.opaque)]
        return "\t".join(texts + times + counts + flags)

    @property
    def name(self) -> str:
        """The row for a reader: `routine/label (digest)`, or `label (digest)` without a routine; always one line."""
        candidate = f"{self.routine}/{self.label}" if self.routine else self.label
        return " ".join(f"{candidate} ({self.digest})".translate(_SEPARATORS).splitlines())


@dataclass(frozen=True)
class ParsedRows:
    """The rows of a file, and the 1-based numbers of the lines that gave none.

    `legacy` lines have nine columns and can't prove exactness; `malformed` ones can't be read. Blank lines are neither.
    """

    rows: tuple[CalibrationRow, ...]
    legacy: tuple[int, ...]
    malformed: tuple[int, ...]


def parse_rows(lines: Iterable[str]) -> ParsedRows:
    """Read a row file that may mix all generations; one bad line never loses the file.

    Parameters
    ----------
    lines : iterable of str
        The file's lines, with or without line ends. Open the file with `errors="surrogateescape"` so that a line
        that is not UTF-8 counts as malformed instead of ending the reading.

    Returns
    -------
    ParsedRows
        Rows in file order; nine-column and malformed lines by number.

    References
    ----------
    calibration-rows.md, "The row file".
    """
    rows: list[CalibrationRow] = []
    legacy: list[int] = []
    malformed: list[int] = []
    for number, line in enumerate(lines, start=1):
        row = CalibrationRow.from_line(line)
        if row is not None:
            rows.append(row)
        elif line.count("\t") == COLUMNS_LEGACY - 1:
            legacy.append(number)
        elif line.strip(" \r\n"):
            malformed.append(number)
    return ParsedRows(tuple(rows), tuple(legacy), tuple(malformed))


def _parse_milliseconds(text: str) -> float | None:
    """Return a finite, non-negative number, or None."""
    if not _MILLISECONDS.fullmatch(text):
        return None
    value = float(text)
    return value if value <= sys.float_info.max else None


def _parse_count(text: str) -> int | None:
    """Return an integer from 0 to 2^63-1, or None; the length is bounded first, as int() refuses very long digits."""
    if not _COUNT.fullmatch(text) or len(text.lstrip("0")) > len(str(MAX_COUNT)):
        return None
    value = int(text.lstrip("0") or "0")
    return value if value <= MAX_COUNT else None


def floor_milliseconds(value: float) -> float:
    """Return a time as a row file would give it back: floored at the sixth decimal.

    Parameters
    ----------
    value : float
        Milliseconds.

    Returns
    -------
    float
        Milliseconds; a row that is kept so is fitted to the same constants before and after it is written.

    Raises
    ------
    ValueError
        When `value` is negative or not finite.

    References
    ----------
    calibration-rows.md, "The row file".
    """
    return float(_format_milliseconds("value", value))


def _format_milliseconds(name: str, value: float) -> str:
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} must be finite and not negative to be written, got {value!r}")
    shortest = Decimal(repr(abs(float(value))))
    return f"{shortest.quantize(_SIXTH_DECIMAL, rounding=ROUND_FLOOR, context=_EXACT):f}"


def _format_count(name: str, value: int) -> str:
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{name} must be from 0 to 2^63-1 to be written, got {value!r}")
    return str(value)
