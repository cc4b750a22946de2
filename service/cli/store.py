"""`calibrate db`, `token`, `import` and `export`: the database, without the HTTP interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from service import auth, db
from service.cli.console import CliError, note, say, table
from service.cli.run import check_out, write_whole
from service.cli.serve import DatabaseUrl, DataDir, load_settings
from service.config import Settings
from service.errors import ServiceError
from service.models import Calibration, Token

MAX_DOCUMENT_BYTES = 64 * 2**20


def upgrade(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Bring the database to this version's tables; safe to run at any time, by several at once."""
    from service.jobs.queue import migrate_engine

    settings = load_settings(data_dir, database_url)
    with _failures():
        db.upgrade(settings.url)
        migrate_engine(settings.url)
    say(f"database is up to date: {settings.url.render_as_string(hide_password=True)}")


def import_document(
    file: Annotated[Path, typer.Argument(help="A calibration document: `calibrate run --out FILE`, or /export.")],
    activate: Annotated[bool, typer.Option("--activate", help="Make its constants the device's active ones.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Store a calibration measured elsewhere. Importing it again changes nothing."""
    from service.imports import import_calibration

    try:
        if file.stat().st_size > MAX_DOCUMENT_BYTES:
            raise CliError(f"{file} is over {MAX_DOCUMENT_BYTES} bytes", 2)
        document = file.read_bytes()
    except OSError as error:
        raise CliError(f"{file} can't be read: {error.strerror}", 2) from error
    with _open(load_settings(data_dir, database_url)) as database:
        calibration, new = import_calibration(database, document, activate=activate)
        with database.read() as session:
            kept = session.get_one(Calibration, calibration)
        say(f"calibration {calibration} {'imported' if new else 'was here already'}")
        if activate:
            say(f"activated: revision {kept.revision}" if kept.activated else "not activated: what was served stays")
        for line in kept.notes:
            say(f"note: {line}")
        note(f"database: {database.url.render_as_string(hide_password=True)}")


def export_document(
    calibration: Annotated[str, typer.Argument(help="Its id.")],
    out: Annotated[Path | None, typer.Option(help="File to write; stdout if not given.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Write a stored calibration as one JSON from which every fit can be recomputed."""
    from service.documents import export_calibration

    if out is not None:
        check_out(out)
    with _open(load_settings(data_dir, database_url)) as database, database.read() as session:
        text = json.dumps(export_calibration(session, calibration), indent=1, allow_nan=False)
    if out is None:
        say(text)
    else:
        write_whole(out, text)
        note(f"wrote {out}")


def create_token(
    name: Annotated[str, typer.Argument(help="Who uses it; unique.")],
    scope: Annotated[list[str] | None, typer.Option(help="read or calibrate; may be repeated [default: read].")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a token and print it once; only its digest is kept. Running services take it within seconds."""
    scopes = tuple(known for known in auth.SCOPES if known in (scope or ["read"]))
    unknown = set(scope or []) - set(auth.SCOPES)
    if unknown:
        raise CliError(f"--scope is one of {', '.join(auth.SCOPES)}, not {', '.join(sorted(unknown))}", 2)
    with _open(load_settings(data_dir, database_url)) as database:
        try:
            with database.write() as session:
                text = auth.create_token(session, name, scopes)
        except IntegrityError as error:
            raise CliError(f"there is a token named {name!r} already; revoke it first", 2) from error
        note(f"database: {database.url.render_as_string(hide_password=True)}; from now on its service wants a token")
    say(text)


def list_tokens(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List the tokens' names and scopes."""
    with _open(load_settings(data_dir, database_url)) as database, database.read() as session:
        tokens = session.scalars(select(Token).order_by(Token.name)).all()
    say(table(["name", "scopes", "created"], [[t.name, ",".join(t.scopes), t.created_at.isoformat()] for t in tokens]))


def revoke_token(name: str, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Make a token invalid."""
    with _open(load_settings(data_dir, database_url)) as database, database.write() as session:
        found = session.scalars(delete(Token).where(Token.name == name).returning(Token.id)).all()
    if not found:
        raise CliError(f"there is no token named {name!r}", 2)
    say(f"revoked {name}")


@contextmanager
def _open(settings: Settings) -> Iterator[db.Database]:
    """Open the migrated database; what the service refuses becomes one message."""
    with _failures():
        db.upgrade(settings.url)
        database = db.Database(settings.url, pool_size=2)
        try:
            yield database
        finally:
            database.dispose()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except ServiceError as error:
        raise CliError(str(error), 2 if error.status < 500 else 1) from error
    except db.MigrationError as error:
        raise CliError(str(error)) from error
    except SQLAlchemyError as error:
        raise CliError(f"the database can't be used: {error}") from error
