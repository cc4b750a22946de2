"""The tables. Units are in the column names, or in the record's own docstring in `fitting`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC datetimes on SQLite and PostgreSQL alike; a naive value is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone is ambiguous")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the zone back that SQLite drops."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


STATES = ("queued", "running", "succeeded", "failed", "cancelled")
OPEN_STATES = ("queued", "running")
_ONE_OF_STATES = "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')"

Int = BigInteger()
Id = BigInteger().with_variant(Integer(), "sqlite")


class Base(DeclarativeBase):
    """Declarative base with stable constraint names, which Alembic needs."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON, datetime: UtcDateTime, int: Int}  # noqa: RUF012


class Host(Base):
    """A host; `heartbeat_at` is its worker's, by the database's clock, None where only documents came from."""

    __tablename__ = "hosts"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    worker_version: Mapped[str | None] = mapped_column(String(64))
    heartbeat_at: Mapped[datetime | None]
    unusable: Mapped[list[Any]]  # [{"backend", "reason"}]


class Device(Base):
    """A device seen by a worker, or named by an imported document."""

    __tablename__ = "devices"
    key: Mapped[str] = mapped_column(String(128), primary_key=True)
    host_id: Mapped[str] = mapped_column(ForeignKey("hosts.id"), index=True)
    backend: Mapped[str] = mapped_column(String(16))
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(Text)
    simulated: Mapped[bool]
    usable: Mapped[bool]
    reason: Mapped[str | None] = mapped_column(Text)  # why not usable
    limits: Mapped[dict[str, Any]]  # kernels.parameters.DeviceLimits
    facts: Mapped[dict[str, Any]]
    first_seen_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]
    active_revision: Mapped[int | None]  # the constant set served
    pinned: Mapped[bool]


class Calibration(Base):
    """A job; its id is the engine's workflow id. The truth for state, progress and error."""

    __tablename__ = "calibrations"
    __table_args__ = (
        Index(
            "uq_calibrations_open_request",
            "request_hash",
            unique=True,
            sqlite_where=text("state IN ('queued', 'running')"),
            postgresql_where=text("state IN ('queued', 'running')"),
        ),
        CheckConstraint(_ONE_OF_STATES, name="state"),
        Index("ix_calibrations_device_requested", "device_key", "requested_at", "id"),
        Index("ix_calibrations_requested", "requested_at", "id"),
    )
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    device_key: Mapped[str] = mapped_column(ForeignKey("devices.key"))
    request_hash: Mapped[str] = mapped_column(String(64))
    origin: Mapped[str] = mapped_column(String(16))  # request | missing | schedule | import
    state: Mapped[str] = mapped_column(String(16), index=True)  # STATES
    priority: Mapped[int]  # lower starts first
    time_limit_s: Mapped[float]
    cancel_requested: Mapped[bool]
    activate: Mapped[bool]  # asked to activate
    activated: Mapped[bool]
    revision: Mapped[int | None]  # the constant set it made
    progress_done: Mapped[int]
    progress_total: Mapped[int]
    progress_message: Mapped[str] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(32))
    error_message: Mapped[str | None] = mapped_column(Text)
    error_detail: Mapped[str | None] = mapped_column(Text)
    notes: Mapped[list[Any]]  # strings: activation notes
    versions: Mapped[dict[str, Any]]  # of the code that measured, from its start
    requested_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class SweepRun(Base):
    """One sweep of a job: what the drive takes next, and where it got to."""

    __tablename__ = "sweep_runs"
    __table_args__ = (
        CheckConstraint(_ONE_OF_STATES, name="state"),
        Index("uq_sweep_runs_calibration_sweep", "calibration_id", "sweep", unique=True),
    )
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    calibration_id: Mapped[str] = mapped_column(ForeignKey("calibrations.id", ondelete="CASCADE"))
    sweep: Mapped[str] = mapped_column(String(16))
    position: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))  # STATES
    parameters: Mapped[dict[str, Any]]  # resolved
    constants_in_force: Mapped[dict[str, Any]]  # model_* -> value, at the sweep's start
    starts: Mapped[int]  # attempts begun; bounded
    doubtful: Mapped[list[Any]]  # reasons, empty = good
    notes: Mapped[list[Any]]
    facts: Mapped[dict[str, Any]]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class _Reading:
    """The columns of `kernels.measure.Reading`, shared by rows and points."""

    attempt: Mapped[int]
    role: Mapped[str] = mapped_column(String(16))
    phase: Mapped[str | None] = mapped_column(String(16))
    order: Mapped[int]
    repeats_done: Mapped[int]
    median_ms: Mapped[float]
    spread: Mapped[float | None]
    device_ms: Mapped[float | None]
    windows: Mapped[list[Any]]


