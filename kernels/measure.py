"""One sweep in a spawned device child, supervised: events out, cancel and time limits in.

`measure_sweep` runs in a process that never touches a device. The child takes the device's file lock, runs the sweep,
and streams events; whatever happens to it (segfault, hang, poisoned context) ends as a MeasureError here.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from kernels.backends.registry import BACKENDS
from kernels.device import Discovery, UnusableBackend
from kernels.errors import ERRORS, CancelledError, MeasureError, PointTimeoutError
from kernels.events import (
    Event,
    Point,
    PointMeasured,
    Progress,
    Reading,
    RowMeasured,
    SweepRequest,
    SweepResult,
    discovery_from_json,
    event_from_json,
    request_to_json,
    result_from_json,
)

__all__ = [
    "Event",
    "Point",
    "PointMeasured",
    "Progress",
    "Reading",
    "RowMeasured",
    "SweepRequest",
    "SweepResult",
    "discover_in_child",
    "measure_sweep",
]

POLL_S = 0.25
GRACE_S = 5.0
"""What a child gets past its time limit to say so itself, and after its last word to end."""
_TAIL_BYTES = 8192
_TRACEBACK = "Traceback (most recent call last)"


def measure_sweep(
    request: SweepRequest, *, on_event: Callable[[Event], None], cancelled: Callable[[], bool]
) -> SweepResult:
    """
    Measure one sweep in a child process.

    Parameters
    ----------
    request : SweepRequest
        What to measure, with its limits.
    on_event : callable
        Called in this thread with every event, in order; what it raises ends the child and passes through.
    cancelled : callable
        Polled every 0.25 s; once true the child and all it started are killed.

    Returns
    -------
    SweepResult
        What is known once the sweep is done; rows and points went to `on_event`.

    Raises
    ------
    CancelledError
        When cancelled.
    PointTimeoutError
        When the sweep or one of its points ran past its limit; the time spent waiting for the device counts apart.
    MeasureError
        Of the code the child reported; `internal` with `crashed` when the child died without a word.
    """
    with _spawned("sweep", stdin=json.dumps(request_to_json(request), allow_nan=False)) as child:
        give_up = time.monotonic() + request.time_limit_s + GRACE_S
        for message in child.messages():
            if message is None:
                if cancelled():
                    raise CancelledError(f"the {request.sweep} sweep was cancelled")
                if time.monotonic() > give_up:
                    raise PointTimeoutError(
                        f"the {request.sweep} sweep ran past its {request.time_limit_s:g} s; ask for fewer or smaller"
                        " points, or a longer time limit"
                    )
            elif "started" in message:
                give_up = time.monotonic() + request.time_limit_s + GRACE_S
            elif "error" in message:
                error = message["error"]
                child.wait()
                raise ERRORS.get(error["code"], MeasureError)(error["message"], detail=error["detail"])
            elif "result" in message:
                child.wait()
                return result_from_json(message["result"])
            else:
                on_event(event_from_json(request.sweep, message))
        raise child.epitaph(request)


def discover_in_child(timeout_s: float = 60.0, *, backends: Sequence[str] = BACKENDS) -> Discovery:
    """
    Return this host's devices without touching a driver in this process.

    Parameters
    ----------
    timeout_s : float
        Seconds a backend may take.
    backends : sequence of str
        Which backends to ask.

    Notes
    -----
    One child a backend, so that a driver which crashes or hangs takes no other backend's devices with it.
    """
    devices: list[Any] = []
    unusable: list[UnusableBackend] = []
    for backend in backends:
        found = _discover_backend(backend, timeout_s)
        devices.extend(found.devices)
        unusable.extend(found.unusable)
    return Discovery(tuple(devices), tuple(unusable))


def _discover_backend(backend: str, timeout_s: float) -> Discovery:
    with _spawned("discover", backend) as child:
        give_up = time.monotonic() + timeout_s
        for message in child.messages():
            if message is not None:
                return discovery_from_json(message["discovery"])
            if time.monotonic() > give_up:
                reason = f"looking for devices took more than {timeout_s:g} s: the driver hangs"
                return Discovery(unusable=(UnusableBackend(backend, reason),))
        reason = f"looking for devices {child.ending()}{child.last_words()}"
        return Discovery(unusable=(UnusableBackend(backend, reason),))


class _Child:
    """A running device child and the pipe it talks through."""

    def __init__(self, process: subprocess.Popen[str], pipe: IO[bytes], log: IO[bytes]) -> None:
        self._process = process
        self._pipe = pipe
        self._log = log

    def messages(self) -> Iterator[dict[str, Any] | None]:
        """Yield each message, and None at least every `POLL_S` seconds; end when the child closes its pipe."""
        buffer = b""
        last_poll = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while True:
                if selector.select(POLL_S):
                    chunk = self._pipe.read(1 << 16)
                    if not chunk:
                        return
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        yield json.loads(line)
                if time.monotonic() - last_poll >= POLL_S:
                    last_poll = time.monotonic()
                    yield None

    def wait(self) -> int | None:
        """Give the child time to end by itself; return its exit code, None if it does not."""
        try:
            return self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return None

    def ending(self) -> str:
        """Wait for the end and say in words how it came."""
        code = self.wait()
        if code is None:
            return "stopped answering"
        if code < 0:
            hint = ", perhaps for want of host memory" if code == -signal.SIGKILL else ""
            return f"was ended by {signal.Signals(-code).name}{hint}"
        return f"ended with exit code {code} and no result"

    def last_words(self) -> str:
        """Return the exception that ended the child, if one did."""
        tail = self._tail()
        return f": {tail.rstrip().splitlines()[-1]}" if _TRACEBACK in tail else ""

    def epitaph(self, request: SweepRequest) -> MeasureError:
        """Return the error of a child that ended without a result."""
        ending = self.ending()
        tail = self._tail()
        code = self._process.returncode
        if code == 1 and "Timeout (" in tail:  # faulthandler's first words
            return PointTimeoutError(
                f"a point of the {request.sweep} sweep ran past its hard limit of {request.point_time_limit_s:g} s:"
                " its kernel hung, or the point is too large for this device",
                detail=tail,
            )
        if code == 1 and _TRACEBACK in tail:
            return MeasureError(f"the {request.sweep} sweep failed unexpectedly; the detail has where", detail=tail)
        return MeasureError(f"the process that measured {request.sweep} {ending}", detail=tail or None, crashed=True)

    def end(self) -> None:
        """Kill what is left of the child's group, a compiler it started and gave up among them, and reap it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL_BYTES))
        return self._log.read().decode(errors="replace")


@contextmanager
def _spawned(*command: str, stdin: str = "") -> Iterator[_Child]:
    """
    Start a child that leads its own process group and dies with this thread; it is gone when the block ends.

    Its imports come from where this process's do, never from whatever folder it happens to be started in (`-P`).
    """
    receive, send = os.pipe()
    with os.fdopen(receive, "rb", buffering=0) as pipe, tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kernels.child", str(os.getpid()), str(send), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(send,),
                start_new_session=True,
                text=True,
            )
        finally:
            os.close(send)
        child = _Child(process, pipe, log)
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as request:
                request.write(stdin)
            yield child
        finally:
            child.end()
