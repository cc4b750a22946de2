"""From a job's records to its fits, and from its fits to the device's active constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

import fitting
from fitting import Absent, ConstantValue
from service import models
from service.activation import activate
from service.constant_sets import load_set
from service.jobs import records
from service.models import Calibration, Device, SweepRun


@dataclass(frozen=True)
class Results:
    """What a job's data says: its fits, and the constants of the groups it measured."""

    fits: tuple[fitting.Fit, ...]
    constants: Mapping[str, ConstantValue | Absent]


def fit(session: Session, calibration: Calibration, finished: Sequence[SweepRun]) -> Results:
    """Fit this job's finished sweeps, and no other run's data, just as the export of the job would be fitted again.

    So the constants in force are those at the start of the first sweep, whatever was activated since, and the
    multiprocessors are those that the last sweep found, whatever the device has now.
    """
    measurements = records.load(session, finished)
    device = session.get_one(Device, calibration.device_key)
    found = [run.facts["multiprocessors"] for run in finished if run.facts.get("multiprocessors")]
    fits = fitting.fit_calibration(
        measurements,
        backend=device.backend,
        multiprocessors=found[-1] if found else device.limits["multiprocessors"],
        in_force=finished[0].constants_in_force,
    )
    return Results(tuple(fits), fitting.constants_of(fits, measurements))


def constants_in_force(session: Session, calibration: Calibration, finished: Sequence[SweepRun]) -> dict[str, float]:
    """The active set overlaid with this job's own fits so far: what the next sweep is ranked and bounded under."""
    active = active_constants(session, session.get_one(Device, calibration.device_key))
    if not finished:
        return active
    fitted = fit(session, calibration, finished).constants
    return active | {name: found.value for name, found in fitted.items() if isinstance(found, ConstantValue)}


def active_constants(session: Session, device: Device) -> dict[str, float]:
    """The values that the device's active set serves."""
    entries = load_set(session, device.key, device.active_revision)
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def conclude(session: Session, calibration: Calibration, finished: Sequence[SweepRun], results: Results) -> None:
    """Store the fits, activate the constants and end the job as succeeded, in the caller's one transaction."""
    fit_ids: dict[str, int] = {}
    for found in results.fits:
        row = _fit_row(calibration.id, found)
        session.add(row)
        session.flush()
        fit_ids[found.kind if found.phase is None else f"{found.kind}/{found.phase}"] = row.id
    calibration.finished_at = datetime.now(UTC)
    activate(session, calibration, results.constants, fit_ids, {run.sweep: run.doubtful for run in finished})
    calibration.state = "succeeded"
    calibration.progress_done = calibration.progress_total
    calibration.progress_message = "done"


def _fit_row(calibration_id: str, found: fitting.Fit) -> models.Fit:
    document: dict[str, Any] = fitting.fit_to_json(found)
    return models.Fit(
        calibration_id=calibration_id,
        kind=found.kind,
        sweep=found.sweep,
        phase=found.phase,
        outcome=document["outcome"],
        result=document["result"],
        inputs=document["inputs"],
        created_at=datetime.now(UTC),
    )
