"""Which CUDA (or HIP) devices there are, who each is, and in one line why others can't be used.

Takes the `cupy` module as a parameter. It starts the driver but makes no context, so that listing devices neither takes
memory on a GPU nor disturbs what is measured there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.backends.cuda_driver import Driver, format_uuid
from kernels.backends.cuda_source import GEOMETRIES
from kernels.backends.nvml import Nvml, NvmlDevice
from kernels.device import DeviceDescription, UnusableBackend
from kernels.errors import NoDeviceError
from kernels.host import host_id
from kernels.parameters import SWEEPS, DeviceLimits

NO_DRIVER = (
    "no NVIDIA driver: libcuda.so.1 was not found; on a GPU host install the driver, "
    "and start a container with its devices (for example --gpus all)"
)
_INSUFFICIENT_DRIVER, _NO_DEVICE = 35, 100  # cudaError_t
_ADVICE: Mapping[int, str] = {
    3: "the driver did not start; nvidia-smi and dmesg say more",
    802: "the system is not initialised yet; on machines with NVSwitch start nvidia-fabricmanager",
    803: "the driver's kernel module and library differ; reboot, or load the module that was installed last",
    804: "a forward-compatibility library (cuda-compat) does not support this device; take it off LD_LIBRARY_PATH",
    999: "the driver is broken; nvidia-smi and dmesg say more, and loading nvidia_uvm anew or a reboot may help",
}
"""cudaError_t to what can be done (CUDA Runtime API, "Data types used by CUDA Runtime")."""


class UnusableError(Exception):
    """Why a backend or a device can't be used, in one line."""


@dataclass(frozen=True)
class Found:
    """A device that was discovered: its description, its number in the CUDA run time, its handle in NVML."""

    description: DeviceDescription
    ordinal: int
    nvml: NvmlDevice | None


def backend_name(cupy: Any) -> str:
    """Return `hip` for CuPy's ROCm build, else `cuda`."""
    return "hip" if cupy.cuda.runtime.is_hip else "cuda"


def search(cupy: Any, driver: Driver | None, nvml: Nvml | None) -> tuple[list[Found], list[UnusableBackend]]:
    """
    Return the usable devices and, for each other, the reason.

    Raises
    ------
    UnusableError
        When there is no device at all, or nothing can be compiled for one.
    """
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise UnusableError(_driver_reason(error, runtime, driver)) from error
    if count == 0:
        raise UnusableError(_no_device_reason())
    compiler, archs = _compiler(cupy)
    found: list[Found] = []
    unusable: list[UnusableBackend] = []
    for ordinal in range(count):
        try:
            found.append(_describe(cupy, ordinal, driver, nvml, compiler, archs))
        except (UnusableError, NoDeviceError) as error:
            unusable.append(UnusableBackend(backend_name(cupy), str(error)))
        except runtime.CUDARuntimeError as error:
            unusable.append(UnusableBackend(backend_name(cupy), f"device {ordinal} does not answer: {error}"))
    return found, unusable


def _no_device_reason() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "the NVIDIA driver works but shows no device" + (
        "" if visible is None else f"; CUDA_VISIBLE_DEVICES is {visible!r} and may hide them"
    )


def _driver_reason(error: Any, runtime: Any, driver: Driver | None) -> str:
    """Say in words what a failed device count means."""
    status = int(error.status)
    if runtime.is_hip:
        return f"the ROCm run time finds no device: {error}; see rocm-smi"
    if status == _NO_DEVICE:
        return _no_device_reason()
    if driver is None:
        return NO_DRIVER
    if status == _INSUFFICIENT_DRIVER:
        built = int(runtime.runtimeGetVersion())
        supports = driver.version()
        newest = "an unknown CUDA version" if supports is None else f"CUDA {supports[0]}.{supports[1]}"
        return (
            f"the NVIDIA driver is too old: it supports {newest}, and this CuPy is built for CUDA {_version(built)}; "
            f"update the driver to one for CUDA {built // 1000}.0 or later"
            + (", or install the extra cuda12" if built >= 13000 and supports and supports[0] == 12 else "")
        )
    return f"the NVIDIA driver fails with {error} (status {status}): {_ADVICE.get(status, _ADVICE[999])}"


def _compiler(cupy: Any) -> tuple[str, tuple[int, ...]]:
    """Return the run-time compiler's version and the architectures it knows (none listed on ROCm)."""
    nvrtc = cupy.cuda.nvrtc
    try:
        major, minor = nvrtc.getVersion()
        archs = () if cupy.cuda.runtime.is_hip else tuple(nvrtc.getSupportedArchs())
    except (RuntimeError, OSError, ImportError) as error:  # cuda.pathfinder's error is a RuntimeError
        built = int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
        package = "nvidia-cuda-nvrtc-cu12" if built == 12 else "nvidia-cuda-nvrtc"
        raise UnusableError(
            f"the compiler library NVRTC can't be loaded: pip install {package} (it comes with the extra cuda{built})"
        ) from error
    return f"{major}.{minor}", archs


