"""One CUDA (or HIP) context: its stream, memory, compiled kernels and launches. Takes the `cupy` module as a parameter.

CuPy's flat run-time layer is used, not its arrays: every byte and every launch is ours, so that none of cuBLAS, cuRAND
or an element-wise kernel of CuPy's is ever loaded, and freeing means `cudaFree`.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernels.backends.cuda_source import OPTIONS, Plan, plan_empty
from kernels.errors import CompileError, MeasureError, NoDeviceError, OutOfMemoryError

T = TypeVar("T")

_MEMORY_ALLOCATION, _DEVICES_UNAVAILABLE = 2, 46  # cudaError_t; 2 is CUDA_ERROR_OUT_OF_MEMORY too
_STAGING_BYTES = 1 << 26
_LATENCY_SAMPLES = 200


@dataclass(frozen=True)
class Function:
    """A loaded kernel: its handle, what keeps its code loaded, and what the driver says it takes."""

    handle: int
    owner: Any
    registers: int
    shared_bytes: int
    local_bytes: int
    blocks_per_multiprocessor: int


class Arguments:
    """Kernel arguments in the form that `cuLaunchKernel` takes: an array of pointers to the values.

    Packed once and launched many times: what lies between two launches is one call.
    """

    def __init__(self, values: Sequence[str | int | float], pointers: Mapping[str, int]) -> None:
        """Pack names as device pointers, ints as 64 and floats as 32 bits."""
        self._cells: list[Any] = [self._cell(value, pointers) for value in values]
        self._array = (ctypes.c_void_p * max(1, len(self._cells)))(*map(ctypes.addressof, self._cells))
        self.address = ctypes.addressof(self._array)

    @staticmethod
    def _cell(value: str | int | float, pointers: Mapping[str, int]) -> Any:
        if isinstance(value, str):
            return ctypes.c_void_p(pointers[value])
        return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_longlong(value)


class Context:
    """A live context on one device.

    Parameters
    ----------
    cupy
        The CuPy module.
    ordinal
        The device, as the CUDA run time numbers them.

    Raises
    ------
    NoDeviceError
        When the context can't be made, for example because another process holds the device exclusively.
    """

    def __init__(self, cupy: Any, ordinal: int) -> None:
        """Make the context current, with a stream and two events of its own."""
        self._cupy = cupy
        self.runtime: Any = cupy.cuda.runtime
        self._driver: Any = cupy.cuda.driver
        self._errors = (self.runtime.CUDARuntimeError, self._driver.CUDADriverError)
        self._functions: dict[tuple[str, str], Function] = {}
        self._allocated: set[int] = set()
        self._staging: tuple[int, NDArray[np.uint8]] | None = None
        self.no_graphs: str | None = "CuPy's ROCm build has none" if self.runtime.is_hip else None  # why, else None
        try:
            self.runtime.setDevice(ordinal)
            self.runtime.memGetInfo()  # makes the context
        except self._errors as error:
            reason = "another process holds it exclusively" if error.status == _DEVICES_UNAVAILABLE else str(error)
            raise NoDeviceError(f"the device can't be opened: {reason}; see nvidia-smi") from error
        self.stream = self.call(self.runtime.streamCreateWithFlags, self.runtime.streamNonBlocking)
        self.start = self.call(self.runtime.eventCreate)
        self.end = self.call(self.runtime.eventCreate)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call CuPy and translate its errors.

        Raises
        ------
        OutOfMemoryError
            When the device has too little memory left.
        MeasureError
            For every other error of the device; the context may be lost with it.
        """
        try:
            return function(*arguments)
        except self._errors as error:
            if error.status == _MEMORY_ALLOCATION:
                free, total = self.runtime.memGetInfo()
                raise OutOfMemoryError(
                    f"the device has {free} of {total} bytes free, which is too little; "
                    "ask for a smaller problem, or end what else runs there"
                ) from error
            raise MeasureError(f"the device failed: {error}; if it happens again see nvidia-smi and dmesg") from error

    def memory(self) -> tuple[int, int]:
        """Return the free and the total bytes."""
        free, total = self.call(self.runtime.memGetInfo)
        return int(free), int(total)

    def allocate(self, count: int) -> int:
        """Return a pointer to `count` bytes; raises OutOfMemoryError."""
        pointer = int(self.call(self.runtime.malloc, count))
        self._allocated.add(pointer)
        return pointer

    def free(self, pointer: int) -> None:
        """Give one allocation back."""
        self._allocated.discard(pointer)
        self.release(self.runtime.free, pointer)

    def release(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call what gives something back; a context that has failed gives all back when its process ends."""
        with contextlib.suppress(MeasureError):
            self.call(function, *arguments)

    def upload(self, pointer: int, array: NDArray[Any]) -> None:
        """Copy a contiguous array to the device."""
        self._copy(pointer, array.ctypes.data, array.nbytes, self.runtime.memcpyHostToDevice)

    def copy(self, target: int, source: int, count: int) -> None:
        """Queue a copy within the device."""
        kind = self.runtime.memcpyDeviceToDevice
        self.call(self.runtime.memcpyAsync, target, source, count, kind, self.stream)

    def poison(self, pointer: int, count: int) -> None:
        """Queue a fill with bytes 0xff, a NaN in every float32."""
        self.call(self.runtime.memsetAsync, pointer, 0xFF, count, self.stream)

    def download(self, pointer: int, count: int) -> NDArray[np.float32]:
        """Return `count` float32 elements from the device; at most 64 MiB stay valid until the next download.

        Notes
        -----
        Through page-locked memory, which is several times as fast as a plain buffer and bounds what the host holds.
        """
        if 4 * count > _STAGING_BYTES:
            array = np.empty(count, np.float32)
            self._copy(array.ctypes.data, pointer, array.nbytes, self.runtime.memcpyDeviceToHost)
            return array
        if self._staging is None:
            address = int(self.call(self.runtime.hostAlloc, _STAGING_BYTES, 0))
            self._staging = address, np.ctypeslib.as_array((ctypes.c_uint8 * _STAGING_BYTES).from_address(address))
        address, staging = self._staging
        self._copy(address, pointer, 4 * count, self.runtime.memcpyDeviceToHost)
        return staging[: 4 * count].view(np.float32)

    def _copy(self, target: int, source: int, count: int, kind: int) -> None:
        self.call(self.runtime.memcpyAsync, target, source, count, kind, self.stream)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until the stream has nothing left to do."""
        self.call(self.runtime.streamSynchronize, self.stream)

    def record(self, event: int) -> None:
        """Queue a time stamp."""
        self.call(self.runtime.eventRecord, event, self.stream)

    def elapsed_ms(self) -> float:
        """Return the milliseconds from the `start` to the `end` time stamp, both reached."""
        return float(self.call(self.runtime.eventElapsedTime, self.start, self.end))

    def function(self, plan: Plan) -> Function:
        """
        Compile a plan's kernel (once a text) and load it.

        Raises
        ------
        CompileError
            With the compiler's log in `detail`.
        """
        key = plan.text, plan.entry
        if key not in self._functions:
            self._functions[key] = self._load(plan)
        return self._functions[key]

    def _load(self, plan: Plan) -> Function:
        rejected = self._cupy.cuda.compiler.CompileException
        try:
            kernel = self._cupy.RawModule(code=plan.text, options=OPTIONS, backend="nvrtc").get_function(plan.entry)
        except (rejected, RuntimeError, OSError) as error:  # RuntimeError: no CUDA headers, no code for this card, ...
            if isinstance(error, rejected):
                remedy = "the compiler's log says why"
            elif isinstance(error, OSError):
                remedy = "set CUPY_CACHE_DIR to a folder that can be written"
            else:
                remedy = str(error)
            raise CompileError(f"{plan.entry} ({plan.label}) did not compile: {remedy}", detail=str(error)) from error
        handle = int(kernel.kernel.ptr)
        resident = self.call(self._driver.occupancyMaxActiveBlocksPerMultiprocessor, handle, plan.threads, 0)
        return Function(
            handle=handle,
            owner=kernel,
            registers=int(kernel.num_regs),
            shared_bytes=int(kernel.shared_size_bytes),
            local_bytes=int(kernel.local_size_bytes),
            blocks_per_multiprocessor=int(resident),
        )

    def launch(self, function: Function, plan: Plan, arguments: Arguments) -> None:
        """Queue one launch."""
        self.call(
            self._driver.launchKernel,
            function.handle,
            *plan.grid,
            1,
            *plan.block,
            1,
            0,
            self.stream,
            arguments.address,
            0,
        )

    def graph(self, queue: Callable[[], None]) -> int | None:
        """Return what `queue` launches as an executable graph; None where that fails, and `no_graphs` then says why."""
        if self.no_graphs is not None:
            return None
        runtime = self.runtime
        try:
            self.call(runtime.streamBeginCapture, self.stream)
            try:
                queue()
            finally:
                graph = self.call(runtime.streamEndCapture, self.stream)
            try:
                return int(self.call(runtime.graphInstantiate, graph))
            finally:
                self.release(runtime.graphDestroy, graph)
        except MeasureError as error:
            self.no_graphs = str(error)
            return None

    def launch_latency_ms(self) -> float:
        """Return the best synced wall time of an empty kernel, in milliseconds."""
        plan = plan_empty()
        function, arguments = self.function(plan), Arguments((), {})
        best = float("inf")
        for _ in range(_LATENCY_SAMPLES):
            began = time.perf_counter()
            self.launch(function, plan, arguments)
            self.synchronize()
            best = min(best, time.perf_counter() - began)
        return best * 1e3

    def close(self) -> None:
        """Give everything back: memory, page-locked memory, events, the stream."""
        for pointer in list(self._allocated):
            self.free(pointer)
        if self._staging is not None:
            self.release(self.runtime.freeHost, self._staging[0])
            self._staging = None
        for event in (self.start, self.end):
            self.release(self.runtime.eventDestroy, event)
        self.release(self.runtime.streamDestroy, self.stream)
