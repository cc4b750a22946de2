"""Clocks, throttling, temperature, power and neighbours of a GPU, as NVIDIA's management library tells them.

Every figure can be missing: the library may not be installed, a slice has no clock of its own, a container hides the
processes. What can't be read is None with its reason, never 0.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kernels.backends.base import Conditions

T = TypeVar("T")

CONDITION_FIELDS = ("sm_clock_mhz", "memory_clock_mhz", "throttle", "temperature_c", "power_w", "other_processes")

THROTTLE_REASONS: Mapping[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of `nvmlClocksEventReason*` (NVML API Reference, "Clocks event reasons"), in snake case."""

_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_GPU = 1, 2, 0  # nvmlClockType_t, nvmlTemperatureSensors_t
_FUNCTION_NOT_FOUND = 13  # nvmlReturn_t


_HOST_FIELDS = dict.fromkeys(("cpu_steal_ticks", "cpu_total_ticks", "cpu_pressure_some_us"), "a GPU has no such figure")


def unknown_conditions(reason: str) -> Conditions:
    """Return conditions of which nothing is known, for one reason."""
    return Conditions(unknown={**dict.fromkeys(CONDITION_FIELDS, reason), **_HOST_FIELDS})


class Nvml:
    """An initialised NVML, through the `pynvml` module or anything shaped like it.

    Parameters
    ----------
    library
        Has the functions of `pynvml` and its exception `NVMLError`.

    Raises
    ------
    library.NVMLError
        When NVML does not start, for example where there is no driver.
    """

    def __init__(self, library: Any) -> None:
        """Start NVML."""
        self.library = library
        self.error: type[Exception] = library.NVMLError
        library.nvmlInit()

    def find(self, uuid: str, pci_id: str, *, slice_expected: bool) -> NvmlDevice | None:
        """
        Return the device or MIG slice of that UUID, else the device at that PCI address; None when NVML has neither.

        Parameters
        ----------
        uuid
            8-4-4-4-12 form, without `GPU-` or `MIG-`.
        pci_id
            Domain, bus and device, for example `0000:3b:00.0`.
        slice_expected
            Whether CUDA shows a MIG slice. A slice is never looked up by its parent's PCI address: the parent's memory
            and processes are not its own.

        Notes
        -----
        Never by index: CUDA numbers the fastest device first and NVML goes by PCI address.
        """
        library = self.library
        key = f"{'MIG' if slice_expected else 'GPU'}-{uuid}"
        handle = self.read(library.nvmlDeviceGetHandleByUUID, key)
        if handle is None and not slice_expected:
            handle = self.read(library.nvmlDeviceGetHandleByPciBusId, pci_id)
        return None if handle is None else NvmlDevice(self, handle, key)

    def slices(self, parent_uuid: str) -> list[str]:
        """Return the UUIDs (`MIG-...`) of the slices of the GPU of that UUID; empty when it has none."""
        library = self.library
        parent = self.read(library.nvmlDeviceGetHandleByUUID, f"GPU-{parent_uuid}")
        count = None if parent is None else self.read(library.nvmlDeviceGetMaxMigDeviceCount, parent)
        handles = [self.read(library.nvmlDeviceGetMigDeviceHandleByIndex, parent, index) for index in range(count or 0)]
        names = [self.read(library.nvmlDeviceGetUUID, handle) for handle in handles if handle is not None]
        return [str(name) for name in names if name is not None]

    def driver_version(self) -> str | None:
        """Return the driver's version, for example `570.86.15`."""
        return self.read(self.library.nvmlSystemGetDriverVersion)

    def read(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """Return what a call gives, or None when NVML refuses it."""
        try:
            return call(*arguments)
        except self.error:
            return None

    def close(self) -> None:
        """Stop NVML."""
        self.read(self.library.nvmlShutdown)


class NvmlDevice:
    """One GPU or MIG slice, found by its UUID."""

    def __init__(self, nvml: Nvml, handle: Any, key: str) -> None:
        """Keep the handle, and the parent's where this is a slice: clocks, heat and power are the whole chip's."""
        self._nvml = nvml
        self._library = nvml.library
        self._handle = handle
        self.key = key
        parent = None
        if key.startswith("MIG-"):
            parent = nvml.read(self._library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        self._chip = handle if parent is None else parent

    def conditions(self, *, pid: int | None = None) -> Conditions:
        """
        Return the state of the chip now, each figure None with its reason where it can't be read.

        Parameters
        ----------
        pid
            The process that measures, None for this one; it is not one of the `other_processes`.
        """
        library, chip = self._library, self._chip
        known: dict[str, Any] = {}
        unknown = dict(_HOST_FIELDS)

        def record(field: str, call: Callable[[], Any]) -> None:
            try:
                known[field] = call()
            except self._nvml.error as error:
                unknown[field] = f"NVML: {error}"
            except UnknownFigureError as error:
                unknown[field] = str(error)

        record("sm_clock_mhz", lambda: float(library.nvmlDeviceGetClockInfo(chip, _CLOCK_SM)))
        record("memory_clock_mhz", lambda: float(library.nvmlDeviceGetClockInfo(chip, _CLOCK_MEMORY)))
        record("throttle", lambda: throttle_names(self._throttle_bits()))
        record("temperature_c", lambda: float(library.nvmlDeviceGetTemperature(chip, _TEMPERATURE_GPU)))
        record("power_w", lambda: library.nvmlDeviceGetPowerUsage(chip) / 1000.0)
        record("other_processes", lambda: self._other_processes(os.getpid() if pid is None else pid))
        return Conditions(**known, unknown=unknown)

    def facts(self) -> dict[str, float | int | None]:
        """Return what does not change: maximal clocks in MHz, the power limit in W, memory in bytes."""
        library, read = self._library, self._nvml.read
        limit_mw = read(library.nvmlDeviceGetEnforcedPowerLimit, self._chip)
        memory = read(library.nvmlDeviceGetMemoryInfo, self._handle)
        return {
            "max_sm_clock_mhz": read(library.nvmlDeviceGetMaxClockInfo, self._chip, _CLOCK_SM),
            "max_memory_clock_mhz": read(library.nvmlDeviceGetMaxClockInfo, self._chip, _CLOCK_MEMORY),
            "power_limit_w": None if limit_mw is None else limit_mw / 1000.0,
            "memory_free_bytes": None if memory is None else int(memory.free),
        }

    def _throttle_bits(self) -> int:
        try:
            return int(self._library.nvmlDeviceGetCurrentClocksEventReasons(self._chip))
        except self._nvml.error as error:
            if getattr(error, "value", None) != _FUNCTION_NOT_FOUND:
                raise
        return int(self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._chip))  # its name before CUDA 12.2

    def _other_processes(self, pid: int) -> int:
        """Processes with a context on the device, less this one.

        NVML gives process ids of the host. In a container with its own, ours is not among them, yet our context is: one
        of the listed is us. An empty list while we hold a context means that the container may not see them.
        """
        running = {int(process.pid) for process in self._library.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        if not running:
            raise UnknownFigureError("NVML lists no process, not even this one: they are hidden from this container")
        return len(running - {pid}) if pid in running else len(running) - 1


class UnknownFigureError(Exception):
    """A figure that NVML gives, but that can't be true."""


def throttle_names(bits: int) -> tuple[str, ...]:
    """Return the names of the set bits, an unnamed one as `reason_0x<bit>`."""
    return tuple(
        THROTTLE_REASONS.get(1 << bit, f"reason_{1 << bit:#x}") for bit in range(bits.bit_length()) if bits >> bit & 1
    )


def load_nvml() -> tuple[Nvml | None, str]:
    """Return NVML, or None and in words why it can't be used."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None, "pynvml is not installed (pip install nvidia-ml-py)"
    try:
        return Nvml(library), ""
    except library.NVMLError as error:
        return None, f"NVML does not start: {error}"
