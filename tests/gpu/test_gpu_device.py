"""What only a GPU can show, beside the backend contract (`tests/kernels/test_backend_contract.py`, marker gpu)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from kernels.backends import registry
from kernels.backends.base import (
    ContractionProblem,
    FmaKernel,
    FmaProblem,
    StreamCandidate,
    StreamKernel,
    StreamProblem,
    UntiledKernel,
)
from kernels.backends.cuda import CudaDevice
from kernels.backends.cuda_source import every_plan, plan_fma
from kernels.errors import CompileError
from tests.gpu.gpu_check import choose

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    chosen = choose(None)
    assert not isinstance(chosen, str), chosen
    with registry.open_device(chosen.key) as opened:
        assert isinstance(opened, CudaDevice)
        yield opened


def test_no_kernel_spills_on_this_card(device: CudaDevice) -> None:
    functions = {(plan.entry, plan.label): device.context.function(plan) for plan in every_plan()}

    assert {name: each.local_bytes for name, each in functions.items() if each.local_bytes} == {}
    assert all(each.blocks_per_multiprocessor >= 1 for each in functions.values())


def test_more_than_2_to_the_31_elements_are_right_to_the_last(device: CudaDevice) -> None:
    elems = (1 << 31) + 4096
    if 12 * elems > device.description.limits.memory_bytes * 9 // 10:
        elems = 1 << 28
    with device.open_workload(StreamProblem(elems)) as workload:
        workload.prepare(StreamKernel("triad", elems, StreamCandidate(256, 4, 4))).verify()


def test_closing_a_workload_gives_its_memory_back(device: CudaDevice) -> None:
    with device.open_workload(FmaProblem()) as workload:
        workload.prepare(FmaKernel(8)).verify()  # the first launch may set memory aside for good
    before, _ = device.context.memory()
    with device.open_workload(StreamProblem(1 << 26)) as workload:
        workload.prepare(StreamKernel("copy", 1 << 26, StreamCandidate(256, 4, 1))).sample_queued(4)
        during, _ = device.context.memory()

    assert before - during >= 3 * 4 << 26
    assert device.context.memory()[0] >= before - (4 << 20)


def test_a_compiler_error_carries_nvrtcs_log(device: CudaDevice) -> None:
    plan = plan_fma(FmaKernel(8), blocks=1)
    broken = dataclasses.replace(plan, macros=(("BLOCK", 256), ("CHAINS", -1)))

    with pytest.raises(CompileError) as raised:
        device.context.function(broken)
    assert "error" in (raised.value.detail or "")


def test_device_time_is_within_the_wall_time_of_a_long_kernel(device: CudaDevice) -> None:
    with device.open_workload(ContractionProblem(256, 1024, 65536)) as workload:
        kernel = workload.prepare(UntiledKernel(256, 1024, 65536))
        kernel.verify()
        samples = [kernel.sample() for _ in range(3)]

    assert all(sample.device_ms is not None and 0 < sample.device_ms <= sample.wall_ms for sample in samples[1:])
