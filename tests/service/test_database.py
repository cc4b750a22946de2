import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError

from service import db
from service.db import Database, MigrationError
from service.models import Base, Device

ROOT = Path(__file__).resolve().parents[2]
ORPHAN = text(
    "INSERT INTO fits (calibration_id, kind, sweep, outcome, result, inputs, created_at)"
    " VALUES ('none', 'envelope', 'stream', 'x', '{}', '{}', '2024-01-01 00:00:00')"
)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new folder/empty.sqlite3"
    return str(request.getfixturevalue("postgres_url"))


def test_three_processes_that_migrate_at_once_make_one_migration(empty_url: str) -> None:
    code = f"from service.db import upgrade; upgrade({empty_url!r})"
    processes = [subprocess.Popen([sys.executable, "-W", "error", "-c", code], cwd=ROOT) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    database = Database(empty_url)
    with database.read() as session:
        assert session.scalars(text("SELECT version_num FROM calibration_alembic_version")).all() == ["0001"]
        assert db.revisions(session) == ("0001", "0001")
    database.dispose()


def test_the_models_are_what_the_migrations_make(database: Database) -> None:
    config = Config(toml_file=ROOT / "pyproject.toml")
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.check(config)


def test_tables_of_the_job_engine_are_out_of_sight_of_the_migrations(database: Database) -> None:
    config = Config(toml_file=ROOT / "pyproject.toml")
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE workflow_status (id integer)"))
        config.attributes["connection"] = connection
        command.check(config)


def test_a_downgrade_leaves_no_table_but_the_version(database: Database) -> None:
    config = Config(toml_file=ROOT / "pyproject.toml")
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert inspect(connection).get_table_names() == ["calibration_alembic_version"]


def test_a_database_of_a_newer_version_is_refused_in_words(database: Database, own_database_url: str) -> None:
    with database.write() as session:
        session.execute(text("UPDATE calibration_alembic_version SET version_num = '9999'"))
    with pytest.raises(MigrationError, match="9999, which this version does not know"):
        db.upgrade(own_database_url)


def test_every_table_is_migrated(database: Database) -> None:
    tables = inspect(database.engine).get_table_names()
    assert set(Base.metadata.tables) <= set(tables)


def test_sqlite_is_in_wal_and_checks_foreign_keys(sqlite_service: Any) -> None:
    with sqlite_service.database.read() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA foreign_keys")) == 1
        assert session.scalar(text("PRAGMA busy_timeout")) == 15_000


def test_a_row_that_refers_to_nothing_is_refused(database: Database) -> None:
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(ORPHAN)


def test_a_failed_write_keeps_nothing(database: Database) -> None:
    def delete_then_fail() -> None:
        with database.write() as session:
            session.execute(text("DELETE FROM calibration_alembic_version"))
            session.execute(ORPHAN)

    with pytest.raises(IntegrityError):
        delete_then_fail()
    with database.read() as session:
        assert db.revisions(session)[0] == "0001"


@pytest.mark.postgres
def test_the_first_and_last_day_are_read_whatever_the_servers_zone(postgres_url: str) -> None:
    moments = "TIMESTAMPTZ '0001-01-01 00:00:00Z', TIMESTAMPTZ '9999-12-31 23:59:59Z'"
    for zone in ("America/New_York", "Asia/Tokyo"):
        database = Database(f"{postgres_url}&options=-c%20timezone%3D{zone}")
        with database.read() as session:
            first, last = session.execute(text(f"SELECT {moments}")).one()
        database.dispose()
        assert (first.isoformat(), last.isoformat()) == ("0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00")


def test_times_come_back_in_utc(sqlite_service: Any) -> None:
    key = sqlite_service.add_device()
    with sqlite_service.database.read() as session:
        seen = session.get_one(Device, key).first_seen_at
    assert seen.isoformat() == "2024-05-06T07:08:09+00:00"
