"""`calibrate fit`: files of all kinds, warnings, exit codes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fitting import CalibrationRow, record_to_json


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
    calibrate: Callable[..., Any], tmp_path: Path
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


def test_a_file_without_a_constant_ends_with_1_and_says_so(calibrate: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text(row("cc", "d1", "guarded", "1.0", size=9, approx=("true", "true", "false")) + "\n")
    empty = tmp_path / "empty.tsv"
    empty.write_text("")

    approximate, nothing = calibrate("fit", file), calibrate("fit", empty)

    assert approximate.code == 1
    assert "# model_peak_memory_bandwidth: none" in approximate.out
    assert (nothing.code, nothing.out) == (1, "")
    assert "no row can be fitted" in nothing.err


def test_a_line_that_is_not_text_loses_no_other_line(calibrate: Callable[..., Any], tmp_path: Path) -> None:
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
    calibrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
        (["absent.tsv"], "can't be read"),
        (["--kind", "speed", "rows.tsv"], "speed"),
        (["rows.tsv", "--margin", "0"], "margin"),
        (["rows.tsv", "--margin", "nan"], "margin"),
        (["rows.tsv", "--backend", "cuda"], "the file has: cc"),
        (["rows.tsv", "--kind", "fill"], "--multiprocessors"),
        (["bad.json"], "not JSON"),
        (["odd.json"], "schema"),
        (["binary.tsv", "--kind", "capacity"], "UTF-8"),
        (["deep.json"], "not JSON"),
        (["points.json"], "--kind"),
        (["points.json", "--kind", "issue_rate"], "points[1].ms: is required"),
        (["points.csv", "--kind", "issue_rate"], "line 3.scalar_ops: must be an integer"),
        (["points.csv", "--kind", "capacity"], "k,loops,working_set"),
        (["ragged.csv", "--kind", "issue_rate"], "line 2: has 2 cells, and the header 5"),
        (["rows.tsv", "--kind", "issue_rate"], "starts with a header"),
        (["points.csv", "--kind", "issue_rate", "--multiprocessors", "4"], "both"),
        (
            ["points.csv", "--kind", "issue_rate", "--multiprocessors", "0", "--fill-threads", "64"],
            "multiprocessors must be an integer from 1",
        ),
    ],
)
def test_what_cannot_be_fitted_is_one_clear_message(
    calibrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.tsv").write_text(row("cc", "d1", "a", "1.0", size=9) + "\n")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text('{"schema": "another/9"}')
    (tmp_path / "binary.tsv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.json").write_text('{"a":' * 100_000)
    whole = {"k": 1, "scalar_ops": 5, "mma_ops": 0, "kernels": 1, "ms": 1.5}
    (tmp_path / "points.json").write_text(json.dumps([whole, {name: whole[name] for name in whole if name != "ms"}]))
    (tmp_path / "points.csv").write_text("k,scalar_ops,mma_ops,kernels,ms\n1,5,0,1,1.5\n2,five,0,1,2.5\n")
    (tmp_path / "ragged.csv").write_text("k,scalar_ops,mma_ops,kernels,ms\n1,5\n")

    done = calibrate("fit", *words)

    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err


def test_points_as_json_and_as_csv_give_the_same_fit(calibrate: Callable[..., Any], tmp_path: Path) -> None:
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


def test_capacity_and_fill_points_are_fitted_from_a_file(calibrate: Callable[..., Any], tmp_path: Path) -> None:
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
