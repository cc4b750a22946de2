"""The host that a CPU device is: identity, allowed cores, memory, caches, and how busy others keep it.

Everything is read below a `root` folder that holds `proc`, `sys` and `etc`, so a test can show another machine.
"""

from __future__ import annotations

import atexit
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.cgroup import cpu_pressure_some_us, cpu_quota, memory_limit, read_text
from kernels.errors import NoDeviceError

ROOT = Path("/")

ASSUMED_CACHE_BYTES = 64 << 20
"""Last-level cache assumed where the host shows none: a quarter of the reference's STREAM array of 2^26 floats."""
LARGEST_CACHE_BYTES = 1 << 30
"""A single cache reported larger than this is taken for a sandbox's invention."""


@dataclass(frozen=True)
class Cache:
    """Caches of one level and type that the allowed cores use: `bytes` each, `instances` of them."""

    level: int
    type: str
    bytes: int
    instances: int


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes: what the host has, what a control group allows (None: all), what can be had now."""

    total: int
    limit: int | None
    available: int

    @property
    def allowed(self) -> int:
        """The most this process may ever hold."""
        return self.total if self.limit is None else min(self.total, self.limit)


@dataclass(frozen=True)
class Host:
    """A host as a measuring process sees it.

    `cores` are the logical cores it may run on, `quota` the processor time it may use in cores (None: all of them),
    `threads` how many threads a kernel gets. `notes` say in words what had to be assumed.
    """

    model: str
    architecture: str
    kernel: str
    cores: tuple[int, ...]
    quota: float | None
    caches: tuple[Cache, ...]
    last_level_cache_bytes: int
    numa_nodes: int
    memory: Memory
    notes: tuple[str, ...]

    @property
    def threads(self) -> int:
        """Threads of a kernel: one an allowed core, within the quota.

        Notes
        -----
        The quota is rounded down: one thread more than it would be stopped for part of every scheduling period, and
        the best of several short samples would then show a rate that can't be sustained.
        """
        return len(self.cores) if self.quota is None else max(1, min(len(self.cores), int(self.quota)))


def read_host(root: Path = ROOT, cores: tuple[int, ...] | None = None) -> Host:
    """Describe this host.

    Parameters
    ----------
    root
        Folder that holds `proc`, `sys` and `etc`.
    cores
        Logical cores to use; None means those that the calling thread may run on.

    Notes
    -----
    The last-level cache is the SUM over the domains that the allowed cores use: a chip with eight core complexes has
    eight caches, and arrays four times one of them would still be half cached.
    """
    cores = allowed_cores() if cores is None else cores
    caches, notes = _caches(root, cores)
    last = max((cache.level for cache in caches if cache.type != "Instruction"), default=0)
    size = sum(c.bytes * c.instances for c in caches if c.level == last and c.type != "Instruction")
    if size == 0:
        size = ASSUMED_CACHE_BYTES
        notes.append(f"no cache sizes in sysfs: a last-level cache of {ASSUMED_CACHE_BYTES >> 20} MiB is assumed")
    return Host(
        model=_model(root),
        architecture=platform.machine(),
        kernel=platform.release(),
        cores=cores,
        quota=cpu_quota(root),
        caches=caches,
        last_level_cache_bytes=size,
        numa_nodes=_numa_nodes(root, cores),
        memory=read_memory(root),
        notes=tuple(notes),
    )


def data_dir() -> Path:
    """Return the data folder, which need not exist: `CALIBRATE_DATA_DIR`, else one in the user's data home."""
    chosen = os.environ.get("CALIBRATE_DATA_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    if home.startswith("~"):  # neither HOME nor an entry in the user database, as in some containers
        home = os.path.join(tempfile.gettempdir(), f"user-{os.getuid()}")
    return Path(home) / "calibration-service"


def private_dir(name: str) -> Path:
    """Return a folder that only this user can write, as code is loaded from it.

    Notes
    -----
    `name` in the data folder; one that ends with this process where that can't be made or written, or is open to
    others.
    """
    kept = data_dir() / name
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = kept.stat()
    except OSError:
        return _temporary_dir()
    private = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return kept if private and os.access(kept, os.W_OK | os.X_OK) else _temporary_dir()


@cache
def _temporary_dir() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="calibrate-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def host_id(root: Path = ROOT) -> str:
    """Return what tells this host from others and stays over restarts.

    Raises
    ------
    NoDeviceError
        If there is neither a given identity nor a machine-id, and none can be kept in the data folder.

    Notes
    -----
    `CALIBRATE_HOST_ID`, else `/etc/machine-id`, else an identity made once and kept in the data folder; never the
    hostname, which a container changes at each start.
    """
    given = os.environ.get("CALIBRATE_HOST_ID", "").strip()
    identity = given or read_text(root / "etc/machine-id")
    return identity if identity and identity != "uninitialized" else _kept_id(data_dir() / "host-id")


def _kept_id(file: Path) -> str:
    try:
        if not read_text(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".host-id-", delete=False) as new:
                new.write(secrets.token_hex(16) + "\n")
            try:
                os.link(new.name, file)  # fails where another process was first, whose identity then holds
            except FileExistsError:
                pass
            finally:
                os.unlink(new.name)
    except OSError as error:
        raise NoDeviceError(
            f"this host has no machine-id and none can be kept in {file.parent}: {error.strerror}; "
            "set CALIBRATE_HOST_ID, or CALIBRATE_DATA_DIR to a folder that can be written"
        ) from error
    return read_text(file)


def allowed_cores() -> tuple[int, ...]:
    """Return the logical cores that the calling thread may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def read_memory(root: Path = ROOT) -> Memory:
    """Return the host's memory and what this process may have of it, now."""
    fields: dict[str, int] = {}
    for line in read_text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        number = value.split()[0] if value.split() else ""
        if number.isdecimal():
            fields[name] = int(number) << 10
    total = fields.get("MemTotal") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = fields.get("MemAvailable", fields.get("MemFree", total))
    group = memory_limit(root)
    if group is None:
        return Memory(total, None, available)
    return Memory(total, group.limit, min(available, group.available))


def cpu_ticks(cores: Iterable[int], root: Path = ROOT) -> tuple[int, int] | None:
    """Return the cumulative (steal, total) clock ticks of `cores`; None where the host doesn't count them.

    References
    ----------
    proc_stat(5): user nice system idle iowait irq softirq steal; guest time is within user.
    """
    names = {f"cpu{core}" for core in cores}
    steal = total = 0
    for line in read_text(root / "proc/stat").splitlines():
        name, *ticks = line.split()
        if name in names and len(ticks) >= 8:
            numbers = [int(tick) for tick in ticks[:8]]
            steal += numbers[7]
            total += sum(numbers)
    return (steal, total) if total else None


def pressure_us(root: Path = ROOT) -> int | None:
    """Return the cumulative microseconds in which some task waited for a core; None where the kernel has no figure."""
    return cpu_pressure_some_us(root)


def _model(root: Path) -> str:
    text = read_text(root / "proc/cpuinfo")
    for key in ("model name", "Model", "cpu"):
        found = re.search(rf"^{key}\s*:\s*(\S.*)$", text, re.MULTILINE)
        if found:
            return " ".join(found[1].split())
    part = re.search(r"^CPU part\s*:\s*(\S+)$", text, re.MULTILINE)
    maker = re.search(r"^CPU implementer\s*:\s*(\S+)$", text, re.MULTILINE)
    if part and maker:
        return f"{platform.machine()} implementer {maker[1]} part {part[1]}"
    return platform.processor() or platform.machine()


def _caches(root: Path, cores: tuple[int, ...]) -> tuple[tuple[Cache, ...], list[str]]:
    domains: dict[tuple[int, str, int], set[str]] = {}
    notes: set[str] = set()
    for core in cores:
        for index in sorted((root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*")):
            level, size = read_text(index / "level"), _bytes(read_text(index / "size"))
            if not level.isdecimal() or not size:
                continue
            if size > LARGEST_CACHE_BYTES:
                notes.add(f"a level {level} cache of {size} bytes is not believed and left out")
                continue
            shared = read_text(index / "shared_cpu_list") or str(core)
            domains.setdefault((int(level), read_text(index / "type"), size), set()).add(shared)
    found = (Cache(level, kind, size, len(shared)) for (level, kind, size), shared in sorted(domains.items()))
    return tuple(found), sorted(notes)


def _numa_nodes(root: Path, cores: tuple[int, ...]) -> int:
    nodes = (root / "sys/devices/system/node").glob("node*")
    return max(1, sum(not _listed(read_text(node / "cpulist")).isdisjoint(cores) for node in nodes))


def _listed(text: str) -> set[int]:
    """The numbers of a kernel list such as `0-3,8`."""
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0
