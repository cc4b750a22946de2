"""What every problem on the CPU has: arrays that end with it, and kernels bound to them."""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels.backends.base import Kernel, LaunchFacts, Sample
from kernels.backends.cc_compiler import Compiler
from kernels.backends.cc_team import C_INT64, C_POINTER, Float32, Team


@dataclass(frozen=True)
class CcKernel:
    """A compiled kernel bound to its arrays: `run(batch)` returns the device's milliseconds of all launches."""

    facts: LaunchFacts
    run: Callable[[int], float]
    check: Callable[[], None]

    def verify(self) -> None:
        """Poison the output, run once, compare every element; raises VerificationError."""
        self.check()

    def sample(self) -> Sample:
        """Run once, synced."""
        return self.sample_queued(1)

    def sample_queued(self, batch: int) -> Sample:
        """Run `batch` launches in one call; times are per launch."""
        begin = time.perf_counter_ns()
        device_ms = self.run(batch)
        wall_ms = 1e-6 * (time.perf_counter_ns() - begin)
        return Sample(wall_ms=wall_ms / batch, device_ms=device_ms / batch)


class CcWorkload(ABC):
    """Arrays of one problem; `close` gives the memory back, after which its kernels can't run."""

    def __init__(
        self, compiler: Compiler, team: Team, shapes: dict[str, tuple[int, ...]], *, reference_bytes: int = 0
    ) -> None:
        """Allocate; raises OutOfMemoryError, also where the reference would not fit beside the arrays."""
        self._compiler = compiler
        self._team = team
        self._arrays = team.allocate(shapes, beside=reference_bytes)
        self._addresses = {name: array.ctypes.data for name, array in self._arrays.items()}

    @abstractmethod
    def prepare(self, kernel: Kernel) -> CcKernel:
        """Compile and bind; raises CompileError, UnsupportedError, ValueError for a kernel of another problem."""

    def close(self) -> None:
        """Give the memory back."""
        self._arrays.clear()
        self._addresses.clear()

    def array(self, name: str) -> Float32:
        """The array itself, not a copy."""
        self._check_open()
        return self._arrays[name]

    def addresses(self, *names: str) -> list[int]:
        """Where arrays begin; raises ValueError once the workload is closed, as a kernel would then run on nothing."""
        self._check_open()
        return [self._addresses[name] for name in names]

    def _read(self, name: str, start: int, stop: int) -> Float32:
        return self.array(name)[start:stop]

    def _check_open(self) -> None:
        if not self._arrays:
            raise ValueError("this kernel's workload is closed; open it again and prepare the kernel anew")


def entry_point(library: ctypes.CDLL, name: str, *, pointers: int, extents: int) -> Callable[..., float]:
    """A kernel's entry: pointers, 64-bit extents, threads, batch; returns milliseconds."""
    function: Any = getattr(library, name)
    function.argtypes = [C_POINTER] * pointers + [C_INT64] * extents + [ctypes.c_int, C_INT64]
    function.restype = ctypes.c_double
    entry: Callable[..., float] = function
    return entry
