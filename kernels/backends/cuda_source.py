"""Which CUDA C source, macros, grid and arguments run a kernel, and what it counts. Pure: no CuPy, no device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from kernels.backends.base import BlocktileKernel, FmaKernel, Phase, StreamCandidate, StreamKernel, UntiledKernel
from kernels.parameters import LEAD, UNTILED_K_STEP, WIDE, Geometry, contraction_bytes, untiled_block
from kernels.verification import STREAM_FLOPS, STREAM_INPUTS, STREAM_OUTPUT, stream_streams

OPTIONS = ("-std=c++17",)
"""Compiler options of every kernel; geometry is in `#define` lines, which NVRTC and HIPRTC take alike."""

GEOMETRIES = (LEAD, WIDE, Geometry(128, 64, 8, 8, 4), Geometry(128, 128, 8, 8, 8))
"""The register-blocktiled family: those whose resources are checked on every supported architecture."""

STREAM_CANDIDATES = tuple(
    StreamCandidate(*shape)
    for shape in (
        (256, 4, 1),
        (256, 4, 2),
        (256, 4, 4),
        (512, 4, 1),
        (512, 4, 2),
        (1024, 4, 1),
        (256, 2, 4),
        (256, 1, 8),
    )
)
"""(block, vector, per_thread): mostly 16-byte accesses, with 16 to 64 bytes a thread and array in flight."""

FMA_BLOCK = 256
FMA_CHAINS = 16
"""Independent chains a thread: with the eight warps a scheduler has, 32 times the four cycles an FMA takes."""

_MAX_GRID_Y = 65535  # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"


@dataclass(frozen=True)
class Plan:
    """One kernel, ready to be compiled and launched.

    Parameters
    ----------
    source
        Stem of the file in `kernels/src`.
    macros
        Compile-time integers, in the order they are defined.
    entry
        Name of the `extern "C"` kernel.
    grid, block
        Extents x and y; z is 1.
    arguments
        In the kernel's order: an array's name (a device pointer), an int (64 bits) or a float (32 bits).
    label
        The candidate, as a row's label column.
    flops, bytes
        Operations (an FMA counts two) and distinct bytes read and written, over the launch.
    guarded
        Whether accesses are guarded, so that the counts are upper bounds.
    """

    source: str
    macros: tuple[tuple[str, int], ...]
    entry: str
    grid: tuple[int, int]
    block: tuple[int, int]
    arguments: tuple[str | int | float, ...]
    label: str
    flops: int
    bytes: int
    guarded: bool = False
    facts: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.grid[0] * self.grid[1]

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.block[0] * self.block[1]

    @property
    def text(self) -> str:
        """The whole translation unit: the geometry's macros, then the source with its header in place."""
        defines = "".join(f"#define {name} {value}\n" for name, value in self.macros)
        return defines + source_text(self.source)


@functools.cache
def source_text(stem: str) -> str:
    """Return `kernels/src/<stem>.cu` with the header put in place, since a run-time compiler has no include path."""
    folder = files("kernels") / "src"
    include = '#include "device.cuh"\n'
    text = (folder / f"{stem}.cu").read_text(encoding="utf-8")
    return text.replace(include, (folder / "device.cuh").read_text(encoding="utf-8"))


