"""From table rows to answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.config import Settings
from service.jobs.hosts import database_now, is_online
from service.models import Calibration, Device, Host, SweepRun
from service.repository import hosts, sweep_runs
from service.schemas import CalibrationView, DeviceView, ErrorView, ProgressView, SweepView, WorkerView


class Views:
    """Answers as of one moment; asks for the hosts once."""

    def __init__(self, session: Session, settings: Settings) -> None:
        """Read the clock and the heartbeats."""
        self._session = session
        self._offline_s = settings.worker_offline_s
        self._now = database_now(session)
        self.hosts = hosts(session)

    def device(self, device: Device) -> DeviceView:
        """Return a device."""
        path = f"/v1/devices/{device.key}"
        return DeviceView(
            key=device.key,
            host_id=device.host_id,
            backend=device.backend,
            kind=device.kind,
            name=device.name,
            simulated=device.simulated,
            usable=device.usable,
            reason=device.reason,
            limits=device.limits,
            facts=device.facts,
            first_seen_at=device.first_seen_at,
            last_seen_at=device.last_seen_at,
            active_revision=device.active_revision,
            pinned=device.pinned,
            worker=self.worker(device.host_id),
            links={
                "self": path,
                "constants": f"{path}/constants",
                "history": f"{path}/constants/history",
                "calibrations": f"/v1/calibrations?device={device.key}",
            },
        )

    def worker(self, host_id: str) -> WorkerView:
        """Say in words whether someone measures on a host."""
        host = self.hosts[host_id]
        online = is_online(host, self._now, self._offline_s)
        return WorkerView(online=online, heartbeat_at=host.heartbeat_at, message=worker_words(host, self._now, online))

    def calibrations(self, found: Sequence[Calibration]) -> list[CalibrationView]:
        """Return jobs with their sweeps."""
        runs = sweep_runs(self._session, [calibration.id for calibration in found])
        keys = {item.device_key for item in found}
        devices = {item.key: item for item in self._session.scalars(select(Device).where(Device.key.in_(keys)))}
        return [self._calibration(item, runs[item.id], devices) for item in found]

    def calibration(self, found: Calibration) -> CalibrationView:
        """Return a job with its sweeps."""
        return self.calibrations([found])[0]

    def _calibration(
        self, found: Calibration, runs: Sequence[SweepRun], devices: Mapping[str, Device]
    ) -> CalibrationView:
        device = devices[found.device_key]
        return CalibrationView(
            id=found.id,
            device=device.key,
            simulated=device.simulated,
            origin=found.origin,
            state=found.state,  # type: ignore[arg-type]  # the table's check constraint
            progress=ProgressView(done=found.progress_done, total=found.progress_total, message=found.progress_message),
            sweeps=[_sweep(run) for run in runs],
            error=_error(found),
            priority=found.priority,
            time_limit_s=found.time_limit_s,
            cancel_requested=found.cancel_requested,
            activate=found.activate,
            activated=found.activated,
            revision=found.revision,
            notes=found.notes,
            versions=found.versions,
            worker=self.worker(device.host_id),
            requested_at=found.requested_at,
            started_at=found.started_at,
            finished_at=found.finished_at,
            links=_links(found, runs),
        )


def worker_words(host: Host, now: datetime, online: bool) -> str:
    """Say in words how a host's worker is."""
    if host.heartbeat_at is None:
        return "no worker has run on this host; documents from it were imported"
    age_s = max(0.0, (now - host.heartbeat_at).total_seconds())
    if online:
        return f"online, last sign of life {age_s:.0f} s ago"
    return f"offline, last sign of life {age_s:.0f} s ago; start it with `calibrate worker` or `calibrate serve`"


def _sweep(run: SweepRun) -> SweepView:
    return SweepView(
        sweep=run.sweep,
        state=run.state,  # type: ignore[arg-type]  # the table's check constraint
        parameters=run.parameters,
        constants_in_force=run.constants_in_force,
        starts=run.starts,
        doubtful=run.doubtful,
        notes=run.notes,
        facts=run.facts,
        started_at=run.started_at,
        finished_at=run.finished_at,
    )


def _error(found: Calibration) -> ErrorView | None:
    if found.error_code is None:
        return None
    return ErrorView(code=found.error_code, message=found.error_message or "", detail=found.error_detail)


def _links(found: Calibration, runs: Sequence[SweepRun]) -> dict[str, str]:
    path = f"/v1/calibrations/{found.id}"
    links = {"self": path, "device": f"/v1/devices/{found.device_key}"}
    links |= {name: f"{path}/{name}" for name in ("events", "rows", "fits", "export")}
    return links | {f"points/{run.sweep}": f"{path}/points/{run.sweep}" for run in runs if run.sweep != "stream"}
