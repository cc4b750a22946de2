"""The cost model that the constants price: roofline bound, ranking score, launch fill.

Symbols: B blocks of T threads on P multiprocessors that saturate at t threads each; an FMA counts two operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from fitting._checks import checked_count, checked_positive, is_positive
from fitting.points import LaunchContext

FillForm = Literal["capped", "uncapped"]


@dataclass(frozen=True)
class FillModel:
    """A device's P multiprocessors and the t threads that saturate one; ValueError unless positive integers."""

    multiprocessors: int
    fill_threads: int

    def __post_init__(self) -> None:
        checked_count("multiprocessors", self.multiprocessors)
        checked_count("fill_threads", self.fill_threads)


def context_fill(
    blocks: int, threads: int, *, multiprocessors: int, fill_threads: int, form: FillForm = "capped"
) -> float:
    """Return the part of the device's issue rate that one launch can use.

    Parameters
    ----------
    blocks, threads : int
        B blocks of T threads.
    multiprocessors, fill_threads : int
        P and t.
    form : "capped" or "uncapped"
        Capped: a block counts at most t threads. Uncapped: all of them.

    Returns
    -------
    float
        Above 0, at most 1.

    Raises
    ------
    ValueError
        When a count is not a positive integer, or the form is unknown.

    Notes
    -----
    Capped: min(1, B min(T, t) / (P t)). Uncapped: min(1, B T / (P t)). A block runs on one multiprocessor, so its
    threads beyond t wait for each other; hence capped is what the ranking score uses.

    References
    ----------
    calibrate-module.txt, "Launch-fill calibration".
    """
    used, full = _filled_threads(blocks, threads, multiprocessors, fill_threads, form)
    return used / full


def effective_ops(
    contexts: Iterable[LaunchContext], *, multiprocessors: int, fill_threads: int, form: FillForm = "capped"
) -> float:
    """Return the scalar operations of a routine's contexts, each divided by its fill.

    Parameters
    ----------
    contexts : iterable of LaunchContext
        MMA operations add nothing.
    multiprocessors, fill_threads, form
        As in `context_fill`.

    Returns
    -------
    float
        Operations; 0 without contexts.

    Raises
    ------
    ValueError
        When blocks, threads, P or t are not positive integers, operations are negative, or the form is unknown.

    References
    ----------
    calibrate-module.txt, "Launch-fill calibration".
    """
    return float(_effective(contexts, multiprocessors, fill_threads, form))


def launch_fill(
    contexts: Sequence[LaunchContext], *, multiprocessors: int, fill_threads: int, form: FillForm = "capped"
) -> float:
    """Return the fill of a whole routine: its scalar operations over its effective operations.

    Parameters
    ----------
    contexts, multiprocessors, fill_threads, form
        As in `effective_ops`.

    Returns
    -------
    float
        Above 0, at most 1; 1 without scalar operations.

    Raises
    ------
    ValueError
        As `effective_ops`.
    """
    effective = _effective(contexts, multiprocessors, fill_threads, form)
    total = sum(context.scalar_ops for context in contexts)
    return float(total / effective) if total else 1.0


def roofline_seconds(
    *, flops: int, bytes: int, peak_flops: float | None = None, peak_memory_bandwidth: float | None = None
) -> float | None:
    """Return the roofline bound: no kernel with these counts can run faster.

    Parameters
    ----------
    flops, bytes : int
        Operations, and distinct bytes read and written.
    peak_flops : float or None
        Operations/s.
    peak_memory_bandwidth : float or None
        Bytes/s.

    Returns
    -------
    float or None
        max(flops / peak_flops, bytes / peak_memory_bandwidth) in seconds over the peaks given; None without a peak, or
        where the bound leaves a float's range.

    Raises
    ------
    ValueError
        When a count is negative or no integer, or a peak is not a finite number above zero.

    References
    ----------
    calibration-rows.md, "The envelope fit".
    """
    legs = []
    checked_count("flops", flops, least=0)
    checked_count("bytes", bytes, least=0)
    if peak_flops is not None:
        legs.append(flops / checked_positive("peak_flops", peak_flops))
    if peak_memory_bandwidth is not None:
        legs.append(bytes / checked_positive("peak_memory_bandwidth", peak_memory_bandwidth))
    return _longest(legs)


