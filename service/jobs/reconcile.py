"""Our table and the engine, compared: a job that one of them lost or gave up is queued again, or ended in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from threading import Event

import structlog
from dbos import error as engine_error
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.config import Settings
from service.db import Database
from service.jobs import hosts, transitions
from service.jobs.queue import RUNNING, WAITING, JobQueue
from service.jobs.watch import DATABASE_AWAY
from service.models import OPEN_STATES, Calibration, Device, Host

log = structlog.get_logger()

_FAILURES = {
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": (
        "worker_lost",
        "the worker started again and again without ending this job: see its log, then ask for the calibration again",
    ),
    "ERROR": ("internal", "the job ended on a defect of this service: see the worker's log, and report it"),
    "SUCCESS": ("internal", "the job ended without a result: ask for the calibration again, and report it"),
}


@dataclass(frozen=True)
class _Open:
    id: str
    device_key: str
    cancel_requested: bool
    online: bool


def reconcile(
    database: Database, queue: JobQueue, *, offline_s: float, device_keys: Collection[str] | None = None
) -> None:
    """Bring the open jobs of these devices (all without `device_keys`) back in step with the engine.

    Safe in several processes at once: every move checks, in its own transaction, that the job is still open. Our rows
    are read before the engine's, and a job ends in ours first, so that a job in step is never taken for a lost one.
    """
    with database.read() as session:
        jobs = _open_jobs(session, offline_s, device_keys)
    states = queue.states([job.id for job in jobs])
    for job in jobs:
        _reconcile(database, queue, job, states.get(job.id))


def keep_reconciled(database: Database, queue: JobQueue, settings: Settings, stop: Event) -> None:
    """Compare the jobs of all hosts again and again until told to stop: a host that is gone has nobody else to do it.

    The first time after one interval, which gives a worker that starts beside time to say that it lives.
    """
    while not stop.wait(settings.reconcile_s):
        try:
            reconcile(database, queue, offline_s=settings.worker_offline_s)
        except (*DATABASE_AWAY, engine_error.DBOSException) as error:
            log.warning("jobs not compared, trying again", seconds=settings.reconcile_s, error=str(error))


def _reconcile(database: Database, queue: JobQueue, job: _Open, state: str | None) -> None:
    if job.cancel_requested and (state != RUNNING or not job.online):
        with database.write() as session:
            if (calibration := transitions.open_calibration(session, job.id)) is not None:
                transitions.cancel(session, calibration)
        log.info("cancelled job was not running", calibration=job.id)
    elif state is None:
        with database.write() as session:
            if (calibration := transitions.open_calibration(session, job.id)) is not None:
                queue.enqueue(session, calibration)
        log.warning("job was unknown to the engine, queued again", calibration=job.id)
    elif state == "CANCELLED":
        queue.put_back(job.id, job.device_key)
        log.warning("job was stopped in the engine only, queued again", calibration=job.id)
    elif state not in (RUNNING, *WAITING):
        code, message = _FAILURES.get(state, _FAILURES["ERROR"])
        with database.write() as session:
            if (calibration := transitions.open_calibration(session, job.id)) is not None:
                transitions.fail(session, calibration, code, message)
        log.error("job was given up by the engine", calibration=job.id, state=state)


def _open_jobs(session: Session, offline_s: float, device_keys: Collection[str] | None) -> list[_Open]:
    now = hosts.database_now(session)
    query = (
        select(Calibration, Host)
        .join(Device, Calibration.device_key == Device.key)
        .join(Host, Device.host_id == Host.id)
        .where(Calibration.state.in_(OPEN_STATES))
        .order_by(Calibration.requested_at, Calibration.id)
    )
    if device_keys is not None:
        query = query.where(Calibration.device_key.in_(device_keys))
    return [
        _Open(job.id, job.device_key, job.cancel_requested, hosts.is_online(host, now, offline_s))
        for job, host in session.execute(query)
    ]
