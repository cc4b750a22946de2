"""Alembic's entry: runs on the connection it is given, else on the configured database."""

from alembic import context
from sqlalchemy import Connection

from service.config import Settings
from service.db import VERSION_TABLE, Database
from service.models import Base


def _is_ours(name: str | None, kind: str, parents: object) -> bool:
    """The job engine keeps its tables in the same SQLite file; they are not ours to migrate."""
    return kind != "table" or name in Base.metadata.tables


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        include_name=_is_ours,
        render_as_batch=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


_given = context.config.attributes.get("connection")
if _given is not None:
    _run(_given)
else:
    _database = Database(Settings().url)
    with _database.engine.begin() as _connection:
        _run(_connection)
    _database.dispose()
