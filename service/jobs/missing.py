"""Jobs that nobody had to ask for: devices of this host that serve no constants yet."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from sqlalchemy import exists, select

from kernels.host import host_id
from service.config import Settings
from service.db import Database
from service.errors import ServiceError
from service.jobs.queue import JobQueue
from service.models import OPEN_STATES, Calibration, Device
from service.repository import NewJob, submit

log = structlog.get_logger()


def request_missing(database: Database, queue: JobQueue, settings: Settings, *, simulated: bool = False) -> list[str]:
    """Queue a calibration of each usable device of this host that has no active constants; returns the jobs' ids.

    Real devices only, unless `simulated` ones are asked for; a device with a job on its way is left to that job. The
    stream sweep is a job of its own, first: its constant is served within a minute or so, and a failure of a longer
    sweep does not hold it back.
    """
    on_its_way = exists().where(Calibration.device_key == Device.key, Calibration.state.in_(OPEN_STATES))
    query = (
        select(Device)
        .where(Device.host_id == host_id(), Device.usable, Device.active_revision.is_(None), ~on_its_way)
        .order_by(Device.key)
    )
    if not simulated:
        query = query.where(~Device.simulated)
    with database.read() as session:
        devices = session.scalars(query).all()
    jobs = []
    for device in devices:
        wanted = settings.missing_sweeps or device.limits["sweeps"]
        for sweeps in _jobs([sweep for sweep in device.limits["sweeps"] if sweep in wanted]):
            try:
                jobs.append(submit(database, queue, NewJob(device.key, sweeps=sweeps, origin="missing"))[0])
            except ServiceError as error:  # this device's alone: too little memory, or gone by now
                log.warning("constants not asked for", device=device.key, sweeps=sweeps, reason=str(error))
    return jobs


def _jobs(sweeps: Sequence[str]) -> list[list[str]]:
    """Split the sweeps into jobs: the stream sweep, and all the others."""
    first = [sweep for sweep in sweeps if sweep == "stream"]
    rest = [sweep for sweep in sweeps if sweep != "stream"]
    return [job for job in (first, rest) if job]
