"""Plans of CUDA launches: grids, arguments and counts by hand, and what can't be planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernels.backends import cuda_source
from kernels.backends.base import BlocktileKernel, FmaKernel, StreamCandidate, StreamKernel, UntiledKernel
from kernels.backends.cuda_source import (
    GEOMETRIES,
    STREAM_CANDIDATES,
    every_plan,
    plan_blocktile,
    plan_empty,
    plan_fma,
    plan_stream,
    plan_untiled,
    source_text,
)
from kernels.parameters import LEAD, WIDE, Geometry


def test_a_stream_plan_covers_a_power_of_two_exactly_and_without_guards() -> None:
    plan = plan_stream(StreamKernel("triad", 1 << 26, StreamCandidate(256, 4, 2)))

    assert (plan.entry, plan.grid, plan.block) == ("stream_triad", (1 << 15, 1), (256, 1))
    assert plan.arguments == ("b", "c", "a", 1 << 26)
    assert (plan.flops, plan.bytes, plan.guarded) == (2 << 26, 12 << 26, False)
    assert plan.text.startswith("#define VECTOR 4\n#define BLOCK 256\n#define PER_THREAD 2\n#define GUARDED 0\n")


def test_a_stream_plan_of_an_odd_extent_has_one_more_block_and_guards() -> None:
    plan = plan_stream(StreamKernel("copy", 2049, StreamCandidate(256, 4, 2)))

    assert (plan.grid, plan.guarded) == ((2, 1), True)
    assert "#define GUARDED 1\n" in plan.text


def test_every_candidate_divides_the_default_extent_and_there_are_at_least_six() -> None:
    plans = [plan_stream(StreamKernel("copy", 1 << 26, each)) for each in STREAM_CANDIDATES]

    assert len({plan.label for plan in plans}) >= 6
    assert not any(plan.guarded for plan in plans)


def test_an_untiled_plan_has_a_thread_a_cell() -> None:
    plan = plan_untiled(UntiledKernel(256, 1024, 512, "spread"))
    other = plan_untiled(UntiledKernel(256, 1024, 512), block=(32, 8))

    assert (plan.grid, plan.block, plan.blocks, plan.threads) == ((4, 256), (256, 1), 1024, 256)
    assert (other.grid, other.block) == ((32, 32), (32, 8))
    assert plan.flops == 2 * 256 * 1024 * 512
    assert plan.bytes == 4 * (512 * (256 + 1024) + 256 * 1024)
    assert dict(plan.macros)["SPREAD"] == 1


def test_a_blocktile_plan_has_a_block_a_tile() -> None:
    plan = plan_blocktile(BlocktileKernel(WIDE, 128, 256, 64))

    assert (plan.grid, plan.threads, plan.label) == ((4, 2), 256, "geometry=64x64x8/4x4")
    assert plan.arguments == ("dy", "x", "dw", 128, 256, 64)


def test_an_fma_plan_counts_its_chains() -> None:
    plan = plan_fma(FmaKernel(100), blocks=3)

    assert (plan.flops, plan.bytes) == (3 * 256 * 16 * 100 * 2, 3 * 256 * 16 * 4)
    assert plan.arguments == ("out", 1.0, 1.0, 100)


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (lambda: plan_stream(StreamKernel("copy", 0, STREAM_CANDIDATES[0])), "no STREAM kernel for 0 elements"),
        (lambda: plan_stream(StreamKernel("copy", 8, StreamCandidate(256, 3, 1))), "a vector of 3"),
        (lambda: plan_untiled(UntiledKernel(256, 1000, 8)), "n a multiple of 256"),
        (lambda: plan_untiled(UntiledKernel(256, 1024, 12)), "k of 8"),
        (lambda: plan_untiled(UntiledKernel(12, 1024, 8), block=(32, 8)), "m of 8"),
        (lambda: plan_untiled(UntiledKernel(65536, 256, 8)), "a grid has at most 65535"),
        (lambda: plan_untiled(UntiledKernel(256, 1024, 0)), "k=0"),
        (lambda: plan_blocktile(BlocktileKernel(LEAD, 48, 32, 8)), "does not divide m=48"),
        (lambda: plan_blocktile(BlocktileKernel(LEAD, 32, 32, 12)), "k=12"),
        (lambda: plan_blocktile(BlocktileKernel(LEAD, 32, 32, 0)), "k=0"),
        (lambda: plan_blocktile(BlocktileKernel(Geometry(32, 32, 8, 2, 4), 32, 32, 8)), "multiple of 4 x 4"),
        (lambda: plan_fma(FmaKernel(0), blocks=1), "steps must be from 1"),
        (lambda: plan_fma(FmaKernel(1 << 24), blocks=1), "steps must be from 1 to 16776944"),
    ],
)
def test_what_no_kernel_is_written_for_is_refused_with_the_rule(plan: object, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        plan()  # type: ignore[operator]


def test_a_source_stands_alone_since_a_run_time_compiler_has_no_include_path() -> None:
    for plan in every_plan():
        assert "#include" not in plan.text
        assert "typedef long long Extent;" in plan.text
    assert f"{plan_empty().entry}()" in source_text("fma")


def test_the_plans_to_compile_hold_every_source_candidate_geometry_phase_and_width() -> None:
    plans = every_plan()

    assert {plan.source for plan in plans} == {"stream", "contraction", "blocktile", "fma"}
    assert {each.label for each in STREAM_CANDIDATES} <= {plan.label for plan in plans if not plan.guarded}
    assert {dict(plan.macros)["VECTOR"] for plan in plans if plan.guarded} == {1, 2, 4}
    assert {f"geometry={each.label}" for each in GEOMETRIES} <= {plan.label for plan in plans}
    assert {dict(plan.macros).get("SPREAD") for plan in plans if plan.source == "contraction"} == {0, 1}


def test_only_one_file_imports_cupy() -> None:
    package = Path(cuda_source.__file__).resolve().parents[1]

    importing = [
        path.name for path in package.rglob("*.py") if re.search(r"^\s*(import|from) cupy", path.read_text(), re.M)
    ]

    assert importing == ["cuda.py"]
