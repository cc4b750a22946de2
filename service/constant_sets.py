"""A device's sets of constants in the database: read a revision, add the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fitting import CONSTANTS
from service.models import Constant, ConstantSet, Device

NOT_MEASURED = "not_measured"


@dataclass(frozen=True)
class Entry:
    """One of the seven constants in a set: a value with its evidence, or None with the reason."""

    name: str
    unit: str
    value: float | None = None
    reason: str | None = NOT_MEASURED
    doubtful: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fit_id: int | None = None
    calibration_id: str | None = None
    measured_at: datetime | None = None
    outcome: str | None = None
    quality: Mapping[str, Any] = field(default_factory=dict)


def empty_set() -> dict[str, Entry]:
    """Return the set of a device on which nothing was measured."""
    return {name: Entry(name, info.unit) for name, info in CONSTANTS.items()}


def lock_device(session: Session, key: str) -> Device:
    """Return the device as the database has it now, locked until the transaction ends."""
    device = session.get(Device, key, with_for_update=True, populate_existing=True)
    if device is None:
        raise LookupError(f"device {key} is not in the database")
    return device


def load_set(session: Session, device_key: str, revision: int | None) -> dict[str, Entry]:
    """Return a revision's entries; none of a revision that is None."""
    constants = session.scalars(
        select(Constant)
        .join(ConstantSet, ConstantSet.id == Constant.set_id)
        .where(ConstantSet.device_key == device_key, ConstantSet.revision == revision)
    )
    return {constant.name: _entry(constant) for constant in constants}


def load_sets(session: Session, sets: Sequence[ConstantSet]) -> dict[int, dict[str, Entry]]:
    """Return the entries of many sets by set id, in one query."""
    found: dict[int, dict[str, Entry]] = {item.id: {} for item in sets}
    for constant in session.scalars(select(Constant).where(Constant.set_id.in_(list(found)))):
        found[constant.set_id][constant.name] = _entry(constant)
    return found


def active_sets(session: Session, device_keys: Sequence[str]) -> dict[str, ConstantSet]:
    """Return the active set of each device that has one."""
    is_active = (Device.key == ConstantSet.device_key) & (Device.active_revision == ConstantSet.revision)
    query = select(ConstantSet).join(Device, is_active).where(Device.key.in_(device_keys))
    return {item.device_key: item for item in session.scalars(query)}


def _entry(constant: Constant) -> Entry:
    return Entry(
        name=constant.name,
        unit=constant.unit,
        value=constant.value,
        reason=constant.reason,
        doubtful=tuple(constant.doubtful),
        notes=tuple(constant.notes),
        fit_id=constant.fit_id,
        calibration_id=constant.calibration_id,
        measured_at=constant.measured_at,
        outcome=constant.outcome,
        quality=constant.quality,
    )


def add_set(
    session: Session,
    device: Device,
    entries: Mapping[str, Entry],
    *,
    cause: str,
    calibration_id: str | None = None,
    source_revision: int | None = None,
    notes: Sequence[str] = (),
) -> ConstantSet:
    """Write a new revision and make it the device's active one; the caller holds `lock_device`."""
    latest = session.scalar(select(func.max(ConstantSet.revision)).where(ConstantSet.device_key == device.key)) or 0
    made = ConstantSet(
        device_key=device.key,
        revision=latest + 1,
        calibration_id=calibration_id,
        source_revision=source_revision,
        cause=cause,
        pinned=device.pinned,
        notes=list(notes),
        created_at=datetime.now(UTC),
    )
    session.add(made)
    session.flush()
    for entry in entries.values():
        session.add(
            Constant(
                set_id=made.id,
                name=entry.name,
                value=entry.value,
                unit=entry.unit,
                reason=entry.reason,
                doubtful=list(entry.doubtful),
                notes=list(entry.notes),
                fit_id=entry.fit_id,
                calibration_id=entry.calibration_id,
                measured_at=entry.measured_at,
                outcome=entry.outcome,
                quality=dict(entry.quality),
            )
        )
    device.active_revision = made.revision
    session.flush()
    return made
