"""A process that must not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def stop_with(parent: int) -> bool:
    """Ask the kernel for a SIGTERM when the thread that spawned this process ends; False where it has ended by now.

    The signal is armed for a later death only, so the parent is looked at after the call (prctl(2)).
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == parent
