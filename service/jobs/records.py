"""A sweep's records on their way into the tables, and out again as the fits read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from fitting import (
    CalibrationRow,
    IssuePoint,
    LaunchContext,
    LaunchPoint,
    Measured,
    Measurements,
    WorkingSetPoint,
)
from kernels.measure import PointMeasured, Reading, RowMeasured
from service.models import IssuePointRow, LaunchPointRow, Row, SweepRun, WorkingSetPointRow

T = TypeVar("T", CalibrationRow, WorkingSetPoint, IssuePoint, LaunchPoint)
Record = RowMeasured | PointMeasured
TABLES = (Row, WorkingSetPointRow, IssuePointRow, LaunchPointRow)


def store(session: Session, sweep_run_id: int, attempt: int, records: Iterable[Record]) -> None:
    """Add a sweep's records, in the order they were measured."""
    for record in records:
        session.add(_table_row(sweep_run_id, attempt, record))


def forget(session: Session, sweep_run_id: int) -> None:
    """Delete what an earlier attempt at this sweep left."""
    for table in TABLES:
        session.execute(delete(table).where(table.sweep_run_id == sweep_run_id))


def load(session: Session, sweep_runs: Sequence[SweepRun]) -> Measurements:
    """Everything these sweeps measured, as the fits read it."""
    ids = [run.id for run in sweep_runs]

    def of(table: type[Any]) -> Sequence[Any]:
        return session.scalars(select(table).where(table.sweep_run_id.in_(ids)).order_by(table.id)).all()

    return Measurements(
        rows=tuple(_measured(row, _calibration_row(row)) for row in of(Row)),
        working_set=tuple(_measured(row, _working_set_point(row)) for row in of(WorkingSetPointRow)),
        issue=tuple(_measured(row, _issue_point(row)) for row in of(IssuePointRow)),
        launch=tuple(_measured(row, _launch_point(row)) for row in of(LaunchPointRow)),
    )


def _table_row(
    sweep_run_id: int, attempt: int, record: Record
) -> Row | WorkingSetPointRow | IssuePointRow | LaunchPointRow:
    columns = {"sweep_run_id": sweep_run_id, "attempt": attempt, **_reading_columns(record.reading)}
    if isinstance(record, RowMeasured):
        return Row(**columns, **asdict(record.row))
    match record.point:
        case WorkingSetPoint() as point:
            return WorkingSetPointRow(
                **columns,
                k=point.k,
                loops=list(point.loops),
                working_set_bytes=point.working_set,
                requested_bytes=point.requested,
                distinct_bytes=point.distinct,
                ms=point.ms,
                rank_ms=point.rank_ms,
                bound_ms=point.bound_ms,
            )
        case IssuePoint() as point:
            return IssuePointRow(**columns, **_with_contexts(asdict(point)))
        case LaunchPoint() as point:
            return LaunchPointRow(**columns, **_with_contexts(asdict(point)))


def _reading_columns(reading: Reading) -> dict[str, Any]:
    return {
        "role": reading.role,
        "phase": reading.phase,
        "order": reading.order,
        "repeats_done": reading.repeats_done,
        "median_ms": reading.median_ms,
        "spread": reading.spread,
        "device_ms": reading.device_ms,
        "windows": [dict(window) for window in reading.windows],
    }


def _with_contexts(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "contexts": list(fields["contexts"])}


def _measured(row: Any, record: T) -> Measured[T]:
    return Measured(record, row.role, row.phase, _window_ms(row.windows))


def _window_ms(windows: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    return tuple(window["best_ms"] for window in windows if window.get("refused") is None)


def _calibration_row(row: Row) -> CalibrationRow:
    return CalibrationRow(
        backend=row.backend,
        digest=row.digest,
        routine=row.routine,
        label=row.label,
        measured_ms=row.measured_ms,
        model_ms=row.model_ms,
        kernels=row.kernels,
        flops=row.flops,
        bytes=row.bytes,
        flops_approx=row.flops_approx,
        bytes_approx=row.bytes_approx,
        opaque=row.opaque,
    )


def _working_set_point(row: WorkingSetPointRow) -> WorkingSetPoint:
    return WorkingSetPoint(
        k=row.k,
        loops=tuple(row.loops),
        working_set=row.working_set_bytes,
        requested=row.requested_bytes,
        distinct=row.distinct_bytes,
        ms=row.ms,
        rank_ms=row.rank_ms,
        bound_ms=row.bound_ms,
    )


def _issue_point(row: IssuePointRow) -> IssuePoint:
    return IssuePoint(
        k=row.k,
        scalar_ops=row.scalar_ops,
        mma_ops=row.mma_ops,
        kernels=row.kernels,
        ms=row.ms,
        rank_ms=row.rank_ms,
        bound_ms=row.bound_ms,
        contexts=_contexts(row.contexts),
    )


def _launch_point(row: LaunchPointRow) -> LaunchPoint:
    return LaunchPoint(geometry=row.geometry, m=row.m, n=row.n, k=row.k, contexts=_contexts(row.contexts), ms=row.ms)


def _contexts(contexts: Sequence[dict[str, Any]]) -> tuple[LaunchContext, ...]:
    return tuple(LaunchContext(**context) for context in contexts)
