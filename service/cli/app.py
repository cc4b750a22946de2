"""The commands of `calibrate`."""

from __future__ import annotations

import typer

from service.cli import fit, run, serve, store
from service.cli.console import CliError, note

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Measure, fit, store and serve the constants of an autotuner's cost model.

    Exit codes: 0 done; 1 the work failed, and the message says why; 2 the command or its input can't be used;
    130 interrupted.""",
)
app.command("serve")(serve.serve)
app.command("worker")(serve.worker)
app.command("run")(run.run)
app.command("devices")(run.devices)
app.command("fit")(fit.fit)
app.command("import")(store.import_document)
app.command("export")(store.export_document)
database = typer.Typer(no_args_is_help=True, help="The database.")
database.command("upgrade")(store.upgrade)
app.add_typer(database, name="db")
token = typer.Typer(no_args_is_help=True, help="Bearer tokens of the HTTP interface.")
token.command("create")(store.create_token)
token.command("list")(store.list_tokens)
token.command("revoke")(store.revoke_token)
app.add_typer(token, name="token")


def start() -> None:
    """Run the command line; a failure is one message on stderr and an exit code."""
    try:
        app(prog_name="calibrate")
    except CliError as error:
        note(f"calibrate: {error}")
        raise SystemExit(error.exit_code) from error
