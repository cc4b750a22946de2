"""The CUDA sources as they are, run on the host: right answers, no access out of bounds or off its alignment."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernels.backends.base import BlocktileKernel, FmaKernel, Phase, StreamCandidate, StreamKernel, StreamName
from kernels.backends.base import UntiledKernel as Untiled
from kernels.backends.cuda_source import (
    GEOMETRIES,
    STREAM_CANDIDATES,
    Plan,
    plan_blocktile,
    plan_fma,
    plan_stream,
    plan_untiled,
)
from kernels.parameters import LEAD, WIDE, Geometry
from kernels.verification import STREAM_INPUTS, STREAM_OUTPUT, Float32
from tests.kernels.cuda_shim.emulator import Launch, Outcome, build_library, run_isolated

NAMES: tuple[StreamName, ...] = ("copy", "scale", "add", "triad")
CRASHES = (signal.SIGSEGV, signal.SIGBUS)
TRAPS = (signal.SIGILL, signal.SIGTRAP)
BOTH = Geometry(32, 64, 8, 4, 4)
"""A tile with fewer vectors of dy than the block has threads, and as many of x."""


def uniform(*shape: int, seed: int = 7) -> Float32:
    return np.random.default_rng(seed).random(shape, dtype=np.float32) * 2 - 1


def run(
    plan: Plan,
    arrays: dict[str, Float32 | int],
    folder: Path,
    *,
    text: str | None = None,
    extra_blocks: int = 0,
    backwards: bool = False,
    shift: int = 0,
) -> Outcome:
    grid = (plan.grid[0] + extra_blocks, plan.grid[1])
    launch = Launch(plan.entry, grid, plan.block, plan.arguments)
    return run_isolated(build_library(text or plan.text), [launch], arrays, folder, backwards=backwards, shift=shift)


def run_streams(candidate: StreamCandidate, elems: int, folder: Path) -> tuple[dict[str, Float32], Outcome]:
    """The four kernels in one process, each with an output of its own, called by the kernel's name."""
    plans = {name: plan_stream(StreamKernel(name, elems, candidate)) for name in NAMES}
    launches = [
        Launch(plan.entry, plan.grid, plan.block, (*STREAM_INPUTS[name], name, elems)) for name, plan in plans.items()
    ]
    inputs = {name: uniform(elems, seed=ord(name)) for name in "abc"}
    library = build_library(plans["copy"].text)
    return inputs, run_isolated(library, launches, {**inputs, **dict.fromkeys(NAMES, elems)}, folder)


def stream_arrays(name: StreamName, elems: int) -> dict[str, Float32 | int]:
    inputs: dict[str, Float32 | int] = {each: uniform(elems, seed=ord(each)) for each in STREAM_INPUTS[name]}
    return {**inputs, STREAM_OUTPUT[name]: elems}


def operands(m: int, n: int, k: int) -> dict[str, Float32 | int]:
    return {"dy": uniform(k, m, seed=1), "x": uniform(k, n, seed=2), "dw": m * n}


def worst(outcome: Outcome, arrays: dict[str, Float32 | int]) -> float:
    """The largest error against float64; NaN where a cell was never written."""
    dy, x = (np.asarray(arrays[name], np.float64) for name in ("dy", "x"))
    return float(np.abs(outcome.arrays["dw"].reshape(dy.shape[1], x.shape[1]) - dy.T @ x).max())


@pytest.mark.parametrize("candidate", STREAM_CANDIDATES, ids=lambda each: each.label)
def test_the_stream_kernels_write_every_element_to_the_bit(candidate: StreamCandidate, tmp_path: Path) -> None:
    elems = 2 * candidate.block * candidate.vector * candidate.per_thread

    assert not plan_stream(StreamKernel("copy", elems, candidate)).guarded
    assert_streams(*run_streams(candidate, elems, tmp_path))


@pytest.mark.parametrize("vector", [4, 2, 1])
def test_guarded_stream_kernels_stop_at_an_extent_that_nothing_divides(vector: int, tmp_path: Path) -> None:
    elems = 4099  # a prime, five blocks of 1024 elements and, with four lanes, three in the last vector
    candidate = StreamCandidate(256, vector, 4)

    assert plan_stream(StreamKernel("copy", elems, candidate)).guarded
    assert_streams(*run_streams(candidate, elems, tmp_path))


def assert_streams(inputs: dict[str, Float32], outcome: Outcome) -> None:
    assert (outcome.signal, outcome.message) == (0, "")
    a, b, c = (inputs[name].astype(np.float64) for name in "abc")
    for name, exact in {"copy": a, "scale": 0.5 * a, "add": a + b, "triad": b + 0.5 * c}.items():
        expected = exact.astype(np.float32).view(np.uint32)
        np.testing.assert_array_equal(outcome.arrays[name].view(np.uint32), expected, err_msg=name)
    for name, values in inputs.items():
        np.testing.assert_array_equal(outcome.arrays[name], values, err_msg=f"{name} is an input")


@pytest.mark.parametrize("phase", ["aligned", "spread"])
@pytest.mark.parametrize("block", [(256, 1), (32, 8)])
def test_the_untiled_contraction_is_right_in_both_phases(phase: Phase, block: tuple[int, int], tmp_path: Path) -> None:
    m, n, k = 16, 512, 104
    arrays = operands(m, n, k)

    outcome = run(plan_untiled(Untiled(m, n, k, phase), block=block), arrays, tmp_path)

    assert worst(outcome, arrays) <= k * 2.0**-23


