"""Settings: `CALIBRATE_*` variables, or arguments of `Settings` where the command line sets them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from kernels.host import data_dir
from service.schemas import SweepName

LEAST_TOKEN = 16
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


def parse_database_url(text: str) -> URL:
    """Return the URL with the driver this service uses; raises ValueError, without repeating a password."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise ValueError("not a database URL; use sqlite:////path/to/file or postgresql://user@host/name") from None
    if url.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if url.database in (None, "", ":memory:"):
            raise ValueError("SQLite needs a file: the worker is another process and must see the same tables")
        return url.set(drivername="sqlite")
    raise ValueError(f"databases are SQLite and PostgreSQL, not {url.drivername}")


class Settings(BaseSettings):
    """Everything that an installation may choose."""

    model_config = SettingsConfigDict(env_prefix="CALIBRATE_", env_ignore_empty=True, extra="ignore")

    data_dir: Path = Field(default_factory=data_dir)
    database_url: SecretStr | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    token: SecretStr | None = None
    max_body_bytes: int = Field(default=64 * 2**20, ge=1024)
    pool_size: int = Field(default=16, ge=2, le=256)
    revision_poll_s: float = Field(default=1.0, gt=0)
    heartbeat_s: float = Field(default=5.0, gt=0)
    worker_offline_s: float = Field(default=20.0, gt=0)
    database_wait_s: float = Field(default=30.0, ge=0)
    queue_poll_s: float = Field(default=0.25, gt=0)
    reconcile_s: float = Field(default=60.0, gt=0)
    rediscover_s: float = Field(default=60.0, gt=0)
    missing_sweeps: Annotated[tuple[SweepName, ...] | None, NoDecode] = None  # None: all that the device supports
    shutdown_grace_s: int = Field(default=3, ge=0)

    @field_validator("allowed_hosts", "missing_sweeps", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(item.strip().lower() for item in value.split(",") if item.strip())
        return value

    @field_validator("token")
    @classmethod
    def _check_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < LEAST_TOKEN:
            raise ValueError(f"a token has at least {LEAST_TOKEN} characters")
        return value

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            parse_database_url(value.get_secret_value())
        return value

    @cached_property
    def url(self) -> URL:
        """The database: the one asked for, else a SQLite file in the data folder."""
        if self.database_url is None:
            return URL.create("sqlite", database=str(self.data_dir.absolute() / "calibrations.sqlite3"))
        return parse_database_url(self.database_url.get_secret_value())
