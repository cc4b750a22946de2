"""Hosts and their devices as a worker sees them, and whether a worker still lives, by the database's clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime

from sqlalchemy import DateTime, func, select, type_coerce, update
from sqlalchemy.orm import Session

from kernels.device import DeviceDescription, Discovery, UnusableBackend
from service.models import Device, Host


def database_now(session: Session) -> datetime:
    """The database's clock: hosts of a fleet need not agree on theirs."""
    if session.get_bind().dialect.name == "sqlite":
        text: str = session.scalars(select(func.strftime("%Y-%m-%dT%H:%M:%f", "now"))).one()
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    now: datetime = session.scalars(select(type_coerce(func.clock_timestamp(), DateTime(timezone=True)))).one()
    return now.astimezone(UTC)


def beat(session: Session, host_id: str) -> None:
    """Note that this host's worker lives."""
    session.execute(update(Host).where(Host.id == host_id).values(heartbeat_at=database_now(session)))


def is_online(host: Host, now: datetime, offline_s: float) -> bool:
    """Whether the host's worker gave a sign within `offline_s` seconds before `now`, the database's time."""
    return host.heartbeat_at is not None and (now - host.heartbeat_at).total_seconds() <= offline_s


def record_discovery(session: Session, host_id: str, worker_version: str, discovery: Discovery) -> list[str]:
    """Store what this host has now; returns the keys of all its devices, the unusable ones too.

    A device that is no longer found stays in the table with the reason, so that its history can be read and a job for
    it fails in words instead of waiting for ever.
    """
    now = database_now(session)
    host = session.get(Host, host_id)
    if host is None:
        host = Host(id=host_id)
        session.add(host)
    host.worker_version = worker_version
    host.heartbeat_at = now
    host.unusable = [asdict(backend) for backend in discovery.unusable]
    session.flush()
    known = {device.key: device for device in session.scalars(select(Device).where(Device.host_id == host_id))}
    for description in discovery.devices:
        device = known.pop(description.key, None) or session.get(Device, description.key)
        _record(session, device, description, host_id, now)
    for gone in known.values():
        gone.usable = False
        gone.reason = _reason(gone, discovery.unusable)
    session.flush()
    return list(session.scalars(select(Device.key).where(Device.host_id == host_id).order_by(Device.key)))


def _record(
    session: Session, device: Device | None, description: DeviceDescription, host_id: str, now: datetime
) -> None:
    if device is None:
        device = Device(key=description.key, first_seen_at=now, active_revision=None, pinned=False)
        session.add(device)
    device.host_id = host_id
    device.backend = description.backend
    device.kind = description.kind
    device.name = description.name
    device.simulated = description.simulated
    device.usable = True
    device.reason = None
    device.limits = asdict(description.limits)
    device.facts = dict(description.facts)
    device.last_seen_at = now


def _reason(device: Device, unusable: Iterable[UnusableBackend]) -> str:
    reasons = [backend.reason for backend in unusable if backend.backend == device.backend]
    return "; ".join(reasons) or "no longer found on this host: it was removed, replaced or reconfigured"
