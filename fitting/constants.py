"""The seven constants of the cost model: their names in display order, units, and the groups replaced together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConstantInfo:
    """What a constant is measured in, and the group that a new calibration replaces as a whole."""

    unit: str
    group: str


CONSTANTS: dict[str, ConstantInfo] = {
    "model_peak_memory_bandwidth": ConstantInfo("byte/s", "memory"),
    "model_peak_flops": ConstantInfo("op/s", "compute"),
    "model_cache_capacity": ConstantInfo("byte", "cache"),
    "model_cache_bandwidth": ConstantInfo("byte/s", "cache"),
    "model_issue_rate": ConstantInfo("op/s", "issue"),
    "model_multiprocessors": ConstantInfo("count", "issue"),
    "model_fill_threads": ConstantInfo("thread", "issue"),
}
"""The constants served, in display order."""

GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(name for name, info in CONSTANTS.items() if info.group == group)
    for group in dict.fromkeys(info.group for info in CONSTANTS.values())
}
"""Group -> its constants. They are fitted together and mean nothing mixed with another run's."""

GROUP_SWEEPS: dict[str, tuple[str, ...]] = {
    "memory": ("stream",),
    "compute": ("issue",),
    "cache": ("working_set",),
    "issue": ("launch", "issue"),
}
"""Group -> the sweeps whose doubts are its own."""

PEAKS = ("model_peak_flops", "model_peak_memory_bandwidth")
"""The sound bounds: printed bumped and with the margin."""

INTEGERS = ("model_cache_capacity", "model_multiprocessors", "model_fill_threads")
"""Printed as plain integers."""
