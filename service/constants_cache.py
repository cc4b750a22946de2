"""Answers to the hottest question, rendered once: an autotuner's thousand processes ask for the same bytes.

An entry is valid for one active revision. Writers in this process drop a device's entries; what other processes write
is noticed by polling the revisions, so an answer is at most one poll late.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from urllib.parse import parse_qs

from service.constant_forms import constants_view, render
from service.db import Database
from service.errors import InvalidRequestError
from service.repository import get_device
from service.schemas import Format

MAX_ENTRIES = 4096
MAX_KEY_BYTES = 1024  # of query and Accept header; a longer one is answered, but not kept
MAX_MARGIN = 1000.0
MAX_REVISION = 2**63 - 1
_MEDIA_TYPES: Mapping[Format, str] = {
    "json": "application/json",
    "config": "text/plain; charset=utf-8",
    "env": "text/plain; charset=utf-8",
    "flags": "text/plain; charset=utf-8",
}
_FORMATS: tuple[Format, ...] = tuple(_MEDIA_TYPES)
Key = tuple[str, bytes, bytes]


@dataclass(frozen=True)
class Rendered:
    """An answer, ready to send; `active_revision` is the device's at the time."""

    active_revision: int | None
    body: bytes
    etag: str
    headers: list[tuple[bytes, bytes]]
    not_modified_headers: list[tuple[bytes, bytes]]


class ConstantsCache:
    """Rendered answers by device, raw query string and Accept header."""

    def __init__(self, database: Database) -> None:
        """Start empty."""
        self._database = database
        self._entries: dict[Key, Rendered] = {}
        self._changing = Lock()

    def get(self, device: str, query: bytes, accept: bytes) -> Rendered | None:
        """Return a rendered answer, or None where `load` has to make it."""
        return self._entries.get((device, query, accept))

    def load(self, device: str, query: bytes, accept: bytes) -> Rendered:
        """Read the database, render and keep; raises ServiceError for a bad query, or where nothing is served."""
        form, margin, revision = parse_query(query, accept)
        with self._database.read() as session:
            found = get_device(session, device)
            active_revision = found.active_revision
            view = constants_view(session, found, revision)
        rendered = _answer(render(view, form, margin), form, view.revision, active_revision, view.device.simulated)
        if len(query) + len(accept) <= MAX_KEY_BYTES:
            with self._changing:
                while len(self._entries) >= MAX_ENTRIES:
                    del self._entries[next(iter(self._entries))]
                self._entries[(device, query, accept)] = rendered
        return rendered

    def forget(self, device: str) -> None:
        """Drop a device's answers."""
        with self._changing:
            for key in [key for key in self._entries if key[0] == device]:
                del self._entries[key]

    def note_revisions(self, active: Mapping[str, int | None]) -> None:
        """Drop the answers made for another revision than the device's active one."""
        with self._changing:
            for key, rendered in list(self._entries.items()):
                if active.get(key[0]) != rendered.active_revision:
                    del self._entries[key]


def _answer(body: bytes, form: Format, revision: int, active_revision: int | None, simulated: bool) -> Rendered:
    etag = f'"{revision}-{form}-{hashlib.sha256(body).hexdigest()[:16]}"'
    shared = [
        (b"etag", etag.encode()),
        (b"vary", b"Accept"),
        (b"cache-control", b"no-cache"),
        (b"calibration-simulated", b"true" if simulated else b"false"),
    ]
    content = [(b"content-type", _MEDIA_TYPES[form].encode()), (b"content-length", str(len(body)).encode())]
    return Rendered(active_revision, body, etag, shared + content, shared)


def parse_query(query: bytes, accept: bytes) -> tuple[Format, float, int | None]:
    """Return format, margin and revision; raises InvalidRequestError naming the field."""
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    text = {name: values[-1] for name, values in given.items()}
    form = _parse_format(text["format"]) if "format" in text else preferred_format(accept.decode("latin-1"))
    margin = _parse_margin(text["margin"]) if "margin" in text else 1.0
    revision = _parse_revision(text["revision"]) if "revision" in text else None
    return form, margin, revision


def _parse_format(text: str) -> Format:
    for form in _FORMATS:
        if text == form:
            return form
    raise _invalid("format", f"must be one of {', '.join(_FORMATS)}")


def _parse_margin(text: str) -> float:
    try:
        margin = float(text)
    except ValueError:
        margin = math.nan
    if not 0 < margin <= MAX_MARGIN:
        raise _invalid("margin", f"must be a number above 0, at most {MAX_MARGIN:g}")
    return margin


def _parse_revision(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= MAX_REVISION):
        raise _invalid("revision", "must be a revision number, 1 or more")
    return int(text)


def _invalid(field: str, rule: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {rule}", fields=[{"field": field, "rule": rule}])


def preferred_format(accept: str) -> Format:
    """Return `config` where an Accept header prefers plain text over JSON, else `json`."""
    ranges = {}
    for part in accept.lower().split(","):
        media_range, _, parameters = part.partition(";")
        ranges[media_range.strip()] = _weight(parameters)
    return "config" if _preference(ranges, "text/plain") > _preference(ranges, "application/json") else "json"


def _preference(ranges: Mapping[str, float], media_type: str) -> float:
    """Return the weight of the most specific range that holds the type (RFC 9110, section 12.5.1)."""
    candidates = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    return next((ranges[candidate] for candidate in candidates if candidate in ranges), 0.0)


def _weight(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
