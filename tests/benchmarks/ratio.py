"""Ratios of two times taken in turn, so that a busy neighbour hits both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """How much faster we are than a peer: the median over rounds of peer time / our time, and its quartiles.

    `ours` and `peer` are the best rates seen, in units of `unit` per second.
    """

    name: str
    median: float
    lower: float
    upper: float
    rounds: int
    ours: float
    peer: float
    unit: str
    goal: float

    @property
    def reached(self) -> bool:
        return self.median >= self.goal

    def line(self) -> str:
        return (
            f"{'PASS' if self.reached else 'FAIL'}  {self.name:<44} ratio {self.median:.3f} "
            f"[{self.lower:.3f}, {self.upper:.3f}]  goal {self.goal:.2f}   best {self.ours / 1e9:.1f} to "
            f"{self.peer / 1e9:.1f} G{self.unit}/s  ({self.rounds} rounds)"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}


def ratio_of(
    name: str, ours_ms: Sequence[float], peer_ms: Sequence[float], *, work: int, unit: str, goal: float
) -> Ratio:
    """Compare two series of milliseconds, taken in turn, for the same `work` (bytes or operations)."""
    ratios = [peer / ours for ours, peer in zip(ours_ms, peer_ms, strict=True)]
    lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(
        name=name,
        median=median,
        lower=lower,
        upper=upper,
        rounds=len(ratios),
        ours=1e3 * work / min(ours_ms),
        peer=1e3 * work / min(peer_ms),
        unit=unit,
        goal=goal,
    )
