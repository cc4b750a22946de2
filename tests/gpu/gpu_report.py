"""What the GPU check concludes: predicted against measured, one calibration against the next, and the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fitting import FillModel, LaunchContext, format_constant, ranking_seconds

PLAIN_FMA_OPS_PER_S = 42.5e12
"""What a plain FMA loop reaches on an H200."""
RATES_AGREE = 0.01
CAPACITY_STEP = 1.1
LATENCY_MS, CALIBRATION_S = 0.010, 60.0
CONTROL_WITHIN = 0.20
"""A cliff has a width: half way down it is somewhat past the cache's size."""


@dataclass(frozen=True)
class Line:
    """One line of the table; `met` None where there is no goal for this device or nothing was measured."""

    check: str
    measured: str
    goal: str = ""
    met: bool | None = None


def constants_of(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the constants of a calibration document that have a value."""
    return {name: each["value"] for name, each in document["constants"].items() if each["value"] is not None}


def predict(points: Sequence[Mapping[str, Any]], constants: Mapping[str, float]) -> list[dict[str, Any]]:
    """
    Price blocktiled points with a calibration's constants.

    Parameters
    ----------
    points
        `batch`, `ms`, `ops`, `bytes`, `blocks`, `threads` of each.
    constants
        `model_*` constants; a point is left unpriced without an issue rate or an arithmetic peak.

    Returns
    -------
    list of dict
        `batch`, `measured_ms`, `predicted_ms`, `error` = (predicted - measured) / measured.
    """
    fill = None
    if {"model_multiprocessors", "model_fill_threads"} <= constants.keys():
        fill = FillModel(int(constants["model_multiprocessors"]), int(constants["model_fill_threads"]))
    priced = []
    for point in points:
        seconds = ranking_seconds(
            scalar_ops=point["ops"],
            distinct=point["bytes"],
            contexts=(LaunchContext(point["blocks"], point["threads"], point["ops"]),),
            peak_flops=constants.get("model_peak_flops"),
            peak_memory_bandwidth=constants.get("model_peak_memory_bandwidth"),
            issue_rate=constants.get("model_issue_rate"),
            fill=fill,
        )
        predicted_ms = None if seconds is None else 1e3 * seconds
        error = None if predicted_ms is None else predicted_ms / point["ms"] - 1
        priced.append(
            {"batch": point["batch"], "measured_ms": point["ms"], "predicted_ms": predicted_ms, "error": error}
        )
    return priced


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """
    Compare the constants of two calibrations of one device.

    Returns
    -------
    list of dict
        `name`, `first`, `second`, `ratio` (larger over smaller) and `agrees`: rates within 1 %, the capacity within
        one refined step of its grid, P equal, t equal or tied. A constant that only one has does not agree; one that
        neither has, for the same reason, does.
    """
    compared = []
    for name in sorted(first["constants"].keys() | second["constants"].keys()):
        one, other = (each["constants"].get(name) for each in (first, second))
        values = [None if each is None else each["value"] for each in (one, other)]
        ratio = None
        if None in values:
            agrees = (
                values == [None, None] and one is not None and other is not None and one["reason"] == other["reason"]
            )
        else:
            ratio = max(values) / min(values)
            limit = {"model_cache_capacity": CAPACITY_STEP, "model_multiprocessors": 1.0}.get(name, 1 + RATES_AGREE)
            agrees = ratio <= limit
            if name == "model_fill_threads":
                agrees = values[0] == values[1] or values[0] in _tied(second) or values[1] in _tied(first)
        compared.append({"name": name, "first": values[0], "second": values[1], "ratio": ratio, "agrees": agrees})
    return compared


def _tied(document: Mapping[str, Any]) -> list[int]:
    return [t for fit in document["fits"] if fit["kind"] == "fill" for t in fit["result"].get("tied_candidates", [])]


def distinct_at_split(document: Mapping[str, Any], phase: str) -> float | None:
    """Return the distinct bytes at a capacity fit's split: the geometric mean of the points on its two sides."""
    split = next(
        (
            fit["result"]
            for fit in document["fits"]
            if (fit["kind"], fit["phase"], fit["outcome"]) == ("capacity", phase, "Transition")
        ),
        None,
    )
    if split is None:
        return None
    points = [
        item["point"] for sweep in document["sweeps"] for item in sweep["points"] if "working_set" in item["point"]
    ]
    distinct = {point["working_set"]: point["distinct"] for point in points}
    sides = [distinct.get(split[side]) for side in ("cached_ws", "spilled_ws")]
    return None if None in sides else math.sqrt(sides[0] * sides[1])  # type: ignore[operator]


def outcome(document: Mapping[str, Any], kind: str, phase: str | None = None) -> str:
    """Return the outcome of one fit of a document, or `not fitted`."""
    return next(
        (
            fit["outcome"]
            for fit in document["fits"]
            if fit["kind"] == kind and (phase is None or fit["phase"] == phase)
        ),
        "not fitted",
    )


def lines(report: Mapping[str, Any]) -> list[Line]:
    """Return the table of a report: what was measured, the goal, and whether it is met."""
    steps = {name: step["result"] for name, step in report["steps"].items() if step["result"] is not None}
    is_h200 = "H200" in report["device"]["name"] and not report["simulated"]
    found: list[Line] = []
    for name, step in report["steps"].items():
        if step["error"] is not None:
            found.append(Line(name, f"FAILED {step['error']['code']}: {step['error']['message'][:80]}", "", False))
    if "compile" in steps:
        count = len(steps["compile"]["kernels"])
        found.append(
            Line(
                "kernels compiled, spilling",
                f"{count}, {len(steps['compile']['spilling'])}",
                "0 spill",
                not steps["compile"]["spilling"],
            )
        )
    if "verify" in steps:
        found.append(Line("kernels verified", str(steps["verify"]["verified"])))
    found += _bandwidth_lines(steps, is_h200=is_h200)
    found += _calibration_lines(report, steps, is_h200=is_h200)
    if "predictions" in steps:
        errors = [abs(each["error"]) for each in steps["predictions"]["points"] if each["error"] is not None]
        if errors:
            text = f"median {statistics.median(errors):.1%}, worst {max(errors):.1%}"
            found.append(Line("predicted against measured, blocktile 256 x 1024", text))
    return found


def _bandwidth_lines(steps: Mapping[str, Any], *, is_h200: bool) -> list[Line]:
    found = []
    for size in steps.get("stream_sizes", {}).get("sizes", []):
        if "skipped" in size:
            continue
        label = f"STREAM 2^{size['elems'].bit_length() - 1}"
        for name, goal in (("copy", 4.0e12), ("triad", 4.15e12)):
            rate = size["kernels"][name]["bytes_per_s"]
            if is_h200:
                found.append(Line(f"{label} {name}", _tera(rate, "B/s"), f">= {_tera(goal, 'B/s')}", rate >= goal))
            else:
                found.append(Line(f"{label} {name}", _tera(rate, "B/s")))
    if "device_copy" in steps:
        ratio = steps["device_copy"]["kernel_over_driver"]
        found.append(Line("copy kernel over device-to-device copy", f"{ratio:.3f}", ">= 0.97", ratio >= 0.97))
    if "stream_contents" in steps:
        ratios = {
            name: each["constant_over_random"] for name, each in steps["stream_contents"]["rates_bytes_per_s"].items()
        }
        text = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
        found.append(Line("constant over random contents", text))
    return found


def _calibration_lines(report: Mapping[str, Any], steps: Mapping[str, Any], *, is_h200: bool) -> list[Line]:
    found = []
    documents = report["calibrations"]
    for number in (1, 2):
        if f"calibration_{number}" not in steps:
            continue
        document = documents[steps[f"calibration_{number}"]["document"]]
        seconds = report["steps"][f"calibration_{number}"]["seconds"]
        found.append(
            Line(f"calibration {number}", f"{seconds:.0f} s", f"< {CALIBRATION_S:.0f} s", seconds < CALIBRATION_S)
        )
        doubts = [doubt for sweep in document["sweeps"] for doubt in sweep["doubtful"]]
        if doubts:
            found.append(Line(f"calibration {number} doubtful", "; ".join(doubts)[:100]))
    if not documents:
        return found
    document = documents[-1]
    found += [Line(name, format_constant(name, value)) for name, value in constants_of(document).items()]
    found += [
        Line(name, f"absent: {each['reason']}") for name, each in document["constants"].items() if each["value"] is None
    ]
    found.append(Line("untiled, aligned", outcome(document, "capacity", "aligned")))
    split = distinct_at_split(document, "spread")
    text = outcome(document, "capacity", "spread")
    if split is not None:
        text += f" at {split / 2**20:.1f} MiB distinct"
    cache = report["device"]["facts"].get("l2_cache_bytes")
    goal = f"{cache / 2**20:.0f} MiB of L2 within {CONTROL_WITHIN:.0%}" if cache else ""
    within = None if not cache else split is not None and abs(split / cache - 1) <= CONTROL_WITHIN
    found.append(Line("untiled, spread (the control)", text, goal, within))
    constants = constants_of(document)
    if "model_issue_rate" in constants:
        rate = constants["model_issue_rate"]
        text = _tera(rate, "op/s")
        if is_h200:
            text += f", {rate / PLAIN_FMA_OPS_PER_S:.2f} of a plain FMA loop's 42.5"
        if "model_peak_flops" in constants:
            text += f", {rate / constants['model_peak_flops']:.2f} of this run's FMA chains"
        found.append(Line("blocktile rate", text))
    if "cublas" in steps and "model_issue_rate" in constants:
        ratio = constants["model_issue_rate"] / steps["cublas"]["ops_per_s"]
        found.append(Line("blocktile rate over cuBLAS", f"{ratio:.2f}"))
    intercept = next((fit["result"].get("latency_ms") for fit in document["fits"] if fit["kind"] == "issue_rate"), None)
    if intercept is not None:
        found.append(Line("launch intercept", f"{1e3 * intercept:.1f} us", "0 to 10 us", 0 <= intercept < LATENCY_MS))
    if "repeatability" in steps:
        apart = [each["name"] for each in steps["repeatability"]["constants"] if not each["agrees"]]
        found.append(Line("constants that differ in two calibrations", ", ".join(apart) or "none", "none", not apart))
    return found


def render(table: Sequence[Line], *, title: str) -> list[str]:
    """Return the table as text lines."""
    marks = {None: "", True: "met", False: "MISSED"}
    cells = [(line.check, line.measured, line.goal, marks[line.met]) for line in table]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(3)]
    rows = ("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)) for row in cells)
    return [title, *(f"  {row}".rstrip() for row in rows)]


def table_to_json(table: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the table as JSON values."""
    return [asdict(line) for line in table]


def _tera(rate: float, unit: str) -> str:
    return f"{rate / 1e12:.2f} T{unit}"