@pytest.mark.parametrize("geometry", [*GEOMETRIES, BOTH], ids=lambda each: each.label)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_blocktiled_contraction_is_right_whatever_order_the_threads_run_in(
    geometry: Geometry, backwards: bool, tmp_path: Path
) -> None:
    m, n, k = 2 * geometry.bm, geometry.bn, 3 * geometry.bk
    arrays = operands(m, n, k)

    outcome = run(plan_blocktile(BlocktileKernel(geometry, m, n, k)), arrays, tmp_path, backwards=backwards)

    assert worst(outcome, arrays) <= k * 2.0**-23


def test_the_fma_chains_count_their_steps(tmp_path: Path) -> None:
    outcome = run(plan_fma(FmaKernel(11), blocks=2), {"out": 16 * 512}, tmp_path)

    # Chain c of thread t starts at t + c, chain by chain over all threads, and is eleven steps on.
    expected = np.add.outer(np.arange(16.0), np.tile(np.arange(256.0), 2)) + 11
    np.testing.assert_array_equal(outcome.arrays["out"].reshape(16, 512), expected)


@pytest.mark.parametrize("barrier", [0, 1])
@pytest.mark.parametrize("geometry", [LEAD, WIDE], ids=lambda each: each.label)
def test_a_missing_barrier_is_caught(geometry: Geometry, barrier: int, tmp_path: Path) -> None:
    plan = plan_blocktile(BlocktileKernel(geometry, geometry.bm, geometry.bn, 4 * geometry.bk))
    parts = plan.text.split("        __syncthreads();\n")
    assert len(parts) == 3
    kept = ["        __syncthreads();\n", "        __syncthreads();\n"]
    kept[barrier] = ""
    text = parts[0] + kept[0] + parts[1] + kept[1] + parts[2]
    arrays = operands(geometry.bm, geometry.bn, 4 * geometry.bk)

    errors = [worst(run(plan, arrays, tmp_path, text=text, backwards=order), arrays) for order in (False, True)]

    assert max(errors) > 0.1  # a wrong operand is off by about its own size


def test_a_barrier_that_some_threads_skip_is_caught(tmp_path: Path) -> None:
    plan = plan_blocktile(BlocktileKernel(LEAD, 32, 32, 16))
    text = plan.text.replace("        __syncthreads();\n#pragma", "        if (thread) __syncthreads();\n#pragma")
    assert text != plan.text

    assert "a barrier that not all threads" in run(plan, operands(32, 32, 16), tmp_path, text=text).message


@pytest.mark.parametrize("name", ["copy", "triad"])
def test_a_grid_one_block_too_long_is_caught(name: StreamName, tmp_path: Path) -> None:
    plan = plan_stream(StreamKernel(name, 8192, StreamCandidate(256, 4, 4)))

    assert run(plan, stream_arrays(name, 8192), tmp_path, extra_blocks=1).signal in CRASHES


def test_a_contraction_grid_one_block_too_long_is_caught(tmp_path: Path) -> None:
    untiled = plan_untiled(Untiled(4, 256, 64))
    tiled = plan_blocktile(BlocktileKernel(LEAD, 32, 32, 64))

    assert run(untiled, operands(4, 256, 64), tmp_path, extra_blocks=1).signal in CRASHES
    assert run(tiled, operands(32, 32, 64), tmp_path, extra_blocks=1).signal in CRASHES


def test_a_guard_that_is_off_by_one_is_caught(tmp_path: Path) -> None:
    elems = 4099
    plan = plan_stream(StreamKernel("scale", elems, StreamCandidate(256, 4, 4)))
    text = plan.text.replace("(at + 1) * VECTOR <= elems", "at * VECTOR <= elems")
    assert text != plan.text

    outcome = run(plan, stream_arrays("scale", elems), tmp_path, text=text)

    # The last vector has three of four lanes: the fourth lands between the array's end and the guard page, or on it.
    assert outcome.signal in CRASHES or "past the end" in outcome.message


@pytest.mark.parametrize(
    ("plan", "arrays"),
    [
        (plan_stream(StreamKernel("triad", 8192, StreamCandidate(256, 4, 4))), stream_arrays("triad", 8192)),
        (plan_stream(StreamKernel("copy", 8192, StreamCandidate(256, 2, 4))), stream_arrays("copy", 8192)),
        (plan_blocktile(BlocktileKernel(LEAD, 32, 32, 16)), operands(32, 32, 16)),
    ],
    ids=["16-byte stream", "8-byte stream", "blocktile"],
)
def test_a_vector_access_off_its_alignment_is_caught(
    plan: Plan, arrays: dict[str, Float32 | int], tmp_path: Path
) -> None:
    assert run(plan, arrays, tmp_path, shift=4).signal in TRAPS


def test_scalar_accesses_may_sit_at_any_float(tmp_path: Path) -> None:
    plan = plan_stream(StreamKernel("copy", 8192, StreamCandidate(256, 1, 8)))

    assert run(plan, stream_arrays("copy", 8192), tmp_path, shift=4).signal == 0


def run_wide_extents(*flags: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("cuda_shim") / "wide_extents.py"
    return subprocess.run([sys.executable, str(script), *flags], capture_output=True, text=True, check=False)


def test_extents_are_64_bits_wide() -> None:
    """The last block of each kernel over more than 2^31 elements, in memory that is only reserved."""
    done = run_wide_extents()

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"stream_triad a[{(1 << 31) + 8191}] = 4.0",
        f"contraction dw[{(1 << 32) - 1}] = 6.0",
        f"blocktile dw[{(1 << 33) - 1}] = 6.0",
    ]


def test_extents_of_32_bits_are_caught() -> None:
    done = run_wide_extents("--narrow")

    assert done.returncode != 0
    assert "= 4.0" not in done.stdout
