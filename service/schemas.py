"""What goes in and out over HTTP. Units are in the names, or in a field's description."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer, StringConstraints

SweepName = Literal["stream", "working_set", "launch", "issue"]
State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Format = Literal["json", "config", "env", "flags"]
Item = TypeVar("Item")

CONSTANTS_SCHEMA: Literal["calibration-service/constants/1"] = "calibration-service/constants/1"


def _to_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("is outside the calendar") from None


def _rfc3339(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


Time = Annotated[datetime, PlainSerializer(_rfc3339, return_type=str), Field(json_schema_extra={"format": "date-time"})]
"""RFC 3339 in UTC."""

PastTime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=200)]
"""Text a database takes: PostgreSQL stores no NUL."""


class Request(BaseModel):
    """A body: no unknown fields, no conversions, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class View(BaseModel):
    """An answer."""

    model_config = ConfigDict(allow_inf_nan=False)


class Page(View, Generic[Item]):
    """Part of a list; `next` is the cursor of the following part, null at the end."""

    items: list[Item]
    next: str | None


class Problem(View):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int = Field(description="HTTP status code")
    detail: str = Field(description="What is wrong and what to do")
    code: str = Field(description="Stable name of the problem")
    errors: list[FieldError] = Field(default=[], description="The fields at fault")


class FieldError(View):
    field: str = Field(description="Dotted path of the field")
    rule: str = Field(description="The rule it breaks")


class WorkerView(View):
    """Whether someone measures on this host."""

    online: bool
    heartbeat_at: Time | None = Field(description="Last sign of life, by the database's clock")
    message: str


class UnusableView(View):
    """A backend that can't be used on a host, and why."""

    host_id: str
    backend: str
    reason: str


class DeviceView(View):
    """A device and what it can run."""

    key: str
    host_id: str
    backend: str
    kind: str = Field(description="cpu, gpu or simulated")
    name: str
    simulated: bool
    usable: bool
    reason: str | None = Field(description="Why it is not usable")
    limits: dict[str, Any] = Field(description="Sizes in bytes, counts, sweeps and geometries the device has")
    facts: dict[str, Any] = Field(description="What is known of the device; null is unknown")
    first_seen_at: Time
    last_seen_at: Time
    active_revision: int | None = Field(description="Revision number of the constants served; null: not calibrated")
    pinned: bool
    worker: WorkerView
    links: dict[str, str]


class DevicePage(Page[DeviceView]):
    """Devices, GPUs first, then CPUs, then simulated ones; and what can't be used, in words."""

    unusable: list[UnusableView]


class ConstantView(View):
    """A constant with its evidence, or null with the reason."""

    value: float | int | None = Field(description="In `unit`, as fitted: not bumped, without margin")
    unit: str
    reason: str | None = Field(description="Why there is no value; `not_measured` where no run tried")
    fit_id: int | None = Field(description="Id of the fit it was read off")
    calibration_id: str | None
    measured_at: Time | None
    outcome: str | None = Field(description="The fit's outcome, e.g. Transition")
    quality: dict[str, Any] = Field(description="Points (count), residuals (fractions), `spread` in `unit`, ...")
    doubtful: list[str] = Field(description="Why not to trust it; empty is good")
    notes: list[str] = Field(description="Later runs that did not replace it")


class DeviceIdentity(View):
    key: str
    name: str
    simulated: bool


class ConstantsView(View):
    """One revision of a device's constants; all seven are listed."""

    schema_version: Literal["calibration-service/constants/1"] = CONSTANTS_SCHEMA
    device: DeviceIdentity
    revision: int = Field(description="Revision number, counted from 1 for each device")
    created_at: Time
    pinned: bool
    constants: dict[str, ConstantView]


class RevisionView(View):
    """One entry of a device's history."""

    revision: int = Field(description="Revision number, counted from 1 for each device")
    active: bool
    created_at: Time
    cause: str = Field(description="calibration, pin, rollback or unpin")
    pinned: bool
    calibration_id: str | None
    source_revision: int | None = Field(description="The earlier revision number that an operator's change copied")
    notes: list[str]
    constants: dict[str, ConstantView]