class Row(_Reading, Base):
    """`fitting.CalibrationRow`: `flops` operations, `bytes` distinct bytes, times in milliseconds."""

    __tablename__ = "rows"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    sweep_run_id: Mapped[int] = mapped_column(ForeignKey("sweep_runs.id", ondelete="CASCADE"), index=True)
    backend: Mapped[str] = mapped_column(String(32))
    digest: Mapped[str] = mapped_column(Text)
    routine: Mapped[str] = mapped_column(Text)
    label: Mapped[str] = mapped_column(Text)
    measured_ms: Mapped[float]
    model_ms: Mapped[float | None]
    kernels: Mapped[int]
    flops: Mapped[int]
    bytes: Mapped[int]
    flops_approx: Mapped[bool]
    bytes_approx: Mapped[bool]
    opaque: Mapped[bool]


class WorkingSetPointRow(_Reading, Base):
    """`fitting.WorkingSetPoint`."""

    __tablename__ = "working_set_points"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    sweep_run_id: Mapped[int] = mapped_column(ForeignKey("sweep_runs.id", ondelete="CASCADE"), index=True)
    k: Mapped[int]
    loops: Mapped[list[Any]]
    working_set_bytes: Mapped[int]
    requested_bytes: Mapped[int]
    distinct_bytes: Mapped[int]
    ms: Mapped[float]
    rank_ms: Mapped[float | None]
    bound_ms: Mapped[float | None]


class IssuePointRow(_Reading, Base):
    """`fitting.IssuePoint`; `contexts` a list of {blocks, threads, scalar_ops, mma_ops}."""

    __tablename__ = "issue_points"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    sweep_run_id: Mapped[int] = mapped_column(ForeignKey("sweep_runs.id", ondelete="CASCADE"), index=True)
    k: Mapped[int]
    scalar_ops: Mapped[int]
    mma_ops: Mapped[int]
    kernels: Mapped[int]
    ms: Mapped[float]
    rank_ms: Mapped[float | None]
    bound_ms: Mapped[float | None]
    contexts: Mapped[list[Any]]


class LaunchPointRow(_Reading, Base):
    """`fitting.LaunchPoint`."""

    __tablename__ = "launch_points"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    sweep_run_id: Mapped[int] = mapped_column(ForeignKey("sweep_runs.id", ondelete="CASCADE"), index=True)
    geometry: Mapped[str] = mapped_column(String(64))
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    contexts: Mapped[list[Any]]
    ms: Mapped[float]


class Fit(Base):
    """One fit of a job: what went in, what came out."""

    __tablename__ = "fits"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    calibration_id: Mapped[str] = mapped_column(ForeignKey("calibrations.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str] = mapped_column(String(32))  # fitting.calibration kinds: envelope capacity issue_rate fill ...
    sweep: Mapped[str] = mapped_column(String(16))
    phase: Mapped[str | None] = mapped_column(String(16))
    outcome: Mapped[str] = mapped_column(String(32))  # the class name, e.g. Transition
    result: Mapped[dict[str, Any]]  # the outcome's fields
    inputs: Mapped[dict[str, Any]]  # keywords of the fit: dram_rate, multiprocessors, fill, ...
    created_at: Mapped[datetime]


class ConstantSet(Base):
    """One revision of a device's constants; never changed once written."""

    __tablename__ = "constant_sets"
    __table_args__ = (Index("uq_constant_sets_device_revision", "device_key", "revision", unique=True),)
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    device_key: Mapped[str] = mapped_column(ForeignKey("devices.key"))
    revision: Mapped[int]
    calibration_id: Mapped[str | None] = mapped_column(ForeignKey("calibrations.id"))
    source_revision: Mapped[int | None]  # the earlier set that an operator's change copies
    cause: Mapped[str] = mapped_column(String(16))  # calibration | pin | rollback | unpin
    pinned: Mapped[bool]  # whether the device was pinned while this set was active
    notes: Mapped[list[Any]]
    created_at: Mapped[datetime]


class Constant(Base):
    """One of the seven names in a set: a value with its evidence, or absent with its reason."""

    __tablename__ = "constants"
    set_id: Mapped[int] = mapped_column(ForeignKey("constant_sets.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[float | None]
    unit: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(Text)  # why absent
    doubtful: Mapped[list[Any]]  # reasons
    notes: Mapped[list[Any]]  # later attempts that gave nothing
    fit_id: Mapped[int | None] = mapped_column(ForeignKey("fits.id"))
    calibration_id: Mapped[str | None] = mapped_column(ForeignKey("calibrations.id"))
    measured_at: Mapped[datetime | None]
    outcome: Mapped[str | None] = mapped_column(String(32))
    quality: Mapped[dict[str, Any]]


class Token(Base):
    """A bearer token: `digest` is its SHA-256, `scopes` a list of `read` and `calibrate`."""

    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[Any]]
    created_at: Mapped[datetime]