def _check_architecture(name: str, capability: int, compiler: str, archs: tuple[int, ...]) -> None:
    if capability > max(archs):
        raise UnusableError(
            f"NVRTC {compiler} is older than the card: {name} is sm_{capability}, it compiles up to sm_{max(archs)}; "
            "install a newer nvidia-cuda-nvrtc package, or the extra cuda13"
        )
    if capability < min(archs):
        raise UnusableError(
            f"NVRTC {compiler} no longer compiles for {name}, which is sm_{capability}: it starts at sm_{min(archs)}; "
            "install the extra cuda12"
        )


def _describe(
    cupy: Any, ordinal: int, driver: Driver | None, nvml: Nvml | None, compiler: str, archs: tuple[int, ...]
) -> Found:
    """Describe one device without a context; raises UnusableError."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(ordinal)
    name = properties["name"].decode(errors="replace").rstrip("\0")
    pci_id = str(runtime.deviceGetPCIBusId(ordinal)).lower()
    if not archs:
        capability = properties.get("gcnArchName", b"").decode(errors="replace") or "unknown"
    else:
        capability = f"{properties['major']}.{properties['minor']}"
        _check_architecture(name, 10 * properties["major"] + properties["minor"], compiler, archs)
    key, device = _identify(ordinal, name, pci_id, properties, driver, nvml)
    static = {} if device is None else device.facts()
    total = int(properties["totalGlobalMem"])
    free = static.get("memory_free_bytes")
    backend = backend_name(cupy)
    limits = DeviceLimits(
        backend=backend,
        memory_bytes=total if free is None else int(free),
        last_level_cache_bytes=int(properties["l2CacheSize"]),
        multiprocessors=int(properties["multiProcessorCount"]),
        sweeps=SWEEPS,
        geometries=tuple(geometry.label for geometry in GEOMETRIES),
    )
    facts = {
        "compute_capability": capability,
        "multiprocessors": limits.multiprocessors,
        "memory_bytes": total,
        "memory_free_bytes": free,
        "l2_cache_bytes": limits.last_level_cache_bytes,
        "threads_per_multiprocessor": int(properties["maxThreadsPerMultiProcessor"]),
        "registers_per_multiprocessor": properties.get("regsPerMultiprocessor"),
        "shared_bytes_per_multiprocessor": properties.get("sharedMemPerMultiprocessor"),
        "memory_bus_width_bits": int(properties["memoryBusWidth"]) or None,
        "max_sm_clock_mhz": static.get("max_sm_clock_mhz") or _mhz(properties["clockRate"]),
        "max_memory_clock_mhz": static.get("max_memory_clock_mhz") or _mhz(properties["memoryClockRate"]),
        "power_limit_w": static.get("power_limit_w"),
        "pci_id": pci_id,
        "mig": key.startswith("MIG-"),
        "ecc": bool(properties["ECCEnabled"]),
        "driver": None if nvml is None else nvml.driver_version(),
        "driver_cuda": _version(int(runtime.driverGetVersion())),
        "runtime": _version(int(runtime.runtimeGetVersion())),
        "compiler": f"{'HIPRTC' if backend == 'hip' else 'NVRTC'} {compiler}",
        "cupy": str(cupy.__version__),
    }
    description = DeviceDescription(key, backend, "gpu", name, False, limits, facts)
    return Found(description, ordinal, device)


def _identify(
    ordinal: int, name: str, pci_id: str, properties: Mapping[str, Any], driver: Driver | None, nvml: Nvml | None
) -> tuple[str, NvmlDevice | None]:
    """Return a device's key and its NVML handle; raises UnusableError when a slice can't be told from its siblings.

    CUDA names a MIG slice in the device's name ("... MIG 1g.5gb"). Its UUID is asked of the driver; where that is the
    parent's, the slice is resolved only when no doubt is left.
    """
    is_slice = " MIG " in name
    uuid = None if driver is None else driver.device_uuid(ordinal)
    uuid = uuid or format_uuid(bytes(properties.get("uuid", b"")))
    if uuid is None:
        return f"GPU-{hashlib.sha256(f'{host_id()} {pci_id} {name}'.encode()).hexdigest()[:32]}", None
    if nvml is None:
        return f"{'MIG' if is_slice else 'GPU'}-{uuid}", None
    if is_slice and (siblings := nvml.slices(uuid)):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
        named = [sibling for sibling in siblings if sibling == visible] or siblings
        if len(named) != 1:
            raise UnusableError(
                f"{name}: the driver does not say which of the slices {', '.join(siblings)} this is; "
                "set CUDA_VISIBLE_DEVICES to one of them"
            )
        uuid = named[0].removeprefix("MIG-")
    device = nvml.find(uuid, pci_id, slice_expected=is_slice)
    return f"{'MIG' if is_slice else 'GPU'}-{uuid}", device


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _mhz(kilohertz: int) -> float | None:
    return kilohertz / 1000.0 if kilohertz > 0 else None