def plan_stream(kernel: StreamKernel) -> Plan:
    """
    Plan a STREAM kernel; an extent that `block x vector x per_thread` does not divide is guarded.

    Raises
    ------
    ValueError
        When `elems` is not positive or the vector is not of 1, 2 or 4 lanes.

    References
    ----------
    calibration-rows.md, "Stream kernels and why their rows count".
    """
    candidate = kernel.candidate
    if kernel.elems < 1 or candidate.vector not in (1, 2, 4):
        raise ValueError(f"no STREAM kernel for {kernel.elems} elements and a vector of {candidate.vector}")
    block_elems = candidate.block * candidate.vector * candidate.per_thread
    guarded = kernel.elems % block_elems != 0
    return Plan(
        source="stream",
        macros=(
            ("VECTOR", candidate.vector),
            ("BLOCK", candidate.block),
            ("PER_THREAD", candidate.per_thread),
            ("GUARDED", int(guarded)),
        ),
        entry=f"stream_{kernel.name}",
        grid=(-(-kernel.elems // block_elems), 1),
        block=(candidate.block, 1),
        arguments=(*STREAM_INPUTS[kernel.name], STREAM_OUTPUT[kernel.name], kernel.elems),
        label=candidate.label,
        flops=STREAM_FLOPS[kernel.name] * kernel.elems,
        bytes=stream_streams(kernel.name) * 4 * kernel.elems,
        guarded=guarded,
    )


def plan_untiled(kernel: UntiledKernel, *, block: tuple[int, int] | None = None) -> Plan:
    """
    Plan the untiled contraction over blocks of `block` cells along n and m; 256 x 1 unless asked.

    Raises
    ------
    ValueError
        When the block does not divide the output, or the unrolled step the reduction.

    Notes
    -----
    A 256 x 1 block requests 1028 bytes a step for sixteen loads by a warp and a 32 x 8 block 160 bytes for as many, so
    only the former lets the cache, rather than the load units, set the rate.
    """
    x, y = block or (untiled_block("cuda"), 1)
    if kernel.n % x or kernel.m % y or kernel.k % UNTILED_K_STEP or min(kernel.m, kernel.n, kernel.k) < 1:
        raise ValueError(
            f"an untiled {x}x{y} block needs n a multiple of {x}, m of {y} and k of {UNTILED_K_STEP}, "
            f"not m={kernel.m}, n={kernel.n}, k={kernel.k}"
        )
    return Plan(
        source="contraction",
        macros=(("BLOCK_X", x), ("BLOCK_Y", y), ("SPREAD", int(kernel.phase == "spread"))),
        entry="contraction",
        grid=_contraction_grid(kernel.n // x, kernel.m // y),
        block=(x, y),
        arguments=("dy", "x", "dw", kernel.m, kernel.n, kernel.k),
        label=f"block={x}x{y},phase={kernel.phase}",
        flops=2 * kernel.m * kernel.n * kernel.k,
        bytes=contraction_bytes(kernel.m, kernel.n, kernel.k),
        facts={"phase": kernel.phase},
    )


def plan_blocktile(kernel: BlocktileKernel) -> Plan:
    """
    Plan the register-blocktiled contraction at its geometry.

    Raises
    ------
    ValueError
        When the thread tile is no multiple of 4, or the block tile does not divide m, n and k.
    """
    geometry = kernel.geometry
    if geometry.tm % 4 or geometry.tn % 4:
        raise ValueError(f"{geometry.label}: the thread tile must be a multiple of 4 x 4")
    if not geometry.tiles(kernel.m, kernel.n) or kernel.k % geometry.bk or min(kernel.m, kernel.n, kernel.k) < 1:
        raise ValueError(f"{geometry.label} does not divide m={kernel.m}, n={kernel.n}, k={kernel.k}")
    return Plan(
        source="blocktile",
        macros=(
            ("BM", geometry.bm),
            ("BN", geometry.bn),
            ("BK", geometry.bk),
            ("TM", geometry.tm),
            ("TN", geometry.tn),
        ),
        entry="blocktile",
        grid=_contraction_grid(kernel.n // geometry.bn, kernel.m // geometry.bm),
        block=(geometry.threads, 1),
        arguments=("dy", "x", "dw", kernel.m, kernel.n, kernel.k),
        label=f"geometry={geometry.label}",
        flops=2 * kernel.m * kernel.n * kernel.k,
        bytes=contraction_bytes(kernel.m, kernel.n, kernel.k),
    )


def plan_fma(kernel: FmaKernel, *, blocks: int) -> Plan:
    """
    Plan the register-only FMA chains over `blocks` blocks, which a caller sets to fill the device.

    Raises
    ------
    ValueError
        When there are no steps, or so many that a chain leaves the range in which float32 counts by one.

    Notes
    -----
    A chain counts up by one a step, from less than `FMA_BLOCK + FMA_CHAINS`: whole numbers, exact below 2^24.
    """
    most = (1 << 24) - FMA_BLOCK - FMA_CHAINS
    if not 1 <= kernel.steps <= most:
        raise ValueError(f"steps must be from 1 to {most}, not {kernel.steps}")
    chains = blocks * FMA_BLOCK * FMA_CHAINS
    return Plan(
        source="fma",
        macros=(("BLOCK", FMA_BLOCK), ("CHAINS", FMA_CHAINS)),
        entry="fma_chains",
        grid=(blocks, 1),
        block=(FMA_BLOCK, 1),
        arguments=("out", 1.0, 1.0, kernel.steps),
        label=f"block={FMA_BLOCK},chains={FMA_CHAINS}",
        flops=2 * chains * kernel.steps,
        bytes=4 * chains,
        facts={"steps": kernel.steps},
    )


def plan_empty() -> Plan:
    """Plan a kernel that does nothing, for the launch latency."""
    return Plan("fma", (("BLOCK", FMA_BLOCK), ("CHAINS", FMA_CHAINS)), "empty", (1, 1), (32, 1), (), "empty", 0, 0)


def every_plan() -> list[Plan]:
    """Return one plan of each source, variant and geometry there is: what the compile checks compile."""
    exact = [StreamKernel("copy", 1 << 26, each) for each in STREAM_CANDIDATES]
    guarded = [StreamKernel("copy", 1000003, StreamCandidate(256, vector, 4)) for vector in (4, 2, 1)]
    phases: tuple[Phase, ...] = ("aligned", "spread")
    blocks = ((256, 1), (32, 8))
    return [
        *(plan_stream(kernel) for kernel in (*exact, *guarded)),
        *(plan_untiled(UntiledKernel(256, 1024, 256, phase), block=block) for phase in phases for block in blocks),
        *(plan_blocktile(BlocktileKernel(each, 1024, 1024, 256)) for each in GEOMETRIES),
        plan_fma(FmaKernel(1024), blocks=1),
    ]


def _contraction_grid(columns: int, rows: int) -> tuple[int, int]:
    if rows > _MAX_GRID_Y:
        raise ValueError(f"{rows} blocks along m; a grid has at most {_MAX_GRID_Y}")
    return columns, rows
