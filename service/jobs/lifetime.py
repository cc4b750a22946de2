"""A process that must not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
from queue import SimpleQueue
from threading import Event, Thread

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def stop_with(parent: int) -> bool:
    """Ask the kernel for a SIGTERM when the thread that spawned this process ends; False where it has ended by now.

    The signal is armed for a later death only, so the parent is looked at after the call (prctl(2)).
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == parent


def stop_on_signals(stop: Event) -> None:
    """Set `stop` at SIGTERM or SIGINT; to be called in the main thread.

    A handler runs between two instructions of the main thread, which may just then hold the event's lock: an event set
    by the handler itself would wait for that lock for ever. `SimpleQueue.put` may be interrupted by itself, so the
    handler only puts, and a thread sets the event.
    """
    signals: SimpleQueue[int] = SimpleQueue()

    def wait() -> None:
        signals.get()
        stop.set()

    Thread(target=wait, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.put(received))
