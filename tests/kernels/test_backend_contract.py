"""One contract that every backend keeps; the sweeps rely on nothing else."""

import json
import math
from dataclasses import asdict, fields

import pytest

from kernels.backends import registry
from kernels.backends.base import (
    BlocktileKernel,
    Conditions,
    ContractionProblem,
    FmaKernel,
    FmaProblem,
    StreamCandidate,
    StreamKernel,
    StreamProblem,
    UntiledKernel,
)
from kernels.errors import NoDeviceError, OutOfMemoryError, UnsupportedError
from kernels.parameters import LEAD, SWEEPS, WIDE, parse_geometry, untiled_block

ELEMS = 1 << 20
M, N, K = 128, 1024, 256


class BackendContract:
    """Subclasses give `backend`, the name; each test opens that backend's first device."""

    backend: str

    @pytest.fixture
    def description(self):
        found = registry.discover_backend(self.backend)
        assert found.devices, f"no {self.backend} device: {[item.reason for item in found.unusable]}"
        return found.devices[0]

    @pytest.fixture
    def device(self, description):
        with registry.open_device(description.key) as device:
            yield device

    def test_a_device_describes_itself_the_same_found_and_opened(self, description, device):
        opened = device.description
        assert (opened.key, opened.backend, opened.kind, opened.name) == (
            description.key,
            description.backend,
            description.kind,
            description.name,
        )
        assert description.simulated == (self.backend == "simulated")
        assert json.loads(json.dumps(asdict(description), allow_nan=False))["key"] == description.key

    def test_the_limits_are_usable(self, description):
        limits = description.limits
        assert limits.backend == description.backend
        assert limits.memory_bytes > 0
        assert limits.last_level_cache_bytes > 0
        assert limits.multiprocessors >= 1
        assert set(limits.sweeps) == set(SWEEPS)
        assert {LEAD.label, WIDE.label} <= set(limits.geometries)

    def test_an_unknown_key_is_no_device(self, description):
        unknown = description.key[:-4] + "zzzz"
        with pytest.raises(NoDeviceError), registry.open_device(unknown):
            pass

    def test_there_are_at_least_six_stream_candidates_and_each_divides_a_power_of_two(self, device):
        candidates = device.stream_candidates(1 << 26)
        assert len(set(candidates)) >= 6
        for candidate in candidates:
            assert (1 << 26) % (candidate.block * candidate.vector * candidate.per_thread) == 0

    @pytest.mark.parametrize(
        ("name", "arrays", "operations"), [("copy", 2, 0), ("scale", 2, 1), ("add", 3, 1), ("triad", 3, 2)]
    )
    def test_stream_kernels_are_right_and_exactly_counted(self, device, name, arrays, operations):
        with device.open_workload(StreamProblem(ELEMS)) as workload:
            for candidate in device.stream_candidates(ELEMS):
                kernel = workload.prepare(StreamKernel(name, ELEMS, candidate))
                kernel.verify()
                facts = kernel.facts
                assert (facts.bytes, facts.flops) == (4 * arrays * ELEMS, operations * ELEMS)
                assert not facts.bytes_approx
                assert not facts.flops_approx
                assert facts.kernels == 1
                assert_times(kernel)

    def test_an_extent_that_no_candidate_divides_is_right_and_marked_approximate(self, device):
        elems = ELEMS + 7
        with device.open_workload(StreamProblem(elems)) as workload:
            for candidate in device.stream_candidates(elems):
                kernel = workload.prepare(StreamKernel("triad", elems, candidate))
                kernel.verify()
                assert kernel.facts.bytes_approx

    def test_the_untiled_kernel_is_right_at_every_prefix_of_k(self, device):
        block = untiled_block(device.description.backend)
        with device.open_workload(ContractionProblem(M, N, K)) as workload:
            for k in (8, 64, K):
                kernel = workload.prepare(UntiledKernel(M, N, k))
                kernel.verify()
                facts = kernel.facts
                assert (facts.threads, facts.blocks) == (block, M * N // block)
                assert facts.flops == 2 * M * N * k
                assert facts.bytes == 4 * (k * (M + N) + M * N)
                assert 1 <= facts.resident_blocks <= facts.blocks
                assert_times(kernel)

    def test_the_spread_phase_computes_the_same_or_is_unsupported(self, device):
        with device.open_workload(ContractionProblem(M, N, K)) as workload:
            try:
                kernel = workload.prepare(UntiledKernel(M, N, K, "spread"))
            except UnsupportedError:
                return
            kernel.verify()
            assert kernel.facts.bytes == 4 * (K * (M + N) + M * N)

    def test_every_geometry_is_right_and_exactly_counted(self, device):
        with device.open_workload(ContractionProblem(256, 256, K)) as workload:
            for label in device.description.limits.geometries:
                geometry = parse_geometry(label)
                kernel = workload.prepare(BlocktileKernel(geometry, 256, 256, K))
                kernel.verify()
                facts = kernel.facts
                assert facts.threads == geometry.threads
                assert facts.blocks == (256 // geometry.bm) * (256 // geometry.bn)
                assert facts.flops == 2 * 256 * 256 * K
                assert facts.bytes == 4 * (K * 512 + 256 * 256)
                assert not facts.flops_approx
                assert_times(kernel)

    def test_the_smallest_launch_is_one_block(self, device):
        with device.open_workload(ContractionProblem(32, 32, 512)) as workload:
            kernel = workload.prepare(BlocktileKernel(LEAD, 32, 32, 512))
            kernel.verify()
            assert (kernel.facts.blocks, kernel.facts.threads) == (1, 64)

    def test_extents_that_a_geometry_does_not_tile_are_refused(self, device):
        with device.open_workload(ContractionProblem(32, 32, 512)) as workload, pytest.raises(ValueError, match=r"\S"):
            workload.prepare(BlocktileKernel(WIDE, 32, 32, 512))

    def test_the_fma_kernel_does_more_the_more_steps_it_has(self, device):
        with device.open_workload(FmaProblem()) as workload:
            short, long = workload.prepare(FmaKernel(1 << 10)), workload.prepare(FmaKernel(1 << 14))
            long.verify()
            assert long.facts.flops == 16 * short.facts.flops
            assert long.facts.bytes == short.facts.bytes
            assert not long.facts.flops_approx
            assert_times(long)

    def test_a_kernel_of_another_problem_is_refused(self, device):
        candidate = StreamCandidate(256, 1, 1)
        with device.open_workload(StreamProblem(ELEMS)) as workload:
            for kernel in (StreamKernel("copy", 2 * ELEMS, candidate), UntiledKernel(M, N, K), FmaKernel(8)):
                with pytest.raises(ValueError, match=r"\S"):
                    workload.prepare(kernel)
        with device.open_workload(ContractionProblem(M, N, K)) as workload, pytest.raises(ValueError, match=r"\S"):
            workload.prepare(UntiledKernel(M, N, 2 * K))

    def test_more_memory_than_there_is_is_out_of_memory(self, device):
        with pytest.raises(OutOfMemoryError), device.open_workload(StreamProblem(1 << 46)):
            pass

    def test_conditions_tell_why_what_is_unknown_is_unknown(self, device):
        conditions = device.conditions()
        for field in fields(Conditions):
            if field.name != "unknown" and getattr(conditions, field.name) is None:
                assert conditions.unknown.get(field.name), field.name

    def test_the_launch_latency_is_a_short_time(self, device):
        assert 0 <= device.launch_latency_ms() < 100

    def test_provenance_is_json(self, device):
        assert json.loads(json.dumps(dict(device.provenance()), allow_nan=False))

    def test_a_device_can_be_opened_again(self, description):
        for _ in range(2):
            with (
                registry.open_device(description.key) as device,
                device.open_workload(StreamProblem(ELEMS)) as workload,
            ):
                workload.prepare(StreamKernel("copy", ELEMS, device.stream_candidates(ELEMS)[0])).verify()


def assert_times(kernel):
    """Both ways to sample give positive, finite times of one launch."""
    for sample in (kernel.sample(), kernel.sample_queued(1), kernel.sample_queued(3)):
        assert math.isfinite(sample.wall_ms)
        assert sample.wall_ms > 0
        if sample.device_ms is not None:
            assert math.isfinite(sample.device_ms)
            assert sample.device_ms > 0


class TestSimulated(BackendContract):
    backend = "simulated"

    @pytest.fixture(autouse=True)
    def _configured(self, simulated):
        simulated()


class TestCc(BackendContract):
    backend = "cc"


@pytest.mark.gpu
class TestCuda(BackendContract):
    backend = "cuda"
