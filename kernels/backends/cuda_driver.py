"""The NVIDIA driver library asked directly: is it there, how old, does it start, which UUID has a device.

CuPy reports "no driver" and "driver too old" as the same error, and a MIG slice under its parent's UUID; the driver
tells both apart.
"""

from __future__ import annotations

import ctypes
import uuid

LIBRARY = "libcuda.so.1"


class Driver:
    """The loaded driver library.

    Parameters
    ----------
    library
        A file name that the loader searches for, or a path.

    Raises
    ------
    OSError
        When there is no such library: no driver is installed, or the container does not have it.

    References
    ----------
    CUDA Driver API, "Initialization", "Version Management", "Device Management".
    """

    def __init__(self, library: str = LIBRARY) -> None:
        """Load the library; this starts nothing."""
        self._library = ctypes.CDLL(library)

    def version(self) -> tuple[int, int] | None:
        """Return the newest CUDA version that the driver supports, or None when it does not say."""
        number = ctypes.c_int(0)
        if self._library.cuDriverGetVersion(ctypes.byref(number)) != 0 or number.value <= 0:
            return None
        return number.value // 1000, number.value % 1000 // 10

    def device_uuid(self, ordinal: int) -> str | None:
        """Return the UUID of a device, of the slice where it is one, in 8-4-4-4-12 form; None when it can't be read.

        Notes
        -----
        The driver numbers devices as the run time does, both after `CUDA_VISIBLE_DEVICES`. `cuDeviceGetUuid_v2`, which
        knows slices, came with CUDA 11.4.
        """
        read = getattr(self._library, "cuDeviceGetUuid_v2", None) or getattr(self._library, "cuDeviceGetUuid", None)
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if read is None or self._library.cuInit(0) != 0:
            return None
        if self._library.cuDeviceGet(ctypes.byref(device), ordinal) != 0 or read(ctypes.byref(raw), device) != 0:
            return None
        return format_uuid(bytes(raw))


def format_uuid(raw: bytes) -> str | None:
    """Return 16 raw bytes in 8-4-4-4-12 form; None when they are not sixteen or all zero."""
    return str(uuid.UUID(bytes=raw)) if len(raw) == 16 and any(raw) else None


def load_driver(library: str = LIBRARY) -> Driver | None:
    """Return the driver, or None when the library is not there."""
    try:
        return Driver(library)
    except OSError:
        return None
