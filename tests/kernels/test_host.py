"""Other machines, shown by folders in place of /proc, /sys and /etc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernels.errors import NoDeviceError
from kernels.host import (
    ASSUMED_CACHE_BYTES,
    Cache,
    allowed_cores,
    cpu_ticks,
    data_dir,
    host_id,
    pressure_us,
    read_host,
    read_memory,
)

MEMINFO = "MemTotal:  8388608 kB\nMemFree:  1048576 kB\nMemAvailable:  4194304 kB\n"
MACHINE_ID = "0123456789abcdef0123456789abcdef"


def put(root: Path, **files: str) -> None:
    """Write files; `__` in a name stands for the folder mark."""
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def cache(root: Path, core: int, index: int, *, level: int, kind: str, size: str, shared: str) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{core}/cache/index{index}"
    folder.mkdir(parents=True)
    for name, text in {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared}.items():
        (folder / name).write_text(text + "\n")


def test_eight_last_level_caches_count_eight_times(tmp_path: Path) -> None:
    for core in range(16):  # two cores share each of eight caches of 32 MiB, as on a chip of eight complexes
        cache(tmp_path, core, 0, level=1, kind="Data", size="32K", shared=str(core))
        cache(tmp_path, core, 1, level=1, kind="Instruction", size="64K", shared=str(core))
        cache(tmp_path, core, 3, level=3, kind="Unified", size="32768K", shared=f"{core // 2 * 2}-{core // 2 * 2 + 1}")

    host = read_host(tmp_path, cores=tuple(range(16)))

    assert host.last_level_cache_bytes == 8 * 32 * 2**20
    assert host.caches == (
        Cache(1, "Data", 32 * 2**10, 16),
        Cache(1, "Instruction", 64 * 2**10, 16),
        Cache(3, "Unified", 32 * 2**20, 8),
    )
    assert host.notes == ()


def test_only_the_caches_of_the_allowed_cores_count(tmp_path: Path) -> None:
    for core in range(4):
        cache(tmp_path, core, 3, level=3, kind="Unified", size="16M", shared=f"{core // 2 * 2}-{core // 2 * 2 + 1}")

    assert read_host(tmp_path, cores=(0, 1)).last_level_cache_bytes == 16 * 2**20
    assert read_host(tmp_path, cores=(1, 2)).last_level_cache_bytes == 32 * 2**20


def test_a_sandbox_without_cache_sizes_gets_an_assumed_one_and_a_note(tmp_path: Path) -> None:
    host = read_host(tmp_path, cores=(0,))

    assert host.last_level_cache_bytes == ASSUMED_CACHE_BYTES == 64 * 2**20
    assert host.caches == ()
    assert "64 MiB is assumed" in host.notes[0]


def test_an_absurd_cache_size_is_left_out_with_a_note(tmp_path: Path) -> None:
    cache(tmp_path, 0, 2, level=2, kind="Unified", size="1024K", shared="0")
    cache(tmp_path, 0, 3, level=3, kind="Unified", size="4194304K", shared="0")

    host = read_host(tmp_path, cores=(0,))

    assert host.last_level_cache_bytes == 2**20
    assert "4294967296 bytes is not believed" in host.notes[0]


@pytest.mark.parametrize(
    ("files", "quota", "threads"),
    [
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "max 100000\n"}, None, 8),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "250000 100000\n"}, 2.5, 2),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "50000 100000\n"}, 0.5, 1),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "6400000 100000\n"}, 64.0, 8),
        (
            {  # the ancestor's limit binds too
                "proc__self__cgroup": "0::/pod/job\n",
                "sys__fs__cgroup__pod__cpu.max": "300000 100000\n",
                "sys__fs__cgroup__pod__job__cpu.max": "400000 100000\n",
            },
            3.0,
            3,
        ),
        (
            {  # v1, in a container whose own path is not mounted
                "proc__self__cgroup": "4:cpu,cpuacct:/docker/0123\n",
                "sys__fs__cgroup__cpu,cpuacct__cpu.cfs_quota_us": "200000\n",
                "sys__fs__cgroup__cpu,cpuacct__cpu.cfs_period_us": "100000\n",
            },
            2.0,
            2,
        ),
        (
            {
                "proc__self__cgroup": "1:cpu:/\n",
                "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1\n",
                "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n",
            },
            None,
            8,
        ),
        ({}, None, 8),
    ],
)
def test_threads_are_the_allowed_cores_within_the_quota_rounded_down(
    tmp_path: Path, files: dict[str, str], quota: float | None, threads: int
) -> None:
    put(tmp_path, **files)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")

    host = read_host(tmp_path, cores=tuple(range(8)))

    assert host.quota == quota
    assert host.threads == threads


def test_memory_is_the_hosts_where_no_group_limits_it(tmp_path: Path) -> None:
    put(tmp_path, proc__meminfo=MEMINFO)

    memory = read_memory(tmp_path)

    assert (memory.total, memory.limit, memory.available) == (8 * 2**30, None, 4 * 2**30)
    assert memory.allowed == 8 * 2**30


def test_a_v2_group_limits_memory_and_its_inactive_pages_are_free(tmp_path: Path) -> None:
    put(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/job\n")
    group = tmp_path / "sys/fs/cgroup"
    (group / "job").mkdir(parents=True)
    (group / "cgroup.controllers").write_text("memory\n")
    (group / "job/memory.max").write_text(f"{2 * 2**30}\n")
    (group / "job/memory.current").write_text(f"{2**30}\n")
    (group / "job/memory.stat").write_text(f"anon 1\ninactive_file {2**28}\n")

    memory = read_memory(tmp_path)

    assert memory.allowed == memory.limit == 2 * 2**30
    assert memory.available == 2**30 + 2**28


def test_a_v1_group_limits_memory_and_its_largest_number_means_no_limit(tmp_path: Path) -> None:
    put(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="4:memory:/a/b\n")
    group = tmp_path / "sys/fs/cgroup/memory"
    (group / "a/b").mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "a/memory.limit_in_bytes").write_text(f"{3 * 2**30}\n")
    (group / "a/memory.usage_in_bytes").write_text(f"{2**30}\n")
    (group / "a/memory.stat").write_text("inactive_file 7\ntotal_inactive_file 4096\n")
    (group / "a/b/memory.limit_in_bytes").write_text("9223372036854771712\n")

    memory = read_memory(tmp_path)

    assert memory.limit == 3 * 2**30
    assert memory.available == 2 * 2**30 + 4096


def test_steal_counts_the_given_cores_alone(tmp_path: Path) -> None:
    put(
        tmp_path,
        proc__stat="cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 100 100\ncpu1 10 0 0 0 0 0 0 20 0 0\nintr 1\n",
    )

    assert cpu_ticks((0,), tmp_path) == (8, 36)
    assert cpu_ticks((0, 1), tmp_path) == (28, 66)


def test_a_host_that_counts_no_ticks_or_has_no_pressure_says_unknown_not_zero(tmp_path: Path) -> None:
    put(tmp_path, proc__stat="cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")

    assert cpu_ticks((0,), tmp_path) is None
    assert pressure_us(tmp_path) is None


def test_pressure_is_the_groups_own_where_there_is_one(tmp_path: Path) -> None:
    some = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"
    put(tmp_path, proc__pressure__cpu=some.format(500))
    assert pressure_us(tmp_path) == 500

    put(tmp_path, proc__self__cgroup="0::/job\n", sys__fs__cgroup__job__tasks="")
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    (tmp_path / "sys/fs/cgroup/job/cpu.pressure").write_text(some.format(70))
    assert pressure_us(tmp_path) == 70


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("processor : 0\nmodel name\t: AMD EPYC  9B45\nflags : fpu\n", "AMD EPYC 9B45"),
        ("processor : 0\nBogoMIPS : 243\nCPU implementer : 0x41\nCPU part : 0xd40\n", "implementer 0x41 part 0xd40"),
    ],
)
def test_the_model_is_read_on_x86_and_made_of_its_parts_on_arm(tmp_path: Path, cpuinfo: str, model: str) -> None:
    put(tmp_path, proc__cpuinfo=cpuinfo)

    assert read_host(tmp_path, cores=(0,)).model.endswith(model)


def test_numa_nodes_without_an_allowed_core_do_not_count(tmp_path: Path) -> None:
    for node, cores in enumerate(("0-3", "4-7", "8,9")):
        put(tmp_path, **{f"sys__devices__system__node__node{node}__cpulist": cores + "\n"})

    assert read_host(tmp_path, cores=(0, 1, 8)).numa_nodes == 2


def test_the_host_id_is_the_given_one_then_the_machine_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text(MACHINE_ID + "\n")
    monkeypatch.delenv("CALIBRATE_HOST_ID", raising=False)
    assert host_id(tmp_path) == MACHINE_ID

    monkeypatch.setenv("CALIBRATE_HOST_ID", "rack-7")
    assert host_id(tmp_path) == "rack-7"


def test_without_a_machine_id_an_identity_is_made_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALIBRATE_HOST_ID", raising=False)
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("")  # as some images have it

    first = host_id(tmp_path)

    assert len(first) == 32
    assert host_id(tmp_path) == first
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["host-id"]


def test_where_no_identity_can_be_kept_the_error_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALIBRATE_HOST_ID", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(tmp_path / "file/data"))

    with pytest.raises(NoDeviceError, match="set CALIBRATE_HOST_ID"):
        host_id(tmp_path)


def test_the_data_folder_is_the_given_one_or_in_the_users_data_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALIBRATE_DATA_DIR", "/chosen")
    assert data_dir() == Path("/chosen")
    monkeypatch.delenv("CALIBRATE_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/home/user/share")
    assert data_dir() == Path("/home/user/share/calibration-service")


def test_this_host_has_cores_memory_and_a_cache() -> None:
    host = read_host()

    assert host.cores == allowed_cores() == tuple(sorted(os.sched_getaffinity(0)))
    assert 1 <= host.threads <= len(host.cores)
    assert 0 < host.memory.available <= host.memory.total
    assert host.last_level_cache_bytes > 0
