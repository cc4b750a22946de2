"""Which run's constants count: whole groups replace whole groups, in a new revision of the device's set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from fitting import CONSTANTS, GROUP_SWEEPS, Absent, AllCached, AllSpilled, ConstantValue
from service.constant_sets import NOT_MEASURED, Entry, add_set, empty_set, load_set, lock_device
from service.models import Calibration

LOW_CONTRAST = "low_contrast"
CACHE_CAPACITY = "model_cache_capacity"
KEPT_NOTES = 5  # attempts noted on a constant that stays; older ones are in the history


@dataclass(frozen=True)
class NextSet:
    """A set to be: its seven entries, the groups whose values the run gave or took away, and notes for a person."""

    entries: Mapping[str, Entry]
    replaced: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ActivationResult:
    """What became of a run's constants.

    `activated`: the run gave or took away the value of at least one constant. `revision`: the set made, None where none
    was.
    """

    activated: bool
    revision: int | None
    notes: tuple[str, ...]


def next_set(
    old: Mapping[str, Entry],
    measured: Mapping[str, Entry],
    *,
    doubtful: Mapping[str, Sequence[str]],
    contradicted: Iterable[str] = (),
    attempt: str = "a later run",
) -> NextSet:
    """Return the set that follows `old` when a run says `measured`.

    Parameters
    ----------
    old
        The active set's entries by name; a missing name counts as never measured.
    measured
        The run's entries, of the groups it measured. A name whose reason is `not_measured` is carried over.
    doubtful
        Reasons by constant name, from its sweeps; an entry's own `doubtful` counts too.
    contradicted
        Names whose old value the run's outcome rules out.
    attempt
        How notes name the run.

    Notes
    -----
    A group is replaced as a whole, unless it is doubtful while the old one has something, or it would lose a value
    that the run does not contradict. Then the old group stays and notes the attempt.
    """
    entries = {**empty_set(), **old}
    replaced: list[tuple[str, ...]] = []
    notes: list[str] = []
    ruled_out = frozenset(contradicted)
    for names in _groups():
        fresh = {name: measured[name] for name in names if _was_measured(measured.get(name))}
        if not fresh:
            continue
        reasons = _reasons(fresh.values(), doubtful)
        why_not = _why_kept(entries, fresh, reasons, ruled_out)
        if why_not is None:
            if any(entry.value is not None or entries[name].value is not None for name, entry in fresh.items()):
                replaced.append(names)
            entries.update({name: replace(entry, doubtful=reasons) for name, entry in fresh.items()})
            continue
        notes.append(f"{', '.join(fresh)} kept: {why_not}")
        for name, entry in fresh.items():
            told = entry.value is None and not reasons
            note = f"{attempt} {_said(entry)}" + ("" if told else f"; {why_not}")
            entries[name] = replace(entries[name], notes=(*entries[name].notes, note)[-KEPT_NOTES:])
    return NextSet(entries, tuple(replaced), tuple(notes))


def _groups() -> list[tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for name, info in CONSTANTS.items():
        groups.setdefault(info.group, []).append(name)
    return [tuple(names) for names in groups.values()]


def _was_measured(entry: Entry | None) -> bool:
    return entry is not None and entry.reason != NOT_MEASURED


def _reasons(fresh: Iterable[Entry], doubtful: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    reasons: dict[str, None] = {}
    for entry in fresh:
        reasons.update(dict.fromkeys((*doubtful.get(entry.name, ()), *entry.doubtful)))
    return tuple(reasons)


def _why_kept(
    old: Mapping[str, Entry], fresh: Mapping[str, Entry], reasons: Sequence[str], ruled_out: frozenset[str]
) -> str | None:
    """Return why the old group stays, or None where the fresh one replaces it."""
    if all(old[name].value is None for name in fresh):
        return None
    if reasons:
        return f"doubtful: {'; '.join(reasons)}"
    lost = [
        f"{name} ({entry.reason})"
        for name, entry in fresh.items()
        if entry.value is None and old[name].value is not None
    ]
    if not lost or any(name in ruled_out for name in fresh):
        return None
    return f"no value for {', '.join(lost)}"


def _said(entry: Entry) -> str:
    return f"measured {entry.value:.6e} {entry.unit}" if entry.value is not None else f"gave no value ({entry.reason})"


def contradictions(old: Mapping[str, Entry], measured: Mapping[str, ConstantValue | Absent]) -> list[str]:
    """Return the old constants that a run's outcome rules out.

    A sweep all in cache reached past the old capacity, or one all spilled began within it.
    """
    before = old.get(CACHE_CAPACITY)
    now = measured.get(CACHE_CAPACITY)
    if before is None or before.value is None or not isinstance(now, Absent) or now.reason.startswith(LOW_CONTRAST):
        return []
    match now.outcome:
        case AllCached(largest_ws=largest) if largest >= before.value:
            return [CACHE_CAPACITY]
        case AllSpilled(smallest_ws=smallest) if smallest <= before.value:
            return [CACHE_CAPACITY]
        case _:
            return []


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
        An open write session (`Database.write`); flushed, never committed here.
    calibration
        The run. Its `started_at` is the constants' `measured_at`. With `activate` false nothing changes.
    constants
        What the run says, of the groups it measured: `fitting.constants_of`.
    fit_ids
        `fits.id` by kind, or by `kind/phase` where the fit has a phase (`capacity/aligned`).
    doubtful
        Reasons by sweep; an empty list is a good sweep.
    """
    result = _activate(session, calibration, constants, fit_ids, doubtful)
    calibration.activated = result.activated
    calibration.revision = result.revision
    calibration.notes = [*calibration.notes, *result.notes]
    session.flush()
    return result


def _activate(
    session: Session,
    calibration: Calibration,
    constants: Mapping[str, ConstantValue | Absent],
    fit_ids: Mapping[str, int],
    doubtful: Mapping[str, Sequence[str]],
) -> ActivationResult:
    if not calibration.activate:
        return ActivationResult(False, None, ("not activated: the request asked for no activation",))
    device = lock_device(session, calibration.device_key)
    if device.pinned:
        note = f"not activated: the device is pinned at revision {device.active_revision}"
        return ActivationResult(False, None, (note,))
    old = load_set(session, device.key, device.active_revision)
    measured = {name: _entry(constant, calibration, fit_ids) for name, constant in constants.items()}
    following = next_set(
        old,
        measured,
        doubtful={
            name: [
                f"{sweep}: {reason}"
                for sweep in GROUP_SWEEPS[CONSTANTS[name].group]
                for reason in doubtful.get(sweep, ())
            ]
            for name in measured
        },
        contradicted=contradictions(old, constants),
        attempt=f"calibration {calibration.id}",
    )
    made = add_set(
        session, device, following.entries, cause="calibration", calibration_id=calibration.id, notes=following.notes
    )
    return ActivationResult(bool(following.replaced), made.revision, following.notes)


def _entry(constant: ConstantValue | Absent, calibration: Calibration, fit_ids: Mapping[str, int]) -> Entry:
    outcome = None if constant.outcome is None else type(constant.outcome).__name__
    evidence = Entry(
        constant.name,
        constant.unit,
        calibration_id=calibration.id,
        measured_at=calibration.started_at or calibration.requested_at,
        outcome=outcome,
    )
    if isinstance(constant, Absent):
        return replace(evidence, reason=constant.reason)
    fit_id = fit_ids.get(constant.kind, fit_ids.get(f"{constant.kind}/aligned"))
    return replace(
        evidence,
        value=constant.value,
        reason=None,
        doubtful=constant.doubtful,
        fit_id=fit_id,
        quality=dict(constant.quality),
    )
