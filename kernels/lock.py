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
    path = lock_folder() / f"{re.sub(r'[^A-Za-z0-9-]', '_', key)}.lock"
    try:
        descriptor = _opened(path)
    except OSError as error:
        raise MeasureError(
            f"the device's lock file can't be made: {error}; set CALIBRATE_LOCK_DIR to a folder that can be written"
        ) from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                wait()
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """
    Open the lock's file, made with its folder where they are missing.

    What is made here is open to other users, past the umask, as their services must be able to wait on it. What was
    there before, perhaps behind a link, keeps its mode; and it is opened without O_CREAT, which Linux refuses on
    another user's file in a sticky folder (sysctl fs.protected_regular).
    """
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o1777)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    os.fchmod(descriptor, 0o666)
    return descriptor
