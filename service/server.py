"""The serving process: migrate, bind, start the worker beside it, serve until told to stop."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from datetime import datetime, timedelta
from types import FrameType
from typing import Any

import structlog
import uvicorn
from dbos import error as engine_error
from sqlalchemy.exc import SQLAlchemyError

from kernels.host import host_id
from service import auth, db
from service.app import create_app
from service.config import Settings
from service.errors import ServiceError
from service.jobs.hosts import database_now
from service.jobs.missing import request_missing
from service.jobs.queue import JobQueue, migrate_engine
from service.jobs.reconcile import keep_reconciled
from service.jobs.supervisor import Supervisor
from service.jobs.watch import DATABASE_AWAY
from service.models import Host

MISSING_POLL_S = 0.5

log = structlog.get_logger()


class _Server(uvicorn.Server):
    """Ends open event streams when told to stop, instead of waiting for them.

    The signal is not raised once more at the end, as uvicorn would: it would kill this process before its worker has
    given a running sweep back.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app: Any = self.config.app
        app.state.services.stopping = True  # no lock: a handler may interrupt whoever holds one
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def serve(settings: Settings, *, with_worker: bool, calibrate_missing: bool) -> int:
    """Serve until SIGINT or SIGTERM; returns the process's exit code: 0 stopped, 1 failed, 2 can't start like this."""
    try:
        db.upgrade(settings.url)
        migrate_engine(settings.url)
        database = db.Database(settings.url)
        has_tokens = auth.bootstrap(database, settings)
        auth.check_bind(settings, has_tokens)
        listener = _listen(settings.host, settings.port)
    except (db.MigrationError, ServiceError, OSError) as error:
        sys.stderr.write(f"calibrate: {error}\n")
        return 2
    except (SQLAlchemyError, engine_error.DBOSException) as error:
        where = settings.url.render_as_string(hide_password=True)
        sys.stderr.write(f"calibrate: the database {where} can't be used: {getattr(error, 'orig', error)}\n")
        return 1
    url = (
        f"http://{'localhost' if settings.host in ('127.0.0.1', '::1') else settings.host}:{listener.getsockname()[1]}"
    )
    stop = threading.Event()
    supervisor = Supervisor(settings) if with_worker else None
    queue = JobQueue(settings)
    if supervisor is not None:
        supervisor.start()
    threading.Thread(target=keep_reconciled, args=(database, queue, settings, stop), daemon=True).start()
    if calibrate_missing:
        threading.Thread(target=_calibrate_missing, args=(database, queue, settings, stop), daemon=True).start()
    log.info("serving", url=url, docs=f"{url}/docs", data=str(settings.data_dir), worker=with_worker)
    try:
        server = _Server(
            uvicorn.Config(
                create_app(settings),
                loop="uvloop",
                http="httptools",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=settings.shutdown_grace_s,
            )
        )
        server.run(sockets=[listener])
    finally:
        stop.set()
        if supervisor is not None:
            supervisor.stop()
        queue.close()
        database.dispose()
    return 0 if server.started else 1


def _listen(host: str, port: int) -> socket.socket:
    """Bind before anything is started, so that a taken port is one clear line."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OSError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another with --port or PORT="
        ) from error
    return listener


def _calibrate_missing(database: db.Database, queue: JobQueue, settings: Settings, stop: threading.Event) -> None:
    """Wait until this start's worker has listed the host's devices, then ask for what is missing."""
    with database.read() as session:
        since = database_now(session)
    while not stop.wait(MISSING_POLL_S):
        try:
            if not _listed(database, since):
                continue
            jobs = request_missing(database, queue, settings)
        except DATABASE_AWAY as error:
            log.warning("database away; devices without constants are asked for later", error=str(error))
            continue
        if jobs:
            log.info("calibrating devices that have no constants yet", calibrations=jobs)
        return


def _listed(database: db.Database, since: datetime) -> bool:
    with database.read() as session:
        host = session.get(Host, host_id())
        return host is not None and host.heartbeat_at is not None and host.heartbeat_at >= since - timedelta(seconds=1)
