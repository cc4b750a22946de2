"""The real databases, migrated by Alembic, and an application on them with a queue made by hand."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import event
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

import fitting
from kernels.parameters import DeviceLimits
from service import db
from service.app import create_app
from service.config import Settings
from service.models import Base, Calibration, Device, Host

NOW = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
LIMITS = DeviceLimits(
    backend="cc",
    memory_bytes=16 * 2**30,
    last_level_cache_bytes=32 * 2**20,
    multiprocessors=2,
    sweeps=("stream", "working_set", "launch", "issue"),
    geometries=("32x32x8/4x4", "64x64x8/4x4"),
)


class PostgresServer:
    """A server on a Unix socket of its own, without durability."""

    def __init__(self, programs: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="calibrate-pg-"))
        owner: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data = self.folder / "data"
        make = [programs / "initdb", "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "-D", data]
        subprocess.run(make, check=True, capture_output=True, cwd=self.folder, **owner)
        options = {
            "listen_addresses": "",
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "max_connections": 200,
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [programs / "postgres", "-D", data, *settings], stdout=log, stderr=log, cwd=self.folder, **owner
            )
        self._wait()

    def url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return


@pytest.fixture(scope="session")
def postgres_server(postgres_bin: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(postgres_bin)
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty PostgreSQL database of the test's own."""
    name = f"test_{uuid.uuid4().hex}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "template.sqlite3"
    db.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresServer) -> str:
    postgres_server.execute("CREATE DATABASE migrated")
    db.upgrade(postgres_server.url("migrated"))
    return "migrated"


@pytest.fixture
def sqlite_database_url(tmp_path: Path, migrated_sqlite: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_sqlite, tmp_path / 'service.sqlite3')}"


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_server: PostgresServer, migrated_postgres: str) -> str:
    postgres_server.execute(f"CREATE DATABASE shared TEMPLATE {migrated_postgres}")
    return postgres_server.url("shared")


@pytest.fixture
def emptied_postgres_url(shared_postgres_url: str) -> Iterator[str]:
    """One migrated PostgreSQL database for all tests, emptied after each: a database of its own takes a second."""
    url = shared_postgres_url
    yield url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {', '.join(Base.metadata.tables)} RESTART IDENTITY CASCADE")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database without rows, each kind in turn."""
    name = "each_sqlite_url" if request.param == "sqlite" else "emptied_postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture
def each_sqlite_url(tmp_path: Path, migrated_sqlite: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_sqlite, tmp_path / 'each.sqlite3')}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def own_database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database whose tables the test may change, each kind in turn."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("each_sqlite_url"))
    url = str(request.getfixturevalue("postgres_url"))
    db.upgrade(url)
    return url


@pytest.fixture
def database(own_database_url: str) -> Iterator[db.Database]:
    found = db.Database(own_database_url)
    yield found
    found.dispose()


def stream_row(name: str, streams: int, ms: float, **fields: Any) -> dict[str, Any]:
    """A row over 2^20 elements: `streams` x 4 MiB moved, with the operations of its kernel."""
    operations = {"copy": 0, "scale": 1, "add": 1, "triad": 2}[name]
    row = {
        "backend": "cc",
        "digest": "d1",
        "routine": f"stream_{name}",
        "label": "block=256,vec=4",
        "measured_ms": ms,
        "model_ms": None,
        "kernels": 1,
        "flops": operations * 2**20,
        "bytes": streams * 4 * 2**20,
        "flops_approx": False,
        "bytes_approx": False,
        "opaque": False,
    }
    return {"row": {**row, **fields}, "reading": reading("seed", ms)}


def reading(role: str, ms: float) -> dict[str, Any]:
    windows = [
        {"best_ms": best, "median_ms": best, "samples": 16, "started_at": "2024-05-06T07:08:09+00:00", "refused": None}
        for best in (ms, ms * 1.01)
    ]
    return {
        "role": role,
        "phase": None,
        "order": 0,
        "repeats_done": 16,
        "median_ms": ms,
        "spread": 0.01,
        "device_ms": None,
        "windows": windows,
    }


