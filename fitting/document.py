"""The JSON forms of fits and constants, and the calibration document that every fit can be recomputed from.

Sweeps, records and readings are read by `measurements_of`; `refit` needs nothing else of the document but the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fitting._json_object import DocumentError, JsonObject
from fitting.calibration import Fit, Measured, Measurements, Outcome, fit_calibration
from fitting.records import POINT_READERS, point_from_json, row_from_json, to_json
from fitting.rows import CalibrationRow
from fitting.served import Absent, ConstantValue, ServedOutcome

DOCUMENT_SCHEMA = "calibration-service/calibration/1"

_SWEEPS = ("stream", "working_set", "launch", "issue")


def outcome_name(outcome: Outcome | ServedOutcome) -> str:
    """Return an outcome's class name; the list of an envelope fit is `EnvelopeFits`."""
    return "EnvelopeFits" if isinstance(outcome, list) else type(outcome).__name__


def outcome_to_json(outcome: Outcome | ServedOutcome) -> dict[str, Any]:
    """Return `{"outcome": class name, "result": fields}`; an envelope's result is `{"fits": [...]}`."""
    name = outcome_name(outcome)
    if isinstance(outcome, list):
        return {"outcome": name, "result": {"fits": to_json(outcome, name)}}
    return {"outcome": name, "result": to_json(outcome, name)}


def fit_to_json(fit: Fit) -> dict[str, Any]:
    """Return a fit as `{"kind", "sweep", "phase", "outcome", "result", "inputs"}`."""
    return {
        "kind": fit.kind,
        "sweep": fit.sweep,
        "phase": fit.phase,
        **outcome_to_json(fit.outcome),
        "inputs": to_json(fit.inputs, f"{fit.kind}.inputs"),
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
        "quality": to_json(constant.quality, constant.name),
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
    points: dict[str, list[Any]] = {sweep: [] for sweep in POINT_READERS}
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
        As `fit_calibration` under what the run had: the device's backend; the multiprocessors that its last sweep
        found, else the device's limit; the constants in force when its first sweep started.

    Raises
    ------
    DocumentError
        As `measurements_of`, and for a device without backend or multiprocessors.
    """
    measurements = measurements_of(document)
    source = _opened(document)
    device = source.child("device")
    sweeps = source.children("sweeps")
    found = [facts for facts in (sweep.child("facts") for sweep in sweeps) if facts.optional("multiprocessors")]
    limits = found[-1] if found else device.child("limits")
    return fit_calibration(
        measurements,
        backend=device.text("backend"),
        multiprocessors=limits.count("multiprocessors", least=1),
        in_force=dict(_positive_numbers(sweeps[0].child("constants_in_force"))) if sweeps else {},
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
