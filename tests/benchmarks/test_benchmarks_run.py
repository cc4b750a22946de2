"""The benchmark runner runs, on sizes too small to mean anything."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def run(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *arguments],
        env={"PATH": "/usr/bin:/bin", "CALIBRATE_DATA_DIR": str(data), "CALIBRATE_HOST_ID": "test-host"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_stream_and_its_peer_are_compared_and_the_ratios_written(tmp_path: Path) -> None:
    done = run("stream", "--elems", "65536", "--rounds", "2", "--json", str(tmp_path / "out.json"), data=tmp_path)

    assert done.returncode == 0, done.stderr
    ratios = json.loads((tmp_path / "out.json").read_text())["ratios"]
    assert [ratio["name"].split(",")[0] for ratio in ratios] == [
        "stream copy",
        "stream scale",
        "stream add",
        "stream triad",
    ]
    assert done.stdout.count("goal 1.00") == 4


def test_help_and_a_wrong_name_explain_themselves(tmp_path: Path) -> None:
    assert "which ones; default all" in run("--help", data=tmp_path).stdout
    wrong = run("strem", data=tmp_path)
    assert wrong.returncode == 2
    assert "choose from stream, blocktile" in wrong.stderr


def test_a_ratio_is_the_median_of_peer_over_ours_round_by_round() -> None:
    spec = importlib.util.spec_from_file_location("ratio_under_test", FOLDER / "ratio.py")
    assert spec is not None
    assert spec.loader is not None
    ratio = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = ratio  # where a dataclass looks up its annotations
    spec.loader.exec_module(ratio)

    # 2/1, 4/4, 9/3 sorted: 1, 2, 3
    result = ratio.ratio_of("x", [1.0, 4.0, 3.0], [2.0, 4.0, 9.0], work=10**9, unit="B", goal=1.0)

    assert (result.lower, result.median, result.upper) == (1.5, 2.0, 2.5)
    assert (result.ours, result.peer) == (1e12, 5e11)
    assert result.reached
    with pytest.raises(ValueError, match="argument"):
        ratio.ratio_of("x", [1.0], [1.0, 2.0], work=1, unit="B", goal=1.0)
