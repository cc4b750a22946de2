"""Who a device is: its description, its key, the host it sits on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels.parameters import DeviceLimits


@dataclass(frozen=True)
class DeviceDescription:
    """A usable device.

    `key` is stable over restarts (GPU UUID, or a hash for CPU and simulated); `facts` are JSON values for people and
    provenance: compute_capability, multiprocessors, memory_bytes, caches, clocks, driver, ... (None = unknown).
    """

    key: str
    backend: str
    kind: str  # "cpu" | "gpu" | "simulated"
    name: str
    simulated: bool
    limits: DeviceLimits
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class UnusableBackend:
    """A backend (or one of its devices) that can't be used, and in one line why."""

    backend: str
    reason: str


@dataclass(frozen=True)
class Discovery:
    """What a backend found."""

    devices: tuple[DeviceDescription, ...] = ()
    unusable: tuple[UnusableBackend, ...] = ()
