"""What a kernel must have computed: float64 references in numpy, one set for every backend.

A result is compared element by element, in chunks that stay in a core's cache, and read through a `Read` callable: a
view of the buffer where the host can see it, a copy of the chunk where it can't.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.backends.base import StreamKernel, StreamName
from kernels.errors import VerificationError

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

Read = Callable[[str, int, int], Float32]
"""`read(array, start, stop)`: elements (or rows) `start` to `stop` of the array of that name."""

STREAM_INPUTS: dict[StreamName, tuple[str, ...]] = {
    "copy": ("a",),
    "scale": ("a",),
    "add": ("a", "b"),
    "triad": ("b", "c"),
}
STREAM_OUTPUT: dict[StreamName, str] = {"copy": "c", "scale": "b", "add": "c", "triad": "a"}
STREAM_FLOPS: dict[StreamName, int] = {"copy": 0, "scale": 1, "add": 1, "triad": 2}
SCALAR = 0.5

_CHUNK = 1 << 17  # elements: float64 temporaries of 1 MiB, about one core's L2
_PART_BYTES = 1 << 24  # float64 bytes of operand rows, and of a product, that a reference holds for a moment
_KEPT_BYTES = 1 << 25  # and of shorter prefixes: 16 of the working-set sweep's results
_SUSPECT = (
    "None of its times count. Repeat the run; if it fails again, suspect the compiler or the memory of this device."
)
_BLAS_SPIN_S = 0.1  # OpenBLAS threads spin for 2^26 ticks after a product and would disturb the first sample


def stream_streams(name: StreamName) -> int:
    """Return how many arrays a STREAM kernel moves: its inputs and its output."""
    return len(STREAM_INPUTS[name]) + 1


def check_stream(kernel: StreamKernel, read: Read) -> None:
    """Compare every element of a STREAM result with its reference, to the bit.

    Parameters
    ----------
    kernel
        What was run.
    read
        Reads the output as it is after the run, and the inputs as they were before it.

    Raises
    ------
    VerificationError
        Names the kernel, the candidate, the first wrong index, both values and how many differ.

    Notes
    -----
    The sum and the half of float32 values in [-1, 1) that are multiples of 2^-23 are exact in float64, so rounding
    once to float32 gives the only correct result. 0.5 x is exact in float32 too, hence triad's FMA and two-step forms
    round alike. Bits are compared, not values: a NaN left in the output never equals its reference.

    References
    ----------
    calibration-rows.md, "Stream kernels and why their rows count".
    """
    first: tuple[int, float, float] | None = None
    wrong = 0
    for start in range(0, kernel.elems, _CHUNK):
        stop = min(start + _CHUNK, kernel.elems)
        expected = stream_reference(kernel.name, read, start, stop)
        got = read(STREAM_OUTPUT[kernel.name], start, stop)
        different = got.view(np.uint32) != expected.view(np.uint32)
        count = int(np.count_nonzero(different))
        if count and first is None:
            at = int(np.argmax(different))
            first = (start + at, float(got[at]), float(expected[at]))
        wrong += count
    if first is not None:
        raise _mismatch(f"stream_{kernel.name}", kernel.candidate.label, first, wrong, kernel.elems)


def spoilt_input(kernel: StreamKernel, name: str, wrong: int) -> VerificationError:
    """Return the error of a STREAM kernel that wrote to its input `name`, with which any output could agree."""
    return VerificationError(
        f"stream_{kernel.name} {kernel.candidate.label}: {wrong} of {kernel.elems} elements differ from what its input"
        f" {name} held before the run. {_SUSPECT}"
    )


def stream_reference(name: StreamName, read: Read, start: int, stop: int) -> Float32:
    """Return what elements `start` to `stop` of a STREAM kernel's output must be, to the bit."""
    inputs = [read(array, start, stop) for array in STREAM_INPUTS[name]]
    if name == "copy":
        return inputs[0]
    if name == "scale":
        return (SCALAR * inputs[0].astype(np.float64)).astype(np.float32)
    weight = 1.0 if name == "add" else SCALAR
    return (inputs[0].astype(np.float64) + weight * inputs[1].astype(np.float64)).astype(np.float32)


