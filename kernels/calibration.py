"""A whole calibration without the service: sweep by sweep, fits, and the document that holds it all.

Needs numpy only, so that it runs on a bare GPU machine; the document can be imported into a service later.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fitting import (
    CONSTANTS,
    DOCUMENT_SCHEMA,
    GROUP_SWEEPS,
    Absent,
    ConstantValue,
    Fit,
    constant_to_json,
    constants_of,
    fit_calibration,
    fit_to_json,
    measurements_of,
)
from kernels.backends import registry
from kernels.child import run_sweep
from kernels.device import DeviceDescription
from kernels.errors import NoDeviceError
from kernels.events import (
    Event,
    PointMeasured,
    RowMeasured,
    SweepRequest,
    SweepResult,
    device_to_json,
    event_to_json,
    result_to_json,
)
from kernels.host import host_id
from kernels.measure import discover_in_child, measure_sweep
from kernels.parameters import resolve_all
from kernels.versions import versions

__all__ = ["calibrate", "device_to_json", "versions"]


def calibrate(
    device_key: str,
    sweeps: Sequence[str] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    on_event: Callable[[str, Event], None],
    on_document: Callable[[dict[str, Any]], None] = lambda document: None,
    in_process: bool = False,
    constants: Mapping[str, float] | None = None,
    time_limit_s: float = 900.0,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """
    Calibrate one device of this host and return the calibration document.

    Parameters
    ----------
    device_key : str
        The device's key.
    sweeps : sequence of str or None
        Which sweeps; None for all that the device has. They run in the order that lets each use the constants before
        it: stream, working_set, launch, issue.
    parameters : mapping or None
        Sweep to parameters, checked by `kernels.parameters.resolve_all`.
    on_event : callable
        Called with the sweep and each of its events.
    on_document : callable
        Called after each sweep with the document so far, so that a later sweep's failure loses no finished one.
    in_process : bool
        Measure in this process and not in a child: a crash or hang of a kernel is then this process's own.
    constants : mapping or None
        `model_*` constants in force before this run, unbumped.
    time_limit_s : float
        Of each sweep, seconds.
    cancelled : callable
        Polled while a child measures.

    Returns
    -------
    dict
        JSON values: everything measured, every fit, every constant or why there is none.

    Raises
    ------
    ParameterError
        Before anything is measured.
    MeasureError
        When a sweep fails.
    """
    device = _describe(device_key, in_process)
    resolved = resolve_all(sweeps, parameters or {}, device.limits)
    record = _Calibration(device, dict(constants or {}), host_id())  # before a run that would end for want of it
    for sweep, asked in resolved.items():
        request = SweepRequest(device.key, sweep, asked, record.constants_in_force(), time_limit_s)
        started_at = _now()
        records: list[RowMeasured | PointMeasured] = []

        def take(event: Event, sweep: str = sweep, into: list[RowMeasured | PointMeasured] = records) -> None:
            if isinstance(event, RowMeasured | PointMeasured):
                into.append(event)
            on_event(sweep, event)

        result = run_sweep(request, take) if in_process else measure_sweep(request, on_event=take, cancelled=cancelled)
        record.add(request, records, result, started_at)
        on_document(record.document())
    return record.document()


def _describe(key: str, in_process: bool) -> DeviceDescription:
    backend = registry.backend_of(key)
    found = registry.discover_backend(backend) if in_process else discover_in_child(backends=(backend,))
    for device in found.devices:
        if device.key == key:
            return device
    reasons = "; ".join(item.reason for item in found.unusable) or "it is not there"
    raise NoDeviceError(f"no usable device {key} on this host: {reasons}")


@dataclass
class _Calibration:
    """A calibration under way, kept in its JSON form, from which every fit is made."""

    device: DeviceDescription
    active: dict[str, float]
    host: str
    identity: str = field(default_factory=lambda: str(uuid.uuid4()))
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    requested_at: str = field(default_factory=lambda: _now())

    def add(
        self,
        request: SweepRequest,
        records: Sequence[RowMeasured | PointMeasured],
        result: SweepResult,
        started_at: str,
    ) -> None:
        """Keep a finished sweep."""
        self.sweeps.append(
            {
                "sweep": request.sweep,
                "parameters": dict(request.parameters),
                "constants_in_force": dict(request.constants),
                **result_to_json(result),
                "started_at": started_at,
                "finished_at": _now(),
                "rows": [event_to_json(event) for event in records if isinstance(event, RowMeasured)],
                "points": [event_to_json(event) for event in records if isinstance(event, PointMeasured)],
            }
        )

    def constants_in_force(self) -> dict[str, float]:
        """Return what was active before, overlaid with this run's fits so far."""
        _, constants = self._fit()
        fitted = {name: found.value for name, found in constants.items() if isinstance(found, ConstantValue)}
        return {**self.active, **fitted}

    def document(self) -> dict[str, Any]:
        """Return the calibration document of what is finished."""
        fits, constants = self._fit()
        return {
            **self._head(),
            "fits": [fit_to_json(fit) for fit in fits],
            "constants": {name: self._constant(name, constant) for name, constant in constants.items()},
        }

    def _head(self) -> dict[str, Any]:
        return {
            "schema": DOCUMENT_SCHEMA,
            "id": self.identity,
            "origin": "run",
            "device": device_to_json(self.device),
            "host_id": self.host,
            "requested_at": self.requested_at,
            "started_at": self.requested_at,
            "finished_at": _now(),
            "versions": versions(),
            "sweeps": self.sweeps,
        }

    def _fit(self) -> tuple[list[Fit], dict[str, ConstantValue | Absent]]:
        if not self.sweeps:
            return [], {}
        measurements = measurements_of({"schema": DOCUMENT_SCHEMA, "sweeps": self.sweeps})
        fits = fit_calibration(
            measurements,
            backend=self.device.backend,
            multiprocessors=self.device.limits.multiprocessors,
            in_force=self.active,
        )
        return fits, constants_of(fits, measurements)

    def _constant(self, name: str, constant: ConstantValue | Absent) -> dict[str, Any]:
        form = constant_to_json(constant)
        if isinstance(constant, ConstantValue):
            mine = GROUP_SWEEPS[CONSTANTS[name].group]
            doubts = [
                f"{item['sweep']}: {reason}"
                for item in self.sweeps
                if item["sweep"] in mine
                for reason in item["doubtful"]
            ]
            form["doubtful"] = [*form["doubtful"], *doubts]
        return form


def _now() -> str:
    return datetime.now(UTC).isoformat()
