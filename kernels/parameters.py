"""Sweep parameters: defaults, checks, sizes. Pure, so that the API can check a request without touching a device."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SWEEPS = ("stream", "working_set", "launch", "issue")  # in the order that lets each use the constants before it

BACKENDS_WITH: Mapping[str, tuple[str, ...]] = dict.fromkeys(SWEEPS, ("cuda", "hip", "cc", "simulated"))

MAX_POINTS = 64
MAX_REPEATS = 1000
MAX_EXTENT = 1 << 24
MAX_OPS = 1 << 42
"""Operations one run may have: about 0.1 s at 40 Top/s and under a minute at 100 Gop/s."""

UNTILED_K_STEP = 8
"""Reduction extents of the untiled kernel are multiples of this, so that its unrolled loop has no remainder."""
LEAST_LAUNCH_K = 512
"""Below this a blocktiled kernel's prologue is no longer small beside its reduction."""
STREAM_FLOOR = 1 << 26
"""Default STREAM extent where the cache does not ask for more: 256 MiB an array, as in the reference."""

_GEOMETRY = re.compile(r"(\d{1,4})x(\d{1,4})x(\d{1,4})/(\d{1,3})x(\d{1,3})")


class ParameterError(ValueError):
    """A parameter that can't be run: `field` (dotted, e.g. `working_set.ks`) and the rule it breaks."""

    def __init__(self, field: str, rule: str) -> None:
        """Keep the field and the rule."""
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


class UnsupportedSweepError(ParameterError):
    """The device lacks the kernels of this sweep; `backends` have them."""

    def __init__(self, sweep: str, backend: str) -> None:
        """Name the sweep, the backend without it and those with it."""
        self.backends = BACKENDS_WITH[sweep]
        super().__init__(
            "sweeps",
            f"{backend!r} has no kernels for {sweep!r} on this device; backends with it: {', '.join(self.backends)}",
        )


@dataclass(frozen=True)
class Geometry:
    """A register blocktile `bm x bn x bk / tm x tn`; threads = (bm/tm) * (bn/tn)."""

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int

    @property
    def threads(self) -> int:
        """Threads a block."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def label(self) -> str:
        """For example `32x32x8/4x4`."""
        return f"{self.bm}x{self.bn}x{self.bk}/{self.tm}x{self.tn}"

    def tiles(self, m: int, n: int) -> bool:
        """Whether the block tile divides an `m` x `n` output exactly."""
        return m % self.bm == 0 and n % self.bn == 0


LEAD = Geometry(32, 32, 8, 4, 4)
WIDE = Geometry(64, 64, 8, 4, 4)


@dataclass(frozen=True)
class DeviceLimits:
    """What a check needs to know of a device: sizes in bytes; `geometries` the blocktile labels it has."""

    backend: str
    memory_bytes: int
    last_level_cache_bytes: int
    multiprocessors: int
    sweeps: tuple[str, ...]
    geometries: tuple[str, ...]


def parse_geometry(label: str) -> Geometry:
    """
    Return the geometry written `bm x bn x bk / tm x tn`, for example `32x32x8/4x4`.

    Raises
    ------
    ValueError
        When the text is not of that form, or the thread tile does not divide the block tile.
    """
    match = _GEOMETRY.fullmatch(label)
    if match is None:
        raise ValueError(f"{label[:40]!r} is not a geometry like {LEAD.label}")
    geometry = Geometry(*(int(extent) for extent in match.groups()))
    if 0 in (geometry.bm, geometry.bn, geometry.bk, geometry.tm, geometry.tn):
        raise ValueError(f"{label!r} has a zero extent")
    if geometry.bm % geometry.tm or geometry.bn % geometry.tn:
        raise ValueError(f"{label!r}: the thread tile does not divide the block tile")
    return geometry


def untiled_block(backend: str) -> int:
    """Return the threads along n of the untiled kernel's block: 512 on the CPU, 256 on a GPU."""
    return 512 if backend == "cc" else 256


def launch_extent(size: int, target_ops: int, max_k: int) -> int:
    """
    Return the power-of-two reduction extent that puts about `target_ops` in a `size` x `size` output.

    Notes
    -----
    2 * size**2 * k operations; k is the nearest power of two (in the ratio), at least 512 and at most `max_k`.
    """
    wanted = max(1.0, target_ops / (2 * size * size))
    exponent = int(wanted).bit_length() - 1
    if wanted * wanted > 2.0 ** (2 * exponent + 1):  # past the geometric mean of the two powers around it
        exponent += 1
    return int(max(LEAST_LAUNCH_K, min(1 << exponent, 1 << (max_k.bit_length() - 1))))


