"""NVIDIA GPUs through CuPy, and AMD ones where CuPy is its ROCm build. The only file that imports CuPy.

A device's context is made by `open`, in the measuring process only; discovery makes none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from kernels.backends.base import Conditions, ContractionProblem, FmaProblem, Problem, StreamCandidate, StreamProblem
from kernels.backends.cuda_context import Context
from kernels.backends.cuda_discovery import NO_DRIVER, Found, UnusableError, backend_name, search
from kernels.backends.cuda_driver import Driver, load_driver
from kernels.backends.cuda_source import OPTIONS, STREAM_CANDIDATES
from kernels.backends.cuda_workload import Contents, ContractionWorkload, FmaWorkload, StreamWorkload
from kernels.backends.nvml import Nvml, load_nvml, unknown_conditions
from kernels.device import DeviceDescription, Discovery, UnusableBackend
from kernels.errors import NoDeviceError
from kernels.host import private_dir


def load_cupy() -> Any:
    """
    Import CuPy; this starts no driver. Raises ImportError.

    CuPy makes the folder of its compiled kernels on import and fails where it can't, as in a read-only home.
    """
    os.environ.setdefault("CUPY_CACHE_DIR", str(private_dir("cupy")))
    import cupy

    return cupy


class CudaBackend:
    """See `kernels.backends.base.Backend`.

    Parameters
    ----------
    load
        Gives the `cupy` module, or raises ImportError.
    driver
        Gives NVIDIA's driver library, or None where there is none.
    nvml
        Gives NVML, or None and why not.
    """

    def __init__(
        self,
        load: Callable[[], Any] = load_cupy,
        driver: Callable[[], Driver | None] = load_driver,
        nvml: Callable[[], tuple[Nvml | None, str]] = load_nvml,
    ) -> None:
        """Keep how the libraries are loaded; nothing is yet."""
        self._load = load
        self._load_driver = driver
        self._load_nvml = nvml

    @property
    def name(self) -> str:
        """`hip` where CuPy is the ROCm build, else `cuda`."""
        try:
            return backend_name(self._load())
        except ImportError:
            return "cuda"

    def discover(self) -> Discovery:
        """Return the usable devices and, for what is not usable, the reason in one line."""
        nvml, _ = self._load_nvml()
        try:
            found, unusable = self._search(nvml)
        except UnusableError as error:
            return Discovery(unusable=(UnusableBackend(self.name, str(error)),))
        finally:
            if nvml is not None:
                nvml.close()
        return Discovery(devices=tuple(each.description for each in found), unusable=tuple(unusable))

    @contextmanager
    def open(self, key: str) -> Iterator[CudaDevice]:
        """
        Make a context on the device of that key.

        Raises
        ------
        NoDeviceError
            When there is no such device, with what there is or why there is none.
        """
        nvml, no_nvml = self._load_nvml()
        try:
            try:
                found, unusable = self._search(nvml)
            except UnusableError as error:
                raise NoDeviceError(f"{key}: {error}") from error
            match = next((each for each in found if each.description.key == key), None)
            if match is None:
                there = [each.description.key for each in found] + [item.reason for item in unusable]
                raise NoDeviceError(f"no GPU {key!r} on this host; there is: {'; '.join(there) or 'none'}")
            with closing(Context(self._load(), match.ordinal)) as context:
                yield CudaDevice(context, match, no_nvml)
        finally:
            if nvml is not None:
                nvml.close()

    def _search(self, nvml: Nvml | None) -> tuple[list[Found], list[UnusableBackend]]:
        cupy = self._import()
        return search(cupy, None if cupy.cuda.runtime.is_hip else self._load_driver(), nvml)

    def _import(self) -> Any:
        try:
            return self._load()
        except ModuleNotFoundError as error:
            if error.name != "cupy":
                raise UnusableError(f"CuPy is installed but lacks the module {error.name}; install it anew") from error
            if self._load_driver() is None:
                raise UnusableError(NO_DRIVER) from error
            raise UnusableError(
                "there is an NVIDIA driver but no CuPy: pip install 'calibration-service[cuda12]' (or cuda13)"
            ) from error
        except ImportError as error:
            raise UnusableError(f"CuPy is installed but can't be imported: {error}") from error


class CudaDevice:
    """See `kernels.backends.base.OpenDevice`."""

    def __init__(self, context: Context, found: Found, no_nvml: str) -> None:
        """Take the device's size from the live context."""
        free, total = context.memory()
        limits = replace(found.description.limits, memory_bytes=free)
        facts = {**found.description.facts, "memory_bytes": total, "memory_free_bytes": free}
        self._description = replace(found.description, limits=limits, facts=facts)
        self._context = context
        self._nvml = found.nvml
        self._no_nvml = no_nvml or "NVML does not know this device"

    @property
    def description(self) -> DeviceDescription:
        """Who this is; `limits.memory_bytes` is what was free when the context was made."""
        return self._description

    @property
    def context(self) -> Context:
        """The context, for measurements beyond the sweeps."""
        return self._context

    def stream_candidates(self, elems: int) -> Sequence[StreamCandidate]:
        """Return every candidate; those that do not divide `elems` run guarded and give approximate rows."""
        if elems < 1:
            raise ValueError(f"no candidates for {elems} elements")
        return STREAM_CANDIDATES

    @contextmanager
    def open_workload(
        self, problem: Problem, *, contents: Contents = "random"
    ) -> Iterator[StreamWorkload | ContractionWorkload | FmaWorkload]:
        """
        Allocate and fill the arrays of a problem, and free them at the end.

        Parameters
        ----------
        problem
            What is to be run.
        contents
            Of STREAM arrays.

        Raises
        ------
        OutOfMemoryError
            When they do not fit.
        """
        workload = self._workload(problem, contents)
        try:
            yield workload
        finally:
            workload.close()

    def _workload(self, problem: Problem, contents: Contents) -> StreamWorkload | ContractionWorkload | FmaWorkload:
        size = self._description.limits.multiprocessors
        match problem:
            case StreamProblem():
                return StreamWorkload(self._context, size, problem, contents)
            case ContractionProblem():
                return ContractionWorkload(self._context, size, problem)
            case FmaProblem():
                return FmaWorkload(self._context, size)

    def conditions(self) -> Conditions:
        """Return clocks, throttling, heat, power and neighbours, now."""
        return unknown_conditions(self._no_nvml) if self._nvml is None else self._nvml.conditions()

    def launch_latency_ms(self) -> float:
        """Return the best synced wall time of an empty kernel, in milliseconds."""
        return self._context.launch_latency_ms()

    def provenance(self) -> Mapping[str, Any]:
        """Return versions and compiler options."""
        facts = self._description.facts
        versions = {name: facts[name] for name in ("driver", "driver_cuda", "runtime", "compiler", "cupy")}
        no_graphs = self._context.no_graphs
        return {
            **versions,
            "options": list(OPTIONS),
            "architecture": facts["compute_capability"],
            "short_launches": "graphs" if no_graphs is None else f"queued, without graphs: {no_graphs}",
        }
