"""The worker process of a host: it hands jobs to the driver and never touches a device itself.

Run as `calibrate worker`, or by the supervisor beside a server as `python -m service.jobs.worker --parent PID`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from threading import Event, Thread

import structlog
from dbos import error as engine_error
from sqlalchemy.exc import SQLAlchemyError

from kernels.device import Discovery
from kernels.errors import MeasureError
from kernels.host import host_id
from kernels.lock import device_lock, lock_folder
from kernels.measure import discover_in_child
from kernels.versions import SERVICE
from service.config import Settings
from service.db import Database, revisions
from service.jobs import hosts
from service.jobs.drive import Driver
from service.jobs.engine import running_engine
from service.jobs.lifetime import stop_on_signals, stop_with
from service.jobs.queue import JobQueue
from service.jobs.reconcile import reconcile
from service.jobs.supervisor import HOST_LOCKED
from service.jobs.watch import DATABASE_AWAY

TICK_S = 0.5
KEEP_ENGINE_ROWS = timedelta(days=7)
STOP_S = 10.0  # that a running job gets to notice the stop, kill its child and give its start back

log = structlog.get_logger()


class HostLockedError(Exception):
    """Another worker serves this host."""


def run_worker(settings: Settings, parent: int | None = None) -> int:
    """Serve this host's devices until SIGTERM, SIGINT or the end of process `parent`.

    Returns the exit code: 0 stopped, 1 it can't start or lost its database, 75 another worker holds this host.
    """
    stop = Event()
    stop_on_signals(stop)
    if parent is not None and not stop_with(parent):
        return 0
    try:
        with device_lock(f"host-{host_id()}", wait=_refuse):
            return _Worker(settings, stop, parent).run()
    except HostLockedError:
        log.error("another worker serves this host", host=host_id(), locks=str(lock_folder()))
        return HOST_LOCKED
    except (SQLAlchemyError, engine_error.DBOSException) as error:
        log.error("the database can't be used: start the server, or run `calibrate db upgrade`", problem=str(error))
    except MeasureError as error:
        log.error("the worker can't start", problem=str(error))
    return 1


def _refuse() -> None:
    raise HostLockedError


class _Worker:
    """One host's worker, with the host's lock held."""

    def __init__(self, settings: Settings, stop: Event, parent: int | None) -> None:
        self._settings = settings
        self._stop = stop
        self._parent = parent
        self._host_id = host_id()
        self._database = Database(settings.url, pool_size=settings.pool_size)
        self._queue = JobQueue(settings)
        self._driver = Driver(self._database, stop)

    def run(self) -> int:
        try:
            if not self._tables_are_there():
                return 0 if self._stop.is_set() else 1
            devices = self._record(discover_in_child())
            Thread(target=self._beat, name="heartbeat", daemon=True).start()
            while not self._stop.is_set():
                healed = self._queue.heal(self._host_id, devices)
                self._queue.open_queues(devices, self._settings.queue_poll_s)
                with running_engine(self._settings, self._host_id, devices, self._drive):
                    log.info("worker ready", host=self._host_id, devices=devices, healed=healed)
                    devices = self._serve(devices)
                    self._driver.wait_idle(STOP_S)
            return 0
        finally:
            self._queue.close()
            self._database.dispose()

    def _tables_are_there(self) -> bool:
        """Wait for the database, for as long as it may take to come up beside us."""
        give_up = time.monotonic() + self._settings.database_wait_s
        problem = ""
        while not self._stop.is_set():
            try:
                with self._database.read() as session:
                    found, needed = revisions(session)
                if found == needed:
                    return True
                problem = f"at revision {found}, this version needs {needed}"
            except DATABASE_AWAY as error:
                problem = str(error)
            if time.monotonic() >= give_up:
                log.error("the database is not ready: start the server, or run `calibrate db upgrade`", problem=problem)
                return False
            self._stop.wait(TICK_S)
        return False

    def _serve(self, devices: list[str]) -> list[str]:
        """Watch over the engine until the stop, or until this host has other devices; returns its devices."""
        next_reconcile = 0.0
        next_discovery = time.monotonic() + self._settings.rediscover_s
        while not self._stop.wait(TICK_S):
            if self._parent is not None and os.getppid() != self._parent:
                self._stop.set()
            now = time.monotonic()
            if now >= next_reconcile:
                next_reconcile = now + self._settings.reconcile_s
                self._reconcile(devices)
            if now >= next_discovery:
                next_discovery = now + self._settings.rediscover_s
                found = self._rediscover(devices)
                if set(found) != set(devices):
                    return found
        return devices

    def _drive(self, calibration_id: str) -> None:
        try:
            self._driver.drive(calibration_id)
        except Exception:  # the outermost: the job ends in words, the worker goes on
            log.exception("job broken by a defect", calibration=calibration_id)
            message = "the job broke on a defect of this service: see the detail, and report it"
            self._driver.fail(calibration_id, message, traceback.format_exc())

    def _reconcile(self, devices: list[str]) -> None:
        try:
            reconcile(self._database, self._queue, offline_s=self._settings.worker_offline_s, device_keys=devices)
            self._queue.prune(devices, datetime.now(UTC) - KEEP_ENGINE_ROWS)
        except DATABASE_AWAY as error:
            log.warning("database away, jobs not compared", error=str(error))

    def _rediscover(self, devices: list[str]) -> list[str]:
        """Look again for devices, so that a compiler installed later is found; never beside a measurement."""
        with self._driver.quiet:
            if self._driver.busy:
                return devices
            discovery = discover_in_child()
        try:
            return self._record(discovery)
        except DATABASE_AWAY as error:
            log.warning("database away, devices not recorded", error=str(error))
            return devices

    def _record(self, discovery: Discovery) -> list[str]:
        for item in discovery.unusable:
            log.info(f"no {item.backend} device", why=item.reason)
        with self._database.write() as session:
            return hosts.record_discovery(session, self._host_id, version(SERVICE), discovery)

    def _beat(self) -> None:
        """Tell that this worker lives, whatever else it does."""
        while not self._stop.wait(self._settings.heartbeat_s):
            try:
                with self._database.write() as session:
                    hosts.beat(session, self._host_id)
            except DATABASE_AWAY as error:
                log.warning("database away, no heartbeat", error=str(error))


def main() -> int:
    """Run beside a server, with the settings of the environment."""
    parser = argparse.ArgumentParser(prog="python -m service.jobs.worker")
    parser.add_argument("--parent", type=int, help="end when this process, which started this one, ends")
    return run_worker(Settings(), parser.parse_args().parent)


if __name__ == "__main__":
    sys.exit(main())