def contraction_bytes(m: int, n: int, k: int) -> int:
    """Return the distinct bytes of `dw[o,i] = sum_k dy[k,o] x[k,i]` in float32: 4 * (k * (m + n) + m * n)."""
    return 4 * (k * (m + n) + m * n)


def launch_pairs(geometries: Sequence[str], sizes: Sequence[int]) -> tuple[list[tuple[Geometry, int]], list[str]]:
    """Return the (geometry, size) pairs that tile exactly, geometry by geometry, and in words the skipped ones."""
    pairs: list[tuple[Geometry, int]] = []
    skipped: list[str] = []
    for geometry in map(parse_geometry, geometries):
        for size in sizes:
            if geometry.tiles(size, size):
                pairs.append((geometry, size))
            else:
                skipped.append(f"{geometry.label} does not tile {size} x {size}")
    return pairs, skipped


def bytes_needed(sweep: str, parameters: Mapping[str, Any]) -> int:
    """
    Return the device bytes the sweep holds at once with these resolved parameters.

    Notes
    -----
    stream: three float32 arrays. working_set, issue: one contraction at the largest k. launch: one contraction a
    size, all open at once, since both passes time all points.
    """
    if sweep == "stream":
        return 12 * int(parameters["elems"])
    if sweep == "launch":
        pairs, _ = launch_pairs(parameters["geometries"], parameters["sizes"])
        return sum(
            contraction_bytes(size, size, launch_extent(size, parameters["target_ops"], parameters["max_k"]))
            for size in sorted({size for _, size in pairs})
        )
    return contraction_bytes(parameters["m"], parameters["n"], max(parameters["ks"]))


def resolve(sweep: str, given: Mapping[str, Any], limits: DeviceLimits) -> dict[str, Any]:
    """
    Return the full, checked parameters of `sweep` for one device, as JSON values.

    Parameters
    ----------
    sweep : str
        One of `SWEEPS`.
    given : mapping
        What the caller asks for; missing keys take their defaults.
    limits : DeviceLimits
        The device's sizes and kernel families.

    Raises
    ------
    ParameterError
        Naming the first field that can't be run, and the rule it breaks.
    UnsupportedSweepError
        When the device lacks the sweep's kernels.

    References
    ----------
    The reference's `stream`, `working_set`, `issue_sweep` and `launch_sweep`, for the defaults.
    """
    if sweep not in SWEEPS:
        raise ParameterError("sweeps", f"unknown sweep {str(sweep)[:40]!r}; known: {', '.join(SWEEPS)}")
    if sweep not in limits.sweeps:
        raise UnsupportedSweepError(sweep, limits.backend)
    if not isinstance(given, Mapping):
        raise ParameterError(sweep, "must be an object of parameters")
    resolver, known = _RESOLVERS[sweep]
    for key in given:
        if key not in known:
            raise ParameterError(f"{sweep}.{str(key)[:40]}", f"unknown parameter; known: {', '.join(known)}")
    parameters = resolver(given, limits)
    needed = bytes_needed(sweep, parameters)
    if needed > limits.memory_bytes:
        raise ParameterError(
            f"{sweep}.{_SIZE_FIELD[sweep]}",
            f"needs {needed} bytes; the device has {limits.memory_bytes} bytes",
        )
    return parameters


def resolve_all(
    sweeps: Sequence[str] | None, given: Mapping[str, Mapping[str, Any]], limits: DeviceLimits
) -> dict[str, dict[str, Any]]:
    """
    Return the resolved parameters of each asked sweep, in the order they run.

    Parameters
    ----------
    sweeps : sequence of str or None
        None asks for every sweep the device has.
    given : mapping
        Sweep to its parameters; parameters of a sweep that was not asked for are refused.

    Raises
    ------
    ParameterError
        As `resolve`; also for an empty list and a sweep given twice.
    """
    asked = tuple(limits.sweeps) if sweeps is None else tuple(sweeps)
    if not asked:
        raise ParameterError("sweeps", f"must name at least one of: {', '.join(SWEEPS)}")
    if len(set(asked)) != len(asked):
        raise ParameterError("sweeps", "names a sweep twice")
    for sweep in asked:
        if sweep not in SWEEPS:
            raise ParameterError("sweeps", f"unknown sweep {str(sweep)[:40]!r}; known: {', '.join(SWEEPS)}")
    for sweep in given:
        if sweep not in asked:
            raise ParameterError(str(sweep)[:40], f"parameters for a sweep that is not asked for: {', '.join(asked)}")
    return {sweep: resolve(sweep, given.get(sweep, {}), limits) for sweep in SWEEPS if sweep in asked}


