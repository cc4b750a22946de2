"""The chosen constants of a simulated device, read from `CALIBRATE_SIMULATED` and checked field by field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kernels.parameters import LEAD, SWEEPS, WIDE, parse_geometry
from kernels.timing import MOST_BYTES_PER_S, MOST_OPS_PER_S

MAX_DEVICES = 16
MAX_TEXT = 1 << 20
FAILURE_MODES = ("verification", "compile", "out_of_memory", "segfault", "hang")
FAILURE_KERNELS = ("stream", "untiled", "blocktile", "fma")


class TruthError(ValueError):
    """A simulated device that can't be made, and why."""


@dataclass(frozen=True)
class Failure:
    """
    How a simulated device fails on purpose, for drills.

    Parameters
    ----------
    mode : str
        One of `FAILURE_MODES`.
    kernel : str
        One of `FAILURE_KERNELS`, or the label of a geometry.
    at : int
        The how-manieth such kernel prepared in a process fails, from 1.
    times : int or None
        How often in all, counted over processes in the file `counter`; None for ever.
    counter : str or None
        A file that grows by one byte a failure; needed with `times`.
    """

    mode: str
    kernel: str = "stream"
    at: int = 1
    times: int | None = None
    counter: str | None = None


@dataclass(frozen=True)
class Truth:
    """
    What is true of a simulated device; sizes in bytes, rates per second.

    Parameters
    ----------
    cache_capacity : int or None
        Working set (per-block read bytes times resident blocks) up to which re-reads run at `cache_bandwidth`; None
        for a cache that nothing spills.
    issue_rate : float
        Operations per second of the lead geometry at full fill; others run at `geometry_factors` times it.
    noise : float
        Every sample is slowed by a uniform fraction in [0, noise]; real noise is one-sided.
    contention : float
        The fraction of samples that a neighbour slows threefold.
    throttle : tuple of str
        Clock-event reasons reported at all times.
    delay_s : float
        Real seconds a sample takes, so that there is something to interrupt.
    """

    name: str
    memory_bytes: int = 64 << 30
    last_level_cache_bytes: int = 32 << 20
    multiprocessors: int = 108
    peak_memory_bandwidth: float = 1.5e12
    cache_capacity: int | None = 2 << 30
    cache_bandwidth: float = 4e12
    issue_rate: float = 1e13
    geometry_factors: Mapping[str, float] = field(default_factory=lambda: {LEAD.label: 1.0, WIDE.label: 1.2})
    peak_flops: float = 1.9e13
    fill_threads: int = 256
    launch_latency_ms: float = 0.004
    noise: float = 0.005
    contention: float = 0.0
    throttle: tuple[str, ...] = ()
    seed: int = 0
    delay_s: float = 0.0
    sweeps: tuple[str, ...] = SWEEPS
    failures: tuple[Failure, ...] = ()


def read_truths(setting: str) -> list[Truth]:
    """
    Return the devices of `CALIBRATE_SIMULATED`: a JSON list, or the path of a file that holds one.

    Raises
    ------
    TruthError
        When the text can't be read, or a field breaks a rule.
    """
    text = setting.strip()
    if not text.startswith("["):
        path = Path(text)
        try:
            if path.stat().st_size > MAX_TEXT:
                raise TruthError(f"CALIBRATE_SIMULATED: {text} is over {MAX_TEXT} bytes")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TruthError(f"CALIBRATE_SIMULATED is neither a JSON list nor a readable file: {error}") from error
    try:
        devices = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TruthError(f"CALIBRATE_SIMULATED is not JSON: {error}") from error
    if not isinstance(devices, list) or not 1 <= len(devices) <= MAX_DEVICES:
        raise TruthError(f"CALIBRATE_SIMULATED must be a JSON list of 1 to {MAX_DEVICES} devices")
    truths = [parse_truth(device) for device in devices]
    if len({truth.name for truth in truths}) != len(truths):
        raise TruthError("CALIBRATE_SIMULATED: two devices have the same name")
    return truths


