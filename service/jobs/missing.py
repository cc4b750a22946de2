"""Jobs that nobody had to ask for: devices of this host that serve no constants yet."""

from __future__ import annotations

from sqlalchemy import exists, select

from kernels.host import host_id
from service.config import Settings
from service.db import Database
from service.jobs.queue import JobQueue
from service.models import OPEN_STATES, Calibration, Device
from service.repository import NewJob, submit


def request_missing(database: Database, queue: JobQueue, settings: Settings, *, simulated: bool = False) -> list[str]:
    """Queue a calibration of each usable device of this host that has no active constants; returns the jobs' ids.

    Real devices only, unless `simulated` ones are asked for; a device with a job on its way is left to that job.
    """
    on_its_way = exists().where(Calibration.device_key == Device.key, Calibration.state.in_(OPEN_STATES))
    query = (
        select(Device.key)
        .where(Device.host_id == host_id(), Device.usable, Device.active_revision.is_(None), ~on_its_way)
        .order_by(Device.key)
    )
    if not simulated:
        query = query.where(~Device.simulated)
    with database.read() as session:
        keys = session.scalars(query).all()
    return [submit(database, queue, NewJob(key, sweeps=settings.missing_sweeps, origin="missing"))[0] for key in keys]