def _resolve_stream(given: Mapping[str, Any], limits: DeviceLimits) -> dict[str, Any]:
    least = max(limits.last_level_cache_bytes, 1024)  # elements: 4 bytes each, 4 x the last-level cache
    default = max(STREAM_FLOOR, _power_of_two_from(least))
    while default // 2 >= least and 12 * default > limits.memory_bytes * 3 // 4:
        default //= 2
    elems = _integer("stream.elems", given.get("elems", default), least=1, most=1 << 62)
    if elems < least:
        raise ParameterError(
            "stream.elems",
            f"{elems} elements are {4 * elems} bytes an array, under 4 x the last-level cache"
            f" ({limits.last_level_cache_bytes} bytes), so a cache rate would pass for memory bandwidth;"
            f" the least is {least} elements, the least power of two {_power_of_two_from(least)}",
        )
    return {"elems": elems, "repeats": _repeats("stream", given, default=16)}


def _resolve_working_set(given: Mapping[str, Any], limits: DeviceLimits) -> dict[str, Any]:
    block = untiled_block(limits.backend)
    m = _integer("working_set.m", given.get("m", 256), least=1, most=MAX_EXTENT)
    n = _integer("working_set.n", given.get("n", 1024), least=1, most=MAX_EXTENT)
    if n % block:
        raise ParameterError("working_set.n", f"must be a multiple of the untiled kernel's block of {block}")
    ks = _reductions("working_set.ks", given, _powers_of_two(256, 65536), step=UNTILED_K_STEP, m=m, n=n, limits=limits)
    return {"m": m, "n": n, "ks": ks, "repeats": _repeats("working_set", given, default=10)}


def _resolve_issue(given: Mapping[str, Any], limits: DeviceLimits) -> dict[str, Any]:
    if LEAD.label not in limits.geometries:
        raise UnsupportedSweepError("issue", limits.backend)
    m = _integer("issue.m", given.get("m", 512), least=1, most=MAX_EXTENT)
    n = _integer("issue.n", given.get("n", 512), least=1, most=MAX_EXTENT)
    for name, extent, tile in (("m", m, LEAD.bm), ("n", n, LEAD.bn)):
        if extent % tile:
            raise ParameterError(f"issue.{name}", f"must be a multiple of {tile}, the tile of {LEAD.label}")
    ks = _reductions("issue.ks", given, _powers_of_two(256, 32768), step=LEAD.bk, m=m, n=n, limits=limits)
    return {"m": m, "n": n, "ks": ks, "repeats": _repeats("issue", given, default=10)}


def _resolve_launch(given: Mapping[str, Any], limits: DeviceLimits) -> dict[str, Any]:
    geometries = _geometries(given, limits)
    sizes = _ascending("launch.sizes", given.get("sizes", _powers_of_two(32, 1024)), most=1 << 16)
    if len(geometries) * len(sizes) > MAX_POINTS:
        raise ParameterError("launch.sizes", f"geometries x sizes must be at most {MAX_POINTS} points")
    for label in geometries:
        geometry = parse_geometry(label)
        if not any(geometry.tiles(size, size) for size in sizes):
            raise ParameterError("launch.geometries", f"{label} tiles none of the sizes {sizes}")
    max_size = max(4096, sizes[-1]) if "sizes" not in given else sizes[-1]
    max_size = _integer("launch.max_size", given.get("max_size", max_size), least=sizes[-1], most=1 << 16)
    target_ops = _integer("launch.target_ops", given.get("target_ops", 1 << 31), least=1, most=MAX_OPS)
    resolved = {"geometries": geometries, "sizes": sizes, "max_size": max_size, "target_ops": target_ops}
    max_k = 1 << 20
    while max_k > LEAST_LAUNCH_K and bytes_needed("launch", {**resolved, "max_k": max_k}) > limits.memory_bytes // 2:
        max_k //= 2
    max_k = _integer("launch.max_k", given.get("max_k", max_k), least=LEAST_LAUNCH_K, most=MAX_EXTENT)
    if 2 * sizes[-1] ** 2 * launch_extent(sizes[-1], target_ops, max_k) > MAX_OPS:
        raise ParameterError("launch.sizes", f"a run may have at most {MAX_OPS} operations")
    return {**resolved, "max_k": max_k, "repeats": _repeats("launch", given, default=10)}


