"""Keeps a worker process running beside the server, and ends it with the server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from threading import Event, Thread

import structlog

from service.config import Settings

HOST_LOCKED = 75  # sysexits' EX_TEMPFAIL: another worker holds this host
LEAST_BACKOFF_S = 1.0
MOST_BACKOFF_S = 30.0
STEADY_S = 60.0  # a worker that ran this long starts again without delay
GRACE_S = 20.0
_POLL_S = 0.2

log = structlog.get_logger()


class Supervisor:
    """Starts the worker, and starts it again when it ends.

    One thread spawns the worker and waits for it: the worker is told by the kernel when that thread is gone.
    """

    def __init__(self, settings: Settings) -> None:
        """Keep the settings; nothing is started yet."""
        self._settings = settings
        self._stop = Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = Thread(target=self._run, name="worker-supervisor", daemon=True)

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id; None between two of them."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the worker, and go on watching it."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker: it interrupts a running sweep, which goes on at the next start."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        backoff_s = 0.0
        while not self._stop.wait(backoff_s):
            started = time.monotonic()
            code = self._watch(self._spawn())
            if self._stop.is_set():
                return
            steady = time.monotonic() - started >= STEADY_S
            backoff_s = LEAST_BACKOFF_S if steady else min(max(2 * backoff_s, LEAST_BACKOFF_S), MOST_BACKOFF_S)
            if code == HOST_LOCKED:
                log.warning("another worker serves this host; trying again", seconds=backoff_s)
            else:
                log.error("the worker ended; starting it again", code=code, seconds=backoff_s)

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "CALIBRATE_DATA_DIR": str(self._settings.data_dir.absolute()),
            "CALIBRATE_DATABASE_URL": self._settings.url.render_as_string(hide_password=False),
        }
        command = [sys.executable, "-P", "-m", "service.jobs.worker", "--parent", str(os.getpid())]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        return self._process

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the worker's end, or end it when told to stop; returns its exit code."""
        while not self._stop.wait(_POLL_S):
            code = process.poll()
            if code is not None:
                return code
        process.terminate()
        try:
            return process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            log.warning("the worker did not end in time; killing it", seconds=GRACE_S)
            process.kill()
            return process.wait()
