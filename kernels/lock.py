"""The file lock of a device: whoever holds it is the only one on this host that measures there."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernels.errors import MeasureError


def lock_folder() -> Path:
    """Return `CALIBRATE_LOCK_DIR`, else a folder in the system's temporary one, which containers may share."""
    return Path(os.environ.get("CALIBRATE_LOCK_DIR") or Path(tempfile.gettempdir()) / "calibrate-locks")


@contextmanager
def device_lock(key: str, *, wait: Callable[[], None]) -> Iterator[None]:
    """
    Hold the lock of device `key` until the context, or the process, ends.

    Parameters
    ----------
    key : str
        The device's key.
    wait : callable
        Called between tries while another process holds the lock; it sleeps, and raises to give up.

    Raises
    ------
    MeasureError
        When the lock's file can't be made.

    Notes
    -----
    flock(2): the kernel drops the lock when its holder dies, however it dies. The file stays, since removing it would
    let two processes lock two files of one name.
    """
    folder = lock_folder()
    path = folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', key)}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user's folder is already as it should be
            folder.chmod(0o1777)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise MeasureError(f"the device's lock file can't be made: {error}; set CALIBRATE_LOCK_DIR") from error
    try:
        with suppress(PermissionError):
            os.fchmod(descriptor, 0o666)  # past the umask: other users' services must be able to wait on it
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                wait()
        yield
    finally:
        os.close(descriptor)