_Resolver = Callable[[Mapping[str, Any], DeviceLimits], dict[str, Any]]
_RESOLVERS: Mapping[str, tuple[_Resolver, tuple[str, ...]]] = {
    "stream": (_resolve_stream, ("elems", "repeats")),
    "working_set": (_resolve_working_set, ("m", "n", "ks", "repeats")),
    "issue": (_resolve_issue, ("m", "n", "ks", "repeats")),
    "launch": (_resolve_launch, ("geometries", "sizes", "max_size", "target_ops", "max_k", "repeats")),
}
_SIZE_FIELD = {"stream": "elems", "working_set": "ks", "issue": "ks", "launch": "max_k"}


def _geometries(given: Mapping[str, Any], limits: DeviceLimits) -> list[str]:
    default = [label for label in (LEAD.label, WIDE.label) if label in limits.geometries]
    labels = given.get("geometries", default or list(limits.geometries[:2]))
    if not isinstance(labels, list | tuple) or not labels or len(labels) > MAX_POINTS:
        raise ParameterError("launch.geometries", f"must be a list of 1 to {MAX_POINTS} geometries like {LEAD.label}")
    for label in labels:
        if not isinstance(label, str) or label not in limits.geometries:
            family = ", ".join(limits.geometries) or "none"
            raise ParameterError("launch.geometries", f"{str(label)[:40]!r} is not in the family: {family}")
    if len(set(labels)) != len(labels):
        raise ParameterError("launch.geometries", "names a geometry twice")
    return list(labels)


def _reductions(
    field: str, given: Mapping[str, Any], default: list[int], *, step: int, m: int, n: int, limits: DeviceLimits
) -> list[int]:
    if "ks" not in given:
        while len(default) > 1 and contraction_bytes(m, n, default[-1]) > limits.memory_bytes // 2:
            default = default[:-1]
    ks = _ascending(field, given.get("ks", default), most=None)
    for k in ks:
        if k % step:
            raise ParameterError(field, f"{k} is not a multiple of {step}, the kernel's reduction step")
        if contraction_bytes(m, n, k) > limits.memory_bytes:
            needed = contraction_bytes(m, n, k)
            raise ParameterError(field, f"{k} needs {needed} bytes; the device has {limits.memory_bytes} bytes")
        if 2 * m * n * k > MAX_OPS:
            raise ParameterError(field, f"{k} is {2 * m * n * k} operations a run; at most {MAX_OPS}")
    return ks


def _ascending(field: str, value: Any, *, most: int | None) -> list[int]:
    if not isinstance(value, list | tuple):
        raise ParameterError(field, "must be a list of integers")
    if not 1 <= len(value) <= MAX_POINTS:
        raise ParameterError(field, f"must hold 1 to {MAX_POINTS} values, not {len(value)}")
    numbers = [_integer(field, item, least=1, most=1 << 62 if most is None else most) for item in value]
    if any(after <= before for before, after in itertools.pairwise(numbers)):
        raise ParameterError(field, "must be strictly ascending")
    return numbers


def _repeats(sweep: str, given: Mapping[str, Any], *, default: int) -> int:
    return _integer(f"{sweep}.repeats", given.get("repeats", default), least=1, most=MAX_REPEATS)


def _integer(field: str, value: Any, *, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(field, f"must be an integer, not {repr(value)[:40]}")
    if not least <= value <= most:
        raise ParameterError(
            field, f"must be from {least} to {most}" + (f", not {value}" if abs(value) < 1 << 64 else "")
        )
    return value


def _powers_of_two(first: int, last: int) -> list[int]:
    return [1 << exponent for exponent in range(first.bit_length() - 1, last.bit_length())]


def _power_of_two_from(least: int) -> int:
    return 1 << (least - 1).bit_length()
