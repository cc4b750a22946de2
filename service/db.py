"""The database: one engine, read and write sessions, and migrations that many processes may start at once."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker

from service.config import parse_database_url

VERSION_TABLE = "calibration_alembic_version"
BUSY_TIMEOUT_MS = 15_000
_MIGRATION_LOCK = 0x63616C69627261  # PostgreSQL advisory lock: "calibra"


class MigrationError(Exception):
    """The database can't be brought to this version's tables; the message says what to do."""


class Database:
    """An engine with two kinds of session.

    On SQLite a write session takes the write lock when it begins, so that a read followed by a write never fails half
    way; a reader never waits, as the file is in WAL.
    """

    def __init__(self, url: URL | str, *, pool_size: int = 16) -> None:
        """Create the engine; nothing is connected yet."""
        self.url = parse_database_url(url.render_as_string(hide_password=False) if isinstance(url, URL) else url)
        self.engine = _engine(self.url, pool_size)
        self._read = sessionmaker(self.engine, expire_on_commit=False)
        self._write = sessionmaker(self.engine.execution_options(sqlite_begin="IMMEDIATE"), expire_on_commit=False)

    @property
    def is_sqlite(self) -> bool:
        """Whether this is the embedded database."""
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Session]:
        """One consistent view; nothing done here is kept."""
        with self._read() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction, committed at the end and rolled back on an error."""
        with self._write.begin() as session:
            yield session

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def upgrade(url: URL | str) -> None:
    """Bring the database to this version's tables.

    Safe to call from many processes at once: one migrates, the others wait and then find nothing to do.

    Raises
    ------
    MigrationError
        The database was written by a newer version of the service.
    """
    database = Database(url, pool_size=2)
    try:
        with _exclusive(database) as connection, _alembic() as config:
            known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
            found = _revision(connection)
            if found is not None and found not in known:
                raise MigrationError(
                    f"the database is at revision {found}, which this version does not know: install the version that "
                    "wrote it, or a newer one"
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        database.dispose()


def revisions(session: Session) -> tuple[str | None, str]:
    """Return the database's revision (None: no tables yet) and the one this version needs."""
    with _alembic() as config:
        head = ScriptDirectory.from_config(config).get_current_head()
    if head is None:
        raise MigrationError("no migrations are installed with this package: install it again")
    return _revision(session.connection()), head


def _revision(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


@contextmanager
def _alembic() -> Iterator[Config]:
    """Configuration that finds the migrations where the package is installed, not where it was cloned."""
    with as_file(files("migrations")) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        yield config


@contextmanager
def _exclusive(database: Database) -> Iterator[Connection]:
    """Hold the migration lock of this database, in one write transaction."""
    if not database.is_sqlite:
        with database.engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            yield connection
        return
    path = Path(str(database.url.database))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".migrate.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        with database.engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
            yield connection


def _engine(url: URL, pool_size: int) -> Engine:
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_pre_ping=url.get_backend_name() != "sqlite",
        json_serializer=partial(json.dumps, allow_nan=False, ensure_ascii=False),
    )
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "connect", _prepare_postgres)
    return engine


def _prepare_postgres(connection: Any, record: Any) -> None:
    """Read times in UTC: in another zone the calendar's first and last hours can't be told in Python."""
    connection.execute("SET TIME ZONE 'UTC'")
    connection.commit()


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # the driver starts no transactions of its own: _begin_sqlite does
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('sqlite_begin', 'DEFERRED')}")
