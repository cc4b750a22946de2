"""Taking in a document from a host without a service: a succeeded job, with its own id, in our tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service import activation
from service.db import Database
from service.documents import CalibrationDocument, ParsedDocument, export_calibration, parse_document
from service.errors import ConflictError
from service.evidence import fits as stored_fits
from service.jobs import records
from service.jobs.results import Results, conclude
from service.models import Calibration, Device, Host, SweepRun
from service.repository import new_sweep_run, request_hash, sweep_runs

_NEVER_HERE = "known from an imported document only: no worker of this service has seen it"


def import_calibration(database: Database, body: bytes, *, activate: bool) -> tuple[str, bool]:
    """Keep a document as a succeeded job; returns its id and whether it is new here.

    Raises
    ------
    InvalidRequestError
        It can't be read, or its fits are not those of its points.
    ConflictError
        The id is taken by other data, or the device is another one than this service knows under that key.
    """
    parsed = parse_document(body)
    try:
        with database.write() as session:
            return _keep(session, parsed, activate)
    except IntegrityError:  # the same document came in twice at once: the second look finds it
        with database.write() as session:
            return _keep(session, parsed, activate)


def _keep(session: Session, parsed: ParsedDocument, activate: bool) -> tuple[str, bool]:
    document = parsed.document
    existing = session.get(Calibration, document.id, with_for_update=True)
    if existing is not None:
        _check_same(session, existing, parsed)
        if activate and existing.origin == "import" and existing.revision is None:
            _activate_later(session, existing, parsed)
        return existing.id, False
    device = _device(session, document)
    calibration = Calibration(
        id=document.id,
        device_key=device.key,
        request_hash=request_hash(device.key, {sweep.sweep: sweep.parameters for sweep in document.sweeps}, activate),
        origin="import",
        state="succeeded",
        priority=0,
        time_limit_s=0.0,
        cancel_requested=False,
        activate=activate,
        activated=False,
        progress_done=len(document.sweeps),
        progress_total=len(document.sweeps),
        progress_message="imported",
        notes=[],
        versions=document.versions,
        requested_at=document.requested_at,
        started_at=document.started_at,
    )
    session.add(calibration)
    session.flush()
    runs = [_keep_sweep(session, calibration, position, parsed) for position in range(len(document.sweeps))]
    conclude(session, calibration, runs, Results(tuple(parsed.fits), parsed.constants))
    calibration.finished_at = document.finished_at
    calibration.progress_message = "imported"
    return calibration.id, True


def _check_same(session: Session, existing: Calibration, parsed: ParsedDocument) -> None:
    if existing.state == "succeeded":
        ours = parse_document(json.dumps(export_calibration(session, existing.id), allow_nan=False).encode())
        if ours.evidence() == parsed.evidence():
            return
    raise ConflictError(f"calibration {existing.id} is known here with other data; a document's id is its own")


def _activate_later(session: Session, calibration: Calibration, parsed: ParsedDocument) -> None:
    calibration.activate = True
    calibration.notes = []
    ids = {
        fit.kind if fit.phase is None else f"{fit.kind}/{fit.phase}": fit.id
        for fit in stored_fits(session, calibration.id)
    }
    runs = sweep_runs(session, [calibration.id])[calibration.id]
    activation.activate(session, calibration, parsed.constants, ids, {run.sweep: run.doubtful for run in runs})


def _device(session: Session, document: CalibrationDocument) -> Device:
    given = document.device
    device = session.get(Device, given.key)
    if device is not None:
        if (device.backend, device.kind, device.simulated) != (given.backend, given.kind, given.simulated):
            raise ConflictError(f"device {given.key} is known here as another kind of device ({device.backend})")
        return device
    if session.get(Host, document.host_id) is None:
        session.add(Host(id=document.host_id, worker_version=None, heartbeat_at=None, unusable=[]))
        session.flush()
    now = datetime.now(UTC)
    device = Device(
        key=given.key,
        host_id=document.host_id,
        backend=given.backend,
        kind=given.kind,
        name=given.name,
        simulated=given.simulated,
        usable=False,
        reason=_NEVER_HERE,
        limits=given.limits.model_dump(),
        facts=given.facts,
        first_seen_at=now,
        last_seen_at=now,
        active_revision=None,
        pinned=False,
    )
    session.add(device)
    session.flush()
    return device


def _keep_sweep(session: Session, calibration: Calibration, position: int, parsed: ParsedDocument) -> SweepRun:
    sweep = parsed.document.sweeps[position]
    run = new_sweep_run(calibration.id, sweep.sweep, position, sweep.parameters)
    run.state = "succeeded"
    run.starts = 1
    run.constants_in_force = dict(sweep.constants_in_force)
    run.doubtful = list(sweep.doubtful)
    run.notes = list(sweep.notes)
    run.facts = sweep.facts
    run.started_at = sweep.started_at
    run.finished_at = sweep.finished_at
    session.add(run)
    session.flush()
    records.store(session, run.id, 1, parsed.records[sweep.sweep])
    session.flush()
    return run
