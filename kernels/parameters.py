"""Sweep parameters: defaults, checks, sizes. Pure, so that the API can check a request without touching a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SWEEPS = ("stream", "working_set", "launch", "issue")  # in the order that lets each use the constants before it


class ParameterError(ValueError):
    """A parameter that can't be run: `field` (dotted, e.g. `working_set.ks`) and the rule it breaks."""

    def __init__(self, field: str, rule: str) -> None:
        """Keep the field and the rule."""
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


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


def resolve(sweep: str, given: Mapping[str, Any], limits: DeviceLimits) -> dict[str, Any]:
    """Return the full, checked parameters of `sweep` (JSON values only); raises ParameterError."""
    raise ParameterError("sweeps", "to be written")


def bytes_needed(sweep: str, parameters: Mapping[str, Any]) -> int:
    """Device bytes the sweep allocates with these resolved parameters."""
    raise ParameterError("sweeps", "to be written")
