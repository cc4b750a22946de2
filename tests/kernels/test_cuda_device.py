"""The CUDA backend over an emulated CuPy: the real kernels, launched, timed and checked with no GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kernels.backends.base import (
    BlocktileKernel,
    ContractionProblem,
    FmaKernel,
    FmaProblem,
    StreamCandidate,
    StreamKernel,
    StreamName,
    StreamProblem,
    UntiledKernel,
)
from kernels.backends.cuda import CudaBackend, CudaDevice
from kernels.backends.cuda_workload import PERIOD
from kernels.calibration import calibrate
from kernels.errors import CompileError, MeasureError, NoDeviceError, OutOfMemoryError, VerificationError
from kernels.parameters import LEAD, WIDE
from kernels.verification import Float32
from tests.kernels import test_backend_contract as contract
from tests.kernels.cuda_shim.emulated_cupy import H200, EmulatedCupy, Machine
from tests.kernels.test_backend_contract import BackendContract

KEY = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
CANDIDATE = StreamCandidate(256, 4, 2)
ELEMS = 1 << 14
NAMES: tuple[StreamName, ...] = ("copy", "scale", "add", "triad")


@contextmanager
def emulated(machine: Machine | None = None) -> Iterator[CudaDevice]:
    cupy = EmulatedCupy(machine)
    backend = CudaBackend(load=lambda: cupy, driver=lambda: None, nvml=lambda: (None, "no NVML here"))
    with backend.open(KEY) as device:
        yield device
    assert cupy.machine.memory == {}
    assert cupy.cuda.runtime.left_open() == 0


def test_every_kernel_verifies_and_gives_positive_times_by_both_clocks() -> None:
    with emulated() as device:
        with device.open_workload(StreamProblem(ELEMS)) as stream:
            prepared = [stream.prepare(StreamKernel(name, ELEMS, CANDIDATE)) for name in NAMES]
            for kernel in prepared:
                kernel.verify()
                for sample in (kernel.sample(), kernel.sample_queued(3)):
                    assert sample.wall_ms > 0
                    assert sample.device_ms is not None
                    assert sample.device_ms > 0
        with device.open_workload(ContractionProblem(64, 256, 64)) as contraction:
            for untiled in (UntiledKernel(64, 256, 32), UntiledKernel(64, 256, 64, "spread")):
                contraction.prepare(untiled).verify()
            for geometry in (LEAD, WIDE):
                contraction.prepare(BlocktileKernel(geometry, 64, 256, 64)).verify()
        with device.open_workload(FmaProblem()) as fma:
            fma.prepare(FmaKernel(5)).verify()


def test_facts_are_the_exact_counts_and_the_resident_blocks_by_the_driver() -> None:
    with emulated() as device:
        with device.open_workload(StreamProblem(ELEMS)) as stream:
            triad = stream.prepare(StreamKernel("triad", ELEMS, CANDIDATE)).facts
        with device.open_workload(ContractionProblem(64, 1024, 64)) as contraction:
            untiled = contraction.prepare(UntiledKernel(64, 1024, 16)).facts
        with device.open_workload(FmaProblem()) as fma:
            chains = fma.prepare(FmaKernel(7)).facts

    assert (triad.blocks, triad.threads, triad.flops, triad.bytes) == (8, 256, 2 * ELEMS, 12 * ELEMS)
    assert (triad.flops_approx, triad.bytes_approx, triad.label) == (False, False, "block=256,vec=4,ept=2")
    assert triad.resources["buffer_sets"] == 8
    # 4 blocks a row of 1024 and 64 rows; 4 multiprocessors hold 2048 / 256 = 8 blocks each.
    assert (untiled.blocks, untiled.threads, untiled.resident_blocks) == (256, 256, 32)
    assert (untiled.flops, untiled.bytes) == (2 * 64 * 1024 * 16, 4 * (16 * (64 + 1024) + 64 * 1024))
    # 32 blocks of 256 threads, each with 16 chains of 7 FMAs.
    assert (chains.blocks, chains.flops, chains.bytes) == (32, 32 * 256 * 16 * 7 * 2, 4 * 32 * 256 * 16)


def test_an_extent_the_block_does_not_divide_runs_guarded_and_is_marked_approximate() -> None:
    elems = 10007
    with emulated() as device, device.open_workload(StreamProblem(elems)) as stream:
        for name in NAMES:
            kernel = stream.prepare(StreamKernel(name, elems, CANDIDATE))
            kernel.verify()
            assert kernel.facts.bytes_approx
            assert kernel.facts.flops_approx == (name != "copy")


def test_an_array_longer_than_the_period_of_its_contents_is_compared_to_its_last_element() -> None:
    elems = PERIOD + 5
    machine = Machine(devices=({**H200, "totalGlobalMem": 256 << 20},))
    # Guarded, one lane a vector: the kernel stops one period into the array.
    machine.edit = lambda text: text.replace("(at + 1) * VECTOR <= elems", f"at < {PERIOD}").replace(
        "at * VECTOR + lane < elems", "false"
    )
    with (
        emulated(machine) as device,
        device.open_workload(StreamProblem(elems)) as stream,
        pytest.raises(VerificationError, match=r"stream_copy block=256,vec=1,ept=8: 5 of 4194306 .* \[4194301\]"),
    ):
        stream.prepare(StreamKernel("copy", elems, StreamCandidate(256, 1, 8))).verify()


@pytest.mark.parametrize(
    ("kernel", "old", "new"),
    [
        (StreamKernel("triad", ELEMS, CANDIDATE), "SCALAR 0.5f", "SCALAR 0.25f"),
        (UntiledKernel(64, 256, 64), "step = begin;", "step = begin + 1;"),
        (UntiledKernel(64, 256, 64, "spread"), "partial_sum(dy + o, x + i, m, n, 0, start, sum)", "sum"),
        (BlocktileKernel(LEAD, 64, 256, 64), "        __syncthreads();\n#pragma", "#pragma"),
        (FmaKernel(5), "step < steps", "step + 1 < steps"),
    ],
)
def test_a_kernel_that_computes_something_else_fails_its_verification(
    kernel: StreamKernel | UntiledKernel | BlocktileKernel | FmaKernel, old: str, new: str
) -> None:
    problem = {
        StreamKernel: StreamProblem(ELEMS),
        UntiledKernel: ContractionProblem(64, 256, 64),
        BlocktileKernel: ContractionProblem(64, 256, 64),
        FmaKernel: FmaProblem(),
    }[type(kernel)]
    machine = Machine()
    machine.edit = lambda text: text.replace(old, new)
    with emulated(machine) as device, device.open_workload(problem) as workload:
        prepared = workload.prepare(kernel)
        with pytest.raises(VerificationError, match="None of its times count"):
            prepared.verify()


def test_a_kernel_that_writes_nothing_is_caught_by_the_poison() -> None:
    machine = Machine()
    with emulated(machine) as device, device.open_workload(StreamProblem(ELEMS)) as stream:
        stream.prepare(StreamKernel("scale", ELEMS, CANDIDATE)).verify()
        machine.edit = lambda text: text.replace("to[at] = from[each];", "")
        idle = stream.prepare(StreamKernel("scale", ELEMS, StreamCandidate(512, 4, 1)))
        with pytest.raises(VerificationError, match=f"{ELEMS} of {ELEMS} elements differ"):
            idle.verify()


def test_a_kernel_that_spoils_its_input_fails_its_verification() -> None:
    machine = Machine()
    copy, spoil = "load(value, a, elems);\n    store(c,", "const_cast<Lanes *>(a)[first_vector()].lane[0] = 7.0f;"
    machine.edit = lambda text: text.replace(copy, spoil + copy)
    with emulated(machine) as device, device.open_workload(StreamProblem(ELEMS)) as stream:
        kernel = stream.prepare(StreamKernel("copy", ELEMS, CANDIDATE))
        # One vector of two a thread, one lane of four: an eighth of the elements.
        with pytest.raises(VerificationError, match=rf"{ELEMS // 8} of {ELEMS} elements differ"):
            kernel.verify()


def test_a_result_that_is_right_only_when_read_again_fails_its_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated() as device, device.open_workload(StreamProblem(ELEMS)) as stream:
        kernel = stream.prepare(StreamKernel("add", ELEMS, CANDIDATE))
        download, errors = device.context.download, iter([np.float32(1)])

        def flaky(pointer: int, count: int) -> Float32:
            return download(pointer, count) + next(errors, np.float32(0))

        monkeypatch.setattr(device.context, "download", flaky)
        with pytest.raises(VerificationError, match="wrong past element 0 when read once and right when read again"):
            kernel.verify()


def test_short_kernels_are_timed_as_a_graph_and_on_rocm_as_a_queue() -> None:
    kernel = FmaKernel(1)
    tiny = ({**H200, "multiProcessorCount": 1},)
    for is_hip in (False, True):
        machine = Machine(devices=tiny, is_hip=is_hip, occupancy_limit=256)
        cupy = EmulatedCupy(machine)
        backend = CudaBackend(load=lambda cupy=cupy: cupy, driver=lambda: None, nvml=lambda: (None, ""))  # type: ignore[misc]
        (found,) = backend.discover().devices
        with backend.open(found.key) as device, device.open_workload(FmaProblem()) as workload:
            prepared = workload.prepare(kernel)
            prepared.sample()
            prepared._last_ms = 0.01
            before = machine.launches
            sample = prepared.sample_queued(4)

        assert sample.device_ms is not None
        # Three unmeasured batches make 0.12 ms of work, in front of the measured one.
        assert machine.launches - before == 4 * 4
        assert machine.graph_launches == (0 if is_hip else 4)
        assert backend.name == ("hip" if is_hip else "cuda")
        assert found.backend == backend.name


@pytest.mark.parametrize("call", ["streamBeginCapture", "streamEndCapture", "graphInstantiate"])
def test_where_a_graph_fails_short_kernels_are_queued_and_the_provenance_says_why(call: str) -> None:
    machine = Machine(fail_graph=call)
    with emulated(machine) as device, device.open_workload(FmaProblem()) as workload:
        assert device.provenance()["short_launches"] == "graphs"
        prepared = workload.prepare(FmaKernel(1))
        prepared.sample()
        prepared._last_ms = 0.01
        before = machine.launches
        sample = prepared.sample_queued(4)

        assert sample.device_ms is not None
        assert machine.launches - before == 4 * 4
        assert machine.graph_launches == 0
        assert device.provenance()["short_launches"] == (
            "queued, without graphs: the device failed: cudaError 901; if it happens again see nvidia-smi and dmesg"
        )


def test_a_time_below_the_clocks_grain_does_not_end_the_window() -> None:
    with emulated() as device, device.open_workload(FmaProblem()) as workload:
        prepared = workload.prepare(FmaKernel(1))
        prepared.sample()
        prepared._last_ms = 0.0

        assert prepared.sample_queued(1).wall_ms > 0


def test_an_empty_batch_is_refused() -> None:
    with emulated() as device, device.open_workload(FmaProblem()) as workload:
        kernel = workload.prepare(FmaKernel(1))
        with pytest.raises(ValueError, match="at least one launch"):
            kernel.sample_queued(0)


def test_what_does_not_fit_says_how_much_there_is_and_leaves_nothing_allocated() -> None:
    machine = Machine()
    with emulated(machine) as device:
        with (
            pytest.raises(OutOfMemoryError, match=r"has \d+ of 67108864 bytes free"),
            device.open_workload(StreamProblem(1 << 24)),
        ):
            pass
        assert machine.memory == {}


def test_a_set_that_fits_without_room_for_its_periods_is_given_back() -> None:
    machine = Machine(devices=({**H200, "totalGlobalMem": 25 << 20},))
    elems = 1 << 21  # 24 MiB a set, and as much again for the periods it is filled from
    with emulated(machine) as device:
        with pytest.raises(OutOfMemoryError), device.open_workload(StreamProblem(elems)):
            pass
        assert machine.memory == {}


def test_buffer_sets_are_fewer_where_memory_is_short() -> None:
    elems = 1 << 21  # 8 MiB an array: a set is 24 MiB and the periods 24 MiB, of 64 MiB
    with emulated() as device, device.open_workload(StreamProblem(elems)) as stream:
        assert stream.prepare(StreamKernel("copy", elems, CANDIDATE)).facts.resources["buffer_sets"] == 1


def test_constant_contents_verify_too() -> None:
    with emulated() as device, device.open_workload(StreamProblem(ELEMS), contents="constant") as stream:
        stream.prepare(StreamKernel("add", ELEMS, CANDIDATE)).verify()


def test_a_compiler_error_carries_the_log() -> None:
    machine = Machine()
    machine.edit = lambda text: "#error no\n" + text
    with emulated(machine) as device, device.open_workload(FmaProblem()) as workload:
        with pytest.raises(CompileError, match="fma_chains") as raised:
            workload.prepare(FmaKernel(1))
        assert raised.value.detail == 'kernel.cu(1): error: #error directive: "no"'


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("Failed to find CUDA headers."), r"did not compile: Failed to find CUDA headers\."),
        (PermissionError(13, "Permission denied"), "set CUPY_CACHE_DIR to a folder that can be written"),
    ],
)
def test_what_keeps_cupy_from_compiling_is_told(error: Exception, message: str) -> None:
    with (
        emulated(Machine(compile_error=error)) as device,
        device.open_workload(FmaProblem()) as workload,
        pytest.raises(CompileError, match=message),
    ):
        workload.prepare(FmaKernel(1))


def test_a_failed_launch_is_told_and_all_is_given_back() -> None:
    machine = Machine()
    with emulated(machine) as device, device.open_workload(FmaProblem()) as workload:
        kernel = workload.prepare(FmaKernel(1))
        machine.fail_launch = 700
        with pytest.raises(MeasureError, match="the device failed: CUresult 700"):
            kernel.sample()


def test_a_kernel_of_another_problem_is_refused() -> None:
    with emulated() as device:
        with device.open_workload(StreamProblem(ELEMS)) as stream:
            for other in (FmaKernel(1), StreamKernel("copy", 2 * ELEMS, CANDIDATE)):
                with pytest.raises(ValueError, match="no STREAM kernel over 16384"):
                    stream.prepare(other)
        with device.open_workload(ContractionProblem(64, 256, 64)) as contraction:
            for wrong in (FmaKernel(1), UntiledKernel(64, 512, 64), UntiledKernel(64, 256, 128)):
                with pytest.raises(ValueError, match="no contraction"):
                    contraction.prepare(wrong)
            with pytest.raises(ValueError, match="does not divide"):
                contraction.prepare(BlocktileKernel(LEAD, 64, 256, 12))
        with device.open_workload(FmaProblem()) as fma, pytest.raises(ValueError, match="no FMA kernel"):
            fma.prepare(UntiledKernel(64, 256, 64))


def test_the_description_is_of_the_live_context_and_listing_made_none() -> None:
    cupy = EmulatedCupy()
    backend = CudaBackend(load=lambda: cupy, driver=lambda: None, nvml=lambda: (None, "no NVML here"))

    (found,) = backend.discover().devices

    assert cupy.machine.contexts == set()
    assert (found.key, found.backend, found.kind, found.name, found.simulated) == (
        KEY,
        "cuda",
        "gpu",
        "NVIDIA H200",
        False,
    )
    assert found.limits.last_level_cache_bytes == 1 << 14
    assert found.limits.multiprocessors == 4
    assert found.limits.geometries[:2] == ("32x32x8/4x4", "64x64x8/4x4")
    assert found.facts["compute_capability"] == "9.0"
    assert found.facts["driver_cuda"] == "12.8"
    assert found.facts["max_sm_clock_mhz"] == 1980.0
    assert found.facts["power_limit_w"] is None
    with backend.open(KEY) as device:
        assert device.description.limits.memory_bytes == 64 << 20
        assert device.conditions().unknown["throttle"] == "no NVML here"
        assert device.conditions().sm_clock_mhz is None
        assert device.launch_latency_ms() > 0
        assert device.provenance()["compiler"] == "NVRTC 12.9"
        assert len(device.stream_candidates(1 << 26)) >= 6
        with pytest.raises(ValueError, match="no candidates"):
            device.stream_candidates(0)


def test_an_unknown_key_is_refused_with_what_there_is() -> None:
    cupy = EmulatedCupy()
    backend = CudaBackend(load=lambda: cupy, driver=lambda: None, nvml=lambda: (None, ""))

    with (
        pytest.raises(NoDeviceError, match=f"no GPU 'GPU-other' on this host; there is: {KEY}"),
        backend.open("GPU-other"),
    ):
        pass


def test_the_inputs_are_uniform_multiples_of_2_to_the_minus_23() -> None:
    with emulated() as device, device.open_workload(StreamProblem(1 << 18)) as stream:
        values = stream._tiles["a"]

    assert np.all(values * 2.0**23 == np.round(values * 2.0**23))
    assert -1 <= values.min() < -0.99
    assert 0.99 < values.max() < 1
    assert abs(values.mean()) < 0.01  # standard error 0.0011


class TestEmulated(BackendContract):
    """The contract of every backend, at extents that an emulation runs in seconds."""

    backend = "cuda"

    @pytest.fixture(autouse=True)
    def _emulated(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        toy = {**H200, "multiProcessorCount": 1, "totalGlobalMem": 256 << 20}
        cupy = EmulatedCupy(Machine(devices=(toy,), occupancy_limit=256))
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        for name, extent in (("ELEMS", 1 << 14), ("M", 8), ("N", 256), ("K", 72)):
            monkeypatch.setattr(contract, name, extent)
        yield
        assert cupy.machine.memory == {}
        assert cupy.cuda.runtime.left_open() == 0


def test_the_sweeps_run_on_it_and_their_fits_come_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CALIBRATE_LOCK_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cupy", EmulatedCupy(Machine(devices=({**H200, "multiProcessorCount": 1},))))
    parameters: dict[str, dict[str, object]] = {
        "working_set": {"m": 2, "n": 256, "ks": [8, 16], "repeats": 1},
        "issue": {"m": 32, "n": 32, "ks": [64, 512], "repeats": 1},
    }
    (found,) = CudaBackend().discover().devices

    document = calibrate(found.key, tuple(parameters), parameters, on_event=lambda *_: None, in_process=True)

    phases = [item["reading"]["phase"] for item in document["sweeps"][0]["points"]]
    assert phases == ["aligned", "aligned", "spread", "spread", "aligned"]  # the last is the repeat
    first = document["sweeps"][0]["points"][0]["point"]
    assert (first["working_set"], first["requested"]) == (2 * 4 * 8 * 257, 2 * 4 * 8 * 257)
    assert first["distinct"] == 4 * (8 * (2 + 256) + 2 * 256)
    assert {row["row"]["routine"] for row in document["sweeps"][1]["rows"]} == {"issue_contraction", "fma"}
    assert document["constants"]["model_peak_flops"]["value"] > 0
    assert document["device"]["simulated"] is False
