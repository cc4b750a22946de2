"""The same sources for narrower vectors than this processor has: other code paths, the same results."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from kernels.backends.base import (
    BlocktileKernel,
    ContractionProblem,
    FmaKernel,
    FmaProblem,
    StreamKernel,
    StreamProblem,
    UntiledKernel,
)
from kernels.backends.cc import CcBackend
from kernels.parameters import LEAD, WIDE, Geometry

FLAGS = {"x86_64": ["-mno-avx512f", "-mno-avx"]}.get(platform.machine(), [""])  # at most 8 and 4 floats a vector


@pytest.mark.parametrize("flag", FLAGS)
def test_kernels_for_narrower_vectors_are_right_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CALIBRATE_COMPILER", f"{compiler} {flag}")
    backend = CcBackend()
    (found,) = backend.discover().devices

    with backend.open(found.key) as device:
        with device.open_workload(StreamProblem(10_001)) as workload:
            widest = device.stream_candidates(10_001)[-1]
            for name in ("copy", "scale", "add", "triad"):
                workload.prepare(StreamKernel(name, 10_001, widest)).verify()
        with device.open_workload(ContractionProblem(64, 512, 200)) as workload:
            workload.prepare(UntiledKernel(64, 512, 199)).verify()
            for geometry in (LEAD, WIDE):
                workload.prepare(BlocktileKernel(geometry, 64, 512, 200)).verify()
        with device.open_workload(ContractionProblem(48, 80, 205)) as workload:
            workload.prepare(BlocktileKernel(Geometry(24, 40, 5, 4, 8), 48, 80, 205)).verify()
        with device.open_workload(FmaProblem()) as workload:
            workload.prepare(FmaKernel(100)).verify()
        assert len(set(device.stream_candidates(10_001))) >= 6
