"""The device child: the only process that touches a device, run as `python -m kernels.child`.

It dies with its parent, holds the device's lock while it measures, streams events as JSON lines through its own pipe,
and ends itself when one point hangs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, Any

from kernels.backends import registry
from kernels.errors import MeasureError, OutOfMemoryError, PointTimeoutError
from kernels.events import (
    Event,
    Progress,
    SweepRequest,
    SweepResult,
    discovery_to_json,
    event_to_json,
    request_from_json,
    result_to_json,
)
from kernels.lock import device_lock
from kernels.sweeps import SWEEP_FUNCTIONS
from kernels.sweeps.run import SweepRun
from kernels.timing import Clock

LOCK_POLL_S = 0.25
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def unlimited(seconds: float) -> AbstractContextManager[None]:
    """Enforce nothing: only a process of its own can end a hung kernel."""
    return nullcontext()


def run_sweep(
    request: SweepRequest,
    emit: Callable[[Event], None],
    *,
    started: Callable[[], None] | None = None,
    point_limit: Callable[[float], AbstractContextManager[None]] = unlimited,
) -> SweepResult:
    """
    Measure one sweep in this process.

    Parameters
    ----------
    request : SweepRequest
        What to measure.
    emit : callable
        Takes every event, in order.
    started : callable or None
        Called once the device's lock is held.
    point_limit : callable
        Takes the point's limit in seconds and returns the context that enforces it around one point: `unlimited`, or
        `hard_limit` in a process of its own.

    Raises
    ------
    MeasureError
        With the code of what went wrong.
    """
    clock = Clock()
    give_up = clock.monotonic() + request.time_limit_s

    def wait() -> None:
        if clock.monotonic() > give_up:
            raise PointTimeoutError(
                f"another process on this host held the device for {request.time_limit_s:g} s; wait for it or end it"
            )
        emit(Progress(0, 1, "waiting for the device"))
        clock.sleep(LOCK_POLL_S)

    with device_lock(request.device, wait=wait):
        if started is not None:
            started()
        emit(Progress(0, 1, "opening the device"))
        deadline = clock.monotonic() + request.time_limit_s
        with registry.open_device(request.device) as device:
            run = SweepRun(
                device=device,
                parameters=request.parameters,
                constants=request.constants,
                emit=emit,
                clock=clock,
                deadline=deadline,
                point_limit=lambda: point_limit(request.point_time_limit_s),
            )
            return SWEEP_FUNCTIONS[request.sweep](run)


@contextmanager
def hard_limit(seconds: float) -> Iterator[None]:
    """
    End this process if the block takes longer, even where Python can't run.

    Notes
    -----
    faulthandler's timer is a C thread: it fires while a kernel or a driver call holds the interpreter.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def die_with(parent: int) -> None:
    """
    Be killed when the thread that spawned this process ends.

    Notes
    -----
    The signal is armed for a later death only, so the parent is checked after the call (prctl(2), PR_SET_PDEATHSIG).
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def main(arguments: list[str]) -> None:
    """Serve one command, `discover BACKEND` or `sweep`, for the parent `arguments[0]` through pipe `arguments[1]`."""
    parent, descriptor, command, *rest = arguments
    die_with(int(parent))
    faulthandler.enable()
    with os.fdopen(int(descriptor), "w", encoding="utf-8", buffering=1) as pipe:
        if command == "discover":
            _send(pipe, {"discovery": discovery_to_json(registry.discover_backend(rest[0]))})
        else:
            _sweep(request_from_json(json.load(sys.stdin)), pipe)


def _sweep(request: SweepRequest, pipe: IO[str]) -> None:
    try:
        result = run_sweep(
            request,
            lambda event: _send(pipe, event_to_json(event)),
            started=lambda: _send(pipe, {"started": True}),
            point_limit=hard_limit,
        )
    except MeasureError as error:
        _send(pipe, {"error": {"code": error.code, "message": str(error), "detail": error.detail}})
    except MemoryError as error:
        message = f"the measuring process ran out of host memory: {error}; ask for a smaller sweep"
        _send(pipe, {"error": {"code": OutOfMemoryError.code, "message": message, "detail": None}})
    else:
        _send(pipe, {"result": result_to_json(result)})


def _send(pipe: IO[str], message: Mapping[str, Any]) -> None:
    pipe.write(json.dumps(message, allow_nan=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
