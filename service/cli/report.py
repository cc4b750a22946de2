"""A calibration document as text: every sweep's points, every fit's outcome, the config lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fitting import constant_lines
from service.cli.console import table

Document = Mapping[str, Any]

POINT_COLUMNS: dict[str, tuple[str, ...]] = {
    "working_set": ("k", "working_set", "requested", "distinct", "ms", "rank_ms", "bound_ms"),
    "issue": ("k", "scalar_ops", "mma_ops", "kernels", "ms", "rank_ms", "bound_ms"),
    "launch": ("geometry", "m", "n", "k", "ms"),
}
RATES = {"working_set": ("requested GB/s", "requested"), "issue": ("Gop/s", "scalar_ops")}


def report(document: Document, margin: float = 1.0) -> str:
    """Return the whole report of a document; `margin` multiplies the two peaks of the config lines."""
    parts = [_heading(document)]
    parts += ["\n".join(_sweep(sweep)) for sweep in document["sweeps"]]
    parts.append("\n".join(["Fits", *fit_lines(document["fits"])]))
    parts.append("\n".join(config_lines(document["constants"], margin)))
    return "\n\n".join(parts)


def _heading(document: Document) -> str:
    device = document["device"]
    simulated = " SIMULATED: no device ran anything" if device["simulated"] else ""
    return f"Calibration {document['id']} of {device['name']} ({device['key']}, backend {device['backend']}){simulated}"


def _sweep(sweep: Mapping[str, Any]) -> Iterator[str]:
    yield f"Sweep {sweep['sweep']}" + (f" DOUBTFUL: {'; '.join(sweep['doubtful'])}" if sweep["doubtful"] else "")
    if sweep["rows"]:
        headers = ["routine", "candidate", "ms", "GB/s", "Gop/s", "exact bytes", "exact ops", "refused windows"]
        yield table(headers, [_row(entry) for entry in sweep["rows"]])
    if sweep["points"]:
        yield _points(sweep["sweep"], sweep["points"])
    for line in sweep["notes"]:
        yield f"note: {line}"


def _row(entry: Mapping[str, Any]) -> list[Any]:
    row = entry["row"]
    seconds = row["measured_ms"] * 1e-3
    refused = sum(window.get("refused") is not None for window in entry["reading"]["windows"])
    return [
        row["routine"],
        row["label"],
        row["measured_ms"],
        row["bytes"] / seconds / 1e9,
        row["flops"] / seconds / 1e9,
        not row["bytes_approx"],
        not row["flops_approx"],
        refused,
    ]


def _points(sweep: str, points: Sequence[Mapping[str, Any]]) -> str:
    columns = POINT_COLUMNS[sweep]
    headers = [*columns, *([RATES[sweep][0]] if sweep in RATES else ["blocks", "threads", "Gop/s"]), "role", "phase"]
    rows = []
    for entry in points:
        point, reading = entry["point"], entry["reading"]
        seconds = point["ms"] * 1e-3
        if sweep in RATES:
            extra = [point[RATES[sweep][1]] / seconds / 1e9]
        else:
            contexts = point["contexts"]
            ops = sum(context["scalar_ops"] for context in contexts)
            extra = [sum(c["blocks"] for c in contexts), max(c["threads"] for c in contexts), ops / seconds / 1e9]
        rows.append([*(point[name] for name in columns), *extra, reading["role"], reading["phase"]])
    return table(headers, rows)


def fit_lines(fits: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line a fit: its kind, its outcome, the outcome's fields."""
    for fit in fits:
        name = fit["kind"] + (f" ({fit['phase']})" if fit["phase"] else "")
        if fit["outcome"] == "EnvelopeFits":
            for leg in fit["result"]["fits"]:
                yield f"{name}: {leg['backend']}: {leg['rows']} timed rows, {leg['opaque']} opaque, " + ", ".join(
                    f"{key} {_leg(leg[key])}" for key in ("peak_flops", "peak_memory_bandwidth", "fission_slack")
                )
            continue
        fields = ", ".join(f"{key} {_value(value)}" for key, value in fit["result"].items())
        yield f"{name}: {fit['outcome']}" + (f": {fields}" if fields else "")


def _leg(leg: Sequence[Any] | None) -> str:
    return "none" if leg is None else f"{leg[0]:.6g} by {leg[1]}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + " ".join(_value(item) for item in value) + "]"
    return str(value)


def config_lines(constants: Mapping[str, Mapping[str, Any]], margin: float = 1.0) -> Iterator[str]:
    """Yield `#` lines for what is absent or doubtful, then the `model_*` lines."""
    for name, constant in constants.items():
        if constant["value"] is None:
            yield f"# {name}: {constant['reason']}"
        elif constant["doubtful"]:
            yield f"# {name}: doubtful: {'; '.join(constant['doubtful'])}"
    values = {name: constant["value"] for name, constant in constants.items() if constant["value"] is not None}
    yield from constant_lines(values, "config", margin)
