"""The sweeps: what each measures, whatever the device."""

from collections.abc import Callable, Mapping

from kernels.events import SweepResult
from kernels.sweeps.issue import sweep_issue
from kernels.sweeps.launch import sweep_launch
from kernels.sweeps.run import SweepRun
from kernels.sweeps.stream import sweep_stream
from kernels.sweeps.working_set import sweep_working_set

SWEEP_FUNCTIONS: Mapping[str, Callable[[SweepRun], SweepResult]] = {
    "stream": sweep_stream,
    "working_set": sweep_working_set,
    "launch": sweep_launch,
    "issue": sweep_issue,
}
"""Sweep to the function that measures it, in the order that lets each use the constants before it."""

__all__ = ["SWEEP_FUNCTIONS", "SweepRun"]
