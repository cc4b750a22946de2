"""Clocks, throttling, heat, power and neighbours through a fake NVML: what can't be read is unknown, never 0."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from kernels.backends.nvml import CONDITION_FIELDS, Nvml, NvmlDevice, load_nvml, throttle_names, unknown_conditions
from tests.kernels.cuda_shim.fake_nvml import FakeChip, FakeNvml, NVMLError

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
SLICE = "11111111-1111-1111-1111-111111111111"
PCI = "0000:1b:00.0"
HOST_FIELDS = {"cpu_steal_ticks", "cpu_total_ticks", "cpu_pressure_some_us"}


def find(library: FakeNvml, uuid: str = UUID, *, is_slice: bool = False) -> NvmlDevice:
    device = Nvml(library).find(uuid, PCI, slice_expected=is_slice)
    assert device is not None
    return device


def test_every_figure_of_a_whole_gpu_is_read_in_its_unit() -> None:
    chip = FakeChip(UUID, PCI, throttle=0x4, pids=(77, 4242))

    state = find(FakeNvml([chip])).conditions(pid=77)

    assert (state.sm_clock_mhz, state.memory_clock_mhz) == (1980.0, 3201.0)
    assert (state.temperature_c, state.power_w) == (41.0, 120.5)
    assert state.throttle == ("sw_power_cap",)
    assert state.other_processes == 1
    assert set(state.unknown) == HOST_FIELDS
    assert find(FakeNvml([chip])).facts() == {
        "max_sm_clock_mhz": 1980,
        "max_memory_clock_mhz": 3201,
        "power_limit_w": 700.0,
        "memory_free_bytes": 1 << 30,
    }


def test_no_throttling_is_an_empty_tuple_and_not_unknown() -> None:
    state = find(FakeNvml([FakeChip(UUID, PCI, pids=(77,))])).conditions(pid=77)

    assert state.throttle == ()
    assert state.other_processes == 0


def test_what_is_not_supported_is_unknown_with_its_reason() -> None:
    device = find(FakeNvml([FakeChip(UUID, PCI, supported=False)]))
    state = device.conditions(pid=77)

    assert {name: state.unknown[name] for name in CONDITION_FIELDS} == dict.fromkeys(
        CONDITION_FIELDS, "NVML: Not Supported"
    )
    assert [getattr(state, field) for field in CONDITION_FIELDS] == [None] * 6
    assert set(device.facts().values()) == {None}


def test_a_slice_has_its_own_processes_and_the_clocks_of_its_chip() -> None:
    chip = FakeChip(UUID, PCI, slices=(f"MIG-{SLICE}",), sm_clock=1500, pids=(1, 2, 3))
    library = FakeNvml([chip], slice_pids=(77,))

    device = find(library, SLICE, is_slice=True)
    state = device.conditions(pid=77)

    assert device.key == f"MIG-{SLICE}"
    assert state.sm_clock_mhz == 1500.0
    assert state.other_processes == 0
    assert set(state.unknown) == HOST_FIELDS
    assert all(handle.slice is None for handle in library.asked)


def test_a_slice_that_nvml_does_not_list_is_never_taken_for_its_parent() -> None:
    library = FakeNvml([FakeChip(UUID, PCI)])

    assert Nvml(library).find(SLICE, PCI, slice_expected=True) is None


def test_a_gpu_whose_uuid_nvml_does_not_know_is_found_by_its_pci_address() -> None:
    library = FakeNvml([FakeChip("other", "0000:aa:00.0"), FakeChip("other", PCI, sm_clock=7)])

    device = find(library)

    assert device.key == f"GPU-{UUID}"
    assert device.conditions().sm_clock_mhz == 7.0
    assert Nvml(FakeNvml([])).find(UUID, PCI, slice_expected=False) is None


def test_the_slices_of_a_chip_are_listed() -> None:
    library = FakeNvml([FakeChip(UUID, PCI, slices=("MIG-a", "MIG-b"))])

    assert Nvml(library).slices(UUID) == ["MIG-a", "MIG-b"]
    assert Nvml(library).slices(SLICE) == []


def test_process_ids_of_another_namespace_count_one_of_them_as_this_process() -> None:
    assert find(FakeNvml([FakeChip(UUID, PCI, pids=(9001, 9002, 9003))])).conditions(pid=77).other_processes == 2


def test_an_empty_process_list_while_we_hold_a_context_is_unknown_and_not_zero() -> None:
    state = find(FakeNvml([FakeChip(UUID, PCI)])).conditions(pid=77)

    assert state.other_processes is None
    assert "hidden from this container" in state.unknown["other_processes"]


def test_a_driver_with_the_old_name_for_throttling_is_read() -> None:
    library = FakeNvml([FakeChip(UUID, PCI, throttle=0x48)], old_names=True)

    assert find(library).conditions().throttle == ("hw_slowdown", "hw_thermal_slowdown")


def test_throttle_bits_are_named_as_nvml_names_them() -> None:
    assert throttle_names(0x1FF) == (
        "gpu_idle",
        "applications_clocks_setting",
        "sw_power_cap",
        "hw_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        "display_clock_setting",
    )
    assert throttle_names(0x400) == ("reason_0x400",)
    assert throttle_names(0) == ()


def test_without_nvml_every_figure_is_unknown_for_that_reason() -> None:
    state = unknown_conditions("pynvml is not installed")

    assert {state.unknown[name] for name in CONDITION_FIELDS} == {"pynvml is not installed"}
    assert set(state.unknown) == HOST_FIELDS | set(CONDITION_FIELDS)


def test_loading_says_why_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ModuleType("pynvml")
    library = FakeNvml([], init_error=9)
    broken.NVMLError, broken.nvmlInit = NVMLError, library.nvmlInit  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    absent = load_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    unstarted = load_nvml()

    assert absent == (None, "pynvml is not installed (pip install nvidia-ml-py)")
    assert unstarted == (None, "NVML does not start: Driver Not Loaded")


def test_nvml_is_shut_down_at_the_end() -> None:
    library = FakeNvml([])

    Nvml(library).close()

    assert library.shut_down
