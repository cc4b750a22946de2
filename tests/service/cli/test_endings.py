"""How the command ends when its reader or its user has had enough: the real process, its output and its children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.lock import device_lock
from kernels.measure import discover_in_child

SIMULATED = json.dumps([{"name": "planted", "memory_bytes": 8 << 30}])
ROW = "cc\td\tr\tlabel\t1.0\t\t1\t0\t1000\tfalse\tfalse\tfalse\n"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen[str]]:
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CALIBRATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("CALIBRATE_HOST_ID", "test-host")
    monkeypatch.setenv("CALIBRATE_SIMULATED", SIMULATED)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # a user's output is buffered

    def popen(*words: object, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from service.cli import main; main()", *map(str, words)]
        return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)

    return popen


def test_a_reader_that_has_enough_ends_the_command_quietly(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "rows.tsv").write_text(ROW)
    reader, writer = os.pipe()
    os.close(reader)

    process = start("fit", tmp_path / "rows.tsv", stdout=writer)
    os.close(writer)
    _, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (1, "")


def test_an_output_that_cannot_be_written_is_said(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text(ROW)
    full = os.open("/dev/full", os.O_WRONLY)  # every write there fails for want of space

    process = start("fit", tmp_path / "rows.tsv", stdout=full)
    os.close(full)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert errors == "calibrate: the output can't be written: No space left on device\n"


def test_ctrl_c_during_a_run_ends_it_and_its_device_child(start: Callable[..., subprocess.Popen[str]]) -> None:
    (device,) = discover_in_child(backends=("simulated",)).devices
    with device_lock(device.key, wait=lambda: None):  # so that the run waits until it is interrupted
        process = start("run", "--device", device.key, "--sweeps", "stream")
        assert process.stderr is not None
        assert any("waiting for the device" in line for line in process.stderr)
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()

        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not Path(f"/proc/{child}").exists()
