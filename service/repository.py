"""Questions to the database about devices and jobs, and the one way to ask for a job."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import Select, Tuple, case, literal, select, tuple_
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from kernels import parameters as rules
from kernels.parameters import DeviceLimits
from service.db import Database
from service.errors import (
    DeviceRequiredError,
    DeviceUnusableError,
    InvalidRequestError,
    UnknownCalibrationError,
    UnknownDeviceError,
    UnsupportedSweepError,
)
from service.models import OPEN_STATES, Calibration, Device, Host, SweepRun, UtcDateTime

_TRIES = 3
_KIND_RANK = case({"gpu": 0, "cpu": 1}, value=Device.kind, else_=2)


class Queue(Protocol):
    """What the API needs of the job engine."""

    def enqueue(self, session: Session, calibration: Calibration) -> None:
        """Put the job on its device's queue when the caller's transaction commits, or not at all."""

    def withdraw(self, calibration_id: str) -> None:
        """Take a job that has not started off its queue; not in an open write transaction."""

    def close(self) -> None:
        """Close the engine's connections."""


@dataclass(frozen=True)
class NewJob:
    """A job to ask for; `parameters` as given, by sweep."""

    device: str | None
    sweeps: Sequence[str] | None = None
    parameters: Mapping[str, Mapping[str, Any]] | None = None
    priority: int = 0
    time_limit_s: float = 900.0
    activate: bool = True
    origin: str = "request"


def submit(database: Database, queue: Queue, job: NewJob) -> tuple[str, bool]:
    """Check a job and queue it; returns its id, and whether it is new: an identical open one is returned instead.

    Raises
    ------
    ServiceError
        The device is unknown or not usable, or a parameter breaks a rule; nothing is queued.
    """
    for attempt in range(_TRIES):
        try:
            with database.write() as session:
                return _submit(session, queue, job)
        except IntegrityError:  # another process queued the same request between our look and our insert
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _submit(session: Session, queue: Queue, job: NewJob) -> tuple[str, bool]:
    device = choose_device(session, job.device)
    resolved = resolve(job, device)
    digest = request_hash(device.key, resolved, job.activate)
    existing = session.scalar(
        select(Calibration.id).where(Calibration.request_hash == digest, Calibration.state.in_(OPEN_STATES))
    )
    if existing is not None:
        return existing, False
    calibration = Calibration(
        id=str(uuid.uuid4()),
        device_key=device.key,
        request_hash=digest,
        origin=job.origin,
        state="queued",
        priority=job.priority,
        time_limit_s=job.time_limit_s,
        cancel_requested=False,
        activate=job.activate,
        activated=False,
        revision=None,
        progress_done=0,
        progress_total=0,
        progress_message="queued",
        notes=[],
        versions={},
        requested_at=datetime.now(UTC),
    )
    session.add(calibration)
    session.flush()
    for position, (sweep, parameters) in enumerate(resolved.items()):
        session.add(new_sweep_run(calibration.id, sweep, position, parameters))
    session.flush()
    queue.enqueue(session, calibration)
    return calibration.id, True


def new_sweep_run(calibration_id: str, sweep: str, position: int, parameters: Mapping[str, Any]) -> SweepRun:
    """Return a sweep that is still to run."""
    return SweepRun(
        calibration_id=calibration_id,
        sweep=sweep,
        position=position,
        state="queued",
        parameters=dict(parameters),
        constants_in_force={},
        starts=0,
        doubtful=[],
        notes=[],
        facts={},
    )


def choose_device(session: Session, key: str | None) -> Device:
    """Return the device asked for, or the only usable one."""
    if key is not None:
        device = get_device(session, key)
        if not device.usable:
            raise DeviceUnusableError(f"device {key} can't be used: {device.reason or 'no reason is known'}")
        return device
    usable = session.scalars(select(Device).where(Device.usable).order_by(_KIND_RANK, Device.key)).all()
    if len(usable) > 1:
        keys = ", ".join(device.key for device in usable)
        raise DeviceRequiredError(f"several devices are usable; name one of them in `device`: {keys}")
    if not usable:
        raise DeviceUnusableError("no device is usable; GET /v1/devices says why, or that no worker has started yet")
    return usable[0]


