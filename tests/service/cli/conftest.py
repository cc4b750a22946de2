"""The `calibrate` command, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from service.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def calibrate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Done]:
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CALIBRATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("CALIBRATE_HOST_ID", "test-host")
    monkeypatch.setenv("CALIBRATE_DATABASE_URL", "")  # empty is unset, and what a command sets is undone

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["calibrate", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return run
