"""What control groups, v1 or v2, allow this process: processor time, memory, and the pressure they measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60  # v1 writes the largest multiple of a page below 2^63 for "no limit"


@dataclass(frozen=True)
class MemoryLimit:
    """The tightest memory limit over this process, and what is left under it, both in bytes."""

    limit: int
    available: int


def cpu_quota(root: Path) -> float | None:
    """Return the processor time allowed per second of wall time, in cores; None where nothing limits it.

    Parameters
    ----------
    root
        Folder that holds `proc` and `sys`.

    Notes
    -----
    A limit on any ancestor binds too, so the least of all levels counts: `cpu.max` in v2, `cpu.cfs_quota_us` over
    `cpu.cfs_period_us` in v1.

    References
    ----------
    Linux kernel documentation, admin-guide/cgroup-v2, "CPU Interface Files"; scheduler/sched-bwc.
    """
    quotas: list[float] = []
    for folder in _levels(root, "cpu"):
        fields = read_text(folder / "cpu.max").split()
        if len(fields) < 2:
            fields = [read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")]
        quota, period = (_whole(field) for field in fields[:2])
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit(root: Path) -> MemoryLimit | None:
    """Return the tightest memory limit over this process; None where nothing limits it.

    Notes
    -----
    Available is the limit less what is used, where file pages on the inactive list count as free: the kernel drops
    them before it kills. The least of all levels counts.
    """
    found: list[MemoryLimit] = []
    for folder in _levels(root, "memory"):
        limit = _whole(read_text(folder / "memory.max"))
        used = _whole(read_text(folder / "memory.current"))
        inactive = "inactive_file"
        if limit is None and used is None:
            limit = _whole(read_text(folder / "memory.limit_in_bytes"))
            used = _whole(read_text(folder / "memory.usage_in_bytes"))
            inactive = "total_inactive_file"
        if limit is None or limit >= _UNLIMITED:
            continue
        reclaimable = _keyed(folder / "memory.stat", inactive)
        found.append(MemoryLimit(limit, max(0, limit - (used or 0) + reclaimable)))
    if not found:
        return None
    return MemoryLimit(min(level.limit for level in found), min(level.available for level in found))


def cpu_pressure_some_us(root: Path) -> int | None:
    """Return the microseconds in which some task waited for a core, since boot or since the group was made.

    Notes
    -----
    The group's own figure where v2 keeps one, else the host's; None on kernels without pressure stall information.

    References
    ----------
    Linux kernel documentation, accounting/psi.
    """
    for file in [*(folder / "cpu.pressure" for folder in _levels(root, "cpu")), root / "proc/pressure/cpu"]:
        for line in read_text(file).splitlines():
            kind, _, fields = line.partition(" ")
            total = fields.rpartition("total=")[2]
            if kind == "some" and total.isdecimal():
                return int(total)
    return None


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and its ancestors, innermost first, that exist for `controller`.

    In a container without its own namespace `/proc/self/cgroup` names a path of the host that is not mounted here;
    then the mount's root is the container's own group.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
            mounts = [mount for mount in mounts if (mount / "cgroup.controllers").exists()]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / name for name in (controllers, controller)]
            mounts = [mount for mount in mounts if mount.is_dir()][:1]
        else:
            continue
        for mount in mounts:
            parts = Path(path.lstrip("/")).parts
            for depth in range(len(parts), -1, -1):
                folder = mount.joinpath(*parts[:depth])
                if ".." not in parts and folder.is_dir():
                    yield folder


def read_text(file: Path) -> str:
    """Return a small file's text without the blanks around it; empty where it can't be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _keyed(file: Path, key: str) -> int:
    for line in read_text(file).splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return _whole(value) or 0
    return 0
