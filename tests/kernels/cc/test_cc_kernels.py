"""The C kernels run for real: every result verified, every count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.backends.base import (
    BlocktileKernel,
    ContractionProblem,
    FmaKernel,
    FmaProblem,
    OpenDevice,
    StreamCandidate,
    StreamKernel,
    StreamName,
    StreamProblem,
    UntiledKernel,
)
from kernels.backends.cc import CcDevice
from kernels.backends.cc_contraction import GEOMETRIES, geometry_reason
from kernels.backends.cc_stream import StreamWorkload
from kernels.backends.cc_team import Float32, Team
from kernels.errors import UnsupportedError
from kernels.parameters import LEAD, Geometry

NAMES: tuple[StreamName, ...] = ("copy", "scale", "add", "triad")
ELEMS = 1 << 18


def test_there_are_at_least_six_distinct_stream_candidates(device: OpenDevice) -> None:
    candidates = device.stream_candidates(ELEMS)

    assert len(set(candidates)) == len(candidates) >= 6
    assert all(ELEMS % (candidate.block * candidate.vector) == 0 for candidate in candidates)


def test_every_candidate_of_every_stream_kernel_is_right_to_the_bit(device: OpenDevice) -> None:
    with device.open_workload(StreamProblem(ELEMS)) as workload:
        for name in NAMES:
            for candidate in device.stream_candidates(ELEMS):
                kernel = workload.prepare(StreamKernel(name, ELEMS, candidate))
                kernel.verify()
                sample = kernel.sample()
                assert 0 < (sample.device_ms or 0) <= sample.wall_ms


@pytest.mark.parametrize(
    ("name", "streams", "operations"), [("copy", 2, 0), ("scale", 2, 1), ("add", 3, 1), ("triad", 3, 2)]
)
def test_stream_counts_are_streams_times_elements_times_four_bytes(
    device: OpenDevice, name: StreamName, streams: int, operations: int
) -> None:
    with device.open_workload(StreamProblem(ELEMS)) as workload:
        facts = workload.prepare(StreamKernel(name, ELEMS, StreamCandidate(32, 4, 4))).facts

    assert (facts.bytes, facts.flops) == (streams * ELEMS * 4, operations * ELEMS)
    assert (facts.bytes_approx, facts.flops_approx) == (False, False)
    assert facts.blocks == ELEMS // 128
    assert facts.resources["counting"] == "stream"
    assert isinstance(facts.resources["streaming_stores"], bool)


@pytest.mark.parametrize("elems", [1, 127, 128, 129, 100_003])
def test_an_extent_that_no_chunk_divides_is_right_too_marked_approximate_and_stays_in_bounds(
    device: OpenDevice, monkeypatch: pytest.MonkeyPatch, elems: int
) -> None:
    behind = 64
    allocate = Team.allocate
    whole: dict[str, Float32] = {}

    def allocate_more(team: Team, shapes: dict[str, tuple[int, ...]], *, beside: int) -> dict[str, Float32]:
        whole.update(allocate(team, {name: (shape[0] + behind,) for name, shape in shapes.items()}))
        for array in whole.values():
            array[-behind:] = 7
        return {name: array[:-behind] for name, array in whole.items()}

    monkeypatch.setattr(Team, "allocate", allocate_more)
    with device.open_workload(StreamProblem(elems)) as workload:
        for name in NAMES:
            kernel = workload.prepare(StreamKernel(name, elems, StreamCandidate(32, 4, 4)))
            kernel.verify()
            assert kernel.facts.bytes_approx is (elems != 128)
            assert kernel.facts.flops_approx is (elems != 128 and name != "copy")

    assert all((array[-behind:] == 7).all() for array in whole.values())


def test_inputs_are_uniform_reproducible_and_stay_so_when_a_kernel_overwrote_them(device: CcDevice) -> None:
    with device.open_workload(StreamProblem(ELEMS)) as workload:
        assert isinstance(workload, StreamWorkload)
        fresh = {name: workload.array(name).copy() for name in "abc"}
        for name in NAMES:
            workload.prepare(StreamKernel(name, ELEMS, StreamCandidate(32, 4, 4))).verify()
        workload.prepare(StreamKernel("copy", ELEMS, StreamCandidate(32, 4, 4))).verify()
        again = workload.array("a").copy()

    a = fresh["a"].astype(np.float64)
    np.testing.assert_array_equal(again, fresh["a"])
    assert -1 <= a.min() < -0.999
    assert 0.999 < a.max() < 1
    assert abs(a.mean()) < 5 / (3 * ELEMS) ** 0.5  # five standard errors of a variance of 1/3
    assert abs((a * a).mean() - 1 / 3) < 0.004
    assert (a * 2**23 == np.rint(a * 2**23)).all()
    assert not np.array_equal(fresh["a"], fresh["b"])


def test_a_fill_follows_splitmix64_whatever_the_number_of_threads(device: CcDevice) -> None:
    # First output of splitmix64 from state 0: 0xe220a8397b1dcdaf, as published with the generator.
    expected = (0xE220A8397B1DCDAF >> 40) * 2.0**-23 - 1
    with device.open_workload(StreamProblem(1001)) as workload:
        assert isinstance(workload, StreamWorkload)
        one = workload.array("a")
        device._team.fill(one, seed=0)
        many = one.copy()
        device._team._library.fill_uniform(one.ctypes.data, one.size, 0, 1)

    assert many[0] == expected
    np.testing.assert_array_equal(many, one)


def test_both_contractions_are_within_the_tolerance_on_any_prefix_of_k(device: OpenDevice) -> None:
    m, n = 352, 1024  # 11 tiles of 32 in a column: a group of 8 in flight and one of 3, cut by the threads' shares
    with device.open_workload(ContractionProblem(m, n, 1000)) as workload:
        for k in (8, 11, 256, 1000):
            kernel = workload.prepare(UntiledKernel(m, n, k))
            kernel.verify()
        for k in (8, 64, 72, 128, 136, 192, 248, 1000):  # before, at and past the panels of 64 rows
            workload.prepare(BlocktileKernel(LEAD, m, n, k)).verify()

    facts = kernel.facts
    assert (facts.blocks, facts.threads) == (352 * 2, 512)
    assert facts.resident_blocks == min(704, device.description.limits.multiprocessors)
    assert facts.flops == 2 * 352 * 1024 * 1000
    assert facts.bytes == 4 * (1000 * (352 + 1024) + 352 * 1024)


@pytest.mark.parametrize(
    "geometry", [*GEOMETRIES, Geometry(8, 8, 1, 1, 1), Geometry(24, 40, 5, 4, 8)], ids=lambda g: g.label
)
def test_every_geometry_is_right(device: OpenDevice, geometry: Geometry) -> None:
    m, n, k = 2 * geometry.bm, 3 * geometry.bn, 27 * geometry.bk
    with device.open_workload(ContractionProblem(m, n, k)) as workload:
        kernel = workload.prepare(BlocktileKernel(geometry, m, n, k))
        kernel.verify()

    assert kernel.facts.blocks == 6
    assert kernel.facts.threads == geometry.threads
    assert kernel.facts.label == geometry.label


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (Geometry(12, 32, 8, 4, 4), "bm must be a multiple of 8"),
        (Geometry(32, 256, 8, 4, 4), "bn must be a multiple of 8 from 8 to 128"),
        (Geometry(32, 32, 128, 4, 4), "bk must be"),
        (Geometry(32, 32, 8, 16, 4), "tm and tn must be"),
    ],
)
def test_a_geometry_outside_the_family_is_unsupported_with_its_reason(
    device: OpenDevice, geometry: Geometry, reason: str
) -> None:
    assert geometry_reason(geometry) is not None
    with (
        device.open_workload(ContractionProblem(384, 512, 128)) as workload,
        pytest.raises(UnsupportedError, match=reason),
    ):
        workload.prepare(BlocktileKernel(geometry, 384, 512, 128))


def test_the_chains_take_every_step_and_count_two_operations_each(device: OpenDevice) -> None:
    with device.open_workload(FmaProblem()) as workload:
        kernel = workload.prepare(FmaKernel(1000))
        kernel.verify()
        with pytest.raises(ValueError, match="use fewer"):
            workload.prepare(FmaKernel(1 << 24))

    facts = kernel.facts
    assert facts.blocks == device.description.limits.multiprocessors
    assert facts.flops == 2 * 1000 * facts.blocks * facts.threads
    assert (facts.flops_approx, facts.bytes_approx) == (False, False)


def test_a_batch_takes_as_long_as_its_launches_and_is_given_per_launch(device: OpenDevice) -> None:
    with device.open_workload(FmaProblem()) as workload:
        kernel = workload.prepare(FmaKernel(1 << 16))
        sample = kernel.sample_queued(8)

    assert 0 < (sample.device_ms or 0) <= sample.wall_ms
    # 2^16 dependent steps of at least 3 cycles at no more than 7 GHz
    assert sample.wall_ms > 3 * 2**16 / 7e6


def test_kernels_of_another_problem_are_refused(device: OpenDevice) -> None:
    with device.open_workload(ContractionProblem(64, 512, 64)) as workload:
        for kernel in (
            FmaKernel(1),
            UntiledKernel(32, 512, 64),
            UntiledKernel(64, 512, 65),
            UntiledKernel(64, 512, 0),
            BlocktileKernel(LEAD, 64, 512, 60),
        ):
            with pytest.raises(ValueError, match=r"no kernel of|does not tile"):
                workload.prepare(kernel)
        with pytest.raises(UnsupportedError, match="use aligned"):
            workload.prepare(UntiledKernel(64, 512, 64, phase="spread"))
    with device.open_workload(StreamProblem(64)) as workload, pytest.raises(ValueError, match="no kernel of"):
        workload.prepare(StreamKernel("copy", 65, StreamCandidate(32, 4, 4)))
    with device.open_workload(ContractionProblem(64, 256, 64)) as workload, pytest.raises(ValueError, match="512"):
        workload.prepare(UntiledKernel(64, 256, 64))
