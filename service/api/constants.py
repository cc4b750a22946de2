"""Constants: served hot, their history, and which revision is served."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Request
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from service.api.paging import Cursor, Limit, decode_cursor, encode_cursor
from service.constant_forms import constant_views, constants_view, get_set
from service.constant_sets import add_set, load_set, load_sets, lock_device
from service.errors import NotCalibratedError
from service.models import ConstantSet
from service.repository import get_device
from service.schemas import ActiveRequest, ConstantsView, Page, RevisionView
from service.state import AppServices, Services

router = APIRouter(prefix="/v1/devices/{device}/constants", tags=["constants"])
CONSTANTS_PATH = "/v1/devices/{device}/constants"
DeviceKey = Annotated[str, Path(description="Device key")]

_PARAMETERS: list[dict[str, Any]] = [
    {"name": "device", "in": "path", "required": True, "schema": {"type": "string"}, "description": "Device key"},
    {
        "name": "format",
        "in": "query",
        "schema": {"enum": ["json", "config", "env", "flags"]},
        "description": "Form of the answer; without it the Accept header chooses `json` or (text/plain) `config`",
    },
    {
        "name": "margin",
        "in": "query",
        "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000, "default": 1},
        "description": "Factor on the two peaks in the text forms; JSON always has the fitted values",
    },
    {
        "name": "revision",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
        "description": "Revision number; the active one if left out",
    },
    {
        "name": "If-None-Match",
        "in": "header",
        "schema": {"type": "string"},
        "description": "ETag of an earlier answer; 304 if it still holds",
    },
]
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The constants; at most about a second behind the database",
        "headers": {"ETag": {"schema": {"type": "string"}}, "Vary": {"schema": {"type": "string"}}},
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/ConstantsView"}},
            "text/plain": {"schema": {"type": "string"}},
        },
    },
    304: {"description": "What the caller has still holds"},
}


async def get_constants(request: Request) -> Response:
    """Serve the device's constants, as JSON or as lines an autotuner's config, environment or command line takes."""
    services: Services = request.app.state.services
    device = request.path_params["device"]
    query = request.scope["query_string"]
    accept = request.headers.get("accept", "").encode("latin-1")
    rendered = services.cache.get(device, query, accept)
    if rendered is None:
        rendered = await run_in_threadpool(services.cache.load, device, query, accept)
    known = request.headers.get("if-none-match")
    if known is not None and _matches(known, rendered.etag):
        response = Response(status_code=304)
        response.raw_headers = list(rendered.not_modified_headers)
    else:
        response = Response(rendered.body)
        response.raw_headers = list(rendered.headers)
    return response


def _matches(known: str, etag: str) -> bool:
    """Compare weakly, as If-None-Match asks."""
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in known.split(","))


def add_hot_route(app: FastAPI) -> None:
    """Register the route that thousands of processes ask for; called first, because routing is a linear search."""
    app.add_api_route(
        CONSTANTS_PATH,
        get_constants,
        methods=["GET"],
        tags=["constants"],
        response_class=Response,
        responses=_RESPONSES,
        openapi_extra={"parameters": _PARAMETERS},
    )
    app.add_api_route(CONSTANTS_PATH, get_constants, methods=["HEAD"], include_in_schema=False)


@router.get("/history")
def get_history(
    services: AppServices, device: DeviceKey, limit: Limit = 20, cursor: Cursor = None
) -> Page[RevisionView]:
    """List the device's revisions, newest first, with who made each and why."""
    before = None if cursor is None else decode_cursor(cursor, (int,))[0]
    with services.database.read() as session:
        found = get_device(session, device)
        query = select(ConstantSet).where(ConstantSet.device_key == found.key)
        if before is not None:
            query = query.where(ConstantSet.revision < before)
        sets = session.scalars(query.order_by(ConstantSet.revision.desc()).limit(limit + 1)).all()
        entries = load_sets(session, sets[:limit])
        items = [
            RevisionView(
                revision=item.revision,
                active=item.revision == found.active_revision,
                created_at=item.created_at,
                cause=item.cause,
                pinned=item.pinned,
                calibration_id=item.calibration_id,
                source_revision=item.source_revision,
                notes=item.notes,
                constants=constant_views(entries[item.id]),
            )
            for item in sets[:limit]
        ]
    return Page(items=items, next=encode_cursor(items[-1].revision) if len(sets) > limit else None)


@router.put("/active")
def put_active(services: AppServices, device: DeviceKey, wanted: ActiveRequest) -> ConstantsView:
    """Pin, unpin or roll back: a new revision with an earlier one's constants, unless it is served so already."""
    with services.database.write() as session:
        get_device(session, device)
        found = lock_device(session, device)
        if found.active_revision is None:
            raise NotCalibratedError(f"device {device} has no constants to pin yet: POST /v1/calibrations first")
        wanted_set = get_set(session, found, wanted.revision or found.active_revision)
        active_set = get_set(session, found, found.active_revision)
        is_served = _origin(wanted_set) == _origin(active_set)
        if not (is_served and found.pinned == wanted.pinned):
            found.pinned = wanted.pinned
            cause = ("pin" if wanted.pinned else "unpin") if is_served else "rollback"
            entries = load_set(session, device, wanted_set.revision)
            add_set(session, found, entries, cause=cause, source_revision=_origin(wanted_set))
        view = constants_view(session, found)
    services.cache.forget(device)
    return view


def _origin(constant_set: ConstantSet) -> int:
    """Return the revision that first held these constants."""
    return constant_set.source_revision or constant_set.revision
