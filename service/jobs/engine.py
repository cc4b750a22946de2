"""The engine's dispatching side, in the one shape of it that was found safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer

from service.config import Settings
from service.jobs.queue import APPLICATION, APPLICATION_VERSION, WORKFLOW, engine_url, quiet_engine_log

MAX_DISPATCHES = 100  # a backstop: starts of a sweep are bounded by our own count, which says why


@contextmanager
def running_engine(
    settings: Settings, executor_id: str, device_keys: Sequence[str], drive: Callable[[str], None]
) -> Iterator[None]:
    """Hand the jobs of these devices' queues to `drive`, each in a thread of its own, until the context ends.

    Application version and executor id stay what they are over restarts, or pending jobs would be orphaned. When the
    context ends no job may be running: the engine does not wait for one.
    """
    quiet_engine_log()
    config: DBOSConfig = {
        "name": APPLICATION,
        "system_database_url": engine_url(settings.url),
        "application_version": APPLICATION_VERSION,
        "executor_id": executor_id,
        "serializer": DBOSPortableJSONSerializer(),
        "run_migrations": False,
        "enable_otlp": False,
        "log_level": "WARNING",
        "sys_db_pool_size": 5 + len(device_keys),
    }
    DBOS(config=config)
    try:
        _register(drive)
        DBOS.listen_queues(list(device_keys))
        DBOS.launch()
        yield
    finally:
        DBOS.destroy(destroy_registry=True)


def _register(drive: Callable[[str], None]) -> None:
    @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=MAX_DISPATCHES)
    def drive_calibration(calibration_id: str) -> None:
        drive(calibration_id)
