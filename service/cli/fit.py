"""`calibrate fit`: fits of a file, with no service and no device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import fitting
from service.cli import records
from service.cli.console import CliError, note, say
from service.cli.report import config_lines, fit_lines


class Kind(StrEnum):
    """What to fit."""

    envelope = "envelope"
    capacity = "capacity"
    issue_rate = "issue_rate"
    fill = "fill"


SWEEPS = {Kind.capacity: "working_set", Kind.issue_rate: "issue", Kind.fill: "launch"}


def fit(
    file: Annotated[
        Path,
        typer.Argument(
            help="Rows (12- or 11-column TSV), points (JSON list or CSV), or a calibration document; - is stdin."
        ),
    ],
    kind: Annotated[Kind | None, typer.Option(help="Default: envelope for TSV, all fits for a document.")] = None,
    backend: Annotated[str | None, typer.Option(help="Envelope: this backend's rows only.")] = None,
    margin: Annotated[float, typer.Option(help="Factor on both printed peaks, above 0.")] = 1.0,
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
    data = records.read_bytes(file)
    content = records.parse_json(data, file) if records.is_json(data) else None
    try:
        if kind in SWEEPS:
            fit_points = _fit_of(kind, dram_rate, multiprocessors, fill_threads, starved)
            fitted = _say_outcome(kind, fit_points(records.points(data, content, SWEEPS[kind])))
        elif content is None:
            fitted = _fit_envelope(_parsed_rows(data, file), file, backend, margin)
        elif kind is Kind.envelope:
            fitted = _fit_envelope(records.json_rows(content), file, backend, margin)
        elif isinstance(content, list) or "points" in content:
            raise ValueError("of which kind are these records? Say --kind envelope, capacity, issue_rate or fill")
        else:
            fitted = _fit_document(content, margin)
    except ValueError as error:
        raise CliError(f"{file}: {error}", 2) from error
    raise typer.Exit(0 if fitted else 1)


def _parsed_rows(data: bytes, file: Path) -> Sequence[fitting.CalibrationRow]:
    parsed = fitting.parse_rows(records.row_lines(data))
    _warn_skipped(file, parsed.legacy, "9-column row", "which can't prove exactness")
    _warn_skipped(file, parsed.malformed, "malformed line")
    return parsed.rows


def _fit_envelope(rows: Iterable[fitting.CalibrationRow], file: Path, backend: str | None, margin: float) -> bool:
    fits = fitting.fit_envelope(rows)
    if backend is not None:
        known = [each.backend for each in fits]
        fits = [each for each in fits if each.backend == backend]
        if not fits:
            raise CliError(f"no rows of backend {backend!r}; the file has: {', '.join(known) or 'no rows at all'}", 2)
    if not fits:
        note(f"{file}: no row can be fitted: a row is 12 or 11 columns separated by tabs; points need --kind")
        return False
    say("\n".join(each.report(margin) for each in fits))
    for each in fits:
        if each.peak_flops and each.peak_flops[1].startswith("stream_"):
            note(
                f"warning: {each.backend}: a STREAM row sets model_peak_flops, as no compute-bound row is here: it is"
                " far below the arithmetic peak, and a calibration would not serve it"
            )
    if len(fits) > 1:
        note("warning: several backends: a config file takes one key once, so paste one backend's lines (--backend)")
    return any(each.peak_flops or each.peak_memory_bandwidth for each in fits)


def _warn_skipped(file: Path, numbers: Sequence[int], what: str, why: str = "") -> None:
    if numbers:
        listed = ", ".join(str(number) for number in numbers[:10]) + (", ..." if len(numbers) > 10 else "")
        plural = "s" if len(numbers) > 1 else ""
        reason = f", {why}" if why else ""
        note(f"warning: {file}: skipped {len(numbers)} {what}{plural}{reason} (line{plural} {listed})")


def _fit_of(
    kind: Kind, dram_rate: float | None, multiprocessors: int | None, fill_threads: int | None, starved: float
) -> Callable[[list[Any]], Any]:
    """Return the fit of points under the options."""
    if kind is Kind.capacity:
        return partial(fitting.fit_capacity, dram_rate=dram_rate)
    if kind is Kind.issue_rate:
        if multiprocessors is None and fill_threads is None:
            return fitting.fit_issue_rate
        if multiprocessors is None or fill_threads is None:
            raise ValueError("a fill model takes both --multiprocessors and --fill-threads")
        return partial(fitting.fit_issue_rate, fill=fitting.FillModel(multiprocessors, fill_threads))
    if multiprocessors is None:
        raise ValueError("the fill fit needs --multiprocessors")
    return partial(fitting.fit_fill, multiprocessors=multiprocessors, starved=starved)


def _say_outcome(kind: Kind, outcome: Any) -> bool:
    form = {"kind": kind.value, "phase": None, **fitting.outcome_to_json(outcome)}
    _say_comments(fit_lines([form]))
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


def _fit_document(document: Any, margin: float) -> bool:
    fits = fitting.refit(document)
    constants = fitting.constants_of(fits, fitting.measurements_of(document))
    for sweep in document["sweeps"]:
        doubts = sweep.get("doubtful")
        _say_comments(
            f"{sweep['sweep']} is doubtful: {doubt}" for doubt in (doubts if isinstance(doubts, list) else ())
        )
    _say_comments(fit_lines([fitting.fit_to_json(each) for each in fits]))
    for line in config_lines({name: fitting.constant_to_json(each) for name, each in constants.items()}, margin):
        say(line)
    return any(isinstance(each, fitting.ConstantValue) for each in constants.values())


def _say_comments(lines: Iterable[str]) -> None:
    """Print comment lines; what a file calls its rows can't end one and begin a line of config."""
    for line in lines:
        say(f"# {' '.join(line.splitlines())}")
