"""A CuPy that runs kernels on the host: the few calls the CUDA backend makes, by hand, over the emulation shim.

Only names that CuPy has are here (a test compares them). Devices, memory, statuses and NVRTC are as the test sets them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.kernels.cuda_shim.emulator import GuardedArray, Module, build

H200 = {
    "name": b"NVIDIA H200",
    "major": 9,
    "minor": 0,
    "totalGlobalMem": 64 << 20,
    "l2CacheSize": 1 << 14,
    "multiProcessorCount": 4,
    "maxThreadsPerMultiProcessor": 2048,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerMultiprocessor": 233472,
    "memoryBusWidth": 6144,
    "clockRate": 1980000,
    "memoryClockRate": 3201000,
    "ECCEnabled": 1,
    "uuid": bytes(range(16)),
}
"""The fields of `cudaDeviceProp` that the backend reads; memory, cache and size are a toy's, the rest an H200's."""


class CUDARuntimeError(RuntimeError):
    """As CuPy's: the status is a number."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class CUDADriverError(RuntimeError):
    """As CuPy's."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUresult {status}")
        self.status = status


class CompileException(Exception):  # noqa: N818
    """As CuPy's: its text is the compiler's log."""


@dataclass
class Machine:
    """What the emulated host has, and what happened on it."""

    devices: Sequence[dict[str, Any]] = (H200,)
    count_status: int = 0
    nvrtc_error: Exception | None = None
    archs: tuple[int, ...] = (50, 70, 75, 80, 86, 87, 89, 90, 100, 120)
    driver_version: int = 12080
    runtime_version: int = 12090
    is_hip: bool = False
    compile_error: Exception | None = None
    """Raised instead of compiling."""
    edit: Callable[[str], str] = lambda text: text
    """Applied to every source before it is compiled: how a test breaks a kernel."""
    fail_launch: int = 0
    """Status of every launch."""
    fail_graph: str = ""
    """Name of the graph call that fails."""
    occupancy_limit: int = 2048
    memory: dict[int, GuardedArray] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    peak_bytes: int = 0
    launches: int = 0
    graph_launches: int = 0
    contexts: set[int] = field(default_factory=set)


class _Runtime:
    """`cupy.cuda.runtime`."""

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3  # noqa: N815
    streamNonBlocking = 1  # noqa: N815

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_hip = machine.is_hip
        self._handles = 1000
        self.open: set[int] = set()
        self._host: dict[int, Any] = {}
        self._events: dict[int, float] = {}
        self._unreached: set[int] = set()
        self._device = 0
        self.capture: list[Callable[[], None]] | None = None
        self._graphs: dict[int, list[Callable[[], None]]] = {}

    def _handle(self) -> int:
        self._handles += 1
        self.open.add(self._handles)
        return self._handles

    def left_open(self) -> int:
        """Streams, events, graphs and host buffers never given back (this is not CuPy's)."""
        return len(self.open) + len(self._host)

    def getDeviceCount(self) -> int:
        if self._machine.count_status:
            raise CUDARuntimeError(self._machine.count_status)
        return len(self._machine.devices)

    def getDeviceProperties(self, ordinal: int) -> dict[str, Any]:
        return dict(self._machine.devices[ordinal])

    def deviceGetPCIBusId(self, ordinal: int) -> str:
        return str(self._machine.devices[ordinal].get("pci", f"0000:{0x1B + ordinal:02X}:00.0"))

    def driverGetVersion(self) -> int:
        return self._machine.driver_version

    def runtimeGetVersion(self) -> int:
        return self._machine.runtime_version

    def setDevice(self, ordinal: int) -> None:
        if not 0 <= ordinal < len(self._machine.devices):
            raise CUDARuntimeError(101)
        self._device = ordinal

    def memGetInfo(self) -> tuple[int, int]:
        self._machine.contexts.add(self._device)
        total = int(self._machine.devices[self._device]["totalGlobalMem"])
        return total - sum(self._machine.sizes.values()), total

    def malloc(self, size: int) -> int:
        free, _ = self.memGetInfo()
        if size > free:
            raise CUDARuntimeError(2)
        array = GuardedArray(-(-size // 4), alignment=256)
        self._machine.memory[array.address] = array
        self._machine.sizes[array.address] = size
        self._machine.peak_bytes = max(self._machine.peak_bytes, sum(self._machine.sizes.values()))
        return array.address

    def free(self, pointer: int) -> None:
        array = self._machine.memory.pop(pointer, None)
        if array is None:
            raise CUDARuntimeError(1)
        del self._machine.sizes[pointer]
        assert array.intact(), "a kernel wrote past the end of its array"

    def hostAlloc(self, size: int, flags: int) -> int:
        buffer = (ctypes.c_uint8 * size)()
        self._host[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def freeHost(self, pointer: int) -> None:
        del self._host[pointer]

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        self._check_idle(stream)
        for end, on_device in ((target, kind in (1, 3)), (source, kind in (2, 3))):
            if on_device:
                self._check_range(end, size)
        ctypes.memmove(target, source, size)

    def memsetAsync(self, pointer: int, value: int, size: int, stream: int) -> None:
        self._check_idle(stream)
        self._check_range(pointer, size)
        ctypes.memset(pointer, value, size)

    def _check_range(self, pointer: int, size: int) -> None:
        if not any(at <= pointer and pointer + size <= at + held for at, held in self._machine.sizes.items()):
            raise CUDARuntimeError(1)

    def _check(self, handle: int) -> None:
        if handle not in self.open:
            raise CUDARuntimeError(400)

    def streamCreateWithFlags(self, flags: int) -> int:
        return self._handle()

    def streamDestroy(self, stream: int) -> None:
        self.open.remove(stream)

    def _check_idle(self, stream: int) -> None:
        """What this emulation does at once would be captured instead, or be refused (900, StreamCaptureUnsupported)."""
        self._check(stream)
        if self.capture is not None:
            raise CUDARuntimeError(900)

    def streamSynchronize(self, stream: int) -> None:
        self._check_idle(stream)
        self._unreached.clear()

    def eventCreate(self) -> int:
        return self._handle()

    def eventDestroy(self, event: int) -> None:
        self.open.remove(event)

    def eventRecord(self, event: int, stream: int) -> None:
        self._check(event)
        self._check_idle(stream)
        self._events[event] = time.perf_counter()
        self._unreached.add(event)

    def eventElapsedTime(self, start: int, end: int) -> float:
        if start not in self._events or end not in self._events:
            raise CUDARuntimeError(400)
        if self._unreached & {start, end}:
            raise CUDARuntimeError(600)  # cudaErrorNotReady
        return (self._events[end] - self._events[start]) * 1e3

    def _graph_call(self, name: str) -> None:
        if self._machine.fail_graph == name:
            raise CUDARuntimeError(901)  # cudaErrorStreamCaptureInvalidated

    def streamBeginCapture(self, stream: int) -> None:
        self._check_idle(stream)
        self._graph_call("streamBeginCapture")
        self.capture = []

    def streamEndCapture(self, stream: int) -> int:
        self._check(stream)
        if self.capture is None:
            raise CUDARuntimeError(401)  # cudaErrorIllegalState
        captured, self.capture = self.capture, None
        self._graph_call("streamEndCapture")
        graph = self._handle()
        self._graphs[graph] = captured
        return graph

    def graphInstantiate(self, graph: int) -> int:
        self._check(graph)
        self._graph_call("graphInstantiate")
        executable = self._handle()
        self._graphs[executable] = self._graphs[graph]
        return executable

    def graphDestroy(self, graph: int) -> None:
        self.open.remove(graph)

    def graphExecDestroy(self, executable: int) -> None:
        self.open.remove(executable)

    def graphLaunch(self, executable: int, stream: int) -> None:
        self._check(executable)
        self._check_idle(stream)
        self._machine.graph_launches += 1
        for launch in self._graphs[executable]:
            launch()


class _Driver:
    """`cupy.cuda.driver`."""

    CUDADriverError = CUDADriverError

    def __init__(self, machine: Machine, runtime: _Runtime) -> None:
        self._machine = machine
        self._runtime = runtime
        self.functions: dict[int, tuple[Module, str]] = {}

    def occupancyMaxActiveBlocksPerMultiprocessor(self, function: int, block: int, shared: int) -> int:
        self._check_integers(function, block, shared)
        if function not in self.functions:
            raise CUDADriverError(400)
        return min(32, self._machine.occupancy_limit // block)

    def _check_integers(self, *arguments: object) -> None:
        """As Cython: an argument of a C integer type is an int."""
        if not all(isinstance(each, int) for each in arguments):
            raise TypeError(f"an integer is required: {arguments}")

    def launchKernel(
        self,
        function: int,
        gx: int,
        gy: int,
        gz: int,
        bx: int,
        by: int,
        bz: int,
        shared: int,
        stream: int,
        parameters: int,
        extra: int,
    ) -> None:
        self._check_integers(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
        if stream not in self._runtime.open:
            raise CUDADriverError(400)
        if self._machine.fail_launch:
            raise CUDADriverError(self._machine.fail_launch)
        if function not in self.functions:
            raise CUDADriverError(400)
        if not (
            0 < gx < 1 << 31 and 0 < gy < 1 << 16 and 0 < gz < 1 << 16 and min(bx, by, bz) > 0 and bx * by * bz <= 1024
        ):
            raise CUDADriverError(1)
        module, entry = self.functions[function]

        def run() -> None:
            self._machine.launches += 1
            module.launch(entry, (gx, gy, gz), (bx, by, bz), parameters)

        if self._runtime.capture is None:
            run()
        else:
            self._runtime.capture.append(run)


class _RawModule:
    """`cupy.RawModule`: compiles when a function is asked for."""

    def __init__(self, machine: Machine, driver: _Driver, code: str) -> None:
        self._machine = machine
        self._driver = driver
        self._code = code

    def get_function(self, name: str) -> Any:
        if self._machine.compile_error is not None:
            raise self._machine.compile_error
        text = self._machine.edit(self._code)
        if "#error" in text:
            raise CompileException('kernel.cu(1): error: #error directive: "no"')
        handle = len(self._driver.functions) + 1
        self._driver.functions[handle] = build(text), name
        return SimpleNamespace(
            kernel=SimpleNamespace(ptr=handle), num_regs=32, shared_size_bytes=2048, local_size_bytes=0
        )


class EmulatedCupy:
    """The module."""

    __version__ = "14.2.0"

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()
        runtime = _Runtime(self.machine)
        driver = _Driver(self.machine, runtime)
        self.cuda = SimpleNamespace(
            runtime=runtime,
            driver=driver,
            nvrtc=SimpleNamespace(getVersion=self._nvrtc_version, getSupportedArchs=self._nvrtc_archs),
            compiler=SimpleNamespace(CompileException=CompileException),
        )
        self._driver = driver

    def RawModule(self, *, code: str, options: tuple[str, ...], backend: str) -> _RawModule:
        assert (backend, type(code), type(options)) == ("nvrtc", str, tuple)
        return _RawModule(self.machine, self._driver, code)

    def _nvrtc_version(self) -> tuple[int, int]:
        if self.machine.nvrtc_error is not None:
            raise self.machine.nvrtc_error
        return 12, 9

    def _nvrtc_archs(self) -> tuple[int, ...]:
        return self.machine.archs
