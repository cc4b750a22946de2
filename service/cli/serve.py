"""`calibrate serve` and `calibrate worker`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from service.cli.console import CliError, note
from service.config import Settings

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Data folder [env: CALIBRATE_DATA_DIR].")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(help="sqlite:////path/file or postgresql://user@host/name [env: CALIBRATE_DATABASE_URL]."),
]


def load_settings(data_dir: Path | None = None, database_url: str | None = None, **given: object) -> Settings:
    """Return the settings of the environment with the flags on top; child processes see the same."""
    if data_dir is not None:
        os.environ["CALIBRATE_DATA_DIR"] = str(data_dir.absolute())
    if database_url is not None:
        os.environ["CALIBRATE_DATABASE_URL"] = database_url
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(["CALIBRATE", *(str(part) for part in first["loc"])]).upper()
        raise CliError(f"{name}: {first['msg']}", 2) from error
    os.environ["CALIBRATE_DATA_DIR"] = str(settings.data_dir.absolute())
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"the data folder can't be made: {error}; choose another with --data-dir", 2) from error
    return settings


def serve(
    host: Annotated[str | None, typer.Option(help="Address; loopback unless there is a token.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port [default: 8080].")] = None,
    calibrate_missing: Annotated[
        bool, typer.Option("--calibrate-missing", help="Calibrate this host's devices that have no constants yet.")
    ] = False,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Serve only; a worker runs elsewhere.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Migrate the database, start the worker, serve the HTTP interface."""
    from service.server import serve as run_server

    settings = load_settings(data_dir, database_url, host=host, port=port)
    code = run_server(settings, with_worker=not no_worker, calibrate_missing=calibrate_missing)
    raise typer.Exit(code)


def worker(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Run this host's worker alone: the database is elsewhere served by `calibrate serve --no-worker`."""
    from service.jobs.worker import run_worker

    settings = load_settings(data_dir, database_url)
    note("worker: starting; stop it with Ctrl-C")
    raise typer.Exit(run_worker(settings))
