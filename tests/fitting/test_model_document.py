"""docs/model.md: the worked example's numbers, each by hand, are what the model computes and what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fitting import (
    CONSTANTS,
    FillModel,
    LaunchContext,
    context_fill,
    contraction_distinct_bytes,
    contraction_ops,
    ranking_seconds,
    roofline_seconds,
    untiled_traffic,
)

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "model.md").read_text()
OPS, DISTINCT = 2147483648, 22020096
PEAKS = {"peak_flops": 2e12, "peak_memory_bandwidth": 1e11}
CONSTANTS_OF_THE_PAGE = {
    **PEAKS,
    "cache_capacity": 32_000_000,
    "cache_bandwidth": 4e11,
    "issue_rate": 1e12,
    "fill": FillModel(32, 128),
}


def score_ms(**kernel: object) -> float:
    seconds = ranking_seconds(**kernel, **CONSTANTS_OF_THE_PAGE)  # type: ignore[arg-type]
    assert seconds is not None
    return seconds * 1e3


def tiled_ms(blocks: int, threads: int) -> float:
    return score_ms(scalar_ops=OPS, distinct=DISTINCT, contexts=[LaunchContext(blocks, threads, OPS)])


def test_the_counts_of_the_contraction() -> None:
    assert contraction_ops(256, 1024, 4096) == OPS
    assert contraction_distinct_bytes(256, 1024, 4096) == DISTINCT


def test_the_bound() -> None:
    seconds = roofline_seconds(flops=OPS, bytes=DISTINCT, **PEAKS)

    assert seconds == pytest.approx(1.073741824e-3)


def test_the_untiled_candidate_spills() -> None:
    traffic = untiled_traffic(256, 1024, 4096, resident_blocks=32 * 8, bx=256)

    assert (traffic.blocks, traffic.per_block) == (1024, 4210688)
    assert (traffic.working_set, traffic.requested) == (1077936128, 4311744512)
    assert score_ms(
        scalar_ops=OPS,
        distinct=DISTINCT,
        contexts=[LaunchContext(1024, 256, OPS)],
        requested=traffic.requested,
        working_set=traffic.working_set,
    ) == pytest.approx(43.11744512)


def test_the_small_tile_fills_the_device() -> None:
    assert context_fill(256, 64, multiprocessors=32, fill_threads=128) == 1.0
    assert tiled_ms(256, 64) == pytest.approx(2.147483648)


def test_the_large_tile_fills_half_of_it() -> None:
    assert context_fill(16, 256, multiprocessors=32, fill_threads=128) == 0.5
    assert tiled_ms(16, 256) == pytest.approx(4.294967296)


def test_the_untiled_candidate_at_a_short_k_is_served_by_the_cache() -> None:
    traffic = untiled_traffic(256, 1024, 64, resident_blocks=32 * 8, bx=256)

    assert (traffic.working_set, traffic.requested, traffic.distinct) == (16842752, 67371008, 1376256)
    assert score_ms(
        scalar_ops=33554432,
        distinct=traffic.distinct,
        contexts=[LaunchContext(1024, 256, 33554432)],
        requested=traffic.requested,
        working_set=traffic.working_set,
    ) == pytest.approx(0.16842752)


@pytest.mark.parametrize(
    "text",
    [
        "= 2147483648",
        "= 22020096 byte",
        "**1.073742 ms**",
        "= 4210688 byte",
        "= 1077936128 byte, past the capacity",
        "= 4311744512 byte",
        "**43.117445 ms**",
        "**2.147484 ms**",
        "/ (32 x 128)) = 0.5",
        "**4.294967 ms**",
        "= 16842752 byte",
        "**0.168428 ms**",
    ],
)
def test_the_page_says_these_numbers(text: str) -> None:
    assert text in PAGE


@pytest.mark.parametrize("name", CONSTANTS)
def test_both_pages_name_every_constant_and_the_vocabulary_its_unit(name: str) -> None:
    (line,) = [line for line in (DOCS / "vocabulary.md").read_text().splitlines() if line.startswith(f"| `{name}`")]

    assert name in PAGE
    assert f"| {CONSTANTS[name].unit} |" in line
