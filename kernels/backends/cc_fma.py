"""The register-only FMA chains on the CPU."""

from __future__ import annotations

import ctypes

import numpy as np

from kernels.backends.base import FmaKernel, FmaProblem, Kernel, LaunchFacts
from kernels.backends.cc_compiler import Compiler
from kernels.backends.cc_team import C_INT64, C_POINTER, Team
from kernels.backends.cc_workload import CcKernel, CcWorkload
from kernels.verification import check_equal, fma_reference

_FMA_STARTS = 1024  # chains start at 0 to 1023, which leaves 2^24 - 1024 exact steps


class FmaWorkload(CcWorkload):
    """Where the chains start and end: one cell a lane."""

    def __init__(self, compiler: Compiler, team: Team, problem: FmaProblem) -> None:
        """Allocate and set the starts."""
        self._library = compiler.load("fma.c")
        self._cells = int(self._library.fma_cells())
        super().__init__(compiler, team, dict.fromkeys(("start", "out"), (team.threads * self._cells,)))
        self._problem = problem
        self.array("start")[:] = np.arange(team.threads * self._cells) % _FMA_STARTS

    def prepare(self, kernel: Kernel) -> CcKernel:
        """Bind the chains; raises ValueError for more steps than float32 counts."""
        if not isinstance(kernel, FmaKernel) or kernel.steps < 1:
            raise ValueError(f"{kernel} is no kernel of {self._problem}")
        expected = fma_reference(self.array("start"), kernel.steps)
        function = self._library.fma_chains
        function.argtypes = [C_POINTER, C_POINTER, C_INT64, ctypes.c_float, ctypes.c_float, ctypes.c_int, C_INT64]
        function.restype = ctypes.c_double
        team = self._team

        def run(batch: int) -> float:
            return float(function(*self.addresses("out", "start"), kernel.steps, 1.0, 1.0, team.threads, batch))

        def check() -> None:
            team.poison(self.array("out"))
            run(1)
            check_equal("fma", f"steps={kernel.steps}", self.array("out"), expected)

        cells = team.threads * self._cells
        facts = LaunchFacts(
            label=f"steps={kernel.steps}",
            blocks=team.threads,
            threads=self._cells,
            flops=2 * cells * kernel.steps,
            bytes=8 * cells,
            resident_blocks=team.threads,
        )
        return CcKernel(facts=facts, run=run, check=check)
