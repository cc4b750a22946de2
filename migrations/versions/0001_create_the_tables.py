"""Create the tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATES = "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')"
_OPEN = "state IN ('queued', 'running')"
_POINT_TABLES = ("rows", "working_set_points", "issue_points", "launch_points")


def upgrade() -> None:
    op.create_table(
        "hosts",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("worker_version", sa.String(64)),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True)),
        sa.Column("unusable", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_hosts"),
    )
    op.create_table(
        "tokens",
        _id(),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("name", name="uq_tokens_name"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )
    op.create_table(
        "devices",
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("host_id", sa.String(64), nullable=False),
        sa.Column("backend", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("usable", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("active_revision", sa.BigInteger()),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_devices"),
        _reference("devices", "host_id", "hosts", "id"),
    )
    op.create_index("ix_devices_host_id", "devices", ["host_id"])
    _create_calibrations()
    _create_evidence()
    _create_constants()


def _create_calibrations() -> None:
    op.create_table(
        "calibrations",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("device_key", sa.String(128), nullable=False),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("time_limit_s", sa.Double(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("activate", sa.Boolean(), nullable=False),
        sa.Column("activated", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.BigInteger()),
        sa.Column("progress_done", sa.BigInteger(), nullable=False),
        sa.Column("progress_total", sa.BigInteger(), nullable=False),
        sa.Column("progress_message", sa.Text(), nullable=False),
        sa.Column("error_code", sa.String(32)),
        sa.Column("error_message", sa.Text()),
        sa.Column("error_detail", sa.Text()),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_calibrations"),
        sa.CheckConstraint(_STATES, name="ck_calibrations_state"),
        _reference("calibrations", "device_key", "devices", "key"),
    )
    op.create_index("ix_calibrations_state", "calibrations", ["state"])
    op.create_index("ix_calibrations_requested", "calibrations", ["requested_at", "id"])
    op.create_index("ix_calibrations_device_requested", "calibrations", ["device_key", "requested_at", "id"])
    op.create_index(
        "uq_calibrations_open_request",
        "calibrations",
        ["request_hash"],
        unique=True,
        sqlite_where=sa.text(_OPEN),
        postgresql_where=sa.text(_OPEN),
    )
    op.create_table(
        "sweep_runs",
        _id(),
        sa.Column("calibration_id", sa.String(36), nullable=False),
        sa.Column("sweep", sa.String(16), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("constants_in_force", sa.JSON(), nullable=False),
        sa.Column("starts", sa.BigInteger(), nullable=False),
        sa.Column("doubtful", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_sweep_runs"),
        sa.CheckConstraint(_STATES, name="ck_sweep_runs_state"),
        _reference("sweep_runs", "calibration_id", "calibrations", "id", "CASCADE"),
    )
    op.create_index("uq_sweep_runs_calibration_sweep", "sweep_runs", ["calibration_id", "sweep"], unique=True)


def _create_evidence() -> None:
    _create_point_table(
        "rows",
        sa.Column("backend", sa.String(32), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("routine", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("measured_ms", sa.Double(), nullable=False),
        sa.Column("model_ms", sa.Double()),
        sa.Column("kernels", sa.BigInteger(), nullable=False),
        sa.Column("flops", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("flops_approx", sa.Boolean(), nullable=False),
        sa.Column("bytes_approx", sa.Boolean(), nullable=False),
        sa.Column("opaque", sa.Boolean(), nullable=False),
    )
    _create_point_table(
        "working_set_points",
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("loops", sa.JSON(), nullable=False),
        sa.Column("working_set_bytes", sa.BigInteger(), nullable=False),
        sa.Column("requested_bytes", sa.BigInteger(), nullable=False),
        sa.Column("distinct_bytes", sa.BigInteger(), nullable=False),
        sa.Column("ms", sa.Double(), nullable=False),
        sa.Column("rank_ms", sa.Double()),
        sa.Column("bound_ms", sa.Double()),
    )
    _create_point_table(
        "issue_points",
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("scalar_ops", sa.BigInteger(), nullable=False),
        sa.Column("mma_ops", sa.BigInteger(), nullable=False),
        sa.Column("kernels", sa.BigInteger(), nullable=False),
        sa.Column("ms", sa.Double(), nullable=False),
        sa.Column("rank_ms", sa.Double()),
        sa.Column("bound_ms", sa.Double()),
        sa.Column("contexts", sa.JSON(), nullable=False),
    )
    _create_point_table(
        "launch_points",
        sa.Column("geometry", sa.String(64), nullable=False),
        sa.Column("m", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("contexts", sa.JSON(), nullable=False),
        sa.Column("ms", sa.Double(), nullable=False),
    )
    op.create_table(
        "fits",
        _id(),
        sa.Column("calibration_id", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("sweep", sa.String(16), nullable=False),
        sa.Column("phase", sa.String(16)),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fits"),
        _reference("fits", "calibration_id", "calibrations", "id", "CASCADE"),
    )
    op.create_index("ix_fits_calibration_id", "fits", ["calibration_id"])


def _create_constants() -> None:
    op.create_table(
        "constant_sets",
        _id(),
        sa.Column("device_key", sa.String(128), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("calibration_id", sa.String(36)),
        sa.Column("source_revision", sa.BigInteger()),
        sa.Column("cause", sa.String(16), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_constant_sets"),
        _reference("constant_sets", "device_key", "devices", "key"),
        _reference("constant_sets", "calibration_id", "calibrations", "id"),
    )
    op.create_index("uq_constant_sets_device_revision", "constant_sets", ["device_key", "revision"], unique=True)
    op.create_table(
        "constants",
        sa.Column("set_id", _big(), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("unit", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("doubtful", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("fit_id", _big()),
        sa.Column("calibration_id", sa.String(36)),
        sa.Column("measured_at", sa.DateTime(timezone=True)),
        sa.Column("outcome", sa.String(32)),
        sa.Column("quality", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("set_id", "name", name="pk_constants"),
        _reference("constants", "set_id", "constant_sets", "id", "CASCADE"),
        _reference("constants", "fit_id", "fits", "id"),
        _reference("constants", "calibration_id", "calibrations", "id"),
    )


def _create_point_table(name: str, *columns: sa.Column[Any]) -> None:
    """A record's own columns, then those that say how its time was read."""
    op.create_table(
        name,
        _id(),
        sa.Column("sweep_run_id", _big(), nullable=False),
        *columns,
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("phase", sa.String(16)),
        sa.Column("order", sa.BigInteger(), nullable=False),
        sa.Column("repeats_done", sa.BigInteger(), nullable=False),
        sa.Column("median_ms", sa.Double(), nullable=False),
        sa.Column("spread", sa.Double()),
        sa.Column("device_ms", sa.Double()),
        sa.Column("windows", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        _reference(name, "sweep_run_id", "sweep_runs", "id", "CASCADE"),
    )
    op.create_index(f"ix_{name}_sweep_run_id", name, ["sweep_run_id"])


def _big() -> sa.types.TypeEngine[int]:
    """SQLite numbers rows by itself only where the key's type is INTEGER."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _id() -> sa.Column[int]:
    return sa.Column("id", _big(), nullable=False)


def _reference(
    table: str, column: str, other: str, other_column: str, ondelete: str | None = None
) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{other}.{other_column}"], name=f"fk_{table}_{column}_{other}", ondelete=ondelete
    )


def downgrade() -> None:
    for table in ("constants", "constant_sets", "fits", *reversed(_POINT_TABLES), "sweep_runs", "calibrations"):
        op.drop_table(table)
    for table in ("devices", "tokens", "hosts"):
        op.drop_table(table)
