"""A calibration as one JSON document: written from the tables, read and checked.

A document's fits are recomputed and must agree; constants in it are never believed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from sqlalchemy.orm import Session

import fitting
from fitting import DOCUMENT_SCHEMA, DocumentError, Fit, fit_to_json, point_from_json, record_to_json, row_from_json
from kernels.events import PointMeasured, Reading, RowMeasured
from kernels.parameters import SWEEPS
from service.errors import InvalidRequestError, NotSucceededError
from service.evidence import fits as stored_fits
from service.evidence import sweep_documents
from service.models import Device
from service.repository import get_calibration, sweep_runs
from service.schemas import PastTime, SweepName

Record = RowMeasured | PointMeasured

MAX_INTEGER = 2**63 - 1
GPU_CHECK_SCHEMA = "calibration-service/gpu-check/1"  # as `make gpu-check` writes it
FIT_TOLERANCE = 1e-9  # relative; another numpy may sum in another order

Name = Annotated[str, Field(min_length=1, max_length=64)]
Words = list[str]


class DocumentPart(BaseModel):
    """A part of a document: no unknown fields, no NaN."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class DocumentLimits(DocumentPart):
    """What the device can run."""

    backend: str
    memory_bytes: int = Field(ge=0)
    last_level_cache_bytes: int = Field(ge=0)
    multiprocessors: int = Field(ge=1, description="P (count)")
    sweeps: list[str]
    geometries: list[str]


class DocumentDevice(DocumentPart):
    """The device that was measured."""

    key: str = Field(pattern=r"^[A-Za-z0-9-]{1,128}$")
    backend: str = Field(min_length=1, max_length=16)
    kind: Literal["cpu", "gpu", "simulated"]
    name: str = Field(max_length=1000)
    simulated: bool
    limits: DocumentLimits
    facts: dict[str, Any]


class DocumentReading(DocumentPart):
    """How a record's time was read: `kernels.events.Reading`."""

    role: str = Field(max_length=16)
    phase: str | None = Field(max_length=16)
    order: int = Field(description="Position in the first pass, counted from 0")
    repeats_done: int = Field(description="Samples taken (count)")
    median_ms: float
    spread: float | None = Field(description="Relative interquartile range (a fraction)")
    device_ms: float | None
    windows: list[dict[str, Any]]


class DocumentRow(DocumentPart):
    """A calibration row, with its reading."""

    row: dict[str, Any]
    reading: DocumentReading


class DocumentPoint(DocumentPart):
    """A sweep's point, with its reading."""

    point: dict[str, Any]
    reading: DocumentReading


class DocumentSweep(DocumentPart):
    """One sweep with everything it measured."""

    sweep: SweepName
    parameters: dict[str, Any]
    constants_in_force: dict[str, float]
    doubtful: Words
    notes: Words
    facts: dict[str, Any]
    started_at: PastTime | None
    finished_at: PastTime | None
    rows: list[DocumentRow]
    points: list[DocumentPoint]