def make_document(**changes: Any) -> dict[str, Any]:
    """A stream run whose triad moves 3 x 4 MiB in 1 ms: 12 582 912 000 bytes a second, the most of its rows."""
    document: dict[str, Any] = {
        "schema": "calibration-service/calibration/1",
        "id": "6f1f7f36-3c56-4d1c-9d0b-0123456789ab",
        "origin": "request",
        "device": {
            "key": "cpu-fedcba9876543210",
            "backend": "cc",
            "kind": "cpu",
            "name": "A CPU elsewhere",
            "simulated": False,
            "limits": {**asdict(LIMITS), "sweeps": list(LIMITS.sweeps), "geometries": list(LIMITS.geometries)},
            "facts": {"cores": 2},
        },
        "host_id": "host-elsewhere",
        "requested_at": "2024-05-06T07:08:00Z",
        "started_at": "2024-05-06T07:08:09Z",
        "finished_at": "2024-05-06T07:09:00Z",
        "versions": {"python": "3.11.7"},
        "sweeps": [
            {
                "sweep": "stream",
                "parameters": {"elems": 2**20, "repeats": 16},
                "constants_in_force": {},
                "doubtful": [],
                "notes": [],
                "facts": {"multiprocessors": 2},
                "started_at": "2024-05-06T07:08:09Z",
                "finished_at": "2024-05-06T07:09:00Z",
                "rows": [
                    stream_row("copy", 2, 0.8),
                    stream_row("scale", 2, 0.8),
                    stream_row("add", 3, 1.1),
                    stream_row("triad", 3, 1.0),
                ],
                "points": [],
            }
        ],
        "constants": {},
    }
    document |= changes
    return document | {"fits": [fitting.fit_to_json(fit) for fit in fitting.refit(document)]}


class FakeQueue:
    """Remembers what was queued; like the engine's, it works within the caller's transaction."""

    def __init__(self) -> None:
        self.queued: list[str] = []

    def enqueue(self, session: Session, calibration: Calibration) -> None:
        assert session.in_transaction()
        self.queued.append(calibration.id)

    def withdraw(self, calibration_id: str) -> None:
        self.queued.remove(calibration_id)

    def close(self) -> None:
        pass


@dataclass
class ServiceUnderTest:
    """One application over one database, with helpers to put things into it."""

    settings: Settings
    database: db.Database
    queue: FakeQueue
    client: TestClient
    devices: list[str] = field(default_factory=list)

    def add_device(self, key: str = "cpu-0123456789abcdef", **columns: Any) -> str:
        with self.database.write() as session:
            if session.get(Host, "host-1") is None:
                session.add(Host(id="host-1", worker_version="1.0", heartbeat_at=NOW, unusable=[]))
                session.flush()
            defaults: dict[str, Any] = {
                "host_id": "host-1",
                "backend": "cc",
                "kind": "cpu",
                "name": "Test CPU",
                "simulated": False,
                "usable": True,
                "reason": None,
                "limits": asdict(LIMITS),
                "facts": {"cores": 2},
                "first_seen_at": NOW,
                "last_seen_at": NOW,
                "active_revision": None,
                "pinned": False,
            }
            session.add(Device(key=key, **{**defaults, **columns}))
        self.devices.append(key)
        return key

    @contextmanager
    def count_statements(self) -> Iterator[list[str]]:
        """Collect the statements that this application sends meanwhile, but for its polling."""
        sent: list[str] = []

        def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
            if "FROM tokens" not in statement and not statement.startswith(
                ("BEGIN", "SELECT devices.key, devices.act")
            ):
                sent.append(statement)

        event.listen(self.database.engine, "before_cursor_execute", note)
        yield sent
        event.remove(self.database.engine, "before_cursor_execute", note)

    def import_document(self, document: dict[str, Any], *, activate: bool = True) -> str:
        answer = self.client.post(f"/v1/calibrations/import?activate={str(activate).lower()}", json=document)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    return make_document


MakeService = Callable[..., ServiceUnderTest]


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[..., ServiceUnderTest]]:
    """Build started applications on a migrated database."""
    clients: list[TestClient] = []

    def make(url: str, **settings: Any) -> ServiceUnderTest:
        chosen = Settings(data_dir=tmp_path, database_url=SecretStr(url), **settings)
        queue = FakeQueue()
        app = create_app(chosen, queue)
        client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
        client.__enter__()
        clients.append(client)
        return ServiceUnderTest(chosen, app.state.services.database, queue, client)

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def fake_queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def service(make_service: MakeService, database_url: str) -> ServiceUnderTest:
    return make_service(database_url)


@pytest.fixture
def sqlite_service(make_service: MakeService, sqlite_database_url: str) -> ServiceUnderTest:
    return make_service(sqlite_database_url)
