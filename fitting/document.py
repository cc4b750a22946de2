"""The JSON forms of records, fits and constants, and the calibration document every fit can be recomputed from.

JSON field names are the dataclass field names; tuples are lists.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from fitting._json_object import DocumentError as DocumentError
from fitting._json_object import JsonObject
from fitting.calibration import Fit, Measured, Measurements, Outcome, fit_calibration
from fitting.points import IssuePoint, LaunchContext, LaunchPoint, WorkingSetPoint
from fitting.rows import CalibrationRow
from fitting.serving import Absent, ConstantValue, ServedOutcome

DOCUMENT_SCHEMA = "calibration-service/calibration/1"

Point = WorkingSetPoint | IssuePoint | LaunchPoint
PointType = TypeVar("PointType", WorkingSetPoint, IssuePoint, LaunchPoint)

_SWEEPS = ("stream", "working_set", "launch", "issue")


def record_to_json(record: CalibrationRow | Point) -> dict[str, Any]:
    """Return a row or point as JSON values; DocumentError when it holds a number that is not finite."""
    name = type(record).__name__
    return {item.name: _plain(getattr(record, item.name), f"{name}.{item.name}") for item in dataclasses.fields(record)}


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
    if sweep not in _POINT_READERS:
        raise DocumentError(path, f"sweep must be one of {', '.join(_POINT_READERS)}, got {sweep!r}")
    return _POINT_READERS[sweep](value, path)


def outcome_name(outcome: Outcome | ServedOutcome) -> str:
    """Return an outcome's class name; the list of an envelope fit is `EnvelopeFits`."""
    return "EnvelopeFits" if isinstance(outcome, list) else type(outcome).__name__


def outcome_to_json(outcome: Outcome | ServedOutcome) -> dict[str, Any]:
    """Return `{"outcome": class name, "result": fields}`; an envelope's result is `{"fits": [...]}`."""
    name = outcome_name(outcome)
    if isinstance(outcome, list):
        return {"outcome": name, "result": {"fits": _plain(outcome, name)}}
    return {"outcome": name, "result": _plain(outcome, name)}


def fit_to_json(fit: Fit) -> dict[str, Any]:
    """Return a fit as `{"kind", "sweep", "phase", "outcome", "result", "inputs"}`."""
    return {
        "kind": fit.kind,
        "sweep": fit.sweep,
        "phase": fit.phase,
        **outcome_to_json(fit.outcome),
        "inputs": _plain(fit.inputs, f"{fit.kind}.inputs"),
    }


def constant_to_json(constant: ConstantValue | Absent) -> dict[str, Any]:
    """Return a constant as `{"value", "unit", "reason", "kind", "outcome", "quality", "doubtful"}`.

    `value` and `kind` are null for an absent one, `reason` for a served one; `outcome` is the class name or null.
    """
    outcome = None if constant.outcome is None else outcome_name(constant.outcome)
    if isinstance(constant, Absent):
        return {
            "value": None,
            "unit": constant.unit,
            "reason": constant.reason,
            "kind": None,
            "outcome": outcome,
            "quality": {},
            "doubtful": [],
        }
    return {
        "value": constant.value,
        "unit": constant.unit,
        "reason": None,
        "kind": constant.kind,
        "outcome": outcome,
        "quality": _plain(constant.quality, constant.name),
        "doubtful": list(constant.doubtful),
    }


def measurements_of(document: object) -> Measurements:
    """Read the measurements of a calibration document.

    Parameters
    ----------
    document : object
        The parsed JSON of an export.

    Returns
    -------
    Measurements
        Records in document order, with the windows that were not refused.

    Raises
    ------
    DocumentError
        For another schema, an unknown sweep, or a record that can't be read.
    """
    source = _opened(document)
    rows: list[Measured[CalibrationRow]] = []
    points: dict[str, list[Any]] = {sweep: [] for sweep in _POINT_READERS}
    for sweep in source.children("sweeps"):
        name = sweep.choice("sweep", _SWEEPS)
        for item in sweep.children("rows"):
            rows.append(_measured(item, row_from_json(item.value("row"), f"{item.path}.row")))
        for item in sweep.children("points"):
            point = point_from_json(name, item.value("point"), f"{item.path}.point")
            points[name].append(_measured(item, point))
    return Measurements(tuple(rows), *(tuple(points[name]) for name in ("working_set", "issue", "launch")))


def refit(document: object) -> list[Fit]:
    """Recompute every fit of a calibration document.

    Parameters
    ----------
    document : object
        The parsed JSON of an export.

    Returns
    -------
    list of Fit
        As `fit_calibration` with the device's backend and multiprocessors, and the constants in force at the start of
        the first sweep, which are those that were active before the run.

    Raises
    ------
    DocumentError
        As `measurements_of`, and for a device without backend or multiprocessors.
    """
    measurements = measurements_of(document)
    source = _opened(document)
    device = source.child("device")
    multiprocessors = device.child("limits").count("multiprocessors", least=1)
    in_force: dict[str, float] = {}
    for sweep in source.children("sweeps"):
        in_force = dict(_positive_numbers(sweep.child("constants_in_force")))
        break
    return fit_calibration(
        measurements, backend=device.text("backend"), multiprocessors=multiprocessors, in_force=in_force
    )


def _opened(document: object) -> JsonObject:
    source = JsonObject(document, "document")
    source.choice("schema", (DOCUMENT_SCHEMA,))
    return source


def _positive_numbers(source: JsonObject) -> Iterator[tuple[str, float]]:
    for name in source.names():
        value = source.optional_number(name)
        if value is not None and value <= 0:
            raise DocumentError(f"{source.path}.{name}", "must be above zero or null")
        if value is not None:
            yield name, value


def _measured(item: JsonObject, record: Any) -> Measured[Any]:
    reading = item.child("reading")
    windows = [window for window in reading.children("windows") if window.optional("refused") is None]
    return Measured(
        record,
        role=reading.text("role"),
        phase=reading.optional_text("phase"),
        window_ms=tuple(window.number("best_ms") for window in windows),
    )


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


_POINT_READERS: dict[str, Callable[[object, str], Point]] = {
    "working_set": _working_set_point,
    "issue": _issue_point,
    "launch": _launch_point,
}


def _plain(value: Any, path: str) -> Any:
    """Return dataclasses, mappings and sequences as JSON values; refuse a number that JSON can't hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: _plain(getattr(value, item.name), f"{path}.{item.name}") for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise DocumentError(path, "must be finite to be written as JSON")
    return value
