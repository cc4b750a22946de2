"""Both contractions on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from kernels.backends.base import BlocktileKernel, ContractionProblem, Kernel, LaunchFacts, UntiledKernel
from kernels.backends.cc_compiler import Compiler
from kernels.backends.cc_team import Team
from kernels.backends.cc_workload import CcKernel, CcWorkload, entry_point
from kernels.errors import UnsupportedError
from kernels.parameters import Geometry
from kernels.verification import ContractionReference, check_contraction

GEOMETRIES = tuple(
    Geometry(*extents)
    for extents in ((32, 32, 8, 4, 4), (64, 64, 8, 4, 4), (32, 64, 8, 4, 4), (64, 32, 8, 4, 4), (128, 128, 8, 8, 8))
)
"""Blocktile geometries offered; the lead first."""


class ContractionWorkload(CcWorkload):
    """Operands dy (k, m) and x (k, n), the result dw (m, n), and the reference that the kernels share."""

    def __init__(self, compiler: Compiler, team: Team, problem: ContractionProblem) -> None:
        """Allocate and fill."""
        m, n, k = problem.m, problem.n, problem.k
        super().__init__(compiler, team, {"dw": (m, n), "dy": (k, m), "x": (k, n)}, reference_bytes=8 * m * n)
        self._problem = problem
        self._reference = ContractionReference(self._read, m=m, n=n)
        for seed, name in enumerate(("dy", "x"), start=1):
            team.fill(self.array(name), seed)
        team.poison(self.array("dw"))

    def prepare(self, kernel: Kernel) -> CcKernel:
        """Bind either contraction of these extents, over a prefix of k."""
        if not isinstance(kernel, UntiledKernel | BlocktileKernel):
            raise ValueError(f"{kernel} is no kernel of {self._problem}")
        if (kernel.m, kernel.n) != (self._problem.m, self._problem.n) or not 0 < kernel.k <= self._problem.k:
            raise ValueError(f"{kernel} is no kernel of {self._problem}")
        return self._untiled(kernel) if isinstance(kernel, UntiledKernel) else self._blocktile(kernel)

    def _untiled(self, kernel: UntiledKernel) -> CcKernel:
        if kernel.phase != "aligned":
            raise UnsupportedError(
                "blocks run one after another on a CPU, so the spread phase would show nothing; use aligned"
            )
        library = self._compiler.load("contraction.c")
        columns = int(library.untiled_columns())
        if kernel.n % columns:
            raise ValueError(f"n must be a multiple of {columns}, the block of the untiled kernel")
        blocks = kernel.m * (kernel.n // columns)
        return self._bound(
            entry_point(library, "untiled", pointers=3, extents=3),
            kernel,
            name="untiled",
            label=f"block={columns}x1",
            blocks=blocks,
            threads=columns,
            resident=min(blocks, self._team.threads),
        )

    def _blocktile(self, kernel: BlocktileKernel) -> CcKernel:
        g = kernel.geometry
        reason = geometry_reason(g)
        if reason is not None:
            raise UnsupportedError(f"{g.label} can't be run here: {reason}")
        if kernel.m % g.bm or kernel.n % g.bn or kernel.k % g.bk:
            raise ValueError(f"{g.label} does not tile m={kernel.m}, n={kernel.n}, k={kernel.k}")
        vector = next(
            width for width in (16, 8, 4) if width <= self._team.widest_vector and g.bm % width == 0 == g.bn % width
        )
        defines = {"BM": g.bm, "BN": g.bn, "BK": g.bk, "VECTOR": vector}
        library = self._compiler.load("blocktile.c", defines)
        blocks = (kernel.m // g.bm) * (kernel.n // g.bn)
        return self._bound(
            entry_point(library, "blocktile", pointers=3, extents=3),
            kernel,
            name="blocktile",
            label=g.label,
            blocks=blocks,
            threads=g.threads,
            resident=min(blocks, self._team.threads * int(library.blocktile_resident())),
        )

    def _bound(
        self,
        function: Callable[..., float],
        kernel: UntiledKernel | BlocktileKernel,
        *,
        name: str,
        label: str,
        blocks: int,
        threads: int,
        resident: int,
    ) -> CcKernel:
        m, n, k = kernel.m, kernel.n, kernel.k

        def run(batch: int) -> float:
            return function(*self.addresses("dw", "dy", "x"), m, n, k, self._team.threads, batch)

        def check() -> None:
            reference = self._reference.at(k)
            self._team.poison(self.array("dw"))
            run(1)
            check_contraction(name, f"{label} m={m} n={n} k={k}", self.array("dw"), reference, k=k)

        facts = LaunchFacts(
            label=label,
            blocks=blocks,
            threads=threads,
            flops=2 * m * n * k,
            bytes=4 * (k * (m + n) + m * n),
            resident_blocks=resident,
        )
        return CcKernel(facts=facts, run=run, check=check)


def geometry_reason(geometry: Geometry) -> str | None:
    """Return why a geometry is not of the family of C kernels; None if it is.

    Notes
    -----
    bm and bn 8 to 128 and multiples of 8, so that rows of a block are whole vectors; bk 1 to 64, as it is unrolled; tm
    and tn 1, 2, 4 or 8, which divide any such block. The (bm/tm) (bn/tn) threads are nominal on a CPU: they are the
    lanes and registers of the one core that runs a block.
    """
    for name in ("bm", "bn"):
        extent = getattr(geometry, name)
        if not 8 <= extent <= 128 or extent % 8:
            return f"{name} must be a multiple of 8 from 8 to 128"
    if not 1 <= geometry.bk <= 64:
        return "bk must be from 1 to 64"
    if geometry.tm not in (1, 2, 4, 8) or geometry.tn not in (1, 2, 4, 8):
        return "tm and tn must be 1, 2, 4 or 8"
    return None
