"""One revision of a device's constants, in the forms that are served: JSON, and text lines for an autotuner."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from fitting import CONSTANTS, constant_lines
from fitting.constants import INTEGERS
from service.constant_sets import Entry, empty_set, load_set
from service.errors import NotCalibratedError, UnknownRevisionError
from service.models import OPEN_STATES, Calibration, ConstantSet, Device
from service.schemas import ConstantsView, ConstantView, DeviceIdentity, Format


def constants_view(session: Session, device: Device, revision: int | None = None) -> ConstantsView:
    """Return a revision of the device's constants, the active one if none is named.

    Raises
    ------
    NotCalibratedError
        No revision is active.
    UnknownRevisionError
        There is no such revision.
    """
    wanted = device.active_revision if revision is None else revision
    if wanted is None:
        raise NotCalibratedError(f"device {device.key} has no constants yet: {_what_to_do(session, device)}")
    found = get_set(session, device, wanted)
    return ConstantsView(
        device=DeviceIdentity(key=device.key, name=device.name, simulated=device.simulated),
        revision=found.revision,
        created_at=found.created_at,
        pinned=found.pinned,
        constants=constant_views(load_set(session, device.key, found.revision)),
    )


def _what_to_do(session: Session, device: Device) -> str:
    """Say how a device without constants comes to have some."""
    query = (
        select(Calibration)
        .where(Calibration.device_key == device.key, Calibration.state.in_(OPEN_STATES))
        .order_by(Calibration.requested_at)
    )
    coming = session.scalars(query).first()
    if coming is not None:
        progress = f"{coming.progress_done} of {coming.progress_total}, {coming.progress_message}"
        return f"calibration {coming.id} is {coming.state} ({progress}); ask again when it has succeeded"
    if not device.usable:
        return f"it can't be calibrated here ({device.reason}); import a calibration of it, activated"
    return "POST /v1/calibrations with this device, then ask again"


def get_set(session: Session, device: Device, revision: int) -> ConstantSet:
    """Return one of the device's revisions; raises UnknownRevisionError."""
    query = select(ConstantSet).where(ConstantSet.device_key == device.key, ConstantSet.revision == revision)
    found = session.scalar(query)
    if found is None:
        raise UnknownRevisionError(
            f"device {device.key} has no revision {revision}; GET /v1/devices/{device.key}/constants/history lists them"
        )
    return found


def constant_views(entries: Mapping[str, Entry]) -> dict[str, ConstantView]:
    """Return all seven constants in display order."""
    complete = {**empty_set(), **entries}
    return {name: _constant_view(complete[name]) for name in CONSTANTS}


def _constant_view(entry: Entry) -> ConstantView:
    value = entry.value
    return ConstantView(
        value=round(value) if value is not None and entry.name in INTEGERS else value,
        unit=entry.unit,
        reason=entry.reason,
        fit_id=entry.fit_id,
        calibration_id=entry.calibration_id,
        measured_at=entry.measured_at,
        outcome=entry.outcome,
        quality=dict(entry.quality),
        doubtful=list(entry.doubtful),
        notes=list(entry.notes),
    )


def render(view: ConstantsView, form: Format, margin: float) -> bytes:
    """Return the body of an answer.

    JSON holds the fitted values, unbumped and without margin. The text forms bump the two peaks and multiply them by
    `margin`; `config` and `env` explain themselves in `#` lines, `flags` is bare so that a shell can expand it.
    """
    if form == "json":
        return view.model_dump_json().encode()
    values = {name: constant.value for name, constant in view.constants.items() if constant.value is not None}
    lines = constant_lines(values, form, margin)
    if form != "flags":
        lines = [comment(text) for text in _explain(view, margin)] + lines
    return "".join(f"{line}\n" for line in lines).encode()


def comment(text: str) -> str:
    """Return a comment line that stays one line: whatever a device calls itself, it can't add a line of its own."""
    return "# " + "".join(character if character.isprintable() else " " for character in text)


def _explain(view: ConstantsView, margin: float) -> Iterator[str]:
    device = view.device
    yield f"device {device.key}: {device.name}"
    if device.simulated:
        yield "SIMULATED device: these constants describe no hardware"
    pinned = ", pinned" if view.pinned else ""
    yield f"revision {view.revision} of {view.created_at.isoformat()}{pinned}"
    if margin != 1:
        yield f"both peaks carry a margin of {margin:g}"
    for name, constant in view.constants.items():
        yield f"{name}: {_summary(constant)}"
        if constant.value is not None:
            yield from _evidence(constant)
        for reason in constant.doubtful:
            yield f"  doubtful: {reason}"
        for note in constant.notes:
            yield f"  note: {note}"


def _summary(constant: ConstantView) -> str:
    if constant.value is None:
        return f"absent, {constant.reason}"
    return f"{constant.value:.7g} {constant.unit}, {constant.outcome}"


def _evidence(constant: ConstantView) -> Iterator[str]:
    measured_at = "unknown" if constant.measured_at is None else constant.measured_at.isoformat()
    yield f"  calibration {constant.calibration_id}, measured_at {measured_at}"
    quality = dict(constant.quality)
    witness = quality.pop("witness", None)
    if witness is not None:
        yield f"  binding row {witness}"
    if quality:
        yield "  quality " + ", ".join(f"{name} {_compact(value)}" for name, value in quality.items())


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
