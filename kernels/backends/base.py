"""The contract between the sweeps and a device, on one screen.

A sweep asks an open device for a *workload* (the arrays of one problem), prepares *kernels* over it,
verifies each once, and samples its time. It never knows which backend it runs on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from kernels.device import DeviceDescription, Discovery
from kernels.parameters import Geometry

StreamName = Literal["copy", "scale", "add", "triad"]
Phase = Literal["aligned", "spread"]


@dataclass(frozen=True)
class StreamCandidate:
    """One way to run a STREAM kernel: `block` threads x `vector` lanes x `per_thread` vectors a thread."""

    block: int
    vector: int
    per_thread: int

    @property
    def label(self) -> str:
        """The candidate as a row's label column."""
        return f"block={self.block},vec={self.vector},ept={self.per_thread}"


@dataclass(frozen=True)
class StreamKernel:
    """`name` over `elems` float32 elements: copy c=a, scale b=0.5a, add c=a+b, triad a=b+0.5c."""

    name: StreamName
    elems: int
    candidate: StreamCandidate


@dataclass(frozen=True)
class UntiledKernel:
    """`dw[o,i] = sum_k dy[k,o] x[k,i]`, one thread an output cell; `phase` is where a block starts in k.

    `k` is a multiple of `parameters.UNTILED_K_STEP`, `n` of `parameters.untiled_block(backend)`. A backend without the
    `spread` phase raises UnsupportedError when asked to prepare it.
    """

    m: int
    n: int
    k: int
    phase: Phase = "aligned"


@dataclass(frozen=True)
class BlocktileKernel:
    """The same contraction, register-blocktiled at a pinned geometry that divides m, n and k."""

    geometry: Geometry
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class FmaKernel:
    """Independent register-only FMA chains on every multiprocessor; touches no global memory but one store."""

    steps: int


Kernel = StreamKernel | UntiledKernel | BlocktileKernel | FmaKernel


@dataclass(frozen=True)
class StreamProblem:
    """Three float32 arrays of `elems` elements, uniform in [-1, 1)."""

    elems: int


@dataclass(frozen=True)
class ContractionProblem:
    """`dy` (k, m) and `x` (k, n), float32 uniform in [-1, 1), k the largest extent; kernels may use a prefix of k."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class FmaProblem:
    """No arrays but the output: one cell a chain."""


Problem = StreamProblem | ContractionProblem | FmaProblem


@dataclass(frozen=True)
class LaunchFacts:
    """What the cost model reads off a kernel; counts are summed over the launch.

    `flops` operations (an FMA counts two), `bytes` distinct bytes read and written; `resident_blocks` blocks
    resident at once on the whole device; `resources` backend facts (registers, shared bytes, streaming stores).
    """

    label: str
    blocks: int
    threads: int
    flops: int
    bytes: int
    resident_blocks: int
    flops_approx: bool = False
    bytes_approx: bool = False
    kernels: int = 1
    resources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One reading: synced wall time and device time of ONE launch, milliseconds; None without a device clock."""

    wall_ms: float
    device_ms: float | None = None


@dataclass(frozen=True)
class Conditions:
    """State of the device at one moment; None means unknown, with the reason in `unknown[field]`, never 0 or False.

    `cpu_steal_ticks`/`cpu_total_ticks` are cumulative; `throttle` holds the names of active clock-event reasons, those
    of NVML in snake case: `hw_slowdown`, `hw_thermal_slowdown`, `hw_power_brake_slowdown`, `sw_thermal_slowdown` refuse
    a window, `sw_power_cap` and others are only recorded.
    """

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    other_processes: int | None = None
    cpu_steal_ticks: int | None = None
    cpu_total_ticks: int | None = None
    cpu_pressure_some_us: int | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


class PreparedKernel(Protocol):
    """A compiled kernel bound to its workload's arrays."""

    @property
    def facts(self) -> LaunchFacts:
        """Launch shape and exact counts."""

    def verify(self) -> None:
        """Poison the output, run once and compare EVERY element with the reference; raises VerificationError."""

    def sample(self) -> Sample:
        """Run once, synced."""

    def sample_queued(self, batch: int) -> Sample:
        """Run `batch` launches back to back with one sync; times are per launch, device time where there is a clock."""


class Workload(Protocol):
    """The arrays of one problem, allocated and initialised; freed when the context ends."""

    def prepare(self, kernel: Kernel) -> PreparedKernel:
        """Compile (cached) and bind; raises CompileError, UnsupportedError, ValueError for another problem's kernel."""


class OpenDevice(Protocol):
    """A device with a live context, in the measuring process only."""

    @property
    def description(self) -> DeviceDescription:
        """Who this is."""

    def stream_candidates(self, elems: int) -> Sequence[StreamCandidate]:
        """At least six seed candidates."""

    def open_workload(self, problem: Problem) -> AbstractContextManager[Workload]:
        """Allocate and fill; raises OutOfMemoryError."""

    def conditions(self) -> Conditions:
        """Clocks, throttling, neighbours, now."""

    def launch_latency_ms(self) -> float:
        """Best synced wall time of an empty kernel, milliseconds."""

    def provenance(self) -> Mapping[str, Any]:
        """Versions and compile facts worth keeping: compiler, flags, driver, runtime, threads."""


class Backend(Protocol):
    """A kind of device."""

    @property
    def name(self) -> str:
        """`cc`, `cuda`, `hip` or `simulated`."""

    def discover(self) -> Discovery:
        """Usable devices, and in words why others are not; never raises for an absent driver or compiler."""

    def open(self, key: str) -> AbstractContextManager[OpenDevice]:
        """Open one device by its key; raises NoDeviceError."""
