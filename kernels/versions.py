"""Which code measured."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

SERVICE = "calibration-service"
_PACKAGES = (SERVICE, "numpy", "cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that measure and fit, those that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
