"""The moves of a job, each within the caller's write transaction; none of them ever leaves an ended state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernels.errors import MeasureError
from kernels.measure import SweepResult
from kernels.versions import versions
from service.jobs import records
from service.jobs.results import constants_in_force
from service.models import OPEN_STATES, Calibration, SweepRun

MAX_STARTS = 3  # starts of one sweep that may end in a crash or a kill
SWEEP_PROGRESS = 100  # progress steps of one sweep, whatever it counts itself


@dataclass(frozen=True)
class Attempt:
    """One start of one sweep: what to measure, in what time."""

    calibration_id: str
    device_key: str
    sweep_run_id: int
    sweep: str
    parameters: Mapping[str, Any]
    constants: Mapping[str, float]
    number: int
    seconds_left: float
    time_limit_s: float
    sweeps_done: int


class AllMeasured:
    """Every sweep of the job is measured: the fits are next."""


def begin(session: Session, calibration_id: str) -> Attempt | AllMeasured | None:
    """Start the next unfinished sweep; None where the job has ended, or ends here.

    Counts the start before anything is measured, so that a job which kills its worker is not tried for ever.
    """
    calibration = open_calibration(session, calibration_id)
    if calibration is None:
        return None
    sweeps = sweep_runs(session, calibration_id)
    todo = [run for run in sweeps if run.state != "succeeded"]
    if calibration.cancel_requested:
        cancel(session, calibration)
        return None
    now = datetime.now(UTC)
    calibration.state = "running"
    calibration.started_at = calibration.started_at or now
    calibration.versions = calibration.versions or versions()
    calibration.progress_total = SWEEP_PROGRESS * len(sweeps)
    calibration.progress_done = SWEEP_PROGRESS * (len(sweeps) - len(todo))
    if not todo:
        calibration.progress_message = "fitting"
        return AllMeasured()
    run = todo[0]
    calibration.progress_message = f"{run.sweep}: starting"
    if run.starts >= MAX_STARTS:
        fail(session, calibration, "worker_lost", _lost(run.sweep), run=run)
        return None
    records.forget(session, run.id)
    run.starts += 1
    run.state = "running"
    run.started_at = now
    run.constants_in_force = constants_in_force(
        session, calibration, [run for run in sweeps if run.state == "succeeded"]
    )
    return Attempt(
        calibration_id=calibration.id,
        device_key=calibration.device_key,
        sweep_run_id=run.id,
        sweep=run.sweep,
        parameters=run.parameters,
        constants=run.constants_in_force,
        number=run.starts,
        seconds_left=calibration.time_limit_s - sum(_seconds(done) for done in sweeps if done.state == "succeeded"),
        time_limit_s=calibration.time_limit_s,
        sweeps_done=len(sweeps) - len(todo),
    )


def complete(session: Session, attempt: Attempt, measured: Sequence[records.Record], result: SweepResult) -> None:
    """Keep a finished sweep: its records and its done mark in one transaction."""
    run = _running(session, attempt)
    if run is None:
        return
    records.store(session, run.id, attempt.number, measured)
    run.doubtful = list(result.doubtful)
    run.notes = list(result.notes)
    run.facts = dict(result.facts)
    run.state = "succeeded"
    run.finished_at = datetime.now(UTC)


def retry_or_fail(session: Session, attempt: Attempt, measured: Sequence[records.Record], error: MeasureError) -> None:
    """Give the sweep another start after a crash, or end the job; what was measured is kept, nothing is activated."""
    run = _running(session, attempt)
    if run is None:
        return
    if error.crashed and attempt.number < MAX_STARTS:
        run.state = "queued"
        return
    records.store(session, run.id, attempt.number, measured)
    message = str(error)
    if error.crashed:
        message = f"{attempt.sweep} was given up after {attempt.number} starts: {message}"
    calibration = session.get_one(Calibration, attempt.calibration_id)
    fail(session, calibration, error.code, message, detail=error.detail, run=run)


def give_back(session: Session, attempt: Attempt) -> None:
    """Undo a start that the worker's own stop cut short: it costs no attempt."""
    run = _running(session, attempt)
    if run is None:
        return
    run.starts -= 1
    run.state = "queued"
    run.started_at = None
    calibration = session.get_one(Calibration, attempt.calibration_id)
    calibration.state = "queued"
    calibration.progress_message = f"{run.sweep}: stopped with the worker, goes on when it is back"


def stop_cancelled(session: Session, attempt: Attempt, measured: Sequence[records.Record]) -> None:
    """End a running job that its user cancelled; what was measured is kept."""
    run = _running(session, attempt)
    if run is not None:
        records.store(session, run.id, attempt.number, measured)
        cancel(session, session.get_one(Calibration, attempt.calibration_id))


def cancel(session: Session, calibration: Calibration) -> None:
    """End an open job as cancelled."""
    _end(session, calibration, "cancelled", "cancelled")
    calibration.progress_message = "cancelled"


def fail(
    session: Session,
    calibration: Calibration,
    code: str,
    message: str,
    *,
    detail: str | None = None,
    run: SweepRun | None = None,
) -> None:
    """End an open job with a code, and a message that says what to do."""
    if run is not None:
        run.state = "failed"
        run.finished_at = datetime.now(UTC)
    _end(session, calibration, "failed", "cancelled")
    calibration.error_code = code
    calibration.error_message = message
    calibration.error_detail = detail


def open_calibration(session: Session, calibration_id: str) -> Calibration | None:
    """The job, locked until the transaction ends; None where it is unknown or has ended."""
    calibration = session.get(Calibration, calibration_id, with_for_update=True)
    return calibration if calibration is not None and calibration.state in OPEN_STATES else None


def sweep_runs(session: Session, calibration_id: str) -> list[SweepRun]:
    """The job's sweeps, in the order they run."""
    query = select(SweepRun).where(SweepRun.calibration_id == calibration_id).order_by(SweepRun.position)
    return list(session.scalars(query))


def _running(session: Session, attempt: Attempt) -> SweepRun | None:
    """The sweep, where this attempt is still the one that counts: a commit whose answer was lost is not made twice."""
    if open_calibration(session, attempt.calibration_id) is None:
        return None
    run = session.get_one(SweepRun, attempt.sweep_run_id)
    return run if run.state == "running" and run.starts == attempt.number else None


def _end(session: Session, calibration: Calibration, state: str, sweep_state: str) -> None:
    now = datetime.now(UTC)
    calibration.state = state
    calibration.finished_at = now
    for run in sweep_runs(session, calibration.id):
        if run.state in OPEN_STATES:
            run.state = sweep_state
            run.finished_at = now


def _seconds(run: SweepRun) -> float:
    if run.started_at is None or run.finished_at is None:
        return 0.0
    return (run.finished_at - run.started_at).total_seconds()


def _lost(sweep: str) -> str:
    return (
        f"the worker ended without a word in each of {MAX_STARTS} starts of the {sweep} sweep: look for an "
        "out-of-memory kill or a driver fault in the system's log, then ask for the calibration again, with smaller "
        "parameters if memory was short"
    )
