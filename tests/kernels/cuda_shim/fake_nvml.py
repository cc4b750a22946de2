"""A `pynvml` made by hand: chips in NVML's own order, MIG slices, and figures that are not supported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

TEXTS = {3: "Not Supported", 6: "Not Found", 9: "Driver Not Loaded", 13: "Function Not Found"}


class NVMLError(Exception):
    """As pynvml's: the value is nvmlReturn_t."""

    def __init__(self, value: int) -> None:
        super().__init__(TEXTS[value])
        self.value = value


@dataclass(frozen=True)
class FakeChip:
    """A GPU as NVML shows it; `supported` False makes every figure NotSupported."""

    uuid: str
    pci: str
    slices: tuple[str, ...] = ()
    sm_clock: int = 1980
    memory_clock: int = 3201
    throttle: int = 0
    temperature: int = 41
    power_mw: int = 120_500
    limit_mw: int = 700_000
    pids: tuple[int, ...] = ()
    free_bytes: int = 1 << 30
    supported: bool = True


@dataclass(frozen=True)
class Handle:
    """A device or, with `slice`, one of its slices."""

    chip: FakeChip
    slice: str | None = None


class FakeNvml:
    """The module."""

    NVMLError = NVMLError

    def __init__(
        self, chips: Sequence[FakeChip], *, init_error: int = 0, old_names: bool = False, slice_pids: Sequence[int] = ()
    ) -> None:
        self.chips = chips
        self.init_error = init_error
        self.old_names = old_names
        self.slice_pids = slice_pids
        self.asked: list[Handle] = []
        self.shut_down = False

    def nvmlInit(self) -> None:
        if self.init_error:
            raise NVMLError(self.init_error)

    def nvmlShutdown(self) -> None:
        self.shut_down = True

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetHandleByUUID(self, name: str) -> Handle:
        for chip in self.chips:
            if name == f"GPU-{chip.uuid}":
                return Handle(chip)
            if name in chip.slices:
                return Handle(chip, name)
        raise NVMLError(6)

    def nvmlDeviceGetHandleByPciBusId(self, pci: str) -> Handle:
        for chip in self.chips:
            if chip.pci == pci:
                return Handle(chip)
        raise NVMLError(6)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int) -> Handle:
        if index >= len(handle.chip.slices):
            raise NVMLError(6)
        return Handle(handle.chip, handle.chip.slices[index])

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Handle) -> Handle:
        return Handle(handle.chip)

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        return handle.slice or f"GPU-{handle.chip.uuid}"

    def _chip(self, handle: Handle) -> FakeChip:
        """Clocks, heat and power exist for whole chips only."""
        self.asked.append(handle)
        if handle.slice is not None or not handle.chip.supported:
            raise NVMLError(3)
        return handle.chip

    def nvmlDeviceGetClockInfo(self, handle: Handle, kind: int) -> int:
        chip = self._chip(handle)
        return {1: chip.sm_clock, 2: chip.memory_clock}[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, kind: int) -> int:
        self._chip(handle)
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle) -> int:
        if self.old_names:
            raise NVMLError(13)
        return self._chip(handle).throttle

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle) -> int:
        return self._chip(handle).throttle

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int:
        return self._chip(handle).temperature

    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int:
        return self._chip(handle).power_mw

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle) -> int:
        return self._chip(handle).limit_mw

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        if not handle.chip.supported:
            raise NVMLError(3)
        pids = handle.chip.pids if handle.slice is None else self.slice_pids
        return [SimpleNamespace(pid=pid) for pid in pids]

    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> Any:
        if not handle.chip.supported:
            raise NVMLError(3)
        return SimpleNamespace(free=handle.chip.free_bytes)
