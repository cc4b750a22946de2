"""The `calibrate` command as a person meets it: output, warnings, exit codes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fitting import CalibrationRow, record_to_json
from kernels.errors import PointTimeoutError
from kernels.measure import SweepRequest, SweepResult, measure_sweep
from service.cli import main

SIMULATED = json.dumps([{"name": "planted", "multiprocessors": 20, "memory_bytes": 8 << 30, "noise": 0.0}])


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


def row(
    backend: str,
    digest: str,
    label: str,
    ms: str,
    *,
    kernels: int = 1,
    flops: int = 0,
    size: int = 0,
    model: str = "",
    routine: str | None = "r",
    approx: tuple[str, str, str] = ("false", "false", "false"),
) -> str:
    columns = [backend, digest, *([] if routine is None else [routine]), label, ms, model, str(kernels), str(flops)]
    return "\t".join([*columns, str(size), *approx])


def test_a_file_of_all_generations_gives_the_right_constants_counts_and_warnings(
    calibrate: Callable[..., Done], tmp_path: Path
) -> None:
    lines = [
        row("cc", "d1", "fast", "1.000000", flops=1_000_000, size=2_000_000),  # 1e9 op/s, 2e9 byte/s
        "",
        row("cc", "d2", "old", "0.500000", flops=400_000, size=500_000, routine=None) + "\r",  # 11 columns: fits
        "cc\td3\told\t1.0\t1\t5\t5\tfalse\tfalse",  # 9 columns
        row("cc", "d4", "two", "1.000000", kernels=2, flops=600_000, size=1_200_000),  # (0.6 + 0.6) ms in 1 ms: 1.2
        row("cc", "d5", "guarded", "0.001000", size=9_000_000, approx=("false", "true", "false")),
        row("cc", "d6", "hidden", "0.001000", size=9_000_000, approx=("false", "false", "true")),
        "cc\tbroken",
        row("cc", "d7", "nan", "nan", size=1),
        row("gpu", "d8", "slow", "2.000000", size=8_000_000),  # 4e9 byte/s
        row("cc", "d9", "low bound", "1.000000", model="1.500000", flops=1, size=1),  # a violation
    ]
    file = tmp_path / "rows.tsv"
    file.write_text("\n".join(lines) + "\n")

    both = calibrate("fit", file)
    cc = calibrate("fit", file, "--backend", "cc", "--margin", "2")

    assert (both.code, cc.code) == (0, 0)
    assert "skipped 1 9-column row, which can't prove exactness (line 4)" in both.err
    assert "skipped 2 malformed lines (lines 8, 9)" in both.err
    assert "several backends" in both.err
    assert "several backends" not in cc.err
    # 1e9 op/s x slack 1.2 x bump 1.000002 = 1.2000024e9, and 2e9 byte/s likewise; gpu 4e9 x 1.000002
    assert "model_peak_flops=1.200002e+9" in both.out
    assert "model_peak_memory_bandwidth=2.400005e+9" in both.out
    assert "model_peak_memory_bandwidth=4.000008e+9" in both.out
    assert "model_peak_flops=2.400005e+9" in cc.out
    assert "r/two (d4)" in cc.out
    assert "4.000008e+9" not in cc.out


def test_a_file_without_a_constant_ends_with_1_and_says_so(calibrate: Callable[..., Done], tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text(row("cc", "d1", "guarded", "1.0", size=9, approx=("true", "true", "false")) + "\n")
    empty = tmp_path / "empty.tsv"
    empty.write_text("")

    approximate, nothing = calibrate("fit", file), calibrate("fit", empty)

    assert approximate.code == 1
    assert "# model_peak_memory_bandwidth: none" in approximate.out
    assert (nothing.code, nothing.out) == (1, "")
    assert "no row can be fitted" in nothing.err


def test_a_line_that_is_not_text_loses_no_other_line(calibrate: Callable[..., Done], tmp_path: Path) -> None:
    good, bad = (row("cc", "d", "label", "1.0", size=size).encode() for size in (1000, 9000))
    file = tmp_path / "rows.tsv"
    lines = [good, bad.replace(b"label", b"\xff"), bad.replace(b"label", b"\x00"), good]
    file.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))

    done = calibrate("fit", file)

    assert done.code == 0
    assert "# cc: rows timed 2, opaque 0" in done.out
    assert "model_peak_memory_bandwidth=1.000002e+6" in done.out
    assert "skipped 2 malformed lines (lines 2, 3)" in done.err


def test_rows_come_from_stdin_and_from_json_too(
    calibrate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = row("cc", "d", "label", "1.0", size=1000)
    parsed = CalibrationRow.from_line(line)
    assert parsed is not None
    (tmp_path / "rows.json").write_text(json.dumps([record_to_json(parsed)]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line.encode())))

    piped, as_json = calibrate("fit", "-"), calibrate("fit", tmp_path / "rows.json", "--kind", "envelope")

    assert "model_peak_memory_bandwidth=1.000002e+6" in piped.out
    assert as_json.out == piped.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fit", "absent.tsv"], "can't be read"),
        (["fit", "--kind", "speed", "rows.tsv"], "speed"),
        (["fit", "rows.tsv", "--margin", "0"], "margin"),
        (["fit", "rows.tsv", "--margin", "nan"], "margin"),
        (["fit", "rows.tsv", "--backend", "cuda"], "the file has: cc"),
        (["fit", "rows.tsv", "--kind", "fill"], "--multiprocessors"),
        (["fit", "bad.json"], "not JSON"),
        (["fit", "odd.json"], "schema"),
        (["fit", "binary.tsv", "--kind", "capacity"], "UTF-8"),
        (["fit", "deep.json"], "not JSON"),
        (["fit", "points.json"], "--kind"),
        (["fit", "points.json", "--kind", "issue_rate"], "points[1].ms: is required"),
        (["fit", "points.csv", "--kind", "issue_rate"], "line 3.scalar_ops: must be an integer"),
        (["fit", "points.csv", "--kind", "capacity"], "k,loops,working_set"),
        (["fit", "ragged.csv", "--kind", "issue_rate"], "line 2: has 2 cells, and the header 5"),
        (["fit", "rows.tsv", "--kind", "issue_rate"], "starts with a header"),
        (["fit", "points.csv", "--kind", "issue_rate", "--multiprocessors", "4"], "both"),
        (
            ["fit", "points.csv", "--kind", "issue_rate", "--multiprocessors", "0", "--fill-threads", "64"],
            "multiprocessors must be an integer from 1",
        ),
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
    calibrate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALIBRATE_SIMULATED", SIMULATED)
    (tmp_path / "rows.tsv").write_text(row("cc", "d1", "a", "1.0", size=9) + "\n")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text('{"schema": "another/9"}')
    (tmp_path / "binary.tsv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.json").write_text('{"a":' * 100_000)
    whole = {"k": 1, "scalar_ops": 5, "mma_ops": 0, "kernels": 1, "ms": 1.5}
    (tmp_path / "points.json").write_text(json.dumps([whole, {name: whole[name] for name in whole if name != "ms"}]))
    (tmp_path / "points.csv").write_text("k,scalar_ops,mma_ops,kernels,ms\n1,5,0,1,1.5\n2,five,0,1,2.5\n")
    (tmp_path / "ragged.csv").write_text("k,scalar_ops,mma_ops,kernels,ms\n1,5\n")

    done = calibrate(*words)

    assert done.code in (1, 2)
    assert says in done.err
    assert "Traceback" not in done.err


def test_the_help_of_every_command_answers(calibrate: Callable[..., Done]) -> None:
    for words in ([], ["serve"], ["worker"], ["run"], ["devices"], ["fit"], ["import"], ["export"], ["token"], ["db"]):
        done = calibrate(*words, "--help")

        assert done.code == 0, words
        assert "Usage: calibrate" in done.out


def test_points_as_json_and_as_csv_give_the_same_fit(calibrate: Callable[..., Done], tmp_path: Path) -> None:
    # 1 op/ns and 0.1 ms: 1e6 ops in 1.1 ms, 4e6 in 4.1 ms.
    points = [
        {
            "k": k,
            "scalar_ops": k * 1_000_000,
            "mma_ops": 0,
            "kernels": 1,
            "ms": k + 0.1,
            "rank_ms": None,
            "bound_ms": None,
        }
        for k in (1, 2, 4)
    ]
    as_json, as_csv = tmp_path / "points.json", tmp_path / "points.csv"
    as_json.write_text(json.dumps(points))
    lines = [f"{point['k']},{point['scalar_ops']},0,1,{point['ms']},8:64:{point['scalar_ops']}" for point in points]
    as_csv.write_text("k, scalar_ops, mma_ops, kernels, ms, contexts\r" + "\r".join(lines), newline="")

    by_json = calibrate("fit", as_json, "--kind", "issue_rate")
    by_csv = calibrate("fit", as_csv, "--kind", "issue_rate")

    assert (by_json.code, by_csv.code) == (0, 0)
    assert "model_issue_rate=1.000000e+9" in by_json.out
    assert by_csv.out == by_json.out


def test_capacity_and_fill_points_are_fitted_from_a_file(calibrate: Callable[..., Done], tmp_path: Path) -> None:
    def point(size: int, rate: float) -> dict[str, Any]:
        ms = size / rate * 1e3
        return {"k": 8, "loops": [8, 1, 1], "working_set": size, "requested": size, "distinct": 8, "ms": ms}

    capacity = tmp_path / "capacity.json"
    capacity.write_text(json.dumps({"points": [point(1_000_000, 8e11), point(4_000_000, 1e11)]}))
    fill = tmp_path / "fill.csv"
    # P 4, t 64, 1e9 op/s: 1 block of 64 fills a quarter, 4 blocks all of it.
    lines = [f"g,32,32,8,{blocks}:64:1000000,{max(4 / blocks, 1.0)}" for blocks in (1, 2, 4, 8)]
    fill.write_text("geometry,m,n,k,contexts,ms\n" + "\n".join(lines) + "\n")

    split = calibrate("fit", capacity, "--kind", "capacity")
    full = calibrate("fit", fill, "--kind", "fill", "--multiprocessors", "4")

    assert split.code == 0
    assert "model_cache_capacity=2000000" in split.out  # the geometric mean of 1e6 and 4e6
    assert "model_cache_bandwidth=8.000000e+11" in split.out
    assert full.code == 0
    assert "model_multiprocessors=4" in full.out
    assert "model_issue_rate=1.000000e+9" in full.out
    assert "tied_candidates [32 64]" in full.out  # blocks of 64: t of 32 and of 64 can't be told apart


def test_a_run_prints_every_point_every_fit_and_lines_that_the_document_gives_again(
    calibrate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    calibrate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    calibrate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    calibrate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
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
    calibrate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    calibrate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIBRATE_COMPILER", "no-such-compiler")
    monkeypatch.delenv("CALIBRATE_SIMULATED", raising=False)

    done = calibrate("devices")

    assert done.code == 0
    assert "no usable device" in done.out
    assert "no cc: " in done.out
    assert "no-such-compiler" in done.out
    assert "no cuda: " in done.out


def test_tokens_are_made_listed_and_revoked(calibrate: Callable[..., Done]) -> None:
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
