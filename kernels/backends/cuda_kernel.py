"""A compiled CUDA kernel bound to its arrays: facts, verification, and times by the host's and the device's clock."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence

from kernels.backends.base import LaunchFacts, Sample
from kernels.backends.cuda_context import Arguments, Context, Function
from kernels.backends.cuda_source import Plan

_SHORT_MS = 0.1
"""Below this a launch call may outlast the kernel, and a queue of launches runs dry: a graph is launched instead."""
_MOST_FILLERS = 32
_GRAIN_MS = 0.0005
"""Resolution of the time between two events: less is read as 0 (CUDA Runtime API, cudaEventElapsedTime)."""
_LONG_MS = 1.0
"""Above this the few microseconds that a time stamp on an idle stream adds are under half a per cent."""


class CudaKernel:
    """See `kernels.backends.base.PreparedKernel`.

    Parameters
    ----------
    context
        The context.
    function, plan
        What to launch.
    arguments
        One pack of arguments a set of arrays; launches take the sets in turn.
    multiprocessors
        Of the device.
    check
        Runs the kernel on poisoned outputs and compares; raises VerificationError.
    """

    def __init__(
        self,
        context: Context,
        function: Function,
        plan: Plan,
        arguments: Sequence[Arguments],
        *,
        multiprocessors: int,
        check: Callable[[CudaKernel], None],
    ) -> None:
        """Bind; nothing runs yet."""
        self._context = context
        self._function = function
        self._plan = plan
        self._arguments = arguments
        self._check = check
        self._turn = 0
        self._last_ms = float("inf")
        self._graph: tuple[int, int] | None = None  # launches in it, executable
        resident = min(plan.blocks, multiprocessors * function.blocks_per_multiprocessor)
        self._facts = LaunchFacts(
            label=plan.label,
            blocks=plan.blocks,
            threads=plan.threads,
            flops=plan.flops,
            bytes=plan.bytes,
            resident_blocks=resident,
            flops_approx=plan.guarded and plan.flops > 0,
            bytes_approx=plan.guarded,
            resources={
                "registers": function.registers,
                "shared_bytes": function.shared_bytes,
                "local_bytes": function.local_bytes,
                "blocks_per_multiprocessor": function.blocks_per_multiprocessor,
                "buffer_sets": len(arguments),
                **plan.facts,
            },
        )

    @property
    def facts(self) -> LaunchFacts:
        """Launch shape, exact counts, and the resources the driver reports."""
        return self._facts

    def verify(self) -> None:
        """Poison every set of outputs, run once on each and compare every element; raises VerificationError."""
        self._check(self)

    def run_on(self, index: int) -> None:
        """Run once on one set of arrays, and wait."""
        self._context.launch(self._function, self._plan, self._arguments[index])
        self._context.synchronize()

    def sample(self) -> Sample:
        """Run synced: the wall time of one launch on an idle device, and the device's time of one.

        Notes
        -----
        A time stamp on an idle stream is taken at once, so the launch's own delay would count as device time. A long
        kernel hides that; for a short one the device time comes from a launch queued behind another.
        """
        context = self._context
        if self._last_ms >= _LONG_MS:
            context.record(context.start)
            began = time.perf_counter()
            self._launch()
            context.record(context.end)
            context.synchronize()
            wall_ms = (time.perf_counter() - began) * 1e3
        else:
            began = time.perf_counter()
            self._launch()
            context.synchronize()
            wall_ms = (time.perf_counter() - began) * 1e3
            self._launch()
            context.record(context.start)
            self._launch()
            context.record(context.end)
            context.synchronize()
        self._last_ms = wall_ms
        return Sample(wall_ms=wall_ms, device_ms=context.elapsed_ms())

    def sample_queued(self, batch: int) -> Sample:
        """Run `batch` launches back to back behind launches that are not timed; times are per launch.

        Raises
        ------
        ValueError
            When `batch` is not positive.
        """
        if batch < 1:
            raise ValueError(f"a batch has at least one launch, not {batch}")
        context = self._context
        if self._last_ms == float("inf"):
            self.sample()
        short = self._last_ms < _SHORT_MS
        executable = self._captured(batch) if short else None
        if executable is None:
            replay = functools.partial(self._launches, batch)
        else:
            replay = functools.partial(context.call, context.runtime.graphLaunch, executable, context.stream)
        fillers = min(_MOST_FILLERS, math.ceil(_SHORT_MS / max(self._last_ms * batch, _GRAIN_MS))) if short else 0
        began = time.perf_counter()
        for _ in range(fillers):
            replay()
        if not fillers:
            self._launches(1)
        context.record(context.start)
        replay()
        context.record(context.end)
        context.synchronize()
        launched = batch * (fillers + 1) if fillers else batch + 1
        wall_ms = (time.perf_counter() - began) * 1e3 / launched
        self._last_ms = context.elapsed_ms() / batch
        return Sample(wall_ms=wall_ms, device_ms=self._last_ms)

    def _launches(self, count: int) -> None:
        for _ in range(count):
            self._launch()

    def _captured(self, batch: int) -> int | None:
        """The graph of `batch` launches, kept until another size is asked for; None where there are no graphs."""
        if self._graph is None or self._graph[0] != batch:
            self.close()
            executable = self._context.graph(functools.partial(self._launches, batch))
            self._graph = None if executable is None else (batch, executable)
        return None if self._graph is None else self._graph[1]

    def close(self) -> None:
        """Give the graph back."""
        if self._graph is not None:
            self._context.release(self._context.runtime.graphExecDestroy, self._graph[1])
            self._graph = None

    def _launch(self) -> None:
        self._context.launch(self._function, self._plan, self._arguments[self._turn])
        self._turn = (self._turn + 1) % len(self._arguments)