class ActiveRequest(Request):
    """Which revision to serve, and whether later runs may replace it."""

    revision: int | None = Field(
        default=None, ge=1, lt=2**63, description="Revision number to serve; null: the active one"
    )
    pinned: bool = Field(description="True keeps it until it is unpinned; runs then succeed without activating")


Parameters = Annotated[dict[str, Any] | None, Field(default=None)]


class CalibrationRequest(Request):
    """What to measure. Parameters left out take the defaults; `GET /v1/calibrations/{id}` shows what was resolved."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"device": "cpu-0123456789abcdef", "sweeps": ["stream"]}]},
    )
    device: Text | None = Field(default=None, description="Device key; needed where several devices are usable")
    sweeps: list[Text] | None = Field(default=None, max_length=16, description="Sweeps; all the device has if left out")
    stream: Parameters = Field(description="elems (elements of 4 bytes an array), repeats")
    working_set: Parameters = Field(description="m, n (extents), ks (ascending extents), repeats")
    launch: Parameters = Field(description="geometries, sizes (extents), target_ops (operations), max_k, repeats")
    issue: Parameters = Field(description="m, n (extents), ks (ascending extents), repeats")
    priority: int = Field(default=0, ge=0, le=1_000_000, description="Rank in the device's queue; lower starts first")
    time_limit_s: float = Field(default=900.0, gt=0, le=86_400, description="Seconds the whole job may take")
    activate: bool = Field(default=True, description="Whether its constants become the device's active ones")


class SweepView(View):
    """One sweep of a job."""

    sweep: str
    state: State
    parameters: dict[str, Any] = Field(description="As resolved: extents, sizes in elements, operations, repeats")
    constants_in_force: dict[str, float] = Field(description="model_* constants at its start, base units")
    starts: int = Field(description="Attempts begun (count)")
    doubtful: list[str] = Field(description="Why not to trust it; empty is good")
    notes: list[str]
    facts: dict[str, Any]
    started_at: Time | None
    finished_at: Time | None


class ErrorView(View):
    """Why a job failed."""

    code: str
    message: str = Field(description="What happened and what to do")
    detail: str | None


class ProgressView(View):
    """How far a job is."""

    done: int = Field(description="Steps done (count)")
    total: int = Field(description="Steps in all (count); 0 before it starts")
    message: str


class CalibrationView(View):
    """A job."""

    id: str
    device: str = Field(description="Device key")
    simulated: bool
    origin: str = Field(description="request, missing, schedule or import")
    state: State
    progress: ProgressView
    sweeps: list[SweepView]
    error: ErrorView | None
    priority: int = Field(description="Rank in the device's queue; lower starts first")
    time_limit_s: float = Field(description="Seconds the whole job may take")
    cancel_requested: bool
    activate: bool
    activated: bool = Field(description="Whether any of its constants became active")
    revision: int | None = Field(description="Revision number of the constant set it made")
    notes: list[str]
    versions: dict[str, Any]
    worker: WorkerView
    requested_at: Time
    started_at: Time | None
    finished_at: Time | None
    links: dict[str, str]


class RecordView(View):
    """A measured record and how its time was read."""

    id: int = Field(description="Id of the record")
    sweep: str
    attempt: int = Field(description="Start of the sweep that measured it (count)")
    record: dict[str, Any] = Field(description="Byte counts in bytes, `*_ops` in operations, `*ms` in milliseconds")
    reading: dict[str, Any] = Field(description="Role, phase, windows; `*_ms` in milliseconds, spread a fraction")


class FitView(View):
    """A stored fit."""

    id: int = Field(description="Id of the fit")
    kind: str
    sweep: str
    phase: str | None
    outcome: str = Field(description="Name of the outcome, e.g. Transition")
    result: dict[str, Any] = Field(description="Working sets in bytes, rates per second, latency_ms in milliseconds")
    inputs: dict[str, Any] = Field(description="What went in beside the records")
    created_at: Time


class FitList(View):
    """Every fit of a job."""

    items: list[FitView]
