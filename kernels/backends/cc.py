"""The host CPU as a device: C kernels, compiled here and now for this processor, on a team of OpenMP threads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernels.backends.base import Conditions, ContractionProblem, Problem, StreamCandidate, StreamProblem
from kernels.backends.cc_compiler import Compiler, find_compiler
from kernels.backends.cc_contraction import GEOMETRIES, ContractionWorkload
from kernels.backends.cc_fma import FmaWorkload
from kernels.backends.cc_stream import StreamWorkload
from kernels.backends.cc_team import Team
from kernels.backends.cc_workload import CcWorkload
from kernels.device import DeviceDescription, Discovery, UnusableBackend
from kernels.errors import CompileError, MeasureError, NoDeviceError
from kernels.host import ROOT, Host, cpu_ticks, host_id, pressure_us, read_host
from kernels.parameters import SWEEPS, DeviceLimits

_NOT_A_CPU_FIELD = {
    "sm_clock_mhz": "a CPU has no multiprocessor clock",
    "memory_clock_mhz": "a CPU has no memory clock to read",
    "throttle": "not read on a CPU",
    "temperature_c": "not read on a CPU",
    "power_w": "not read on a CPU",
    "other_processes": "a CPU is shared; see steal and pressure",
}
_BLOCKS = ((32, 1), (32, 4), (64, 4), (64, 8), (256, 4), (1024, 4))  # vectors a chunk, vectors a step


class CcDevice:
    """The host CPU, opened: its team of threads is started and, without a quota, bound to the cores."""

    def __init__(self, host: Host, compiler: Compiler, team: Team, *, bound: bool, root: Path) -> None:
        """Keep what `CcBackend.open` made."""
        self._host = host
        self._compiler = compiler
        self._team = team
        self._bound = bound
        self._root = root
        self._description = _describe(host, compiler, team, root)

    @property
    def description(self) -> DeviceDescription:
        """Who this is."""
        return self._description

    def stream_candidates(self, elems: int) -> Sequence[StreamCandidate]:
        """Return six chunk shapes at the widest vector, and one at each narrower one."""
        del elems  # the same for all: an extent that a chunk does not divide makes the row approximate
        widest = self._team.widest_vector
        narrower = [StreamCandidate(64, width, 4) for width in (8, 4) if width < widest]
        return [*(StreamCandidate(block, widest, step) for block, step in _BLOCKS), *narrower]

    @contextmanager
    def open_workload(self, problem: Problem) -> Iterator[CcWorkload]:
        """Allocate and fill; raises OutOfMemoryError before the kernel would have to kill."""
        workload: CcWorkload
        if isinstance(problem, StreamProblem):
            workload = StreamWorkload(self._compiler, self._team, problem)
        elif isinstance(problem, ContractionProblem):
            workload = ContractionWorkload(self._compiler, self._team, problem)
        else:
            workload = FmaWorkload(self._compiler, self._team, problem)
        try:
            yield workload
        finally:
            workload.close()

    def conditions(self) -> Conditions:
        """Return how much time others took from the cores so far."""
        unknown = dict(_NOT_A_CPU_FIELD)
        ticks = cpu_ticks(self._host.cores, self._root)
        if ticks is None:
            unknown["cpu_steal_ticks"] = unknown["cpu_total_ticks"] = "this host does not count ticks in /proc/stat"
        pressure = pressure_us(self._root)
        if pressure is None:
            unknown["cpu_pressure_some_us"] = "this kernel has no pressure stall information"
        return Conditions(
            cpu_steal_ticks=None if ticks is None else ticks[0],
            cpu_total_ticks=None if ticks is None else ticks[1],
            cpu_pressure_some_us=pressure,
            unknown=unknown,
        )

    def launch_latency_ms(self) -> float:
        """Return the best time of an empty parallel region, milliseconds."""
        return self._team.latency_ms()

    def provenance(self) -> Mapping[str, Any]:
        """Return what a rate depends on beside the machine."""
        return {
            "compiler": self._compiler.version,
            "compiler_command": " ".join(self._compiler.command),
            "flags": " ".join(self._compiler.flags),
            "instruction_set": self._team.instruction_set,
            "threads": self._team.threads,
            "threads_bound": self._bound,
            "vector_floats": self._team.widest_vector,
            "streaming_stores": self._team.streaming_stores,
            "kernel": self._host.kernel,
            "notes": [*self._compiler.notes, *self._host.notes],
        }


class CcBackend:
    """The host CPU, usable where there is a C compiler with OpenMP.

    Parameters
    ----------
    root
        Folder that holds `proc`, `sys` and `etc`.
    """

    name = "cc"

    def __init__(self, root: Path = ROOT) -> None:
        """Keep the root; nothing is read yet."""
        self._root = root

    def discover(self) -> Discovery:
        """Return the host CPU, or in words why it can't be used."""
        try:
            host, compiler, team = self._found()
            return Discovery(devices=(_describe(host, compiler, team, self._root),))
        except MeasureError as error:
            return Discovery(unusable=(UnusableBackend(self.name, str(error)),))

    @contextmanager
    def open(self, key: str) -> Iterator[CcDevice]:
        """Open the host CPU.

        Parameters
        ----------
        key
            As `discover` gave it.

        Raises
        ------
        NoDeviceError
            If this host's CPU has another key (other cores or another quota make it another device), or there is no
            compiler, or OpenMP gives fewer threads than asked.
        """
        host, compiler, team = self._found()
        found = _describe(host, compiler, team, self._root).key
        if key != found:
            raise NoDeviceError(
                f"{key} is not this host's CPU, which is {found} with {len(host.cores)} allowed cores; "
                "a device with other cores or another quota is calibrated apart"
            )
        with team.bound(host.cores) as bound:
            yield CcDevice(host, compiler, team, bound=bound, root=self._root)

    def _found(self) -> tuple[Host, Compiler, Team]:
        host = read_host(self._root)
        try:
            compiler = find_compiler(host.model)
            team = Team(compiler, host.threads, self._root)
        except CompileError as error:
            raise NoDeviceError(str(error)) from error
        team.check_size()
        return host, compiler, team


def _describe(host: Host, compiler: Compiler, team: Team, root: Path) -> DeviceDescription:
    identity = host_id(root)
    defining = json.dumps([identity, host.model, host.cores, host.quota])
    memory = host.memory
    return DeviceDescription(
        key=f"cpu-{hashlib.sha256(defining.encode()).hexdigest()[:16]}",
        backend="cc",
        kind="cpu",
        name=host.model,
        simulated=False,
        limits=DeviceLimits(
            backend="cc",
            memory_bytes=memory.allowed,
            last_level_cache_bytes=host.last_level_cache_bytes,
            multiprocessors=team.threads,
            sweeps=SWEEPS,
            geometries=tuple(geometry.label for geometry in GEOMETRIES),
        ),
        facts={
            "model": host.model,
            "architecture": host.architecture,
            "instruction_set": team.instruction_set,
            "cores": list(host.cores),
            "threads": team.threads,
            "quota_cores": host.quota,
            "caches": [dataclasses.asdict(cache) for cache in host.caches],
            "last_level_cache_bytes": host.last_level_cache_bytes,
            "memory_bytes": memory.total,
            "memory_limit_bytes": memory.limit,
            "memory_available_bytes": memory.available,
            "numa_nodes": host.numa_nodes,
            "streaming_stores": team.streaming_stores,
            "compiler": compiler.version,
            "kernel": host.kernel,
            "host_id": identity,
            "notes": [*host.notes, *compiler.notes],
        },
    )
