"""What a job measured and fitted, from the tables to JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from fitting import CalibrationRow, IssuePoint, LaunchPoint, WorkingSetPoint, row_from_json
from service.models import (
    Calibration,
    Fit,
    IssuePointRow,
    LaunchPointRow,
    Row,
    SweepRun,
    WorkingSetPointRow,
)

RecordRow = Row | WorkingSetPointRow | IssuePointRow | LaunchPointRow

POINT_TABLES: dict[str, type[Any]] = {
    "working_set": WorkingSetPointRow,
    "launch": LaunchPointRow,
    "issue": IssuePointRow,
}
_RECORDS: dict[type[Any], type[Any]] = {
    Row: CalibrationRow,
    WorkingSetPointRow: WorkingSetPoint,
    LaunchPointRow: LaunchPoint,
    IssuePointRow: IssuePoint,
}
_COLUMNS = {"working_set": "working_set_bytes", "requested": "requested_bytes", "distinct": "distinct_bytes"}
_READING = ("role", "phase", "order", "repeats_done", "median_ms", "spread", "device_ms", "windows")


def record_json(row: RecordRow) -> dict[str, Any]:
    """Return a stored record under the field names of its dataclass."""
    fields = dataclasses.fields(_RECORDS[type(row)])
    return {field.name: getattr(row, _COLUMNS.get(field.name, field.name)) for field in fields}


REPEAT = "repeat"  # the role of a point timed again to see drift; it enters no fit and no row file


def reading_json(row: RecordRow) -> dict[str, Any]:
    """Return how a stored record's time was read."""
    return {name: getattr(row, name) for name in _READING}


def records(
    session: Session, table: type[Any], calibration_id: str, *, after: int = 0, limit: int | None = None
) -> Sequence[tuple[str, RecordRow]]:
    """Return a job's records of one kind with their sweep, in the order they were measured."""
    query = (
        select(SweepRun.sweep, table)
        .join(table, table.sweep_run_id == SweepRun.id)
        .where(SweepRun.calibration_id == calibration_id, table.id > after)
        .order_by(table.id)
        .limit(limit)
    )
    return session.execute(query).all()


def row_line(row: RecordRow) -> str:
    """Return a row as a line of a row file."""
    return row_from_json(record_json(row)).to_line() + "\n"


def device_rows(session: Session, device_key: str, *, after: int, limit: int) -> Sequence[Row]:
    """Return rows of a device's succeeded jobs, oldest first, those with an id past `after`."""
    query = (
        select(Row)
        .join(SweepRun, SweepRun.id == Row.sweep_run_id)
        .join(Calibration, Calibration.id == SweepRun.calibration_id)
        .where(
            Calibration.device_key == device_key, Calibration.state == "succeeded", Row.id > after, Row.role != REPEAT
        )
        .order_by(Row.id)
        .limit(limit)
    )
    return session.scalars(query).all()


def fits(session: Session, calibration_id: str) -> Sequence[Fit]:
    """Return a job's fits, in the order they were made."""
    return session.scalars(select(Fit).where(Fit.calibration_id == calibration_id).order_by(Fit.id)).all()


def sweep_documents(session: Session, runs: Sequence[SweepRun]) -> list[dict[str, Any]]:
    """Return each sweep of a job with everything it measured, as the document has it."""
    found: dict[int, dict[str, list[dict[str, Any]]]] = {run.id: {"rows": [], "points": []} for run in runs}
    ids = list(found)
    tables: tuple[type[Any], ...] = (Row, *POINT_TABLES.values())
    for table in tables:
        one, many = ("row", "rows") if table is Row else ("point", "points")
        for row in session.scalars(select(table).where(table.sweep_run_id.in_(ids)).order_by(table.id)):
            found[row.sweep_run_id][many].append({one: record_json(row), "reading": reading_json(row)})
    return [{**_sweep_json(run), **found[run.id]} for run in runs]


def _sweep_json(run: SweepRun) -> dict[str, Any]:
    return {
        "sweep": run.sweep,
        "parameters": run.parameters,
        "constants_in_force": run.constants_in_force,
        "doubtful": run.doubtful,
        "notes": run.notes,
        "facts": run.facts,
        "started_at": None if run.started_at is None else run.started_at.isoformat(),
        "finished_at": None if run.finished_at is None else run.finished_at.isoformat(),
    }
