"""What a running sweep is asked every quarter of a second: go on, or end, and why."""

from __future__ import annotations

import time
from threading import Event
from typing import Literal

import structlog
from sqlalchemy import select, update
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError

from kernels.measure import Progress
from service.db import Database
from service.jobs.transitions import SWEEP_PROGRESS, Attempt
from service.models import OPEN_STATES, Calibration

PROGRESS_INTERVAL_S = 0.5
DATABASE_AWAY = (OperationalError, InterfaceError, TimeoutError)
"""What SQLAlchemy raises while a database restarts, can't be reached, or is locked for longer than it waits."""

Reason = Literal["stop", "cancel", "timeout"]

log = structlog.get_logger()


class Watch:
    """Watches one attempt: the worker's stop, the user's cancel flag, the job's time limit; passes progress on.

    A database that is away for a while neither ends the sweep nor hides the worker's stop.
    """

    def __init__(self, database: Database, attempt: Attempt, stop: Event) -> None:
        """Start the clock of the job's time limit."""
        self.reason: Reason | None = None
        self.doing = "starting"
        """What the sweep last said it does."""
        self._database = database
        self._attempt = attempt
        self._stop = stop
        self._deadline = time.monotonic() + attempt.seconds_left
        self._progress: Progress | None = None
        self._next_write = 0.0

    def note(self, progress: Progress) -> None:
        """Remember the latest progress; it is written with the next poll."""
        self._progress = progress
        self.doing = progress.message

    def poll(self) -> bool:
        """Whether the sweep has to end now; `reason` then says why."""
        if self._stop.is_set():
            self.reason = "stop"
        elif time.monotonic() >= self._deadline:
            self.reason = "timeout"
        elif self._ask():
            self.reason = "cancel"
        return self.reason is not None

    def _ask(self) -> bool:
        try:
            self._write_progress()
            with self._database.read() as session:
                query = select(Calibration.cancel_requested, Calibration.state)
                row = session.execute(query.where(Calibration.id == self._attempt.calibration_id)).one_or_none()
        except DATABASE_AWAY as error:
            log.warning("database away, the sweep goes on", calibration=self._attempt.calibration_id, error=str(error))
            return False
        return row is None or row.cancel_requested or row.state not in OPEN_STATES

    def _write_progress(self) -> None:
        progress, now = self._progress, time.monotonic()
        if progress is None or now < self._next_write:
            return
        self._progress = None
        self._next_write = now + PROGRESS_INTERVAL_S
        share = progress.done / progress.total if progress.total > 0 else 0.0
        with self._database.write() as session:
            session.execute(
                update(Calibration)
                .where(Calibration.id == self._attempt.calibration_id, Calibration.state == "running")
                .values(
                    progress_done=SWEEP_PROGRESS * self._attempt.sweeps_done + int(SWEEP_PROGRESS * min(share, 1.0)),
                    progress_message=f"{self._attempt.sweep}: {progress.message}",
                )
            )