class CalibrationDocument(DocumentPart):
    """Everything one run measured, on which device, with which code: enough to recompute every fit."""

    schema_: Literal["calibration-service/calibration/1"] = Field(alias="schema")
    id: str = Field(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
    origin: str = Field(max_length=64)
    device: DocumentDevice
    host_id: Name
    requested_at: PastTime
    started_at: PastTime
    finished_at: PastTime
    versions: dict[str, Any]
    sweeps: list[DocumentSweep] = Field(min_length=1, max_length=len(SWEEPS))
    fits: list[dict[str, Any]]
    constants: dict[str, Any]


@dataclass(frozen=True)
class ParsedDocument:
    """A checked document: its records by sweep, and what its data says."""

    document: CalibrationDocument
    records: Mapping[str, Sequence[Record]]
    fits: Sequence[Fit]
    constants: Mapping[str, fitting.ConstantValue | fitting.Absent]

    def evidence(self) -> str:
        """Return what makes two documents of one id the same: device, parameters and every reading."""
        sweeps = [
            [
                sweep.sweep,
                sweep.parameters,
                sweep.constants_in_force,
                [
                    [record_to_json(item.row if isinstance(item, RowMeasured) else item.point), asdict(item.reading)]
                    for item in self.records[sweep.sweep]
                ],
            ]
            for sweep in sorted(self.document.sweeps, key=lambda sweep: sweep.sweep)
        ]
        return json.dumps([self.document.id, self.document.device.key, _canonical(sweeps)], sort_keys=True)


def export_calibration(session: Session, calibration_id: str) -> dict[str, Any]:
    """Return a succeeded job as a document."""
    calibration = get_calibration(session, calibration_id)
    if calibration.state != "succeeded":
        raise NotSucceededError(
            f"calibration {calibration.id} is {calibration.state}; only a succeeded one can be exported; "
            "the rows and points of any are at /rows and /points"
        )
    device = session.get_one(Device, calibration.device_key)
    runs = sweep_runs(session, [calibration.id])[calibration.id]
    document = {
        "schema": DOCUMENT_SCHEMA,
        "id": calibration.id,
        "origin": calibration.origin,
        "device": {
            "key": device.key,
            "backend": device.backend,
            "kind": device.kind,
            "name": device.name,
            "simulated": device.simulated,
            "limits": device.limits,
            "facts": device.facts,
        },
        "host_id": device.host_id,
        "requested_at": calibration.requested_at.isoformat(),
        "started_at": (calibration.started_at or calibration.requested_at).isoformat(),
        "finished_at": (calibration.finished_at or calibration.requested_at).isoformat(),
        "versions": calibration.versions,
        "sweeps": sweep_documents(session, runs),
        "fits": [
            {
                "kind": fit.kind,
                "sweep": fit.sweep,
                "phase": fit.phase,
                "outcome": fit.outcome,
                "result": fit.result,
                "inputs": fit.inputs,
            }
            for fit in stored_fits(session, calibration.id)
        ],
    }
    constants = fitting.constants_of(fitting.refit(document), fitting.measurements_of(document))
    return {**document, "constants": {name: fitting.constant_to_json(value) for name, value in constants.items()}}


def parse_document(body: bytes) -> ParsedDocument:
    """Read and check a document; raises InvalidRequestError naming the field and the rule."""
    try:
        raw = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    try:
        raw = _last_calibration(raw)
        _check_storable(raw, "document")
        document = CalibrationDocument.model_validate(raw, strict=False)
        _check_consistent(document)
        measured = {str(sweep.sweep): _records(index, sweep) for index, sweep in enumerate(document.sweeps)}
        found = fitting.refit(raw)
        _check_agrees(document.fits, [fit_to_json(fit) for fit in found], "document.fits")
        return ParsedDocument(document, measured, found, fitting.constants_of(found, fitting.measurements_of(raw)))
    except ValidationError as error:
        fields = [
            {"field": ".".join(("document", *map(str, item["loc"]))), "rule": item["msg"]} for item in error.errors()
        ]
        raise InvalidRequestError(f"{fields[0]['field']}: {fields[0]['rule']}", fields=fields) from error
    except DocumentError as error:
        raise InvalidRequestError(str(error), fields=[{"field": error.path, "rule": error.rule}]) from error


def _last_calibration(raw: Any) -> Any:
    """Return the calibration in what was sent: the document itself, or the last one of a GPU check's report."""
    if not isinstance(raw, dict) or raw.get("schema") != GPU_CHECK_SCHEMA:
        return raw
    calibrations = raw.get("calibrations")
    if not isinstance(calibrations, list) or not calibrations:
        raise DocumentError(
            "calibrations", "this GPU check ended before a calibration was done: there is nothing to import"
        )
    return calibrations[-1]


def _check_storable(value: Any, path: str) -> None:
    """Refuse what a database column can't hold: NUL in a text, integers past 64 bits, numbers past a float's range."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_storable(key, path)
            _check_storable(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_storable(item, f"{path}[{index}]")
    elif isinstance(value, str) and "\x00" in value:
        raise DocumentError(path, "must not hold a NUL character")
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise DocumentError(path, "must be under 2^63")
    elif isinstance(value, float) and not math.isfinite(value):
        raise DocumentError(path, "must be a finite number")


def _check_consistent(document: CalibrationDocument) -> None:
    device = document.device
    simulated = device.backend == "simulated"
    if not device.simulated == simulated == (device.kind == "simulated") == device.key.startswith("sim-"):
        raise DocumentError(
            "document.device.simulated", "must agree with the backend, the kind and the key: simulated stays simulated"
        )
    if device.limits.backend != device.backend:
        raise DocumentError("document.device.limits.backend", "must be the device's backend")
    names = [sweep.sweep for sweep in document.sweeps]
    if len(set(names)) != len(names):
        raise DocumentError("document.sweeps", "must hold a sweep once")


def _records(index: int, sweep: DocumentSweep) -> list[Record]:
    found: list[Record] = []
    for number, item in enumerate(sweep.rows):
        path = f"document.sweeps[{index}].rows[{number}].row"
        found.append(RowMeasured(row_from_json(item.row, path), _reading(item.reading)))
    for number, point in enumerate(sweep.points):
        path = f"document.sweeps[{index}].points[{number}].point"
        record = point_from_json(sweep.sweep, point.point, path)
        if len(getattr(record, "geometry", "")) > 64:
            raise DocumentError(f"{path}.geometry", "must have at most 64 characters")
        found.append(PointMeasured(record, _reading(point.reading)))
    return found


def _reading(reading: DocumentReading) -> Reading:
    return Reading(**{**reading.model_dump(), "windows": tuple(reading.windows)})


def _check_agrees(stored: Any, recomputed: Any, path: str) -> None:
    if isinstance(recomputed, dict) and isinstance(stored, dict) and stored.keys() == recomputed.keys():
        for key, value in recomputed.items():
            _check_agrees(stored[key], value, f"{path}.{key}")
    elif isinstance(recomputed, list) and isinstance(stored, list) and len(stored) == len(recomputed):
        for index, value in enumerate(recomputed):
            _check_agrees(stored[index], value, f"{path}[{index}]")
    elif not _same(stored, recomputed):
        raise DocumentError(path, "is not what the document's own points give; export it again")


def _same(stored: Any, recomputed: Any) -> bool:
    if _is_number(stored) and _is_number(recomputed):
        return math.isclose(stored, recomputed, rel_tol=FIT_TOLERANCE)
    return type(stored) is type(recomputed) and bool(stored == recomputed)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _canonical(value: Any) -> Any:
    """Write 1 and 1.0 alike: JSON readers and number columns don't tell them apart."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return float(value) if _is_number(value) else value
