"""Which GPUs there are, and in one line why not: over an emulated CuPy and a stub of the driver's library."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.backends.cuda import CudaBackend
from kernels.backends.cuda_driver import Driver, load_driver
from kernels.backends.nvml import Nvml
from kernels.errors import NoDeviceError
from tests.kernels.cuda_shim.emulated_cupy import H200, EmulatedCupy, Machine
from tests.kernels.cuda_shim.fake_nvml import FakeChip, FakeNvml

STUB = Path(__file__).with_name("cuda_shim") / "stub_driver.c"
UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"


def build_stub(folder: Path, *flags: str) -> str:
    path = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", str(path), str(STUB)], check=True)
    return str(path)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_stub(tmp_path_factory.mktemp("driver"))


def missing(name: str) -> Callable[[], Any]:
    def load() -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    return load


def reasons(backend: CudaBackend) -> list[str]:
    found = backend.discover()
    assert found.devices == ()
    assert all("\n" not in item.reason for item in found.unusable)
    with pytest.raises(NoDeviceError), backend.open("GPU-any"):
        pass
    return [item.reason for item in found.unusable]


def backend_of(machine: Machine, driver: Callable[[], Driver | None], nvml: Nvml | None = None) -> CudaBackend:
    cupy = EmulatedCupy(machine)
    return CudaBackend(load=lambda: cupy, driver=driver, nvml=lambda: (nvml, "no NVML"))


def test_no_driver_is_told_whether_or_not_cupy_is_there() -> None:
    status_35 = Machine(count_status=35)  # cudaErrorInsufficientDriver, which CuPy gives for both

    for backend in (
        CudaBackend(load=missing("cupy"), driver=lambda: None, nvml=lambda: (None, "")),
        backend_of(status_35, driver=lambda: None),
    ):
        (reason,) = reasons(backend)
        assert reason.startswith("no NVIDIA driver: libcuda.so.1 was not found")


def test_a_driver_without_cupy_says_what_to_install(stub: str) -> None:
    (reason,) = reasons(CudaBackend(load=missing("cupy"), driver=lambda: Driver(stub), nvml=lambda: (None, "")))

    assert reason == "there is an NVIDIA driver but no CuPy: pip install 'calibration-service[cuda12]' (or cuda13)"


def test_a_broken_cupy_is_told_apart_from_none() -> None:
    def broken() -> Any:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    (lacking,) = reasons(CudaBackend(load=missing("fastrlock"), driver=lambda: None, nvml=lambda: (None, "")))
    (unloadable,) = reasons(CudaBackend(load=broken, driver=lambda: None, nvml=lambda: (None, "")))

    assert lacking == "CuPy is installed but lacks the module fastrlock; install it anew"
    assert unloadable == "CuPy is installed but can't be imported: libcudart.so.12: cannot open shared object file"


@pytest.mark.parametrize(
    ("stub_version", "runtime", "expected"),
    [
        (
            "11040",
            12090,
            "the NVIDIA driver is too old: it supports CUDA 11.4, and this CuPy is built for CUDA 12.9; "
            "update the driver to one for CUDA 12.0 or later",
        ),
        (
            "12080",
            13000,
            "the NVIDIA driver is too old: it supports CUDA 12.8, and this CuPy is built for CUDA 13.0; "
            "update the driver to one for CUDA 13.0 or later, or install the extra cuda12",
        ),
        (
            "0",
            12090,
            "the NVIDIA driver is too old: it supports an unknown CUDA version, and this CuPy is built for CUDA 12.9; "
            "update the driver to one for CUDA 12.0 or later",
        ),
    ],
)
def test_an_old_driver_is_told_with_both_versions(
    stub: str, monkeypatch: pytest.MonkeyPatch, stub_version: str, runtime: int, expected: str
) -> None:
    monkeypatch.setenv("STUB_VERSION", stub_version)
    machine = Machine(count_status=35, runtime_version=runtime)

    assert reasons(backend_of(machine, lambda: Driver(stub))) == [expected]


@pytest.mark.parametrize("machine", [Machine(count_status=100), Machine(devices=())])
def test_a_driver_without_a_device_names_the_variable_that_may_hide_it(
    stub: str, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plain = reasons(backend_of(machine, lambda: Driver(stub)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    hidden = reasons(backend_of(machine, lambda: Driver(stub)))

    assert plain == ["the NVIDIA driver works but shows no device"]
    assert hidden == [f"{plain[0]}; CUDA_VISIBLE_DEVICES is '7' and may hide them"]


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (999, "the driver is broken; nvidia-smi and dmesg say more"),
        (804, "a forward-compatibility library (cuda-compat) does not support this device"),
        (803, "the driver's kernel module and library differ"),
        (802, "on machines with NVSwitch start nvidia-fabricmanager"),
        (3, "the driver did not start"),
        (46, "the driver is broken"),
    ],
)
def test_a_broken_driver_is_told_with_its_status_and_what_to_do(stub: str, status: int, advice: str) -> None:
    (reason,) = reasons(backend_of(Machine(count_status=status), lambda: Driver(stub)))

    assert f"(status {status})" in reason
    assert advice in reason


def test_a_missing_nvrtc_names_the_package_for_this_cupy(stub: str) -> None:
    lost = RuntimeError("Failure finding libnvrtc.so")

    (twelve,) = reasons(backend_of(Machine(nvrtc_error=lost), lambda: Driver(stub)))
    (thirteen,) = reasons(backend_of(Machine(nvrtc_error=lost, runtime_version=13000), lambda: Driver(stub)))

    assert twelve.startswith("the compiler library NVRTC can't be loaded: ")
    assert "pip install nvidia-cuda-nvrtc-cu12 (it comes with the extra cuda12)" in twelve
    assert "pip install nvidia-cuda-nvrtc (it comes with the extra cuda13)" in thirteen


def test_a_card_that_nvrtc_is_too_old_or_too_new_for_is_left_out_and_the_others_work() -> None:
    blackwell = {**H200, "name": b"NVIDIA B200", "major": 10, "uuid": bytes([1] * 16)}
    volta = {**H200, "name": b"Tesla V100", "major": 7, "uuid": bytes([2] * 16)}
    machine = Machine(devices=(blackwell, volta, H200), archs=(75, 80, 90))

    found = backend_of(machine, lambda: None).discover()

    assert [device.key for device in found.devices] == [f"GPU-{UUID}"]
    assert [item.reason for item in found.unusable] == [
        "NVRTC 12.9 is older than the card: NVIDIA B200 is sm_100, it compiles up to sm_90; "
        "install a newer nvidia-cuda-nvrtc package, or the extra cuda13",
        "NVRTC 12.9 no longer compiles for Tesla V100, which is sm_70: it starts at sm_75; install the extra cuda12",
    ]


def test_a_rocm_build_is_named_hip_and_asks_for_no_nvidia_driver() -> None:
    amd = {**H200, "name": b"AMD Instinct MI300X", "gcnArchName": b"gfx942", "uuid": b""}

    def no_driver() -> None:
        raise AssertionError("libcuda has no business on ROCm")

    (device,) = backend_of(Machine(devices=(amd,), is_hip=True), no_driver).discover().devices
    (again,) = backend_of(Machine(devices=(amd,), is_hip=True), no_driver).discover().devices
    (reason,) = reasons(backend_of(Machine(count_status=100, is_hip=True), no_driver))

    assert (device.backend, device.limits.backend) == ("hip", "hip")
    assert device.facts["compute_capability"] == "gfx942"
    assert device.facts["compiler"].startswith("HIPRTC")
    assert device.key == again.key  # without a UUID: from the host, the PCI address and the name
    assert device.key.startswith("GPU-")
    assert "the ROCm run time finds no device" in reason


def test_the_driver_library_tells_its_version_and_a_devices_own_uuid(
    stub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_DEVICES", "2")

    assert Driver(stub).version() == (13, 9)
    assert Driver(stub).device_uuid(1) == "b1b1b1b1-b1b1-b1b1-b1b1-b1b1b1b1b1b1"
    assert Driver(stub).device_uuid(2) is None
    assert Driver(build_stub(tmp_path, "-DSTUB_OLD")).device_uuid(0) == "a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0"
    monkeypatch.setenv("STUB_INIT", "999")
    assert Driver(stub).device_uuid(0) is None


def test_there_is_no_driver_where_there_is_no_library(tmp_path: Path) -> None:
    assert load_driver(str(tmp_path / "libcuda.so.1")) is None


def slice_of(parent: bytes) -> dict[str, Any]:
    return {**H200, "name": b"NVIDIA H200 MIG 1g.18gb", "multiProcessorCount": 16, "uuid": parent}


def test_a_slice_goes_by_the_uuid_that_the_driver_gives_it(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_DEVICES", "1")
    slice_uuid = "b0b0b0b0-b0b0-b0b0-b0b0-b0b0b0b0b0b0"
    nvml = Nvml(FakeNvml([FakeChip(UUID, "0000:1b:00.0", slices=(f"MIG-{slice_uuid}", "MIG-other"))]))

    for library in (nvml, None):
        (device,) = backend_of(Machine(devices=(slice_of(b""),)), lambda: Driver(stub), library).discover().devices
        assert device.key == f"MIG-{slice_uuid}"
        assert device.facts["mig"] is True
        assert device.limits.multiprocessors == 16


def test_a_slice_under_its_parents_uuid_is_resolved_only_without_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(devices=(slice_of(bytes(range(16))),))
    one = FakeChip(UUID, "0000:1b:00.0", slices=("MIG-11111111-1111-1111-1111-111111111111",))
    two = FakeChip(UUID, "0000:1b:00.0", slices=(*one.slices, "MIG-22222222-2222-2222-2222-222222222222"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    (only,) = backend_of(machine, lambda: None, Nvml(FakeNvml([one]))).discover().devices
    (reason,) = reasons(backend_of(machine, lambda: None, Nvml(FakeNvml([two]))))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", two.slices[1])
    (chosen,) = backend_of(machine, lambda: None, Nvml(FakeNvml([two]))).discover().devices

    assert only.key == one.slices[0]
    assert f"which of the slices {two.slices[0]}, {two.slices[1]} this is; set CUDA_VISIBLE_DEVICES" in reason
    assert chosen.key == two.slices[1]


def test_two_cards_in_another_order_in_nvml_are_matched_by_uuid() -> None:
    first = {**H200, "name": b"fast", "uuid": bytes([0xAA] * 16), "pci": "0000:AF:00.0"}
    second = {**H200, "name": b"slow", "uuid": bytes([0xBB] * 16), "pci": "0000:3B:00.0"}
    nvml = FakeNvml(
        [
            FakeChip("bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb", "0000:3b:00.0", sm_clock=1000, free_bytes=1 << 20),
            FakeChip("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", "0000:af:00.0", sm_clock=2000, free_bytes=2 << 20),
        ]
    )
    cupy = EmulatedCupy(Machine(devices=(first, second)))
    backend = CudaBackend(load=lambda: cupy, driver=lambda: None, nvml=lambda: (Nvml(nvml), ""))

    fast, slow = backend.discover().devices

    assert (fast.name, fast.limits.memory_bytes, slow.name, slow.limits.memory_bytes) == (
        "fast",
        2 << 20,
        "slow",
        1 << 20,
    )
    assert fast.facts["driver"] == "570.86.15"
    with backend.open(fast.key) as device:
        assert device.conditions().sm_clock_mhz == 2000.0
    with backend.open(slow.key) as device:
        assert device.conditions().sm_clock_mhz == 1000.0
