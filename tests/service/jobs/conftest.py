"""A host of simulated devices with its real worker process and its real database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from kernels.backends.simulated import SimulatedBackend
from service import db
from service.config import Settings, parse_database_url
from service.db import Database
from service.jobs.hosts import record_discovery
from service.jobs.queue import JobQueue, migrate_engine
from service.models import Calibration, Device, SweepRun
from service.repository import NewJob, submit

HOST_ID = "test-host"
WAIT_S = 30.0


class WorkerHost:
    """One host: its data folder, its environment, its worker."""

    def __init__(
        self, patch: pytest.MonkeyPatch, folder: Path, url: str | None, truths: Sequence[dict[str, Any]]
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.environment = {
            "CALIBRATE_DATA_DIR": str(folder),
            "CALIBRATE_LOCK_DIR": str(folder / "locks"),
            "CALIBRATE_HOST_ID": HOST_ID,
            "CALIBRATE_COMPILER": str(folder / "no-compiler"),
            "CALIBRATE_SIMULATED": json.dumps(list(truths)),
            "CALIBRATE_HEARTBEAT_S": "0.5",
            "CALIBRATE_QUEUE_POLL_S": "0.05",
            "CALIBRATE_RECONCILE_S": "1",
        }
        if url is not None:
            self.environment["CALIBRATE_DATABASE_URL"] = url
        for name, value in self.environment.items():
            patch.setenv(name, value)
        self.settings = Settings()
        self.database = Database(self.settings.url)
        self.queue = JobQueue(self.settings)
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / "worker.log").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "service.jobs.worker"],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
            )
        self.workers.append(worker)
        return worker

    def log(self) -> str:
        log = self.folder / "worker.log"
        return log.read_text() if log.exists() else ""

    def record_devices(self) -> None:
        """Do what a worker does first, where a test has none."""
        with self.database.write() as session:
            record_discovery(session, HOST_ID, "1.0", SimulatedBackend().discover())

    def device(self, name: str) -> str:
        def found() -> str | None:
            with self.database.read() as session:
                return session.scalar(select(Device.key).where(Device.name == f"{name} (simulated)"))

        return str(self.wait_for(found, f"device {name}"))

    def request(self, device: str, **job: Any) -> str:
        job.setdefault("sweeps", ["stream"])
        calibration_id, new = submit(self.database, self.queue, NewJob(device, **job))
        assert new
        return calibration_id

    def calibration(self, calibration_id: str) -> Calibration:
        with self.database.read() as session:
            return session.get_one(Calibration, calibration_id)

    def sweeps(self, calibration_id: str) -> dict[str, SweepRun]:
        with self.database.read() as session:
            mine = select(SweepRun).where(SweepRun.calibration_id == calibration_id)
            runs = session.scalars(mine.order_by(SweepRun.position))
            return {run.sweep: run for run in runs}

    def wait_state(self, calibration_id: str, *states: str, seconds: float = WAIT_S) -> Calibration:
        def reached() -> Calibration | None:
            calibration = self.calibration(calibration_id)
            return calibration if calibration.state in states else None

        found: Calibration = self.wait_for(reached, f"{calibration_id} {states}", seconds)
        return found

    def wait_measuring(self, calibration_id: str, sweep: str = "stream") -> None:
        """Wait until the sweep's child is at work, not only begun."""

        def measuring() -> bool:
            message = self.calibration(calibration_id).progress_message
            return message.startswith(f"{sweep}: ") and not message.endswith(": starting")

        self.wait_for(measuring, f"{sweep} of {calibration_id} to be measured")

    def wait_for(self, look: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds:g} s for {what}; worker's log:\n{self.log()[-4000:]}")

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
            worker.wait()
        self.queue.close()
        self.database.dispose()


MakeHost = Callable[..., WorkerHost]


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Any, migrated_postgres: str) -> str:
    """A database with our tables and the engine's, to be copied."""
    postgres_server.execute(f"CREATE DATABASE with_engine TEMPLATE {migrated_postgres}")
    migrate_engine(parse_database_url(postgres_server.url("with_engine")))
    return "with_engine"


@pytest.fixture
def jobs_postgres_url(postgres_server: Any, postgres_template: str) -> Iterator[str]:
    name = f"jobs_{uuid.uuid4().hex}"
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE {postgres_template}")
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def any_database_url(request: pytest.FixtureRequest) -> str | None:
    """Each database in turn; None is the SQLite file of the data folder."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("jobs_postgres_url"))


@pytest.fixture
def make_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeHost]:
    """Build hosts of the given simulated devices, migrated but with no worker yet."""
    hosts: list[WorkerHost] = []

    def make(*truths: dict[str, Any], url: str | None = None) -> WorkerHost:
        host = WorkerHost(monkeypatch, tmp_path / "data", url, truths)
        hosts.append(host)
        if url is None:
            db.upgrade(host.settings.url)
            migrate_engine(host.settings.url)
        return host

    yield make
    for host in hosts:
        host.close()
