"""The client side of the job engine: enqueue in the caller's transaction, ask for states, put back.

DBOS queues, dispatches and recovers, nothing more; `calibrations` is the truth for state, progress and error. One queue
per device, named by its key. The constants here never change, or jobs of an earlier release would be left behind: the
engine hands a job only to a worker of the job's application version.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Lock

from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, EnqueueOptions, WorkflowStatus
from dbos import error as engine_error
from sqlalchemy import URL
from sqlalchemy.orm import Session

from service.config import Settings
from service.models import Calibration

APPLICATION = "calibration-service"
APPLICATION_VERSION = "calib-1"
WORKFLOW = "drive"
WAITING = ("ENQUEUED", "DELAYED")  # the engine's states of a job that it still has to start
RUNNING = "PENDING"  # the engine's word for a job that was handed to a worker
ENDED = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
PRUNE_AT_ONCE = 1000

_CALLER_PRIORITY_MIN = 1  # the engine takes 1 and up, and 0 where none is given


def migrate_engine(url: URL) -> None:
    """Create or upgrade the engine's own tables, next to ours.

    Safe to call from many processes at once: the engine takes SQLite's write lock, or a PostgreSQL advisory lock.
    """
    quiet_engine_log()
    DBOS.migrate(engine_url(url))


def engine_url(url: URL) -> str:
    """The engine's form of our database URL, password included."""
    return url.render_as_string(hide_password=False)


def quiet_engine_log() -> None:
    """Keep the engine's start-up lines and its advertised links out of our log."""
    logging.getLogger("dbos").setLevel(logging.WARNING)


class JobQueue:
    """Puts jobs on the queue of their device; cheap to create, connects when first used.

    Raises at once where the database can't be reached: a request must not hang on it.
    """

    def __init__(self, settings: Settings) -> None:
        """Keep the settings; nothing is connected yet."""
        self._url = settings.url
        self._client: DBOSClient | None = None
        self._lock = Lock()

    def enqueue(self, session: Session, calibration: Calibration) -> None:
        """Put the job on its device's queue when the caller's transaction commits, or not at all.

        A job that the engine has already is left as it is.
        """
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": calibration.device_key,
            "workflow_id": calibration.id,
            "app_version": APPLICATION_VERSION,
        }
        if calibration.priority >= _CALLER_PRIORITY_MIN:
            options["priority"] = calibration.priority
        self.client.enqueue_in_transaction(session, options, calibration.id)

    def withdraw(self, calibration_id: str) -> None:
        """Forget a job that has not started: a cancelled one would take a turn of its queue, and do nothing in it.

        One that is handed out at this very moment does nothing either; the engine logs that it can't keep its outcome.
        """
        if self.states([calibration_id]).get(calibration_id) in WAITING:
            self.client.delete_workflow(calibration_id)

    def states(self, calibration_ids: Sequence[str]) -> dict[str, str]:
        """The engine's state of each job it knows; the others are missing from the answer."""
        if not calibration_ids:
            return {}
        found = self.client.list_workflows(workflow_ids=list(calibration_ids), load_input=False, load_output=False)
        return {job.workflow_id: job.status for job in found}

    def put_back(self, calibration_id: str, device_key: str) -> None:
        """Queue a job again that the engine holds as ended; one that is queued by now is left alone."""
        try:
            self.client.rewind_workflow(
                calibration_id, start_step=1, application_version=APPLICATION_VERSION, queue_name=device_key
            )
        except engine_error.DBOSException:
            if self.states([calibration_id]).get(calibration_id) not in (*WAITING, RUNNING):
                raise

    def open_queues(self, device_keys: Sequence[str], poll_s: float) -> None:
        """Make sure that each device has its queue, which hands out one job at a time.

        It needs both limits: `worker_concurrency` alone was seen to overlap, `global_concurrency` alone would start the
        next job while a cancelled one still holds its thread.
        """
        for key in device_keys:
            self.client.register_queue(
                key,
                worker_concurrency=1,
                global_concurrency=1,
                polling_interval_sec=poll_s,
                on_conflict="always_update",
            )

    def heal(self, executor_id: str, device_keys: Sequence[str]) -> list[str]:
        """Free these devices' queues of jobs that no worker would ever take up; returns the ids put back.

        To be called before the worker listens, under the host's lock: whatever is still running here then belongs to
        another executor id or another application version, and would block its queue for ever. A job under an unknown
        workflow name is deleted from the engine: reconciling enqueues it again under the right one.
        """
        if not device_keys:
            return []
        waiting = self.client.list_workflows(
            queue_name=list(device_keys), status=[*WAITING, RUNNING], load_input=False, load_output=False
        )
        healed = [job for job in waiting if job.name != WORKFLOW or _is_orphan(job, executor_id)]
        for job in healed:
            self.client.cancel_workflow(job.workflow_id)
            if job.name == WORKFLOW:
                self.put_back(job.workflow_id, str(job.queue_name))
            else:
                self.client.delete_workflow(job.workflow_id)
        return [job.workflow_id for job in healed]

    def prune(self, device_keys: Sequence[str], before: datetime) -> None:
        """Delete the engine's rows of jobs that ended before that time; ours hold all that anybody asks for.

        The engine has no such clean-up of its own.
        """
        if not device_keys:
            return
        ended = self.client.list_workflows(
            queue_name=list(device_keys),
            status=list(ENDED),
            completed_before=before.astimezone(UTC).isoformat(),
            limit=PRUNE_AT_ONCE,
            load_input=False,
            load_output=False,
        )
        if ended:
            self.client.delete_workflows([job.workflow_id for job in ended])

    @property
    def client(self) -> DBOSClient:
        """The engine's client, created when first used."""
        with self._lock:
            if self._client is None:
                quiet_engine_log()
                self._client = DBOSClient(
                    system_database_url=engine_url(self._url),
                    application_name=APPLICATION,
                    serializer=DBOSPortableJSONSerializer(),  # pickles would import CUDA classes here
                    retry_connection_errors=False,
                    lazy=True,
                )
            return self._client

    def close(self) -> None:
        """Close the client's connections; it is created again if used."""
        with self._lock:
            if self._client is not None:
                self._client.destroy()
                self._client = None


def _is_orphan(job: WorkflowStatus, executor_id: str) -> bool:
    if job.app_version not in (None, APPLICATION_VERSION):
        return True
    return job.status == RUNNING and (job.app_version is None or job.executor_id != executor_id)
