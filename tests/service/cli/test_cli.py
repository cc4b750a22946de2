"""The `calibrate` command as a person meets it: output, warnings, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.errors import PointTimeoutError
from kernels.measure import SweepRequest, SweepResult, measure_sweep

SIMULATED = json.dumps([{"name": "planted", "multiprocessors": 20, "memory_bytes": 8 << 30, "noise": 0.0}])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--device", "nothing"], "no device 'nothing'"),
        (["run", "--device", "planted (simulated)", "--sweeps", "nothing"], "unknown sweep 'nothing'"),
        (["run", "--device", "planted (simulated)", "--parameters", "{"], "not JSON"),
        (["run", "--device", "planted (simulated)", "--parameters", '{"stream": {"elems": 1}}'], "stream.elems"),
        (["run", "--device", "planted (simulated)", "--margin", "-1"], "margin"),
        (["run", "--device", "planted (simulated)", "--margin", "1e300"], "margin"),
        (["run", "--device", "planted (simulated)", "--out", "no/such/folder/file"], "no folder"),
        (["run", "--device", "planted (simulated)", "--out", "."], "name a file"),
        (["run", "--device", "planted (simulated)", "--out", "/dev/null"], "name a file"),
        (["token", "create", "ci", "--scope", "admin"], "admin"),
        (["token", "revoke", "nobody"], "no token named 'nobody'"),
        (["import", "odd.json"], "schema"),
        (["import", "bad.json"], "not JSON"),
        (["export", "7d9651c0-0000-4000-8000-000000000000"], "7d9651c0"),
        (["db", "upgrade", "--database-url", "mysql://x/y"], "CALIBRATE_DATABASE_URL"),
    ],
)
def test_what_cannot_be_used_is_one_clear_message(
    calibrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALIBRATE_SIMULATED", SIMULATED)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text('{"schema": "another/9"}')

    done = calibrate(*words)

    assert done.code == (1 if says.startswith("no device") else 2)
    assert says in done.err
    assert "Traceback" not in done.err


def test_the_help_of_every_command_answers(calibrate: Callable[..., Any]) -> None:
    for words in ([], ["serve"], ["worker"], ["run"], ["devices"], ["fit"], ["import"], ["export"], ["token"], ["db"]):
        done = calibrate(*words, "--help")

        assert done.code == 0, words
        assert "Usage: calibrate" in done.out


def test_a_run_prints_every_point_every_fit_and_lines_that_the_document_gives_again(
    calibrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CALIBRATE_SIMULATED", SIMULATED)
    out = tmp_path / "run.json"

    ran = calibrate("run", "--device", "planted (simulated)", "--out", out)
    fitted = calibrate("fit", out)

    assert (ran.code, fitted.code) == (0, 0), ran.err
    assert "SIMULATED: no device ran anything" in ran.out
    for heading in ("Sweep stream", "Sweep working_set", "Sweep launch", "Sweep issue", "Fits"):
        assert heading in ran.out
    printed = [line for line in ran.out.splitlines() if line.startswith("model_")]
    assert [line for line in fitted.out.splitlines() if line.startswith("model_")] == printed
    assert {line.partition("=")[0] for line in printed} >= {"model_peak_memory_bandwidth", "model_issue_rate"}
    document = json.loads(out.read_text())
    rows = sum(len(sweep["rows"]) for sweep in document["sweeps"])
    assert ran.out.count("stream_") + ran.out.count("_contraction") + ran.out.count("fma") >= rows


def test_the_lines_of_a_document_take_the_margin_and_say_what_is_doubtful(
    calibrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CALIBRATE_SIMULATED", SIMULATED)
    out = tmp_path / "run.json"
    calibrate("run", "--device", "planted (simulated)", "--sweeps", "stream", "--out", out)
    document = json.loads(out.read_text())
    (sweep,) = document["sweeps"]
    sweep["doubtful"] = ["steal over 5 %\nmodel_peak_flops=1"]
    other = json.loads(json.dumps(sweep["rows"][0]))
    other["row"]["backend"] = "other\nmodel_peak_flops=1"
    sweep["rows"].append(other)
    out.write_text(json.dumps(document))

    done = calibrate("fit", out, "--margin", "2")

    twice = document["constants"]["model_peak_memory_bandwidth"]["value"] * 2 * (1 + 2e-6)
    (line,) = [line for line in done.out.splitlines() if not line.startswith("#")]
    assert line.startswith("model_peak_memory_bandwidth=")
    assert float(line.partition("=")[2]) == pytest.approx(twice, rel=1e-6)
    assert "# stream is doubtful: steal over 5 %" in done.out


def test_a_document_goes_into_the_database_once_and_comes_out_the_same(
    calibrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CALIBRATE_SIMULATED", SIMULATED)
    out = tmp_path / "run.json"
    calibrate("run", "--device", "planted (simulated)", "--sweeps", "stream", "--out", out)
    document = json.loads(out.read_text())

    first, second = calibrate("import", out), calibrate("import", out)
    exported = calibrate("export", document["id"])

    assert (first.code, second.code, exported.code) == (0, 0, 0), first.err + second.err + exported.err
    assert "imported" in first.out
    assert "was here already" in second.out
    again = json.loads(exported.out)
    assert again["sweeps"] == document["sweeps"]
    assert again["fits"] == document["fits"]


def test_a_failed_run_names_its_code_and_what_to_do(
    calibrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIBRATE_SIMULATED", SIMULATED)

    done = calibrate("run", "--device", "sim-", "--sweeps", "stream")
    odd = calibrate(
        "run",
        "--device",
        "planted (simulated)",
        "--sweeps",
        "stream",
        "--parameters",
        '{"stream": {"elems": 67108865}}',
    )

    assert done.code == 1
    assert odd.code == 1
    assert "no_exact_rows" in odd.err
    assert "power of two" in odd.err


def test_a_sweep_that_fails_loses_none_that_had_finished(
    calibrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure_stream_only(request: SweepRequest, **how: Any) -> SweepResult:
        if request.sweep == "stream":
            return measure_sweep(request, **how)
        raise PointTimeoutError("the working_set sweep hung; ask for smaller ks")

    monkeypatch.setenv("CALIBRATE_SIMULATED", SIMULATED)
    monkeypatch.setattr("kernels.calibration.measure_sweep", measure_stream_only)
    out = tmp_path / "run.json"

    ran = calibrate("run", "--device", "planted (simulated)", "--sweeps", "stream,working_set", "--out", out)

    assert ran.code == 1
    assert "calibrate: timeout: the working_set sweep hung" in ran.err
    assert f"wrote {out}: stream\n" in ran.err
    assert "model_peak_memory_bandwidth=" in ran.out
    assert calibrate("import", out).code == 0


def test_a_host_with_no_compiler_says_so_and_what_to_install(
    calibrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIBRATE_COMPILER", "no-such-compiler")
    monkeypatch.delenv("CALIBRATE_SIMULATED", raising=False)

    done = calibrate("devices")

    assert done.code == 0
    assert "no usable device" in done.out
    assert "no cc: " in done.out
    assert "no-such-compiler" in done.out
    assert "no cuda: " in done.out


def test_tokens_are_made_listed_and_revoked(calibrate: Callable[..., Any]) -> None:
    made = calibrate("token", "create", "ci", "--scope", "read", "--scope", "calibrate")
    again = calibrate("token", "create", "ci")
    listed = calibrate("token", "list")
    revoked = calibrate("token", "revoke", "ci")

    assert made.code == 0
    assert len(made.out.strip()) >= 32
    assert again.code == 2
    assert "read,calibrate" in listed.out
    assert made.out.strip() not in listed.out
    assert revoked.out == "revoked ci\n"
