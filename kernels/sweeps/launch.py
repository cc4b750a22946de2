"""The launch sweep: pinned geometries over output sizes from a handful of blocks to many."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fitting import LaunchPoint
from kernels.backends.base import ContractionProblem, Workload
from kernels.errors import OutOfMemoryError
from kernels.events import SweepResult
from kernels.parameters import MAX_OPS, Geometry, bytes_needed, launch_extent, launch_pairs, parse_geometry
from kernels.sweeps.contraction import blocktile_case, emit_point, emit_row, require_points
from kernels.sweeps.rows import launch_context
from kernels.sweeps.run import Case, Stopwatch, SweepRun
from kernels.timing import measure_window, repeats_policy

LATENCIES = 50
"""The fastest point takes at least so many launch latencies: the fit through the origin prices none."""
LEAST_RISE = 0.05
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class _Timed:
    """One (geometry, size) of the sweep."""

    geometry: Geometry
    size: int
    k: int
    case: Case


def sweep_launch(run: SweepRun) -> SweepResult:
    """
    Time each geometry at each output size it tiles, at about the same number of operations.

    Raises
    ------
    ContendedError
        When fewer than two points have an admitted window.
    MeasureError
        As the device says: out of memory, compile, verification, timeout.

    Notes
    -----
    Operations double until the fastest point takes 50 launch latencies. Sizes go on doubling, to `max_size`, until the
    throughput of no geometry rises by 5 % any more: only then is the top of the fill curve seen.

    References
    ----------
    calibrate-module.txt, `launch_sweep`, `fit_fill`.
    """
    with ExitStack() as workloads:
        sweep = _Launch(run, Stopwatch(run, repeats_policy(run.parameters["repeats"])), workloads)
        sweep.choose_target()
        for size in run.parameters["sizes"]:
            sweep.add(size)
        sweep.stopwatch.forward([item.case for item in sweep.timed])
        sweep.extend()
        cases = [item.case for item in sweep.timed]
        sweep.stopwatch.backward(cases)
        repeat = sweep.stopwatch.repeat(cases[0])
    require_points(sweep.stopwatch, cases, "launch")
    first = sweep.timed[0]
    for item in (*sweep.timed, _Timed(first.geometry, first.size, first.k, repeat)):
        sweep.emit(item)
    return sweep.stopwatch.result(cases, **sweep.facts())


class _Launch:
    """The state of a launch sweep; all workloads stay open until both passes are done."""

    def __init__(self, run: SweepRun, stopwatch: Stopwatch, workloads: ExitStack) -> None:
        self.run = run
        self.stopwatch = stopwatch
        self.timed: list[_Timed] = []
        self.target_ops: int = run.parameters["target_ops"]
        self.latency_ms = run.device.launch_latency_ms()
        self._workloads = workloads
        self._geometries = [parse_geometry(label) for label in run.parameters["geometries"]]
        _, self._skipped = launch_pairs(run.parameters["geometries"], run.parameters["sizes"])

    def choose_target(self) -> None:
        """Double the operations until the fastest point takes 50 launch latencies, as far as the memory allows."""
        while (fastest_ms := self._pilot_ms()) < LATENCIES * self.latency_ms:
            doubled = {**self.run.parameters, "target_ops": 2 * self.target_ops}
            needed = bytes_needed("launch", doubled)
            memory = self.run.device.description.limits.memory_bytes
            if 2 * self.target_ops > MAX_OPS or needed > MEMORY_SHARE * memory:
                self.stopwatch.notes.append(
                    f"the fastest point takes {fastest_ms / self.latency_ms:.0f} launch latencies, not {LATENCIES}:"
                    f" more than {self.target_ops} operations would not fit"
                )
                return
            self.target_ops *= 2

    def add(self, size: int) -> list[_Timed]:
        """Open the problem of one size and verify every geometry that tiles it."""
        geometries = [geometry for geometry in self._geometries if geometry.tiles(size, size)]
        if not geometries:
            return []
        k = self._extent(size)
        workload = self._workloads.enter_context(self.run.device.open_workload(ContractionProblem(size, size, k)))
        added = [_Timed(geometry, size, k, self._case(workload, geometry, size, k)) for geometry in geometries]
        self.stopwatch.add(item.case for item in added)
        self.timed.extend(added)
        return added

    def extend(self) -> None:
        """Double the size while the throughput of some geometry still rises."""
        size = 2 * max(self.run.parameters["sizes"])
        memory = self.run.device.description.limits.memory_bytes
        open_bytes = bytes_needed("launch", {**self.run.parameters, "target_ops": self.target_ops})
        while size <= self.run.parameters["max_size"]:
            open_bytes += 4 * (self._extent(size) * 2 * size + size * size)
            if open_bytes > memory:
                self.stopwatch.notes.append(f"sizes end below {size}, as the device's memory does")
                return
            before = self._throughputs()
            try:
                added = self.add(size)
            except OutOfMemoryError as error:  # others may hold some of it; the sizes asked for are there
                self.stopwatch.notes.append(f"sizes end below {size}: {error}")
                return
            self.stopwatch.forward([item.case for item in added])
            after = self._throughputs()
            if all(after[label] < (1 + LEAST_RISE) * before.get(label, 0.0) for label in after):
                return
            size *= 2

    def emit(self, item: _Timed) -> None:
        """Emit the point and the row of a timed case."""
        if item.case.best_ms is None:
            return
        point = LaunchPoint(
            geometry=item.geometry.label,
            m=item.size,
            n=item.size,
            k=item.k,
            contexts=(launch_context(item.case.kernel.facts),),
            ms=item.case.best_ms,
        )
        emit_point(self.run, item.case, point)
        emit_row(self.run, item.case)

    def facts(self) -> dict[str, Any]:
        """Return what the sweep chose."""
        shapes = {item.geometry.label: dict(item.case.kernel.facts.resources) for item in self.timed}
        return {
            "launch_latency_ms": self.latency_ms,
            "target_ops": self.target_ops,
            "sizes": sorted({item.size for item in self.timed}),
            "skipped": self._skipped,
            "resources": shapes,
        }

    def _extent(self, size: int) -> int:
        return launch_extent(size, self.target_ops, self.run.parameters["max_k"])

    def _case(self, workload: Workload, geometry: Geometry, size: int, k: int) -> Case:
        return blocktile_case(self.run, workload, geometry, size, size, k, routine="launch_contraction")

    def _pilot_ms(self) -> float:
        """Return the least time of the geometries at the largest size, where a launch is fullest; it sizes only."""
        sizes = self.run.parameters["sizes"]
        fastest = []
        for geometry in self._geometries:
            size = max(size for size in sizes if geometry.tiles(size, size))
            k = self._extent(size)
            with self.run.device.open_workload(ContractionProblem(size, size, k)) as workload:
                case = self._case(workload, geometry, size, k)
                with self.run.point_limit():
                    window = measure_window(case.kernel, repeats_policy(3), self.run.device, self.run.clock)
            fastest.append(min(window.readings_ms))
        return min(fastest)

    def _throughputs(self) -> dict[str, float]:
        """Return each geometry's best operations per millisecond so far."""
        best: dict[str, float] = {}
        for item in self.timed:
            if item.case.best_ms is not None:
                throughput = item.case.kernel.facts.flops / item.case.best_ms
                best[item.geometry.label] = max(best.get(item.geometry.label, 0.0), throughput)
        return best
