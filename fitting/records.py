"""Rows and points as JSON objects: the field names are the dataclass field names, tuples are lists."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from fitting._json_object import DocumentError, JsonObject
from fitting.points import IssuePoint, LaunchContext, LaunchPoint, WorkingSetPoint
from fitting.rows import CalibrationRow

Point = WorkingSetPoint | IssuePoint | LaunchPoint


def record_to_json(record: CalibrationRow | Point) -> dict[str, Any]:
    """Return a row or point as JSON values; DocumentError when it holds a number that is not finite."""
    name = type(record).__name__
    return {
        item.name: to_json(getattr(record, item.name), f"{name}.{item.name}") for item in dataclasses.fields(record)
    }


def row_from_json(value: object, path: str = "row") -> CalibrationRow:
    """Read a calibration row.

    Parameters
    ----------
    value : object
        A parsed JSON object with the twelve fields.
    path : str
        Where it stands, for the error.

    Returns
    -------
    CalibrationRow
        The row.

    Raises
    ------
    DocumentError
        For a missing or unknown field, or a value of another type or range; NaN and infinities among them.
    """
    source = JsonObject(value, path)
    row = CalibrationRow(
        backend=source.text("backend"),
        digest=source.text("digest"),
        routine=source.text("routine"),
        label=source.text("label"),
        measured_ms=source.number("measured_ms"),
        model_ms=source.optional_number("model_ms"),
        kernels=source.count("kernels"),
        flops=source.count("flops"),
        bytes=source.count("bytes"),
        flops_approx=source.flag("flops_approx"),
        bytes_approx=source.flag("bytes_approx"),
        opaque=source.flag("opaque"),
    )
    source.close()
    return row


def point_from_json(sweep: str, value: object, path: str = "point") -> Point:
    """Read a point of a sweep.

    Parameters
    ----------
    sweep : "working_set", "issue" or "launch"
        Which record to read.
    value : object
        A parsed JSON object; `rank_ms`, `bound_ms`, an issue point's `contexts` and a context's `mma_ops` may be left
        out.
    path : str
        Where it stands, for the error.

    Returns
    -------
    WorkingSetPoint, IssuePoint or LaunchPoint
        The point. A time of zero is read; the fits leave such a point out.

    Raises
    ------
    DocumentError
        As `row_from_json`, and for a sweep without points.
    """
    if sweep not in POINT_READERS:
        raise DocumentError(path, f"sweep must be one of {', '.join(POINT_READERS)}, got {sweep!r}")
    return POINT_READERS[sweep](value, path)


def to_json(value: Any, path: str) -> Any:
    """Return dataclasses, mappings and sequences as JSON values; refuse a number that JSON can't hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: to_json(getattr(value, item.name), f"{path}.{item.name}") for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: to_json(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise DocumentError(path, "must be finite to be written as JSON")
    return value


def _working_set_point(value: object, path: str) -> WorkingSetPoint:
    source = JsonObject(value, path)
    point = WorkingSetPoint(
        k=source.count("k"),
        loops=source.counts("loops"),
        working_set=source.count("working_set"),
        requested=source.count("requested"),
        distinct=source.count("distinct"),
        ms=source.number("ms"),
        rank_ms=source.optional_number("rank_ms"),
        bound_ms=source.optional_number("bound_ms"),
    )
    source.close()
    return point


def _issue_point(value: object, path: str) -> IssuePoint:
    source = JsonObject(value, path)
    point = IssuePoint(
        k=source.count("k"),
        scalar_ops=source.count("scalar_ops"),
        mma_ops=source.count("mma_ops"),
        kernels=source.count("kernels"),
        ms=source.number("ms"),
        rank_ms=source.optional_number("rank_ms"),
        bound_ms=source.optional_number("bound_ms"),
        contexts=_contexts(source) if source.optional("contexts") is not None else (),
    )
    source.close()
    return point


def _launch_point(value: object, path: str) -> LaunchPoint:
    source = JsonObject(value, path)
    point = LaunchPoint(
        geometry=source.text("geometry"),
        m=source.count("m"),
        n=source.count("n"),
        k=source.count("k"),
        contexts=_contexts(source),
        ms=source.number("ms"),
    )
    source.close()
    return point


def _contexts(source: JsonObject) -> tuple[LaunchContext, ...]:
    return tuple(map(_context, source.children("contexts")))


def _context(source: JsonObject) -> LaunchContext:
    context = LaunchContext(
        blocks=source.count("blocks"),
        threads=source.count("threads"),
        scalar_ops=source.count("scalar_ops"),
        mma_ops=source.count("mma_ops") if source.optional("mma_ops") is not None else 0,
    )
    source.close()
    return context


POINT_READERS: dict[str, Callable[[object, str], Point]] = {
    "working_set": _working_set_point,
    "issue": _issue_point,
    "launch": _launch_point,
}
