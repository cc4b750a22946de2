"""STREAM on the CPU."""

from __future__ import annotations

from kernels.backends.base import Kernel, LaunchFacts, StreamKernel, StreamProblem
from kernels.backends.cc_compiler import Compiler
from kernels.backends.cc_team import Team
from kernels.backends.cc_workload import CcKernel, CcWorkload, entry_point
from kernels.errors import UnsupportedError
from kernels.verification import (
    STREAM_FLOPS,
    STREAM_INPUTS,
    STREAM_OUTPUT,
    check_stream,
    spoilt_input,
    stream_streams,
)


class StreamWorkload(CcWorkload):
    """Arrays a, b, c; an array that a kernel wrote is filled anew before another one reads it."""

    def __init__(self, compiler: Compiler, team: Team, problem: StreamProblem) -> None:
        """Allocate and fill."""
        super().__init__(compiler, team, dict.fromkeys("abc", (problem.elems,)))
        self._problem = problem
        self._written = set("abc")
        for name in "abc":
            self._refresh(name)

    def prepare(self, kernel: Kernel) -> CcKernel:
        """Bind a STREAM kernel of this extent."""
        if not isinstance(kernel, StreamKernel) or kernel.elems != self._problem.elems:
            raise ValueError(f"{kernel} is no kernel of {self._problem}")
        candidate, elems = kernel.candidate, kernel.elems
        defines = {"BLOCK": candidate.block, "VECTOR": candidate.vector, "PER_THREAD": candidate.per_thread}
        if candidate.vector > self._team.widest_vector or candidate.block % candidate.per_thread:
            raise UnsupportedError(
                f"{candidate.label}: vectors here have at most {self._team.widest_vector} floats, and ept divides block"
            )
        function = entry_point(self._compiler.load("stream.c", defines), f"stream_{kernel.name}", pointers=3, extents=1)
        inputs, output = STREAM_INPUTS[kernel.name], STREAM_OUTPUT[kernel.name]
        operands = (output, inputs[0], inputs[-1])

        def run(batch: int) -> float:
            self._written.add(output)
            return function(*self.addresses(*operands), elems, self._team.threads, batch)

        def check() -> None:
            for name in inputs:
                self._refresh(name)
            self._team.poison(self.array(output))
            run(1)
            for name in inputs:
                spoilt = self._team.changed(self.array(name), seed=ord(name))
                if spoilt:
                    raise spoilt_input(kernel, name, spoilt)
            check_stream(kernel, self._read)

        chunk = candidate.block * candidate.vector
        guarded = elems % chunk != 0
        blocks = -(-elems // chunk)
        return CcKernel(
            facts=LaunchFacts(
                label=candidate.label,
                blocks=blocks,
                threads=candidate.block,
                flops=STREAM_FLOPS[kernel.name] * elems,
                bytes=4 * stream_streams(kernel.name) * elems,
                resident_blocks=min(blocks, self._team.threads),
                flops_approx=guarded and STREAM_FLOPS[kernel.name] > 0,
                bytes_approx=guarded,
                resources={"streaming_stores": self._team.streaming_stores, "counting": "stream"},
            ),
            run=run,
            check=check,
        )

    def _refresh(self, name: str) -> None:
        if name in self._written:
            self._team.fill(self.array(name), seed=ord(name))
            self._written.discard(name)
