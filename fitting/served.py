"""A constant as a run answers it: a value with its evidence, or absent with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from fitting.calibration import Fit
from fitting.capacity import CapacityFit
from fitting.constants import CONSTANTS
from fitting.envelope import EnvelopeFit
from fitting.issue_rate import IssueRateFit
from fitting.launch_fill import FillOutcome

ServedOutcome = EnvelopeFit | CapacityFit | IssueRateFit | FillOutcome
"""What stands behind one constant; of an envelope, the part of the device's own backend."""


@dataclass(frozen=True)
class ConstantValue:
    """A constant that this run fitted.

    Parameters
    ----------
    name, unit : str
        As in `CONSTANTS`.
    value : float
        Unbumped, in `unit`; an int for the three integer constants.
    kind : str
        The fit it was read off: `envelope`, `capacity`, `cache_rate`, `issue_rate` or `fill`.
    outcome : ServedOutcome
        That fit's outcome.
    quality : mapping
        JSON values. Always there: `spread` (`[low, high]` in `unit`, or None) and `warnings` (in words).
    doubtful : tuple of str
        Why not to trust it, in words; empty = good.
    """

    name: str
    value: float
    unit: str
    kind: str
    outcome: ServedOutcome
    quality: Mapping[str, Any] = field(default_factory=dict)
    doubtful: tuple[str, ...] = ()


@dataclass(frozen=True)
class Absent:
    """A constant of a measured group without a value.

    Parameters
    ----------
    name, unit : str
        As in `CONSTANTS`.
    reason : str
        `no_exact_rows`, `no_compute_bound_rows`, `low_contrast`, `all_cached`, `all_spilled`, `no_transition`,
        `too_few_points`, `few_full_points`, `not_measured` or `unfittable: ` and why.
    outcome : ServedOutcome or None
        The outcome that says so; None when the group's other sweep ran and this constant's did not.
    """

    name: str
    unit: str
    reason: str
    outcome: ServedOutcome | None = None


Constant = ConstantValue | Absent


def served_constant(
    name: str,
    value: float,
    fit: Fit,
    outcome: ServedOutcome,
    quality: Mapping[str, Any],
    *,
    warnings: Sequence[str] = (),
    doubtful: tuple[str, ...] = (),
) -> ConstantValue:
    """Return a value with its unit, the kind of its fit, and the warnings beside the rest of its quality."""
    facts = {**quality, "warnings": list(warnings)}
    return ConstantValue(name, value, CONSTANTS[name].unit, fit.kind, outcome, facts, doubtful)


def absent_constant(name: str, reason: str, outcome: ServedOutcome | None = None) -> Absent:
    """Return an absence with its unit."""
    return Absent(name, CONSTANTS[name].unit, reason, outcome)


def rate_spread(rate: float, error: float | None) -> dict[str, Any]:
    """Return the spread of a rate, one standard error either way; None where too few readings give one."""
    if error is None or not isfinite(rate + error):
        return {"spread": None, "standard_error": None}
    return {"spread": [rate - error, rate + error], "standard_error": error}
