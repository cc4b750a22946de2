"""Which code measured."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_SERVICE = "calibration-service"
_PACKAGES = (_SERVICE, "numpy", "cupy-cuda12x", "cupy-cuda13x")


def service_version() -> str:
    """Version of this service."""
    return version(_SERVICE)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that measure and fit, those that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
