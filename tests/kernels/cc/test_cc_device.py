"""The host CPU as a device: identity, memory, conditions, and every way to fail with its cause and remedy."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.backends.base import (
    OpenDevice,
    StreamCandidate,
    StreamKernel,
    StreamName,
    StreamProblem,
)
from kernels.backends.cc import CcBackend
from kernels.errors import NoDeviceError, OutOfMemoryError
from kernels.parameters import SWEEPS, ParameterError, resolve

NAMES: tuple[StreamName, ...] = ("copy", "scale", "add", "triad")
ELEMS = 1 << 18


def test_the_cpu_is_described_with_a_key_that_stays(compiled: None) -> None:
    first, second = CcBackend().discover(), CcBackend().discover()

    (found,) = first.devices
    assert found.key == second.devices[0].key
    assert found.key.startswith("cpu-")
    assert len(found.key) == len("cpu-") + 16
    assert (found.backend, found.kind, found.simulated) == ("cc", "cpu", False)
    assert found.limits.sweeps == SWEEPS
    assert found.limits.geometries[:2] == ("32x32x8/4x4", "64x64x8/4x4")
    assert found.limits.multiprocessors == found.facts["threads"] <= len(os.sched_getaffinity(0))
    assert found.limits.last_level_cache_bytes == found.facts["last_level_cache_bytes"]


def test_another_host_id_or_another_set_of_cores_is_another_device(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for identity in ("one", "two"):
        monkeypatch.setenv("CALIBRATE_HOST_ID", identity)
        keys.append(CcBackend().discover().devices[0].key)
    monkeypatch.setattr("kernels.host.allowed_cores", lambda: (0,))
    fewer = CcBackend().discover().devices[0]

    assert len({*keys, fewer.key}) == 3
    assert fewer.limits.multiprocessors == 1
    with pytest.raises(NoDeviceError, match="1 allowed cores"), CcBackend().open(keys[0]):
        pass


def test_a_kernel_of_a_closed_workload_refuses_to_run_instead_of_crashing(device: OpenDevice) -> None:
    with device.open_workload(StreamProblem(ELEMS)) as workload:
        kernel = workload.prepare(StreamKernel("copy", ELEMS, StreamCandidate(32, 4, 4)))
    with pytest.raises(ValueError, match="closed"):
        kernel.sample()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_back_when_the_workload_ends(device: OpenDevice) -> None:
    gc.collect()
    before = resident_bytes()
    with device.open_workload(StreamProblem(1 << 24)) as workload:  # 192 MiB
        workload.prepare(StreamKernel("triad", 1 << 24, StreamCandidate(32, 4, 4))).verify()
        assert resident_bytes() - before > 150 << 20

    assert resident_bytes() - before < 64 << 20


def test_a_problem_larger_than_memory_is_refused_with_both_figures_before_it_is_allocated(device: OpenDevice) -> None:
    with (
        pytest.raises(OutOfMemoryError, match=r"needs 13194139533312 bytes .* available; ask for a smaller sweep"),
        device.open_workload(StreamProblem(1 << 40)),
    ):
        pass


def test_a_host_of_2_gib_with_a_claimed_1_gib_cache_refuses_the_sweep_with_a_reason(
    compiled: None, tmp_path: Path
) -> None:
    # 4 x 1 GiB an array is 12 GiB for three arrays.
    core = min(os.sched_getaffinity(0))
    index = tmp_path / f"sys/devices/system/cpu/cpu{core}/cache/index3"
    index.mkdir(parents=True)
    for name, text in {"level": "3", "type": "Unified", "size": "1024M", "shared_cpu_list": "0"}.items():
        (index / name).write_text(text)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2097152 kB\nMemAvailable: 2097152 kB\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("abc\n")

    (found,) = CcBackend(tmp_path).discover().devices

    assert found.limits.memory_bytes == 2**31
    with pytest.raises(ParameterError, match="needs 12884901888 bytes; the device has 2147483648 bytes"):
        resolve("stream", {}, found.limits)


def test_conditions_give_steal_and_say_why_the_rest_is_unknown(device: OpenDevice) -> None:
    conditions = device.conditions()

    assert conditions.sm_clock_mhz is None
    assert set(conditions.unknown) >= {"sm_clock_mhz", "throttle", "temperature_c", "other_processes"}
    for name in ("cpu_steal_ticks", "cpu_total_ticks", "cpu_pressure_some_us"):
        assert (getattr(conditions, name) is None) == (name in conditions.unknown)


def test_an_empty_launch_takes_time_and_the_provenance_names_the_compiler(device: OpenDevice) -> None:
    provenance = device.provenance()

    assert 0 < device.launch_latency_ms() < 1000
    assert provenance["threads"] == device.description.limits.multiprocessors
    assert provenance["compiler"]
    assert "-O3" in provenance["flags"]


def test_a_thread_that_opens_the_device_may_run_where_it_could_before(compiled: None) -> None:
    cores = os.sched_getaffinity(0)
    with CcBackend().open(CcBackend().discover().devices[0].key):
        assert os.sched_getaffinity(0) == cores
    assert os.sched_getaffinity(0) == cores


def test_a_quota_of_one_core_gives_one_thread_that_is_bound_only_to_a_single_core(
    compiled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIBRATE_HOST_ID", "test-host")
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/cgroup.controllers": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    backend = CcBackend(tmp_path)
    (found,) = backend.discover().devices

    with backend.open(found.key) as device:
        provenance = device.provenance()

    assert (found.limits.multiprocessors, provenance["threads"]) == (1, 1)
    assert provenance["threads_bound"] is (len(os.sched_getaffinity(0)) == 1)
    assert found.facts["quota_cores"] == 1.5


def in_a_new_process(code: str, **settings: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("setting", ["OMP_THREAD_LIMIT=1", "OMP_MAX_ACTIVE_LEVELS=0"])
def test_a_cpu_on_which_openmp_is_told_to_start_fewer_threads_is_unusable_with_the_reason(
    compiled: None, setting: str
) -> None:
    code = """
from kernels.backends.cc import CcBackend
found = CcBackend().discover()
print([device.limits.multiprocessors for device in found.devices], *(item.reason for item in found.unusable))
"""
    name, _, value = setting.partition("=")

    told = in_a_new_process(code, **{name: value})

    if len(os.sched_getaffinity(0)) == 1:
        assert told == "[1]\n"
    else:
        assert told.startswith("[] OpenMP starts 1 of the")
        assert "unset OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS" in told


@pytest.mark.parametrize("setting", ["OMP_PROC_BIND=true", "OMP_PLACES={0}", "OMP_NUM_THREADS=1", "OMP_DYNAMIC=true"])
def test_what_the_user_sets_for_openmp_changes_neither_the_device_nor_its_threads(compiled: None, setting: str) -> None:
    code = """
import os
from kernels.backends.cc import CcBackend
before = os.sched_getaffinity(0)
backend = CcBackend()
(found,) = backend.discover().devices
assert os.sched_getaffinity(0) == before
with backend.open(found.key) as device:
    print(found.key, device.provenance()["threads"], device._team._library.team_size(device._team.threads))
"""
    name, _, value = setting.partition("=")
    found = CcBackend().discover().devices[0]
    threads = found.limits.multiprocessors

    assert in_a_new_process(code, **{name: value}).split() == [found.key, str(threads), str(threads)]
