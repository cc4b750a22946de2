"""`calibrate devices` and `calibrate run` where nothing can be kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("words", [["devices"], ["run", "--device", "toy (simulated)", "--sweeps", "stream"]])
def test_a_home_that_cannot_be_written_hinders_neither_the_list_nor_a_run(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "home").touch()  # a file: no folder can be made in it, not even by root
    unset = {"CALIBRATE_DATA_DIR", "CALIBRATE_DATABASE_URL", "XDG_DATA_HOME", "CUPY_CACHE_DIR"}
    env = {name: value for name, value in os.environ.items() if name not in unset} | {
        "HOME": str(tmp_path / "home"),
        "CALIBRATE_LOCK_DIR": str(tmp_path / "locks"),
        "CALIBRATE_HOST_ID": "test-host",
        "CALIBRATE_SIMULATED": json.dumps([{"name": "toy", "noise": 0.0}]),
    }
    command = [sys.executable, "-c", "from service.cli import main; main()", *words]

    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr
    assert "toy (simulated)" in done.stdout
    assert ("cpu-" if words == ["devices"] else "model_peak_memory_bandwidth=1.50000") in done.stdout
