"""The arrays of one problem on a GPU, their contents, and the check of what a kernel made of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kernels.backends.base import (
    BlocktileKernel,
    ContractionProblem,
    FmaKernel,
    Kernel,
    StreamKernel,
    StreamName,
    StreamProblem,
    UntiledKernel,
)
from kernels.backends.cuda_context import Arguments, Context, Function
from kernels.backends.cuda_kernel import CudaKernel
from kernels.backends.cuda_source import (
    FMA_BLOCK,
    FMA_CHAINS,
    Plan,
    plan_blocktile,
    plan_fma,
    plan_stream,
    plan_untiled,
)
from kernels.errors import OutOfMemoryError, VerificationError
from kernels.verification import (
    STREAM_OUTPUT,
    ContractionReference,
    Read,
    check_contraction,
    check_equal,
    check_stream,
    fma_reference,
    stream_reference,
)

Float32 = NDArray[np.float32]
Contents = Literal["random", "constant"]

PERIOD = 4_194_301
"""Elements after which STREAM inputs repeat: the largest prime below 2^22, so that no power-of-two error in an index
lands on an equal value, while a host buffer of 16 MiB holds all there is to know of an array of any size."""
REUSE_BYTES = 1 << 30
"""Least bytes between two uses of an address: eight times the 126 MB of L2 that a B200 has, see `docs/gpu.md`."""
MOST_BUFFER_SETS = 8
_SEED = 20240229


class _Workload:
    """What the three share: pointers by name, compiled kernels, and an end that frees both."""

    def __init__(self, context: Context, multiprocessors: int) -> None:
        self._context = context
        self._multiprocessors = multiprocessors
        self._pointers: list[dict[str, int]] = []
        self._kernels: list[CudaKernel] = []

    def _bind(self, plan: Plan, check: Callable[[CudaKernel], None], function: Function | None = None) -> CudaKernel:
        context = self._context
        kernel = CudaKernel(
            context,
            function or context.function(plan),
            plan,
            [Arguments(plan.arguments, pointers) for pointers in self._pointers],
            multiprocessors=self._multiprocessors,
            check=check,
        )
        self._kernels.append(kernel)
        return kernel

    def _allocate(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Allocate float32 arrays of these element counts, all or none."""
        pointers: dict[str, int] = {}
        try:
            for name, count in sizes.items():
                pointers[name] = self._context.allocate(4 * count)
        except OutOfMemoryError:
            self._free(pointers)
            raise
        self._pointers.append(pointers)
        return pointers

    def _free(self, pointers: Mapping[str, int]) -> None:
        for pointer in pointers.values():
            self._context.free(pointer)

    def close(self) -> None:
        """Free graphs and arrays."""
        for kernel in self._kernels:
            kernel.close()
        for pointers in self._pointers:
            self._free(pointers)
        self._pointers.clear()


class StreamWorkload(_Workload):
    """Sets of three arrays `a`, `b`, `c` that launches take in turn, so that none is found in a cache.

    Parameters
    ----------
    context, multiprocessors
        The context and its size.
    problem
        The extent.
    contents
        `random`: uniform in [-1, 1). `constant`: one value, to see whether the device compresses it.

    Raises
    ------
    OutOfMemoryError
        When not even one set fits.

    Notes
    -----
    A kernel touches at least two arrays, hence 1 GiB / (2 arrays) sets; fewer where memory is short. Turning to other
    arrays is preferred to clearing the cache between samples: a clear leaves dirty lines, whose write-back would land
    in the timed kernel, while here each launch writes back as much of its predecessor's as it leaves of its own.
    """

    def __init__(
        self, context: Context, multiprocessors: int, problem: StreamProblem, contents: Contents = "random"
    ) -> None:
        """Allocate and fill."""
        super().__init__(context, multiprocessors)
        self._elems = problem.elems
        count = min(PERIOD, problem.elems)
        random = np.random.default_rng(_SEED)
        self._tiles: dict[str, Float32] = {
            name: _uniform(random, (count,)) if contents == "random" else np.full(count, 0.5, np.float32)
            for name in ("a", "b", "c")
        }
        self._expected: dict[StreamName, Float32] = {}
        self._device_tiles: dict[str, int] = {}
        try:
            self._allocate_sets()
        except OutOfMemoryError:
            self.close()
            raise
        for name, tile in self._tiles.items():
            context.upload(self._device_tiles[name], tile)
        for pointers in self._pointers:
            self._fill(pointers)
        context.synchronize()

    def _allocate_sets(self) -> None:
        sizes = dict.fromkeys(self._tiles, self._elems)
        self._allocate(sizes)
        for name, tile in self._tiles.items():
            self._device_tiles[name] = self._context.allocate(tile.nbytes)
        wanted = min(MOST_BUFFER_SETS, math.ceil(REUSE_BYTES / (2 * 4 * self._elems)))
        with contextlib.suppress(OutOfMemoryError):  # fewer sets then, which the launch facts tell
            for _ in range(wanted - 1):
                self._allocate(sizes)

    def prepare(self, kernel: Kernel) -> CudaKernel:
        """Compile and bind a STREAM kernel of this extent; raises CompileError, ValueError."""
        if not isinstance(kernel, StreamKernel) or kernel.elems != self._elems:
            raise ValueError(f"{kernel} is no STREAM kernel over {self._elems} elements")
        return self._bind(plan_stream(kernel), lambda bound: self._verify(kernel, bound))

    def _fill(self, pointers: Mapping[str, int]) -> None:
        for name, tile in self._tiles.items():
            for start in range(0, self._elems, tile.size):
                count = 4 * min(tile.size, self._elems - start)
                self._context.copy(pointers[name] + 4 * start, self._device_tiles[name], count)

    def _verify(self, kernel: StreamKernel, bound: CudaKernel) -> None:
        """Compare a period at a time with the reference of one period, to the bit.

        Earlier kernels wrote over the inputs of this one, so the arrays are filled anew first.
        """
        output = STREAM_OUTPUT[kernel.name]
        if kernel.name not in self._expected:
            read_tile: Read = lambda name, start, stop: self._tiles[name][start:stop]  # noqa: E731
            self._expected[kernel.name] = stream_reference(kernel.name, read_tile, 0, min(PERIOD, self._elems))
        expected = self._expected[kernel.name]
        for index, pointers in enumerate(self._pointers):
            self._fill(pointers)
            self._context.poison(pointers[output], 4 * self._elems)
            bound.run_on(index)
            for start in range(0, self._elems, PERIOD):
                count = min(PERIOD, self._elems - start)
                got = self._context.download(pointers[output] + 4 * start, count)
                if not np.array_equal(got.view(np.uint32), expected[:count].view(np.uint32)):
                    check_stream(kernel, self._reader(pointers, output))
                    raise VerificationError(
                        f"stream_{kernel.name} {kernel.candidate.label}: wrong past element {start} when read once and "
                        "right when read again. None of its times count. Suspect this device's memory or its link."
                    )
        self._context.synchronize()

    def _reader(self, pointers: Mapping[str, int], output: str) -> Read:
        """Read the output off the device, and inputs as they were: a kernel may have spoilt them there."""

        def read(array: str, start: int, stop: int) -> Float32:
            if array == output:
                return self._context.download(pointers[array] + 4 * start, stop - start).copy()
            return self._tiles[array].take(np.arange(start, stop), mode="wrap")

        return read

    def close(self) -> None:
        """Free the arrays and the periods they are filled from."""
        super().close()
        self._free(self._device_tiles)
        self._device_tiles.clear()


