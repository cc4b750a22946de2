"""A wrong kernel is caught: a compiler that changes one place of a source, and the real verification."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from kernels.backends.base import (
    BlocktileKernel,
    ContractionProblem,
    FmaKernel,
    FmaProblem,
    Kernel,
    Problem,
    StreamCandidate,
    StreamKernel,
    StreamName,
    StreamProblem,
    UntiledKernel,
)
from kernels.backends.cc import CcBackend
from kernels.errors import VerificationError
from kernels.parameters import LEAD

NAMES: tuple[StreamName, ...] = ("copy", "scale", "add", "triad")
ELEMS = 1 << 18


def mutating_compiler(folder: Path, source: str, before: str, after: str) -> str:
    """A compiler command that changes one place of one source first."""
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    script = folder / "mutating-compiler"
    script.write_text(
        f"""#!{sys.executable}
import pathlib, subprocess, sys
arguments = sys.argv[1:]
for place, argument in enumerate(arguments):
    source = pathlib.Path(argument)
    if source.name == {source!r}:
        text = source.read_text()
        assert text.count({before!r}) == 1
        mutant = pathlib.Path({str(folder)!r}) / source.name
        mutant.write_text(text.replace({before!r}, {after!r}))
        arguments[place : place + 1] = ["-I", str(source.parent), str(mutant)]
        break
sys.exit(subprocess.run([{compiler!r}, *arguments]).returncode)
"""
    )
    script.chmod(0o700)
    return str(script)


@pytest.mark.parametrize(
    ("source", "before", "after"),
    [
        ("stream.c", "i < elems; i++) output[i]", "i < elems - 1; i++) output[i]"),
        ("stream.c", "0.5f * LOAD(q + i)", "0.50001f * LOAD(q + i)"),
        ("stream.c", "#define LOAD(at) (*(const vector *)(at))", "#define LOAD(at) (*(vector *)(at) *= 2.0f)"),
        ("contraction.c", "d3 * x3[i]", "d2 * x3[i]"),
        ("blocktile.c", "dy[k * m + o]", "dy[k * m + o / 2 * 2]"),
        ("blocktile.c", "next[c].from + s * next", "next[c].from + s / 2 * 2 * next"),
        ("fma.c", "step < steps", "step < steps - 1"),
    ],
)
def test_a_wrong_kernel_never_passes_its_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, before: str, after: str
) -> None:
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CALIBRATE_COMPILER", mutating_compiler(tmp_path, source, before, after))
    problems: dict[str, tuple[Problem, Kernel]] = {
        "stream.c": (StreamProblem(1001), StreamKernel("triad", 1001, StreamCandidate(32, 4, 4))),
        "contraction.c": (ContractionProblem(8, 512, 64), UntiledKernel(8, 512, 64)),
        "blocktile.c": (ContractionProblem(64, 64, 296), BlocktileKernel(LEAD, 64, 64, 296)),
        "fma.c": (FmaProblem(), FmaKernel(100)),
    }
    problem, kernel = problems[source]
    backend = CcBackend()

    with backend.open(backend.discover().devices[0].key) as device, device.open_workload(problem) as workload:
        prepared = workload.prepare(kernel)
        with pytest.raises(VerificationError, match="elements differ"):
            prepared.verify()