class ContractionReference:
    """`dw[o,i] = sum_k dy[k,o] x[k,i]` in float64, for any prefix of k, kept for the kernels that share it.

    Parameters
    ----------
    read
        Reads rows of `dy` (k, m) and `x` (k, n).
    m, n
        Extents of the result.

    Notes
    -----
    A longer prefix continues from the longest shorter one known, so a whole sweep over k costs one product. Known ones
    are kept while they are small; at most one large result is in memory.
    """

    def __init__(self, read: Read, *, m: int, n: int) -> None:
        """Keep how to read the operands; nothing is computed yet."""
        self._read = read
        self._m = m
        self._n = n
        self._known: dict[int, Float64] = {}

    def at(self, k: int) -> Float64:
        """Return the reference over the first `k` rows, shape (m, n), to be used before the next is asked for."""
        if k not in self._known:
            start = max((known for known in self._known if known < k), default=0)
            total = self._known[start] if start else np.zeros((self._m, self._n))
            if (len(self._known) + 1) * total.nbytes > _KEPT_BYTES:
                self._known.clear()
            elif start:
                total = total.copy()
            step = max(1, _PART_BYTES // (8 * (self._m + self._n)))
            height = max(1, _PART_BYTES // (8 * self._n))
            for row in range(start, k, step):
                stop = min(row + step, k)
                dy = self._read("dy", row, stop).astype(np.float64)
                x = self._read("x", row, stop).astype(np.float64)
                for top in range(0, self._m, height):
                    total[top : top + height] += dy[:, top : top + height].T @ x
            self._known[k] = total
            time.sleep(_BLAS_SPIN_S)
        return self._known[k]


def check_contraction(kernel: str, candidate: str, got: Float32, reference: Float64, *, k: int) -> None:
    """Compare every cell of a contraction with its float64 reference.

    Parameters
    ----------
    kernel, candidate
        Names for the message.
    got
        Shape (m, n), float32.
    reference
        Shape (m, n), float64.
    k
        Reduction extent; a cell may be off by `k * 2^-23`.

    Raises
    ------
    VerificationError
        Names the kernel, the candidate, the first wrong cell, both values and how many differ.

    Notes
    -----
    With operands in [-1, 1) a partial sum stays in a random walk of about sqrt(k)/3, and k roundings of at most half
    a unit in the last place of it stay below k 2^-23 whatever the order of summation, while one product left out is
    of the order of 1/4. NaN compares as wrong.
    """
    rows, columns = got.shape
    step = max(1, _CHUNK // columns)
    first: tuple[int, float, float] | None = None
    count = 0
    for row in range(0, rows, step):
        part, expected = got[row : row + step], reference[row : row + step]
        wrong = ~(np.abs(part.astype(np.float64) - expected) <= k * 2.0**-23)
        here = int(np.count_nonzero(wrong))
        if here and first is None:
            at = int(np.argmax(wrong))
            first = (row * columns + at, float(part.flat[at]), float(expected.flat[at]))
        count += here
    if first is not None:
        raise _mismatch(kernel, candidate, first, count, got.size, columns=columns)


def fma_reference(start: NDArray[Any], steps: int) -> Float32:
    """Return what chains of `acc = acc * 1 + 1` hold after `steps` steps from `start`, exactly.

    Parameters
    ----------
    start
        Whole numbers, float32, any shape.
    steps
        Steps of each chain.

    Raises
    ------
    ValueError
        If a chain would reach 2^24, past which float32 no longer counts by one.

    Notes
    -----
    Multiplier and addend reach the kernel at run time, so no compiler can fold the chain, and a whole number proves
    that every step was taken.
    """
    end = start.astype(np.float64) + steps
    if end.size and float(end.max()) >= 2.0**24:
        raise ValueError(f"{steps} steps leave the range in which float32 counts by one; use fewer")
    return end.astype(np.float32)


def check_equal(kernel: str, candidate: str, got: Float32, expected: Float32) -> None:
    """Compare two float32 arrays of one shape to the bit; raises VerificationError."""
    different = got.view(np.uint32) != expected.view(np.uint32)
    count = int(np.count_nonzero(different))
    if count:
        at = int(np.argmax(different))
        raise _mismatch(kernel, candidate, (at, float(got.flat[at]), float(expected.flat[at])), count, got.size)


def _mismatch(
    kernel: str, candidate: str, first: tuple[int, float, float], wrong: int, total: int, *, columns: int | None = None
) -> VerificationError:
    at, got, expected = first
    index = f"[{at}]" if columns is None else f"[{at // columns}, {at % columns}]"
    return VerificationError(
        f"{kernel} {candidate}: {wrong} of {total} elements differ from the float64 reference; the first is {index}: "
        f"got {got!r}, expected {expected!r}. {_SUSPECT}"
    )
