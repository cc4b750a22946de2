"""Launch shapes and exact counts of the simulated device's kernels."""

from __future__ import annotations

from kernels.backends.base import (
    BlocktileKernel,
    ContractionProblem,
    FmaKernel,
    FmaProblem,
    Kernel,
    LaunchFacts,
    Problem,
    StreamKernel,
    StreamProblem,
    UntiledKernel,
)
from kernels.backends.truth import Truth
from kernels.errors import UnsupportedError
from kernels.parameters import contraction_bytes, untiled_block

RESIDENT_THREADS = 2048
"""Threads a multiprocessor holds at once, as on NVIDIA's data-centre GPUs (CUDA C Programming Guide, table of
technical specifications per compute capability)."""

_STREAMS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}
_STREAM_OPS = {"copy": 0, "scale": 1, "add": 1, "triad": 2}
_FMA_THREADS = 256
_FMA_CHAINS = 8


def problem_bytes(problem: Problem) -> int:
    """Return the bytes of a problem's arrays."""
    if isinstance(problem, StreamProblem):
        return 12 * problem.elems
    if isinstance(problem, ContractionProblem):
        return contraction_bytes(problem.m, problem.n, problem.k)
    return 0


def launch_facts(kernel: Kernel, problem: Problem, truth: Truth) -> LaunchFacts:
    """Return launch shape and exact counts of a kernel over its problem.

    Raises
    ------
    ValueError, UnsupportedError
        As `SimulatedWorkload.prepare`.
    """
    if isinstance(kernel, StreamKernel) and problem == StreamProblem(kernel.elems):
        chunk = kernel.candidate.block * kernel.candidate.vector * kernel.candidate.per_thread
        guarded = kernel.elems % chunk != 0
        operations = _STREAM_OPS[kernel.name] * kernel.elems
        return _facts(
            truth,
            label=kernel.candidate.label,
            blocks=-(-kernel.elems // chunk),
            threads=kernel.candidate.block,
            flops=operations,
            bytes_=4 * _STREAMS[kernel.name] * kernel.elems,
            flops_approx=guarded and operations > 0,
            bytes_approx=guarded,
        )
    if isinstance(kernel, FmaKernel) and isinstance(problem, FmaProblem):
        threads = truth.multiprocessors * RESIDENT_THREADS
        return _facts(
            truth,
            label=f"chains={_FMA_CHAINS},steps={kernel.steps}",
            blocks=threads // _FMA_THREADS,
            threads=_FMA_THREADS,
            flops=2 * _FMA_CHAINS * kernel.steps * threads,
            bytes_=4 * threads,
        )
    if isinstance(kernel, UntiledKernel | BlocktileKernel) and isinstance(problem, ContractionProblem):
        if (kernel.m, kernel.n) != (problem.m, problem.n) or kernel.k > problem.k:
            raise ValueError(f"{kernel} is not of the problem {problem}")
        return _contraction_facts(kernel, truth)
    raise ValueError(f"{kernel} is not of the problem {problem}")


def _contraction_facts(kernel: UntiledKernel | BlocktileKernel, truth: Truth) -> LaunchFacts:
    m, n, k = kernel.m, kernel.n, kernel.k
    if isinstance(kernel, UntiledKernel):
        threads = untiled_block("simulated")
        tile_m, tile_n, tile_k, label = 1, threads, 1, f"untiled {threads}x1 {kernel.phase}"
    else:
        geometry = kernel.geometry
        if geometry.label not in truth.geometry_factors:
            raise UnsupportedError(f"the device has no geometry {geometry.label}")
        threads = geometry.threads
        tile_m, tile_n, tile_k, label = geometry.bm, geometry.bn, geometry.bk, geometry.label
    if m % tile_m or n % tile_n or k % tile_k:
        raise ValueError(f"{label} does not tile m={m} n={n} k={k}")
    return _facts(
        truth,
        label=label,
        blocks=(m // tile_m) * (n // tile_n),
        threads=threads,
        flops=2 * m * n * k,
        bytes_=contraction_bytes(m, n, k),
    )


def _facts(
    truth: Truth,
    *,
    label: str,
    blocks: int,
    threads: int,
    flops: int,
    bytes_: int,
    flops_approx: bool = False,
    bytes_approx: bool = False,
) -> LaunchFacts:
    resident = truth.multiprocessors * (RESIDENT_THREADS // threads)
    return LaunchFacts(
        label=label,
        blocks=blocks,
        threads=threads,
        flops=flops,
        bytes=bytes_,
        resident_blocks=min(blocks, resident),
        flops_approx=flops_approx,
        bytes_approx=bytes_approx,
        resources={"simulated": True},
    )
