"""Simulated devices for the tests of `kernels`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.backends.simulated import SimulatedBackend
from kernels.device import DeviceDescription

Configure = Callable[..., DeviceDescription]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Configure:
    """Returns a function that makes one simulated device the host's only one, with its own lock folder."""
    monkeypatch.setenv("CALIBRATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("CALIBRATE_HOST_ID", "test-host")

    def configure(name: str = "toy", **truth: Any) -> DeviceDescription:
        monkeypatch.setenv("CALIBRATE_SIMULATED", json.dumps([{"name": name, **truth}]))
        (device,) = SimulatedBackend().discover().devices
        return device

    return configure
