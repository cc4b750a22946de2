"""The whole job as ONE idempotent step: whoever calls it, however often, it goes on where the tables say.

So new code can always pick up an old job, and a job that was cut short at any instruction is driven to its end by
driving it again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock
from typing import TypeVar

import structlog
from sqlalchemy.orm import Session

from kernels.errors import CancelledError, MeasureError, PointTimeoutError
from kernels.measure import Event as SweepEvent
from kernels.measure import Progress, SweepRequest, measure_sweep
from service.db import Database
from service.jobs import results, transitions
from service.jobs.records import Record
from service.jobs.transitions import AllMeasured, Attempt
from service.jobs.watch import DATABASE_AWAY, Watch
from service.models import Calibration

T = TypeVar("T")

_RETRY_S = 1.0
_IDLE_POLL_S = 0.05
_STOP_LAG_S = 0.5  # a stop that also reaches the child may be seen there first

log = structlog.get_logger()


class Interrupted(BaseException):
    """The worker stops: the job stays with the engine, which hands it out again at the next start.

    No `Exception`, because the engine would record one as the job's end.
    """


class Driver:
    """Drives jobs in this process; one at a time on a device, whatever the engine hands out."""

    def __init__(self, database: Database, stop: Event) -> None:
        """Keep the database, and the event that says that the worker stops."""
        self._database = database
        self._stop = stop
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)
        self.quiet = Lock()
        """Held by whoever does work that would disturb a measurement; no sweep starts meanwhile."""

    @property
    def busy(self) -> bool:
        """Whether a job is being driven."""
        return any(lock.locked() for lock in list(self._locks.values()))

    def wait_idle(self, seconds: float) -> None:
        """Wait until no job is driven, but not for ever."""
        give_up = time.monotonic() + seconds
        while self.busy and time.monotonic() < give_up:
            time.sleep(_IDLE_POLL_S)

    def drive(self, calibration_id: str) -> None:
        """Measure what is left of a job, fit it and activate its constants, or end it in words.

        Raises
        ------
        Interrupted
            The worker was asked to stop; nothing is lost but the sweep that was running.
        """
        device_key = self._persist(lambda session: _device_key(session, calibration_id))
        if device_key is None:
            return
        with self._holding(device_key):
            while True:
                if self._stop.is_set():
                    raise Interrupted
                step = self._persist(lambda session: transitions.begin(session, calibration_id))
                match step:
                    case None:
                        return
                    case AllMeasured():
                        self._persist(lambda session: _conclude(session, calibration_id))
                        log.info("calibration ended", calibration=calibration_id)
                        return
                    case Attempt() as attempt:
                        self._measure(attempt)

    def fail(self, calibration_id: str, message: str, detail: str) -> None:
        """End a job that a defect of ours broke."""

        def end(session: Session) -> None:
            calibration = transitions.open_calibration(session, calibration_id)
            if calibration is not None:
                transitions.fail(session, calibration, "internal", message, detail=detail)

        self._persist(end)

    def _measure(self, attempt: Attempt) -> None:
        watch = Watch(self._database, attempt, self._stop)
        measured: list[Record] = []

        def on_event(event: SweepEvent) -> None:
            if isinstance(event, Progress):
                watch.note(event)
            else:
                measured.append(event)

        with self.quiet:
            pass  # a look for devices that is under way ends first; none begins while a job is driven
        request = SweepRequest(
            device=attempt.device_key,
            sweep=attempt.sweep,
            parameters=attempt.parameters,
            constants=attempt.constants,
            time_limit_s=max(attempt.seconds_left, 0.0),
        )
        log.info("sweep started", calibration=attempt.calibration_id, sweep=attempt.sweep, start=attempt.number)
        try:
            result = measure_sweep(request, on_event=on_event, cancelled=watch.poll)
        except MeasureError as error:
            self._after_error(attempt, watch, measured, error)
        else:
            self._persist(lambda session: transitions.complete(session, attempt, measured, result))
            log.info(
                "sweep succeeded",
                calibration=attempt.calibration_id,
                sweep=attempt.sweep,
                doubtful=list(result.doubtful),
            )

    def _after_error(self, attempt: Attempt, watch: Watch, measured: list[Record], error: MeasureError) -> None:
        if watch.reason == "stop" or (error.crashed and self._stop.wait(_STOP_LAG_S)):
            self._give_back(attempt)
            log.info(
                "sweep interrupted; it starts again with the worker",
                calibration=attempt.calibration_id,
                sweep=attempt.sweep,
            )
            raise Interrupted
        log.info(
            "sweep failed", calibration=attempt.calibration_id, sweep=attempt.sweep, code=error.code, why=str(error)
        )
        if watch.reason == "cancel":
            self._persist(lambda session: transitions.stop_cancelled(session, attempt, measured))
            return
        if watch.reason == "timeout" or isinstance(error, CancelledError):
            error = PointTimeoutError(
                f"the job reached its time limit of {attempt.time_limit_s:g} s in the {attempt.sweep} sweep, while "
                f"{watch.doing}: ask for a longer time limit, fewer points or fewer repeats"
            )
        final = error
        self._persist(lambda session: transitions.retry_or_fail(session, attempt, measured, final))

    def _give_back(self, attempt: Attempt) -> None:
        """Once only: the worker has seconds to end, and a start that stays counted is no great loss."""
        try:
            with self._database.write() as session:
                transitions.give_back(session, attempt)
        except DATABASE_AWAY as error:
            log.warning("the stop costs a start: database away", calibration=attempt.calibration_id, error=str(error))

    def _persist(self, move: Callable[[Session], T]) -> T:
        """Run one move in a write transaction, again until the database answers: measurements are not thrown away."""
        while True:
            try:
                with self._database.write() as session:
                    return move(session)
            except DATABASE_AWAY as error:
                log.warning("database away, trying again", error=str(error))
                if self._stop.wait(_RETRY_S):
                    raise Interrupted from error

    @contextmanager
    def _holding(self, device_key: str) -> Iterator[None]:
        """The device's turn: the engine's queues alone were seen to overlap."""
        lock = self._locks[device_key]
        while not lock.acquire(timeout=_RETRY_S):
            if self._stop.is_set():
                raise Interrupted
        try:
            yield
        finally:
            lock.release()


def _device_key(session: Session, calibration_id: str) -> str | None:
    calibration = transitions.open_calibration(session, calibration_id)
    return None if calibration is None else calibration.device_key


def _conclude(session: Session, calibration_id: str) -> None:
    calibration: Calibration | None = transitions.open_calibration(session, calibration_id)
    if calibration is None:
        return
    if calibration.cancel_requested:
        transitions.cancel(session, calibration)
        return
    finished = transitions.sweep_runs(session, calibration_id)
    results.conclude(session, calibration, finished, results.fit(session, calibration, finished))