def ranking_seconds(
    *,
    scalar_ops: int,
    distinct: int,
    contexts: Sequence[LaunchContext] = (),
    mma_ops: int = 0,
    requested: int | None = None,
    working_set: int | None = None,
    peak_flops: float | None = None,
    peak_memory_bandwidth: float | None = None,
    cache_capacity: float | None = None,
    cache_bandwidth: float | None = None,
    issue_rate: float | None = None,
    fill: FillModel | None = None,
) -> float | None:
    """Return the score that ranks a kernel: an estimate of its time, not a bound.

    Parameters
    ----------
    scalar_ops, mma_ops : int
        Scalar operations, and accepted tile-MMA operations.
    distinct : int
        Distinct bytes read and written.
    contexts : sequence of LaunchContext
        The kernel's parallel shape; used only with `fill`.
    requested, working_set : int or None
        Read bytes with re-reads, and the working set, of an untiled kernel; a tiled one passes None for both.
    peak_flops, issue_rate : float or None
        Operations/s.
    peak_memory_bandwidth, cache_bandwidth : float or None
        Bytes/s.
    cache_capacity : float or None
        Bytes.
    fill : FillModel or None
        P and t.

    Returns
    -------
    float or None
        Seconds; None when neither leg can be priced, or where the score leaves a float's range.

    Raises
    ------
    ValueError
        When a count is negative or no integer, a constant is not a finite number above zero, or only one of
        `requested` and `working_set` is given.

    Notes
    -----
    score = max(operations leg, memory leg).

    Operations: scalar_ops / (issue_rate x launch fill), or scalar_ops / peak_flops without an issue rate; plus
    mma_ops / peak_flops where that is known.

    Memory: distinct / peak_memory_bandwidth. Within the capacity also requested / cache_bandwidth, whichever is longer;
    past it max(distinct, requested) / peak_memory_bandwidth. Without a capacity, or for a tiled kernel, distinct only.

    References
    ----------
    calibrate-module.txt, "Cache-capacity calibration", "Issue-rate calibration", "Launch-fill calibration".
    """
    if (requested is None) != (working_set is None):
        raise ValueError("requested and working_set go together: give both (untiled kernel) or neither (tiled)")
    for name, count in (("scalar_ops", scalar_ops), ("mma_ops", mma_ops), ("distinct", distinct)):
        checked_count(name, count, least=0)
    if requested is not None and working_set is not None:
        checked_count("requested", requested, least=0)
        checked_count("working_set", working_set, least=0)
    for name, constant in (
        ("peak_flops", peak_flops),
        ("peak_memory_bandwidth", peak_memory_bandwidth),
        ("cache_capacity", cache_capacity),
        ("cache_bandwidth", cache_bandwidth),
        ("issue_rate", issue_rate),
    ):
        if constant is not None:
            checked_positive(name, constant)
    legs = _memory_legs(distinct, requested, working_set, peak_memory_bandwidth, cache_capacity, cache_bandwidth)
    legs += _operations_leg(scalar_ops, mma_ops, contexts, peak_flops, issue_rate, fill)
    return _longest(legs)


def _effective(contexts: Iterable[LaunchContext], multiprocessors: int, fill_threads: int, form: FillForm) -> Fraction:
    """Return the effective operations exactly, so that a launch of fill 0.9 is not a rounding below it."""
    total = Fraction(0)
    for context in contexts:
        ops = checked_count("scalar_ops", context.scalar_ops, least=0)
        used, full = _filled_threads(context.blocks, context.threads, multiprocessors, fill_threads, form)
        total += Fraction(ops * full, used)
    return total


def _filled_threads(
    blocks: int, threads: int, multiprocessors: int, fill_threads: int, form: FillForm
) -> tuple[int, int]:
    """Return (threads that count, threads that fill the device), in integers so that a full launch is exactly 1."""
    if form not in ("capped", "uncapped"):
        raise ValueError(f"form must be capped or uncapped, got {form!r}")
    checked_count("blocks", blocks)
    checked_count("threads", threads)
    full = checked_count("multiprocessors", multiprocessors) * checked_count("fill_threads", fill_threads)
    used = blocks * (min(threads, fill_threads) if form == "capped" else threads)
    return min(used, full), full


def _operations_leg(
    scalar_ops: int,
    mma_ops: int,
    contexts: Sequence[LaunchContext],
    peak_flops: float | None,
    issue_rate: float | None,
    fill: FillModel | None,
) -> list[float]:
    """Return the one operations leg in seconds, or nothing when no rate is known."""
    mma = mma_ops / peak_flops if peak_flops is not None else 0.0
    if issue_rate is not None:
        filled = 1.0
        if fill is not None:
            filled = launch_fill(contexts, multiprocessors=fill.multiprocessors, fill_threads=fill.fill_threads)
        return [scalar_ops / issue_rate / filled + mma]
    return [] if peak_flops is None else [scalar_ops / peak_flops + mma]


def _memory_legs(
    distinct: int,
    requested: int | None,
    working_set: int | None,
    bandwidth: float | None,
    capacity: float | None,
    cache_bandwidth: float | None,
) -> list[float]:
    """Return the charges whose longest is the memory leg, in seconds."""
    legs = [] if bandwidth is None else [distinct / bandwidth]
    if requested is None or working_set is None or capacity is None:
        return legs
    rate = cache_bandwidth if working_set <= capacity else bandwidth
    return legs if rate is None else [*legs, requested / rate]


def _longest(legs: Sequence[float]) -> float | None:
    longest = max(legs, default=None)
    return longest if longest is not None and (longest == 0 or is_positive(longest)) else None
