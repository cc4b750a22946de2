"""Which run's constants count: whole groups replace whole groups, in a new revision of the device's set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from service.models import Calibration

if TYPE_CHECKING:
    from fitting import Absent, ConstantValue


@dataclass(frozen=True)
class ActivationResult:
    """What became of a run's constants: whether a set was made active, its revision, and notes for a person."""

    activated: bool
    revision: int | None
    notes: tuple[str, ...]


def activate(
    session: Session,
    calibration: Calibration,
    constants: Mapping[str, ConstantValue | Absent],
    fit_ids: Mapping[str, int],
    doubtful: Mapping[str, Sequence[str]],
) -> ActivationResult:
    """Make a new constant set from a finished run, in the caller's write transaction.

    Sets `activated`, `revision` and `notes` of `calibration` too; the caller commits them with the state `succeeded`.

    Parameters
    ----------
    session
        An open write session (`Database.write`); nothing is committed here.
    calibration
        The run. Its `started_at` is the constants' `measured_at`. With `activate` false nothing changes.
    constants
        What the run says, of the groups it measured: `fitting.constants_of`.
    fit_ids
        `fits.id` by kind, or by `kind/phase` where the fit has a phase (`capacity/aligned`).
    doubtful
        Reasons by sweep; an empty list is a good sweep.
    """
    raise NotImplementedError  # replaced in the next commit
