"""The GPU check where there is no GPU: its arithmetic by hand, the whole run on a simulated and an emulated device."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fitting import DOCUMENT_SCHEMA, refit
from kernels.errors import PointTimeoutError, VerificationError
from kernels.sweeps import SWEEP_FUNCTIONS
from tests.gpu import gpu_check, gpu_report, gpu_steps
from tests.kernels.cuda_shim.emulated_cupy import H200, EmulatedCupy, Machine

ROOT = Path(__file__).resolve().parents[2]
QUICK: dict[str, dict[str, Any]] = {
    "launch": {"sizes": [32, 64, 128, 256], "max_size": 256},
    "working_set": {"ks": [256, 1024, 4096, 16384]},
    "issue": {"ks": [256, 1024, 4096]},
}


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CALIBRATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("CALIBRATE_HOST_ID", "a-host")
    monkeypatch.setenv("CALIBRATE_SIMULATED", '[{"name": "toy"}]')


def document(**constants: Any) -> dict[str, Any]:
    """A calibration document with these constants: a value, or a reason in words."""
    found = {
        name: {"value": None, "reason": each} if isinstance(each, str) else {"value": each, "reason": None}
        for name, each in constants.items()
    }
    return {"constants": found, "fits": [], "sweeps": []}


def test_a_prediction_is_operations_over_the_filled_issue_rate_or_bytes_over_bandwidth() -> None:
    constants = {
        "model_issue_rate": 1e12,
        "model_peak_memory_bandwidth": 1e11,
        "model_multiprocessors": 10.0,
        "model_fill_threads": 128.0,
    }
    points = [
        # 10 blocks of 64 threads on 10 x 128: half full. 1e9 / 0.5e12 = 2 ms; the memory leg is 1e7 / 1e11 = 0.1 ms.
        {"batch": 2, "ms": 2.5, "ops": 10**9, "bytes": 10**7, "blocks": 10, "threads": 64},
        # 1e9 bytes take 10 ms.
        {"batch": 4, "ms": 8.0, "ops": 10**9, "bytes": 10**9, "blocks": 10, "threads": 64},
    ]

    first, second = gpu_report.predict(points, constants)

    assert first["predicted_ms"] == pytest.approx(2.0)
    assert first["error"] == pytest.approx(-0.2)
    assert second["predicted_ms"] == pytest.approx(10.0)
    assert second["error"] == pytest.approx(0.25)


def test_without_constants_a_point_stays_unpriced() -> None:
    (point,) = gpu_report.predict(
        [{"batch": 2, "ms": 1.0, "ops": 8, "bytes": 8, "blocks": 1, "threads": 64}], {"model_multiprocessors": 10.0}
    )

    assert (point["predicted_ms"], point["error"]) == (None, None)


def test_two_calibrations_agree_within_a_percent_a_grid_step_and_ties() -> None:
    first = document(
        model_issue_rate=100.0, model_cache_capacity=1000, model_multiprocessors=132, model_fill_threads=256
    )
    second = document(
        model_issue_rate=100.9, model_cache_capacity=1099, model_multiprocessors=132, model_fill_threads=320
    )
    second["fits"] = [{"kind": "fill", "result": {"tied_candidates": [256, 320]}}]

    compared = {each["name"]: each for each in gpu_report.compare(first, second)}

    assert all(each["agrees"] for each in compared.values())
    assert compared["model_issue_rate"]["ratio"] == pytest.approx(1.009)


def test_two_calibrations_differ_past_a_percent_a_grid_step_and_ties() -> None:
    first = document(
        model_issue_rate=100.0,
        model_cache_capacity=1000,
        model_multiprocessors=132,
        model_fill_threads=256,
        model_cache_bandwidth=5.0,
    )
    second = document(
        model_issue_rate=101.1,
        model_cache_capacity=1101,
        model_multiprocessors=131,
        model_fill_threads=320,
        model_cache_bandwidth="all_spilled",
    )

    assert [each["agrees"] for each in gpu_report.compare(first, second)] == [False] * 5


def test_absence_agrees_only_for_the_same_reason() -> None:
    first = document(model_cache_capacity="all_cached", model_cache_bandwidth="low_contrast")
    second = document(model_cache_capacity="all_cached", model_cache_bandwidth="all_spilled")

    compared = {each["name"]: each["agrees"] for each in gpu_report.compare(first, second)}

    assert compared == {"model_cache_bandwidth": False, "model_cache_capacity": True}


def test_the_split_of_the_control_is_told_in_distinct_bytes() -> None:
    calibration = document()
    calibration["fits"] = [
        {
            "kind": "capacity",
            "phase": "spread",
            "outcome": "Transition",
            "result": {"cached_ws": 1000, "spilled_ws": 4000},
        }
    ]
    calibration["sweeps"] = [
        {"points": [{"point": {"working_set": w, "distinct": d}} for w, d in ((1000, 40), (4000, 90))]}
    ]

    assert gpu_report.distinct_at_split(calibration, "spread") == pytest.approx(math.sqrt(40 * 90))
    assert gpu_report.distinct_at_split(calibration, "aligned") is None
    assert gpu_report.outcome(calibration, "capacity", "spread") == "Transition"
    assert gpu_report.outcome(calibration, "fill") == "not fitted"


def report_of(name: str, **steps: Any) -> dict[str, Any]:
    done = {each: {"seconds": 1.0, "result": result, "error": None} for each, result in steps.items()}
    return {"device": {"name": name}, "simulated": False, "steps": done, "calibrations": []}


def test_goals_hold_for_an_h200_and_ratios_for_every_card() -> None:
    sizes = {
        "sizes": [{"elems": 1 << 26, "kernels": {"copy": {"bytes_per_s": 4.1e12}, "triad": {"bytes_per_s": 4.1e12}}}]
    }
    steps = {"stream_sizes": sizes, "device_copy": {"kernel_over_driver": 0.96}}

    h200 = {line.check: line.met for line in gpu_report.lines(report_of("NVIDIA H200", **steps))}
    other = {line.check: line.met for line in gpu_report.lines(report_of("NVIDIA A100", **steps))}

    assert h200 == {
        "STREAM 2^26 copy": True,
        "STREAM 2^26 triad": False,
        "copy kernel over device-to-device copy": False,
    }
    assert other == {**h200, "STREAM 2^26 copy": None, "STREAM 2^26 triad": None}


def test_a_table_is_aligned_and_marks_what_is_missed() -> None:
    table = [gpu_report.Line("a", "1", ">= 2", False), gpu_report.Line("longer", "22", ">= 2", True)]

    assert gpu_report.render(table, title="card") == ["card", "  a       1   >= 2  MISSED", "  longer  22  >= 2  met"]


@pytest.mark.usefixtures("simulated")
def test_a_whole_run_on_a_simulated_device_writes_one_json_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "check.json"

    status = gpu_check.main(["--device", "sim", "--out", str(out)], parameters=QUICK)

    report = json.loads(out.read_text())
    printed = capsys.readouterr().out
    assert status == gpu_check.OK
    assert report["simulated"] is True
    assert "SIMULATED DEVICE, no figure is real: toy (simulated)" in printed
    assert [name for name, step in report["steps"].items() if step["result"] is not None] == [
        "surroundings",
        "verify",
        "calibration_1",
        "blocktile",
        "predictions",
        "stream_sizes",
        "calibration_2",
        "repeatability",
    ]
    assert report["unfinished"] == {}
    assert report["steps"]["cublas"]["not_measured"] == "only a CUDA device has this"
    assert [item["batch"] for item in report["steps"]["predictions"]["result"]["points"]] == [
        2,
        4,
        8,
        16,
        32,
        64,
        128,
        256,
        512,
    ]
    # The planted device is Truth's default: 1.5e12 byte/s, slowed by up to half a per cent.
    rate = report["steps"]["stream_sizes"]["result"]["sizes"][0]["kernels"]["triad"]["bytes_per_s"]
    assert rate == pytest.approx(1.5e12, rel=0.01)
    assert [each["schema"] for each in report["calibrations"]] == [DOCUMENT_SCHEMA] * 2
    from service.documents import parse_document  # here, as a GPU machine that collects this file has no service

    assert parse_document(out.read_bytes()).document.id == report["calibrations"][1]["id"]
    assert {fit.kind for fit in refit(report["calibrations"][1])} >= {"envelope", "capacity", "issue_rate", "fill"}
    assert {line["check"] for line in report["table"]} >= {"calibration 1", "model_issue_rate", "kernels verified"}


@pytest.mark.usefixtures("simulated")
def test_a_step_that_fails_is_told_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: object) -> dict[str, Any]:
        raise VerificationError("stream_copy is wrong", detail="all of it")

    monkeypatch.setattr(gpu_steps, "verify_all", broken)
    out = tmp_path / "check.json"

    status = gpu_check.main(["--device", "sim", "--out", str(out)], parameters=QUICK)

    report = json.loads(out.read_text())
    assert status == gpu_check.STEP_FAILED
    assert report["steps"]["verify"]["error"] == {
        "code": "verification",
        "message": "stream_copy is wrong",
        "detail": "all of it",
    }
    assert report["table"][0]["measured"].startswith("FAILED verification")
    assert report["steps"]["stream_sizes"]["result"] is not None


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        ({"rate": math.inf}, "ValueError: Out of range float values are not JSON compliant"),
    ],
)
@pytest.mark.usefixtures("simulated")
def test_a_step_that_fails_unforeseen_is_told_with_its_traceback_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Exception | dict[str, Any], message: str
) -> None:
    def broken(device: object) -> dict[str, Any]:
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(gpu_steps, "surroundings", broken)
    out = tmp_path / "new folder" / "check.json"

    status = gpu_check.main(["--device", "sim", "--out", str(out)], parameters=QUICK)

    report = json.loads(out.read_text())
    error = report["steps"]["surroundings"]["error"]
    assert status == gpu_check.STEP_FAILED
    assert error["code"] == "internal"
    assert error["message"].startswith(message)
    assert error["detail"].startswith("Traceback (most recent call last)")
    assert len(report["calibrations"]) == 2


@pytest.mark.usefixtures("simulated")
def test_what_a_failed_calibration_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hung(run: object) -> None:
        raise PointTimeoutError("the working set sweep hung")

    monkeypatch.setitem(SWEEP_FUNCTIONS, "working_set", hung)
    out = tmp_path / "check.json"

    status = gpu_check.main(["--device", "sim", "--out", str(out)], parameters=QUICK)

    report = json.loads(out.read_text())
    assert status == gpu_check.STEP_FAILED
    assert report["calibrations"] == []
    assert report["steps"]["calibration_1"]["error"]["code"] == "timeout"
    for name in ("calibration_1", "calibration_2"):
        kept = report["unfinished"][name]
        assert [item["sweep"] for item in kept["sweeps"]] == ["stream"]
        # The planted device is Truth's default: 1.5e12 byte/s, slowed by up to half a per cent.
        assert kept["constants"]["model_peak_memory_bandwidth"]["value"] == pytest.approx(1.5e12, rel=0.01)


@pytest.mark.usefixtures("simulated")
def test_past_its_budget_a_run_ends_and_says_what_it_left_out(tmp_path: Path) -> None:
    device = gpu_check.choose("sim")
    assert not isinstance(device, str)
    check = gpu_check.Check(device, tmp_path / "check.json", lambda line: None, budget_s=-1)

    assert check.run(QUICK) == gpu_check.OK
    assert {step["not_measured"] for step in check.report["steps"].values()} == {"the run's -1 s were spent"}
    assert check.report["calibrations"] == []


def test_without_a_gpu_it_says_why_in_one_line_and_exits_3(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests/gpu/gpu_check.py"), "--out", str(tmp_path / "none.json")]

    done = subprocess.run(command, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)

    assert done.returncode == gpu_check.NO_GPU == 3
    assert done.stderr.startswith("gpu-check: no GPU to check: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tmp_path / "none.json").exists()


@pytest.mark.usefixtures("simulated")
def test_a_device_that_is_not_there_is_told_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    reason = gpu_check.choose("GPU-nowhere")

    assert isinstance(reason, str)
    assert gpu_check.main(["--device", "GPU-nowhere"]) == gpu_check.NO_GPU
    assert capsys.readouterr().err == f"gpu-check: no GPU to check: {reason}\n"


def test_the_steps_that_only_cuda_has_run_on_an_emulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(devices=({**H200, "multiProcessorCount": 1},), occupancy_limit=256)
    cupy = EmulatedCupy(machine)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    small = {"COPY_BYTES": 1 << 14, "CONTENTS_ELEMS": 1 << 12, "M": 8, "N": 256, "SEQUENCE": 8, "BATCHES": (1, 2)}
    for name, value in small.items():
        monkeypatch.setattr(gpu_steps, name, value)

    found = gpu_check.choose(None)
    assert not isinstance(found, str)

    with gpu_check.registry.open_device(found.key) as device:
        around = gpu_steps.surroundings(device)
        compiled = gpu_steps.compile_all(device)
        copied = gpu_steps.device_copy(device)
        contents = gpu_steps.stream_contents(device)
        shapes = gpu_steps.untiled_shapes(device)

    assert around["queued_launch_ms"] > 0
    assert around["provenance"]["short_launches"] == "graphs"
    assert len(compiled["kernels"]) == 8 + 3 + 4 + 4 + 1
    assert compiled["spilling"] == []
    assert copied["kernel_over_driver"] > 0
    assert set(contents["rates_bytes_per_s"]) == {"copy", "triad"}
    assert len(shapes["points"]) == 2 * 2 * 2
    # 8 blocks of 256 x 1 read 257 floats a step, 8 of 32 x 8 only 40.
    assert [point["requested_bytes"] for point in shapes["points"][::2]] == [4 * 8 * 257 * 8] * 2 + [4 * 8 * 40 * 8] * 2
    assert machine.memory == {}
    assert cupy.cuda.runtime.left_open() == 0