class ContractionWorkload(_Workload):
    """`dy` (k, m), `x` (k, n) and `dw` (m, n); raises OutOfMemoryError when they do not fit."""

    def __init__(self, context: Context, multiprocessors: int, problem: ContractionProblem) -> None:
        """Allocate and fill; the operands stay on the host too, for the reference."""
        super().__init__(context, multiprocessors)
        self._problem = problem
        m, n, k = problem.m, problem.n, problem.k
        pointers = self._allocate({"dy": k * m, "x": k * n, "dw": m * n})
        random = np.random.default_rng(_SEED)
        operands = {"dy": _uniform(random, (k, m)), "x": _uniform(random, (k, n))}
        for name, operand in operands.items():
            context.upload(pointers[name], operand)
        self._reference = ContractionReference(lambda name, start, stop: operands[name][start:stop], m=m, n=n)

    def prepare(self, kernel: Kernel) -> CudaKernel:
        """Compile and bind a contraction of this output over a prefix of k; raises CompileError, ValueError."""
        if not isinstance(kernel, UntiledKernel | BlocktileKernel):
            raise ValueError(f"{kernel} is no contraction")
        problem = self._problem
        if (kernel.m, kernel.n) != (problem.m, problem.n) or kernel.k > problem.k:
            raise ValueError(f"{kernel} is no contraction of {problem}")
        plan = plan_untiled(kernel) if isinstance(kernel, UntiledKernel) else plan_blocktile(kernel)
        return self.prepare_plan(plan, kernel.k)

    def prepare_plan(self, plan: Plan, k: int) -> CudaKernel:
        """Compile and bind a contraction that was planned elsewhere, for example over another block shape."""
        return self._bind(plan, lambda bound: self._verify(plan, k, bound))

    def _verify(self, plan: Plan, k: int, bound: CudaKernel) -> None:
        m, n = self._problem.m, self._problem.n
        (pointers,) = self._pointers
        self._context.poison(pointers["dw"], 4 * m * n)
        bound.run_on(0)
        got = self._context.download(pointers["dw"], m * n).reshape(m, n)
        check_contraction(plan.entry, plan.label, got, self._reference.at(k), k=k)


class FmaWorkload(_Workload):
    """One output cell for each chain of the threads that are resident at once."""

    def prepare(self, kernel: Kernel) -> CudaKernel:
        """Compile and bind FMA chains on as many blocks as are resident at once; raises CompileError, ValueError."""
        if not isinstance(kernel, FmaKernel):
            raise ValueError(f"{kernel} is no FMA kernel")
        function = self._context.function(plan_fma(kernel, blocks=1))
        blocks = self._multiprocessors * function.blocks_per_multiprocessor
        plan = plan_fma(kernel, blocks=blocks)
        if not self._pointers:
            self._allocate({"out": blocks * FMA_BLOCK * FMA_CHAINS})
        return self._bind(plan, lambda bound: self._verify(plan, kernel.steps, bound), function)

    def _verify(self, plan: Plan, steps: int, bound: CudaKernel) -> None:
        (pointers,) = self._pointers
        chains = plan.blocks * FMA_BLOCK * FMA_CHAINS
        self._context.poison(pointers["out"], 4 * chains)
        bound.run_on(0)
        starts = np.add.outer(np.arange(FMA_CHAINS), np.tile(np.arange(FMA_BLOCK), plan.blocks)).ravel()
        check_equal(
            plan.entry, plan.label, self._context.download(pointers["out"], chains), fma_reference(starts, steps)
        )


def _uniform(random: np.random.Generator, shape: tuple[int, ...]) -> Float32:
    """Uniform float32 in [-1, 1): multiples of 2^-23."""
    values = random.random(shape, dtype=np.float32)
    values *= 2
    values -= 1
    return values
