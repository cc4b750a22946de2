"""Which backends there are, which devices they have, and how one is opened by its key."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from kernels.backends.base import Backend, OpenDevice
from kernels.device import DeviceDescription, Discovery, UnusableBackend
from kernels.errors import NoDeviceError

_BACKENDS = (  # in the order devices are listed
    ("cuda", "kernels.backends.cuda", "CudaBackend"),
    ("cc", "kernels.backends.cc", "CcBackend"),
    ("simulated", "kernels.backends.simulated", "SimulatedBackend"),
)
_KEY_PREFIXES = {"cpu-": "cc", "sim-": "simulated"}  # every other key is a GPU's UUID


BACKENDS = tuple(name for name, _, _ in _BACKENDS)


def discover_backend(name: str) -> Discovery:
    """
    Return what one backend found; a library that is not there is a reason, not an exception.

    Notes
    -----
    This touches drivers: a process that is to outlive them calls `kernels.measure.discover_in_child`.
    """
    try:
        return load(name).discover()
    except ImportError as error:
        return Discovery(unusable=(UnusableBackend(name, f"the backend's library can't be loaded: {error}"),))


def load(name: str) -> Backend:
    """
    Return a backend by its name, importing its module now and not before.

    Raises
    ------
    ImportError
        When the module needs a library that is not there.
    NoDeviceError
        For an unknown name.
    """
    for known, module, attribute in _BACKENDS:
        if known == name:
            backend: Backend = getattr(importlib.import_module(module), attribute)()
            return backend
    raise NoDeviceError(f"unknown backend {name!r}; known: {', '.join(BACKENDS)}")


def backend_of(key: str) -> str:
    """Return the name of the backend that a device key belongs to."""
    return next((backend for prefix, backend in _KEY_PREFIXES.items() if key.startswith(prefix)), "cuda")


@contextmanager
def open_device(key: str) -> Iterator[OpenDevice]:
    """
    Open the device of that key in this process.

    Raises
    ------
    NoDeviceError
        When no backend has it; the message says which backend was asked and why.
    """
    name = backend_of(key)
    try:
        backend = load(name)
    except ImportError as error:
        raise NoDeviceError(f"{key}: the {name} backend's library can't be loaded: {error}") from error
    with backend.open(key) as device:
        yield device


def find(name: str | None, discovery: Discovery) -> DeviceDescription:
    """
    Return the one device meant by a key, a kind, a backend or a name.

    Parameters
    ----------
    name : str or None
        A key, `cpu` or `gpu`, a backend's name or a device's name, without regard to case; None means the only device
        there is.
    discovery : Discovery
        What to look in.

    Raises
    ------
    NoDeviceError
        When none matches, or several do; both list what there is.
    """
    devices = discovery.devices
    usable = ", ".join(f"{device.key} ({device.name})" for device in devices) or "none"
    listing = "; ".join([f"usable: {usable}", *(f"no {item.backend}: {item.reason}" for item in discovery.unusable)])
    if name is None:
        matches = list(devices)
    else:
        wanted = name.casefold()
        exact = [device for device in devices if device.key == name]
        matches = exact or [
            device
            for device in devices
            if wanted in (device.key.casefold(), device.kind, device.backend, device.name.casefold())
        ]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        asked = "no usable device" if name is None else f"no device {name!r}"
        raise NoDeviceError(f"{asked} on this host; {listing}")
    choices = "; ".join(f"{device.key} ({device.name})" for device in matches)
    asked = "several devices are usable" if name is None else f"{name!r} names several devices"
    raise NoDeviceError(f"{asked}; choose one of: {choices}")
