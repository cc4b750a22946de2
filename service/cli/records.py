"""Records in a file: the autotuner's rows, or points and rows as JSON, or points as CSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic_core import from_json

import fitting
from fitting import CalibrationRow, DocumentError, IssuePoint, LaunchPoint, WorkingSetPoint
from service.cli.console import CliError

MAX_FILE_BYTES = 1 << 30
POINTS = {"working_set": WorkingSetPoint, "issue": IssuePoint, "launch": LaunchPoint}
_UTF8_MARK = b"\xef\xbb\xbf"


def read_bytes(file: Path) -> bytes:
    """Read a file, or stdin for `-`."""
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read().removeprefix(_UTF8_MARK)
        if file.stat().st_size > MAX_FILE_BYTES:
            raise CliError(f"{file} is over {MAX_FILE_BYTES} bytes: split it", 2)
        return file.read_bytes().removeprefix(_UTF8_MARK)
    except OSError as error:
        raise CliError(f"{file} can't be read: {error.strerror}", 2) from error


def is_json(data: bytes) -> bool:
    """Tell JSON from lines of rows or cells by its first character."""
    return data.lstrip()[:1] in (b"{", b"[")


def parse_json(data: bytes | str, name: object) -> Any:
    """Read strict JSON; `name` says in the message what it is."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise CliError(f"{name} is not JSON: {error}", 2) from error


def row_lines(data: bytes) -> Iterator[str]:
    """Yield a row file's lines; one that is not UTF-8 stays a line, which `parse_rows` counts as malformed."""
    return (line.decode(errors="surrogateescape") for line in io.BytesIO(data))


def json_rows(content: Any) -> list[CalibrationRow]:
    """Return the rows of a list, of `{"rows": [...]}`, or of a calibration document without its repeats."""
    if _is_document(content):
        return [each.record for each in fitting.measurements_of(content).rows if each.role != "repeat"]
    return [fitting.row_from_json(entry, f"rows[{index}]") for index, entry in enumerate(_entries(content, "rows"))]


def points(data: bytes, content: Any, sweep: str) -> list[Any]:
    """Return the points of parsed JSON, or of the CSV in `data` where there is none."""
    return _csv_points(data, sweep) if content is None else _json_points(content, sweep)


def _json_points(content: Any, sweep: str) -> list[Any]:
    """Return the points of a list, of `{"points": [...]}`, or of a document: those of its served phase, no repeats."""
    if _is_document(content):
        measured = getattr(fitting.measurements_of(content), sweep)
        return [each.record for each in measured if each.role != "repeat" and each.phase != "spread"]
    return [
        fitting.point_from_json(sweep, entry, f"points[{index}]")
        for index, entry in enumerate(_entries(content, "points"))
    ]


def _csv_points(data: bytes, sweep: str) -> list[Any]:
    """Return the points of a CSV whose header names the record's fields."""
    try:
        reader = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
        names = [name.strip() for name in next(reader, [])]
        known = [field.name for field in fields(POINTS[sweep])]
        if unknown := [name for name in names if name not in known]:
            raise ValueError(
                f"a CSV of {sweep} points starts with a header of the columns {','.join(known)}; {unknown[0]!r} is none"
            )
        return [fitting.point_from_json(sweep, entry, f"line {line}") for line, entry in _csv_entries(reader, names)]
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text: byte {error.start}") from error
    except csv.Error as error:
        raise ValueError(f"is not CSV: {error}") from error


def _is_document(content: Any) -> bool:
    return isinstance(content, dict) and "sweeps" in content


def _entries(content: Any, name: str) -> list[Any]:
    entries = content.get(name) if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise ValueError(f'expected a list of {name}, {{"{name}": [...]}}, or a calibration document')
    return entries


def _csv_entries(reader: Any, names: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for cells in reader:
        where = f"line {reader.line_num}"
        if cells and len(cells) != len(names):
            raise DocumentError(where, f"has {len(cells)} cells, and the header {len(names)}")
        if cells:
            yield reader.line_num, {name: _cell(name, text, where) for name, text in zip(names, cells, strict=True)}


def _cell(name: str, text: str, where: str) -> Any:
    """Return what JSON would hold."""
    if name == "geometry":
        return text
    if name == "loops":
        return [_number(part) for part in text.replace("x", " ").split()]
    if name == "contexts":
        return [_context(part, f"{where}.contexts") for part in text.split(";") if part]
    return _number(text) if text else None


def _context(text: str, where: str) -> dict[str, Any]:
    parts = text.split(":")
    if len(parts) not in (3, 4):
        raise DocumentError(where, f"a context is blocks:threads:scalar_ops[:mma_ops], not {text!r}")
    return dict(zip(("blocks", "threads", "scalar_ops", "mma_ops"), map(_number, parts), strict=False))


def _number(text: str) -> Any:
    """Return a number, or the text as it is, which the record's reader refuses by the field's name."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
