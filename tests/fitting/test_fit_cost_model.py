"""The cost model: expected figures by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fitting
from fitting import (
    MAX_COUNT,
    FillModel,
    LaunchContext,
    context_fill,
    contraction_distinct_bytes,
    contraction_ops,
    effective_ops,
    launch_fill,
    ranking_seconds,
    roofline_seconds,
    untiled_traffic,
)

P4_T64 = FillModel(4, 64)  # 256 threads fill the device


@pytest.mark.parametrize(
    ("blocks", "threads", "capped", "uncapped"),
    [
        (1, 64, 0.25, 0.25),  # 64 of 256
        (2, 32, 0.25, 0.25),
        (1, 256, 0.25, 1.0),  # one block sits on one multiprocessor: 64 of its 256 threads count
        (3, 128, 0.75, 1.0),
        (4, 64, 1.0, 1.0),
        (1000, 64, 1.0, 1.0),
    ],
)
def test_context_fill_in_both_forms(blocks: int, threads: int, capped: float, uncapped: float) -> None:
    assert context_fill(blocks, threads, multiprocessors=4, fill_threads=64) == capped
    assert context_fill(blocks, threads, multiprocessors=4, fill_threads=64, form="uncapped") == uncapped


def test_effective_operations_are_each_context_over_its_fill() -> None:
    contexts = [LaunchContext(1, 64, 100), LaunchContext(4, 64, 1000, mma_ops=10**6)]

    assert effective_ops(contexts, multiprocessors=4, fill_threads=64) == 1400.0  # 100 / 0.25 + 1000 / 1
    assert launch_fill(contexts, multiprocessors=4, fill_threads=64) == 1100 / 1400


def test_a_launch_without_scalar_operations_is_full() -> None:
    assert effective_ops([], multiprocessors=4, fill_threads=64) == 0.0
    assert launch_fill([], multiprocessors=4, fill_threads=64) == 1.0
    assert launch_fill([LaunchContext(1, 1, 0, mma_ops=5)], multiprocessors=4, fill_threads=64) == 1.0


def test_fill_is_the_exact_quotient_whatever_the_operations() -> None:
    # 9 blocks of 10: through floating effective operations 7 / (70 / 9) would be a rounding off 0.9
    for ops in (7, 11, 13, 10**15 + 1):
        assert launch_fill([LaunchContext(9, 1, ops)], multiprocessors=10, fill_threads=1) == 0.9


def test_the_function_and_not_its_module_is_exported() -> None:
    assert callable(fitting.launch_fill)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"multiprocessors": 0, "fill_threads": 64}, "multiprocessors"),
        ({"multiprocessors": 4, "fill_threads": -1}, "fill_threads"),
        ({"multiprocessors": 1.5, "fill_threads": 64}, "multiprocessors"),
        ({"multiprocessors": True, "fill_threads": 64}, "multiprocessors"),
        ({"multiprocessors": 4, "fill_threads": 64, "form": "round"}, "form"),
    ],
)
def test_nonsense_is_refused_by_name(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        context_fill(1, 1, **arguments)  # type: ignore[arg-type]


def test_a_context_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks"):
        effective_ops([LaunchContext(0, 64, 1)], multiprocessors=4, fill_threads=64)


def test_a_fill_model_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="fill_threads"):
        FillModel(4, 0)


def test_the_roofline_bound_is_the_longer_leg() -> None:
    assert roofline_seconds(flops=100, bytes=100, peak_flops=10.0, peak_memory_bandwidth=50.0) == 10.0
    assert roofline_seconds(flops=100, bytes=1000, peak_flops=10.0, peak_memory_bandwidth=50.0) == 20.0


def test_the_roofline_bound_prices_the_legs_it_has_peaks_for() -> None:
    assert roofline_seconds(flops=100, bytes=1000, peak_memory_bandwidth=50.0) == 20.0
    assert roofline_seconds(flops=100, bytes=1000, peak_flops=10.0) == 10.0
    assert roofline_seconds(flops=0, bytes=1000, peak_flops=10.0) == 0.0
    assert roofline_seconds(flops=100, bytes=1000) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"flops": -1, "bytes": 0},
        {"flops": 0, "bytes": 2**63},
        {"flops": 0, "bytes": 0, "peak_flops": 0.0},
        {"flops": 0, "bytes": 0, "peak_memory_bandwidth": math.nan},
        {"flops": 0, "bytes": 0, "peak_memory_bandwidth": math.inf},
    ],
)
def test_the_roofline_bound_refuses_nonsense(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        roofline_seconds(**arguments)  # type: ignore[arg-type]


def test_operations_are_scored_at_the_issue_rate_times_the_fill() -> None:
    quarter = [LaunchContext(1, 64, 1000)]

    assert ranking_seconds(scalar_ops=1000, distinct=0, issue_rate=100.0) == 10.0
    assert ranking_seconds(scalar_ops=1000, distinct=0, issue_rate=100.0, contexts=quarter, fill=P4_T64) == 40.0
    assert ranking_seconds(scalar_ops=1000, distinct=0, issue_rate=100.0, fill=P4_T64) == 10.0


def test_operations_fall_back_to_the_peak_without_an_issue_rate() -> None:
    assert ranking_seconds(scalar_ops=1000, distinct=0, peak_flops=500.0) == 2.0


def test_tile_mma_operations_are_added_at_the_peak_where_it_is_known() -> None:
    assert ranking_seconds(scalar_ops=1000, mma_ops=1500, distinct=0, issue_rate=100.0, peak_flops=500.0) == 13.0
    assert ranking_seconds(scalar_ops=1000, mma_ops=1500, distinct=0, peak_flops=500.0) == 5.0
    assert ranking_seconds(scalar_ops=1000, mma_ops=1500, distinct=0, issue_rate=100.0) == 10.0


@pytest.mark.parametrize(
    ("given_constants", "seconds"),
    [
        ({}, 10.0),  # no capacity: distinct only
        ({"cache_capacity": 500.0}, 10.0),  # within, no cache bandwidth
        ({"cache_capacity": 500.0, "cache_bandwidth": 400.0}, 20.0),  # within: 8000 / 400
        ({"cache_capacity": 500.0, "cache_bandwidth": 8000.0}, 10.0),  # within: distinct is longer
        ({"cache_capacity": 499.0, "cache_bandwidth": 400.0}, 80.0),  # past: 8000 / 100
    ],
)
def test_an_untiled_kernel_pays_for_its_re_reads(given_constants: dict[str, float], seconds: float) -> None:
    score = ranking_seconds(
        scalar_ops=0, distinct=1000, requested=8000, working_set=500, peak_memory_bandwidth=100.0, **given_constants
    )

    assert score == seconds


def test_a_tiled_kernel_pays_for_distinct_bytes_only() -> None:
    score = ranking_seconds(
        scalar_ops=0, distinct=1000, peak_memory_bandwidth=100.0, cache_capacity=1.0, cache_bandwidth=400.0
    )

    assert score == 10.0


def test_the_score_is_the_longer_of_operations_and_memory() -> None:
    constants = {"issue_rate": 100.0, "peak_memory_bandwidth": 100.0}

    assert ranking_seconds(scalar_ops=3000, distinct=1000, **constants) == 30.0  # type: ignore[arg-type]
    assert ranking_seconds(scalar_ops=300, distinct=1000, **constants) == 10.0  # type: ignore[arg-type]


def test_a_kernel_without_constants_has_no_score() -> None:
    assert ranking_seconds(scalar_ops=1000, mma_ops=5, distinct=1000) is None


def test_a_score_beyond_the_range_of_a_float_is_none() -> None:
    assert ranking_seconds(scalar_ops=MAX_COUNT, distinct=0, issue_rate=5e-324) is None
    assert roofline_seconds(flops=MAX_COUNT, bytes=0, peak_flops=5e-324) is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"requested": 5}, "go together"),
        ({"issue_rate": -1.0}, "issue_rate"),
        ({"cache_capacity": math.nan}, "cache_capacity"),
        ({"mma_ops": -1}, "mma_ops"),
        ({"requested": -1, "working_set": 5}, "requested"),
        ({"requested": 5, "working_set": -1, "cache_capacity": 1.0}, "working_set"),
    ],
)
def test_the_score_refuses_nonsense_by_name(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ranking_seconds(**{"scalar_ops": 1, "distinct": 1, **arguments})  # type: ignore[arg-type]


def test_the_contraction_does_one_fma_a_step_and_moves_three_matrices() -> None:
    assert contraction_ops(2, 3, 5) == 60
    assert contraction_distinct_bytes(2, 3, 5) == 4 * (10 + 15 + 6)


def test_the_untiled_traffic_of_the_default_sweep_on_a_gpu_and_a_cpu() -> None:
    # k = 256: a 256x1 block reads 4 * 256 * 257 bytes; (1024 / 256) * 256 blocks, all resident on 132 x 8
    gpu = untiled_traffic(256, 1024, 256, resident_blocks=1056, bx=256)
    # a 512x1 block reads 4 * 256 * 513 bytes; (1024 / 512) * 256 blocks, two at a time
    cpu = untiled_traffic(256, 1024, 256, resident_blocks=2, bx=512)

    assert (gpu.blocks, gpu.per_block) == (1024, 263168)
    assert gpu.working_set == gpu.requested == 263168 * 1024
    assert (cpu.blocks, cpu.per_block) == (512, 525312)
    assert (cpu.working_set, cpu.requested) == (1050624, 525312 * 512)
    assert gpu.distinct == cpu.distinct == 4 * (256 * 1280 + 256 * 1024)


def test_a_block_of_two_rows_shares_its_columns() -> None:
    traffic = untiled_traffic(4, 8, 10, resident_blocks=3, bx=4, by=2)

    assert (traffic.blocks, traffic.per_block) == (4, 240)
    assert (traffic.working_set, traffic.requested) == (720, 960)


@pytest.mark.parametrize("shape", [(256, 1000, 16), (0, 1024, 16), (256, 1024, -1)])
def test_untiled_traffic_refuses_what_blocks_do_not_divide(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"does not divide|must be an integer"):
        untiled_traffic(*shape, resident_blocks=1, bx=256)


counts = st.integers(1, MAX_COUNT)


@given(counts, counts, counts, counts, counts)
def test_fill_is_above_zero_and_at_most_one_and_capped_is_never_fuller(
    blocks: int, threads: int, multiprocessors: int, fill_threads: int, ops: int
) -> None:
    device = {"multiprocessors": multiprocessors, "fill_threads": fill_threads}
    capped = context_fill(blocks, threads, **device)
    uncapped = context_fill(blocks, threads, **device, form="uncapped")

    assert 0 < capped <= uncapped <= 1
    assert math.isfinite(effective_ops([LaunchContext(blocks, threads, ops)], **device))
    assert launch_fill([LaunchContext(blocks, threads, ops)], **device) == pytest.approx(capped)
    if threads <= fill_threads:
        assert capped == uncapped
