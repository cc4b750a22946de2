"""The team of OpenMP threads that runs the kernels, and the memory that it touches first."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernels.backends.cc_compiler import Compiler
from kernels.errors import NoDeviceError, OutOfMemoryError
from kernels.host import ROOT, read_memory

Float32 = NDArray[np.float32]

C_INT64 = ctypes.c_int64
C_POINTER = ctypes.c_void_p

_HUGE_PAGE = 2 << 20
_HEADROOM = 64 << 20  # for the temporaries of a verification
_LATENCY_CALLS = 200


class Team:
    """`threads` OpenMP threads and what the host library does with them.

    Parameters
    ----------
    compiler
        Builds the library.
    threads
        Threads of every kernel.
    root
        Folder that holds `proc` and `sys`.
    """

    def __init__(self, compiler: Compiler, threads: int, root: Path = ROOT) -> None:
        """Load the library; no thread starts yet."""
        self.threads = threads
        self._root = root
        self._library = library = compiler.load("host.c")
        library.fill_uniform.argtypes = [C_POINTER, C_INT64, ctypes.c_uint64, ctypes.c_int]
        library.fill_uniform.restype = None
        library.changed.argtypes = library.fill_uniform.argtypes
        library.changed.restype = C_INT64
        library.poison.argtypes = [C_POINTER, C_INT64, ctypes.c_int]
        library.poison.restype = None
        library.empty.argtypes = [ctypes.c_int, C_INT64]
        library.empty.restype = ctypes.c_double
        library.instruction_set.restype = ctypes.c_char_p
        self.widest_vector = int(library.widest_vector())
        self.streaming_stores = bool(library.streaming_stores())
        self.instruction_set = str(library.instruction_set().decode())

    def check_size(self) -> None:
        """Start the team; raises NoDeviceError where OpenMP gives fewer threads than the device is said to have."""
        size = self._library.team_size(self.threads)
        if size != self.threads:
            raise NoDeviceError(
                f"OpenMP starts {size} of the {self.threads} threads this host allows; unset OMP_THREAD_LIMIT and"
                " OMP_MAX_ACTIVE_LEVELS"
            )

    @contextmanager
    def bound(self, cores: Sequence[int]) -> Iterator[bool]:
        """Bind each thread but the caller's to a core, so that arrays stay next to the threads that touched them.

        Yields whether that was done: not where the team is smaller than `cores` (a quota), since nobody knows then
        which of them are idle.
        """
        numbers = (ctypes.c_int * len(cores))(*cores)
        bound = len(cores) == self.threads and self._library.bind_team(self.threads, numbers) == 0
        try:
            yield bound
        finally:
            self._library.unbind_team(self.threads, numbers, len(cores))

    def allocate(self, shapes: dict[str, tuple[int, ...]], *, beside: int = 0) -> dict[str, Float32]:
        """Return float32 arrays on huge pages where the host has them, still untouched.

        Parameters
        ----------
        shapes
            Name to shape.
        beside
            Bytes that will be needed too.

        Raises
        ------
        OutOfMemoryError
            Before anything is allocated, if they and a headroom exceed the memory that can be had now.

        Notes
        -----
        Pages of 2 MiB keep the strided reads of a contraction out of the address-translation misses that would
        otherwise be measured with them.
        """
        needed = beside + sum(4 * int(np.prod(shape, dtype=np.int64)) for shape in shapes.values())
        available = read_memory(self._root).available
        if needed + _HEADROOM > available:
            raise OutOfMemoryError(_too_big(needed, available))
        try:
            return {name: _array(shape) for name, shape in shapes.items()}
        except OSError as error:  # a limit on address space
            raise OutOfMemoryError(f"{_too_big(needed, available)} ({error.strerror})") from error

    def fill(self, array: Float32, seed: int) -> None:
        """Fill an array with uniform values in [-1, 1), element i always the same for a seed; first touch if new."""
        self._library.fill_uniform(array.ctypes.data, array.size, seed, self.threads)

    def changed(self, array: Float32, seed: int) -> int:
        """Return how many elements are no longer what `fill` made them."""
        return int(self._library.changed(array.ctypes.data, array.size, seed, self.threads))

    def poison(self, array: Float32) -> None:
        """Fill an array with NaN; first touch if new."""
        self._library.poison(array.ctypes.data, array.size, self.threads)

    def latency_ms(self) -> float:
        """Return the best synced wall time of an empty launch, milliseconds."""
        best = float("inf")
        for _ in range(_LATENCY_CALLS):
            begin = time.perf_counter_ns()
            self._library.empty(self.threads, 1)
            best = min(best, 1e-6 * (time.perf_counter_ns() - begin))
        return best


def _array(shape: tuple[int, ...]) -> Float32:
    elems = int(np.prod(shape, dtype=np.int64))
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, 4 * elems + _HUGE_PAGE, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without huge pages: small ones do
            pages.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(pages, np.uint8, count=1).ctypes.data % _HUGE_PAGE
    return np.frombuffer(pages, np.float32, count=elems, offset=start).reshape(shape)


def _too_big(needed: int, available: int) -> str:
    return (
        f"needs {needed} bytes ({needed / 2**30:.2f} GiB) and {_HEADROOM >> 20} MiB beside, and {available} bytes "
        f"({available / 2**30:.2f} GiB) are available; ask for a smaller sweep, stop other programs, or raise the "
        "memory limit"
    )
