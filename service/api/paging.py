"""Opaque cursors of lists."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query

from service.errors import InvalidRequestError

Limit = Annotated[int, Query(ge=1, le=200, description="Items a part (count)")]
RecordLimit = Annotated[int, Query(ge=1, le=5000, description="Records a part (count)")]
Cursor = Annotated[str | None, Query(max_length=400, description="`next` of the part before")]


def encode_cursor(*values: str | int) -> str:
    """Return where a list goes on."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, kinds: Sequence[type[str] | type[int]]) -> list[Any]:
    """Return a cursor's values; raises InvalidRequestError for one that no list gave out."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise _bad_cursor() from None
    if not isinstance(values, list) or [type(value) for value in values] != list(kinds):
        raise _bad_cursor()
    if not all(_is_storable(value) for value in values):
        raise _bad_cursor()
    return values


def _is_storable(value: str | int) -> bool:
    """Whether a database takes it: 64 bits; no NUL and no lone surrogate, neither of which is printable."""
    return value.isprintable() if isinstance(value, str) else abs(value) < 2**63


def decode_time_cursor(cursor: str) -> tuple[datetime, str]:
    """Return the time and id where a list of jobs goes on."""
    text, identity = decode_cursor(cursor, (str, str))
    try:
        return datetime.fromisoformat(text).astimezone(UTC), identity
    except (ValueError, OverflowError):
        raise _bad_cursor() from None


def _bad_cursor() -> InvalidRequestError:
    rule = "must be the `next` of an earlier part of this list"
    return InvalidRequestError(f"cursor: {rule}", fields=[{"field": "cursor", "rule": rule}])