def resolve(job: NewJob, device: Device) -> dict[str, dict[str, Any]]:
    """Return the full parameters of each sweep, in the order they run."""
    limits = DeviceLimits(**{**device.limits, **_tuples(device.limits)})
    try:
        return rules.resolve_all(job.sweeps, job.parameters or {}, limits)
    except rules.UnsupportedSweepError as error:
        raise UnsupportedSweepError(str(error), fields=[{"field": error.field, "rule": error.rule}]) from error
    except rules.ParameterError as error:
        raise InvalidRequestError(str(error), fields=[{"field": error.field, "rule": error.rule}]) from error


def _tuples(limits: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(limits[name]) for name in ("sweeps", "geometries")}


def request_hash(device_key: str, resolved: Mapping[str, Any], activate: bool) -> str:
    """Return what makes two requests identical: the device, every resolved parameter, and whether it activates."""
    text = json.dumps([device_key, resolved, activate], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def get_device(session: Session, key: str) -> Device:
    """Return a device by its key, never another one."""
    device = session.get(Device, key)
    if device is None:
        raise UnknownDeviceError(f"no device {key[:128]!r} is known; GET /v1/devices lists them")
    return device


def get_calibration(session: Session, calibration_id: str, *, lock: bool = False) -> Calibration:
    """Return a job by its id."""
    calibration = session.get(Calibration, calibration_id, with_for_update=True if lock else None)
    if calibration is None:
        raise UnknownCalibrationError(
            f"no calibration {calibration_id[:64]!r} is known; GET /v1/calibrations lists them"
        )
    return calibration


def sweep_runs(session: Session, calibration_ids: Sequence[str]) -> dict[str, list[SweepRun]]:
    """Return the sweeps of each job, in the order they run."""
    found: dict[str, list[SweepRun]] = {calibration_id: [] for calibration_id in calibration_ids}
    query = select(SweepRun).where(SweepRun.calibration_id.in_(calibration_ids)).order_by(SweepRun.position)
    for run in session.scalars(query):
        found[run.calibration_id].append(run)
    return found


@dataclass(frozen=True)
class Filter:
    """Which jobs to list: those that match all of what is given."""

    device: str | None = None
    state: str | None = None
    sweep: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def list_calibrations(
    session: Session, wanted: Filter, after: tuple[datetime, str] | None, limit: int
) -> list[Calibration]:
    """Return the newest jobs first, those requested before `after`."""
    query: Select[tuple[Calibration]] = select(Calibration)
    if wanted.device is not None:
        query = query.where(Calibration.device_key == wanted.device)
    if wanted.state is not None:
        query = query.where(Calibration.state == wanted.state)
    if wanted.sweep is not None:
        query = query.where(
            select(SweepRun.id)
            .where(SweepRun.calibration_id == Calibration.id, SweepRun.sweep == wanted.sweep)
            .exists()
        )
    if wanted.since is not None:
        query = query.where(Calibration.requested_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(Calibration.requested_at < wanted.until)
    if after is not None:
        query = query.where(tuple_(Calibration.requested_at, Calibration.id) < _at(*after))
    query = query.order_by(Calibration.requested_at.desc(), Calibration.id.desc()).limit(limit)
    return list(session.scalars(query))


def _at(requested_at: datetime, calibration_id: str) -> Tuple:
    return tuple_(literal(requested_at, UtcDateTime()), literal(calibration_id))


def list_devices(session: Session, after: tuple[int, str] | None, limit: int) -> list[tuple[int, Device]]:
    """Return devices with their rank: GPUs first, then CPUs, then simulated ones."""
    query = select(_KIND_RANK, Device).order_by(_KIND_RANK, Device.key).limit(limit)
    if after is not None:
        query = query.where(tuple_(_KIND_RANK, Device.key) > tuple_(literal(after[0]), literal(after[1])))
    return [(rank, device) for rank, device in session.execute(query)]


def hosts(session: Session) -> dict[str, Host]:
    """Return every host by its id."""
    return {host.id: host for host in session.scalars(select(Host))}
