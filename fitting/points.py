"""The records a sweep leaves and a fit reads."""

from __future__ import annotations

from dataclasses import dataclass

MAX_COUNT = 2**63 - 1
"""The largest count a record may hold: what a signed 64-bit column and the autotuner's integers hold."""


@dataclass(frozen=True)
class LaunchContext:
    """One kernel's parallel shape: `blocks` of `threads`, with its scalar and tile-MMA operations (an FMA is two)."""

    blocks: int
    threads: int
    scalar_ops: int
    mma_ops: int = 0


@dataclass(frozen=True)
class WorkingSetPoint:
    """A point of the working-set sweep: byte counts in bytes, times in milliseconds; `loops` = (k, m, n)."""

    k: int
    loops: tuple[int, ...]
    working_set: int
    requested: int
    distinct: int
    ms: float
    rank_ms: float | None = None
    bound_ms: float | None = None


@dataclass(frozen=True)
class IssuePoint:
    """A point of the issue sweep: operation counts, kernels shipped, times in milliseconds."""

    k: int
    scalar_ops: int
    mma_ops: int
    kernels: int
    ms: float
    rank_ms: float | None = None
    bound_ms: float | None = None
    contexts: tuple[LaunchContext, ...] = ()


@dataclass(frozen=True)
class LaunchPoint:
    """A point of the launch sweep: geometry label, output extents m and n, reduction extent k, time in milliseconds."""

    geometry: str
    m: int
    n: int
    k: int
    contexts: tuple[LaunchContext, ...]
    ms: float