def parse_truth(device: Any) -> Truth:
    """
    Return one device of chosen constants, checked.

    Raises
    ------
    TruthError
        Naming the field and the rule it breaks.
    """
    if not isinstance(device, Mapping):
        raise TruthError("CALIBRATE_SIMULATED: a device must be an object")
    _known_keys(device, Truth)
    values = dict(device)
    name = values.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 100:
        raise TruthError("CALIBRATE_SIMULATED: name must be a text of 1 to 100 characters")
    for key, most in (("memory_bytes", 1 << 50), ("last_level_cache_bytes", 1 << 40), ("multiprocessors", 1 << 12)):
        _check_integer(values, key, 1, most)
    _check_integer(values, "fill_threads", 1, 1 << 11)
    _check_integer(values, "seed", 0, 1 << 31)
    if values.get("cache_capacity") is not None:
        _check_integer(values, "cache_capacity", 1, 1 << 50)
    for key in ("peak_memory_bandwidth", "cache_bandwidth", "issue_rate", "peak_flops"):
        _check_number(values, key, 1.0, 1e18)
    _check_number(values, "launch_latency_ms", 0.0, 1e3)
    _check_number(values, "noise", 0.0, 1.0)
    _check_number(values, "contention", 0.0, 1.0)
    _check_number(values, "delay_s", 0.0, 60.0)
    for key in ("throttle", "sweeps"):
        if key in values:
            values[key] = _texts(key, values[key])
    if not set(values.get("sweeps", ())) <= set(SWEEPS):
        raise TruthError(f"CALIBRATE_SIMULATED: sweeps must be of {', '.join(SWEEPS)}")
    if "geometry_factors" in values:
        values["geometry_factors"] = _factors(values["geometry_factors"])
    failures = values.get("failures", ())
    if not isinstance(failures, list | tuple) or len(failures) > 16:
        raise TruthError("CALIBRATE_SIMULATED: failures must be a list of at most 16")
    values["failures"] = tuple(_failure(failure) for failure in failures)
    truth = Truth(**values)
    for key, rate, highest in (
        ("peak_memory_bandwidth", truth.peak_memory_bandwidth, MOST_BYTES_PER_S),
        ("issue_rate", truth.issue_rate, MOST_OPS_PER_S),
        ("peak_flops", truth.peak_flops, MOST_OPS_PER_S),
    ):
        if rate > highest * truth.multiprocessors:
            raise TruthError(f"CALIBRATE_SIMULATED: {key} is over {highest:g} a multiprocessor: no window would count")
    return truth


def _failure(given: Any) -> Failure:
    if not isinstance(given, Mapping):
        raise TruthError("CALIBRATE_SIMULATED: a failure must be an object")
    _known_keys(given, Failure)
    if given.get("mode") not in FAILURE_MODES:
        raise TruthError(f"CALIBRATE_SIMULATED: failure mode must be one of {', '.join(FAILURE_MODES)}")
    kernel = given.get("kernel", "stream")
    if not isinstance(kernel, str):
        raise TruthError("CALIBRATE_SIMULATED: failure kernel must be a text")
    if kernel not in FAILURE_KERNELS:
        _check_label(kernel)
    _check_integer(given, "at", 1, 1 << 20)
    if given.get("times") is not None:
        _check_integer(given, "times", 1, 1 << 20)
        if not isinstance(given.get("counter"), str):
            raise TruthError("CALIBRATE_SIMULATED: a failure with times needs a counter file")
    return Failure(**given)


def _known_keys(given: Mapping[str, Any], record: type) -> None:
    known = {item.name for item in fields(record)}
    for key in given:
        if key not in known:
            raise TruthError(f"CALIBRATE_SIMULATED: unknown field {str(key)[:40]!r}; known: {', '.join(sorted(known))}")


def _check_integer(values: Mapping[str, Any], key: str, least: int, most: int) -> None:
    value = values.get(key, least)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise TruthError(f"CALIBRATE_SIMULATED: {key} must be an integer from {least} to {most}")


def _check_number(values: Mapping[str, Any], key: str, least: float, most: float) -> None:
    value = values.get(key, least)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TruthError(f"CALIBRATE_SIMULATED: {key} must be a finite number")
    if not least <= value <= most:
        raise TruthError(f"CALIBRATE_SIMULATED: {key} must be from {least:g} to {most:g}")


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise TruthError(f"CALIBRATE_SIMULATED: {key} must be a list of texts")
    return tuple(value)


def _factors(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or not 1 <= len(value) <= 16:
        raise TruthError("CALIBRATE_SIMULATED: geometry_factors must be an object of 1 to 16 geometries")
    for label in value:
        _check_label(label)
        _check_number(value, label, 1e-3, 1e3)
    return {label: float(factor) for label, factor in value.items()}


def _check_label(label: str) -> None:
    try:
        parse_geometry(label)
    except ValueError as error:
        raise TruthError(f"CALIBRATE_SIMULATED: {error}") from error
