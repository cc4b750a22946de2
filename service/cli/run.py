"""`calibrate run` and `calibrate devices`: this host, with no service."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from kernels import calibration, measure
from kernels.backends import registry
from kernels.errors import MeasureError
from kernels.parameters import SWEEPS, ParameterError
from service.cli.console import CliError, ProgressDisplay, note, say, table
from service.cli.records import parse_json
from service.cli.report import report
from service.cli.serve import DataDir


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Everything known of each device, as JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """List this host's devices, and say in words why others can't be used."""
    _use(data_dir)
    found = measure.discover_in_child()
    if as_json:
        entries = [calibration.device_to_json(device) for device in found.devices]
        unusable = [{"backend": each.backend, "reason": each.reason} for each in found.unusable]
        say(json.dumps({"devices": entries, "unusable": unusable}, indent=2, allow_nan=False))
        return
    if found.devices:
        rows = [[each.key, each.backend, each.name, each.limits.multiprocessors] for each in found.devices]
        say(table(["device", "backend", "name", "multiprocessors"], rows))
    else:
        say("no usable device")
    for each in found.unusable:
        say(f"no {each.backend}: {each.reason}")


def run(
    device: Annotated[str | None, typer.Option(help="Key, backend or unique name; default: the only one.")] = None,
    sweeps: Annotated[str, typer.Option(help=f"`all`, or some of {','.join(SWEEPS)}.")] = "all",
    parameters: Annotated[
        str | None, typer.Option(help='JSON, e.g. {"stream": {"elems": 67108864}}; unset ones have defaults.')
    ] = None,
    margin: Annotated[float, typer.Option(help="Factor on the two printed peaks, above 0.")] = 1.0,
    out: Annotated[Path | None, typer.Option(help="Also write the calibration document (JSON) here.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Calibrate a device of this host and print every point, every fit and the config lines.

    Needs no service and no database. Exit codes: 0 done; 1 a sweep failed (the message says why and what to do);
    2 a parameter can't be used; 130 interrupted. The sweeps that had finished are printed and written all the same.
    """
    _use(data_dir)
    if not 0 < margin < 1e100:  # far above, a printed peak would leave a float's range
        raise CliError("--margin is a factor above 0, such as 1.05", 2)
    if out is not None:
        check_out(out)
    chosen = None if sweeps == "all" else [name.strip() for name in sweeps.split(",") if name.strip()]
    finished: dict[str, Any] = {}
    written: list[str] = []

    def keep(document: dict[str, Any]) -> None:
        finished.update(document)
        if out is not None:
            write_whole(out, json.dumps(document, indent=1, allow_nan=False))
            written[:] = [sweep["sweep"] for sweep in document["sweeps"]]

    try:
        target = registry.find(device, measure.discover_in_child())
        with ProgressDisplay() as display:
            calibration.calibrate(
                target.key,
                chosen,
                _parameters(parameters),
                on_event=lambda sweep, event: _show(display, sweep, event),
                on_document=keep,
            )
    except ParameterError as error:
        raise CliError(str(error), 2) from error
    except MeasureError as error:
        detail = f"\n{error.detail.rstrip()}" if error.detail else ""
        raise CliError(f"{error.code}: {error}{detail}") from error
    finally:
        if written:
            note(f"wrote {out}: {', '.join(written)}")
        if finished:
            say(report(finished, margin))


def _use(data_dir: Path | None) -> None:
    """Tell this process and its children the data folder, which need not exist or be writable to measure."""
    if data_dir is not None:
        os.environ["CALIBRATE_DATA_DIR"] = str(data_dir.absolute())


def _parameters(text: str | None) -> dict[str, Any]:
    given = {} if text is None else parse_json(text, "--parameters")
    if not isinstance(given, dict):
        raise CliError('--parameters is an object by sweep, e.g. {"stream": {"elems": 67108864}}', 2)
    return given


def _show(display: ProgressDisplay, sweep: str, event: measure.Event) -> None:
    if isinstance(event, measure.Progress):
        display.update(sweep, event.done, event.total, event.message)


def check_out(path: Path) -> None:
    """Refuse, before there is anything to lose, a path that `write_whole` could not write."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise CliError(f"--out: there is no folder {folder}", 2)
    if path.exists() and not path.is_file():
        raise CliError(f"--out: {path} is a folder or a device; name a file", 2)
    if not os.access(folder, os.W_OK):
        raise CliError(f"--out: the folder {folder} can't be written; choose another", 2)


def write_whole(path: Path, text: str) -> None:
    """Write whole or not at all."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
            Path(name).chmod(0o644)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise CliError(f"{path} can't be written: {error.strerror}") from error
