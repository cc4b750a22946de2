"""`calibrate fit`: fits of a file, with no service and no device."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import fitting
from service.cli.console import CliError, note, say
from service.cli.report import fit_lines

MAX_FILE_BYTES = 1 << 30
COUNTS = {"k", "working_set", "requested", "distinct", "scalar_ops", "mma_ops", "kernels", "m", "n"}


class Kind(StrEnum):
    """What to fit."""

    envelope = "envelope"
    capacity = "capacity"
    issue_rate = "issue_rate"
    fill = "fill"


SWEEPS = {Kind.capacity: "working_set", Kind.issue_rate: "issue", Kind.fill: "launch"}


def fit(
    file: Annotated[
        Path, typer.Argument(help="Rows (12- or 11-column TSV), points (JSON list or CSV), or a calibration document.")
    ],
    kind: Annotated[Kind | None, typer.Option(help="Default: envelope for TSV, all fits for a document.")] = None,
    backend: Annotated[str | None, typer.Option(help="Envelope: this backend's rows only.")] = None,
    margin: Annotated[float, typer.Option(help="Envelope: factor on both printed peaks, above 0.")] = 1.0,
    dram_rate: Annotated[float | None, typer.Option(help="Capacity: DRAM bandwidth to compare with, byte/s.")] = None,
    multiprocessors: Annotated[int | None, typer.Option(help="Fill, and issue rate under a fill model.")] = None,
    fill_threads: Annotated[int | None, typer.Option(help="Issue rate under a fill model: saturation t.")] = None,
    starved: Annotated[
        float, typer.Option(help="Fill: leave out points under this share of the best throughput.")
    ] = 0.125,
) -> None:
    """Fit a file and print the constants.

    Exit codes: 0 at least one constant was fitted; 1 the file was read but no constant can be fitted; 2 the file or
    an option can't be used. Warnings go to stderr. CSV columns are the record's field names; `contexts` is
    `blocks:threads:scalar_ops[:mma_ops]`, several joined by `;`.
    """
    text = _read(file)
    try:
        if kind is None and text.lstrip()[:1] == "{":
            fitted = _fit_document(json.loads(text))
        elif kind in (None, Kind.envelope):
            fitted = _fit_envelope(text, file, backend, margin)
        else:
            points = _points(text, SWEEPS[kind])
            fitted = _fit_points(kind, points, dram_rate, multiprocessors, fill_threads, starved)
    except json.JSONDecodeError as error:
        raise CliError(f"{file} is not JSON: {error}", 2) from error
    except (fitting.DocumentError, ValueError) as error:
        raise CliError(f"{file}: {error}", 2) from error
    raise typer.Exit(0 if fitted else 1)


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise CliError(f"{file} is over {MAX_FILE_BYTES} bytes: split it", 2)
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CliError(f"{file} is not UTF-8 text: byte {error.start}", 2) from error
    except OSError as error:
        raise CliError(f"{file} can't be read: {error.strerror}", 2) from error


def _fit_envelope(text: str, file: Path, backend: str | None, margin: float) -> bool:
    parsed = fitting.parse_rows(text.split("\n"))
    _warn_skipped(file, parsed.legacy, "9-column row", "which can't prove exactness")
    _warn_skipped(file, parsed.malformed, "malformed line")
    fits = fitting.fit_envelope(parsed.rows)
    if backend is not None:
        known = [each.backend for each in fits]
        fits = [each for each in fits if each.backend == backend]
        if not fits:
            raise CliError(f"no rows of backend {backend!r}; the file has: {', '.join(known) or 'no rows at all'}", 2)
    if not fits:
        note(f"{file}: no row can be fitted")
        return False
    say("\n".join(each.report(margin).rstrip("\n") for each in fits))
    if len(fits) > 1:
        note("warning: several backends: a config file takes one key once, so paste one backend's lines (--backend)")
    return any(each.peak_flops or each.peak_memory_bandwidth for each in fits)


def _warn_skipped(file: Path, numbers: Sequence[int], what: str, why: str = "") -> None:
    if numbers:
        listed = ", ".join(str(number) for number in numbers[:10]) + (", ..." if len(numbers) > 10 else "")
        plural = "s" if len(numbers) > 1 else ""
        reason = f", {why}" if why else ""
        note(f"warning: {file}: skipped {len(numbers)} {what}{plural}{reason} (line{plural} {listed})")


def _points(text: str, sweep: str) -> list[Any]:
    if text.lstrip()[:1] in ("[", "{"):
        data = json.loads(text)
        if isinstance(data, dict) and "sweeps" in data:
            measurements = fitting.measurements_of(data)
            return [
                each.record for each in getattr(measurements, sweep) if each.role != "repeat" and each.phase != "spread"
            ]
        entries = data.get("points") if isinstance(data, dict) else data
        if not isinstance(entries, list):
            raise ValueError('expected a list of points, or {"points": [...]}')
    else:
        entries = [_csv_entry(row) for row in csv.DictReader(io.StringIO(text))]
    return [fitting.point_from_json(sweep, entry) for entry in entries]


def _csv_entry(row: dict[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for name, text in row.items():
        if name is None or text is None:
            raise ValueError(f"a CSV line has another number of cells than the header: {row}")
        if name == "contexts":
            entry[name] = [_csv_context(part) for part in text.split(";") if part]
        elif name == "loops":
            entry[name] = [int(part) for part in text.replace("x", " ").split()]
        elif name == "geometry":
            entry[name] = text
        elif name in COUNTS:
            entry[name] = int(text)
        else:
            entry[name] = float(text) if text else None
    return entry


def _csv_context(text: str) -> dict[str, int]:
    numbers = [int(part) for part in text.split(":")]
    if len(numbers) not in (3, 4):
        raise ValueError(f"a context is blocks:threads:scalar_ops[:mma_ops], not {text!r}")
    return dict(zip(("blocks", "threads", "scalar_ops", "mma_ops"), [*numbers, 0][:4], strict=True))


def _fit_points(
    kind: Kind,
    points: list[Any],
    dram_rate: float | None,
    multiprocessors: int | None,
    fill_threads: int | None,
    starved: float,
) -> bool:
    if kind is Kind.capacity:
        outcome: Any = fitting.fit_capacity(points, dram_rate)
    elif kind is Kind.issue_rate:
        if (multiprocessors is None) != (fill_threads is None):
            raise ValueError("a fill model takes both --multiprocessors and --fill-threads")
        fill = fitting.FillModel(multiprocessors, fill_threads) if multiprocessors and fill_threads else None
        outcome = fitting.fit_issue_rate(points, fill)
    else:
        if multiprocessors is None:
            raise ValueError("the fill fit needs --multiprocessors")
        outcome = fitting.fit_fill(points, multiprocessors=multiprocessors, starved=starved)
    form = {"kind": kind.value, "phase": None, **fitting.outcome_to_json(outcome)}
    say("\n".join(f"# {line}" for line in fit_lines([form])))
    values: dict[str, float] = {}
    if isinstance(outcome, fitting.Transition):
        values = {"model_cache_capacity": outcome.capacity, "model_cache_bandwidth": outcome.cache_rate}
    elif isinstance(outcome, fitting.AllCached):
        values = {"model_cache_bandwidth": outcome.cache_rate}
    elif isinstance(outcome, fitting.IssueFit):
        values = {"model_issue_rate": outcome.rate}
    elif isinstance(outcome, fitting.FillFit):
        values = {
            "model_issue_rate": outcome.rate,
            "model_multiprocessors": outcome.cores,
            "model_fill_threads": outcome.saturation,
        }
    for line in fitting.constant_lines(values, "config"):
        say(line)
    return bool(values)


def _fit_document(document: Any) -> bool:
    fits = fitting.refit(document)
    say("\n".join(f"# {line}" for line in fit_lines([fitting.fit_to_json(each) for each in fits])))
    constants = fitting.constants_of(fits, fitting.measurements_of(document))
    values: dict[str, float] = {}
    for name, constant in constants.items():
        if isinstance(constant, fitting.ConstantValue):
            values[name] = constant.value
        else:
            say(f"# {name}: {constant.reason}")
    for line in fitting.constant_lines(values, "config"):
        say(line)
    return bool(values)
