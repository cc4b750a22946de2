"""The evidence of a calibration: rows, points, fits, and the document that carries all of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.api.calibrations import CalibrationId
from service.api.devices import RowFile
from service.api.paging import Cursor, RecordLimit, decode_cursor, encode_cursor
from service.api.views import Views
from service.bodies import IMPORT_PATH
from service.documents import CalibrationDocument, export_calibration
from service.evidence import POINT_TABLES, REPEAT, fits, reading_json, record_json, records, row_line
from service.imports import import_calibration
from service.models import Row
from service.repository import get_calibration
from service.schemas import CalibrationView, FitList, FitView, Page, RecordView
from service.state import AppServices, Services

router = APIRouter(prefix="/v1/calibrations", tags=["evidence"])
import_router = APIRouter(tags=["evidence"])
_TSV: dict[int | str, dict[str, Any]] = {
    200: {"content": {RowFile.media_type: {"schema": {"type": "string"}}}, "description": "The rows"}
}


@router.get("/{calibration_id}/rows", response_model=Page[RecordView], responses=_TSV)
def get_rows(
    services: AppServices,
    calibration_id: CalibrationId,
    form: Annotated[
        Literal["json", "tsv"], Query(alias="format", description="tsv: all rows as 12-column lines, not paged")
    ] = "json",
    limit: RecordLimit = 1000,
    cursor: Cursor = None,
) -> Page[RecordView] | Response:
    """List the rows it timed, with how each time was read."""
    if form == "tsv":
        with services.database.read() as session:
            get_calibration(session, calibration_id)
            rows = records(session, Row, calibration_id)
        return Response("".join(row_line(row) for _, row in rows if row.role != REPEAT), media_type=RowFile.media_type)
    return _records(services, Row, calibration_id, limit, cursor)


@router.get("/{calibration_id}/points/{sweep}")
def get_points(
    services: AppServices,
    calibration_id: CalibrationId,
    sweep: Annotated[Literal["working_set", "launch", "issue"], Path(description="Sweep; stream has rows only")],
    limit: RecordLimit = 1000,
    cursor: Cursor = None,
) -> Page[RecordView]:
    """List the points of a sweep, with how each time was read."""
    return _records(services, POINT_TABLES[sweep], calibration_id, limit, cursor)


@router.get("/{calibration_id}/fits")
def get_fits(services: AppServices, calibration_id: CalibrationId) -> FitList:
    """List its fits with their outcomes, what went in beside the points, and why where nothing could be fitted."""
    with services.database.read() as session:
        get_calibration(session, calibration_id)
        return FitList(
            items=[FitView.model_validate(fit, from_attributes=True) for fit in fits(session, calibration_id)]
        )


@router.get("/{calibration_id}/export", response_model=CalibrationDocument)
def get_export(services: AppServices, calibration_id: CalibrationId) -> Response:
    """Export one JSON document from which every fit can be recomputed."""
    with services.database.read() as session:
        document = export_calibration(session, calibration_id)
    return JSONResponse(
        document, headers={"content-disposition": f'attachment; filename="calibration-{document["id"]}.json"'}
    )


@import_router.post(
    IMPORT_PATH,
    status_code=201,
    response_model=CalibrationView,
    responses={200: {"model": CalibrationView, "description": "Known here already"}},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/CalibrationDocument"}}},
        }
    },
)
async def post_import(
    request: Request,
    response: Response,
    activate: Annotated[bool, Query(description="Whether its constants become the device's active ones")] = False,
) -> CalibrationView:
    """Take in an exported document: its fits are recomputed and must agree; its constants are not believed."""
    services: Services = request.app.state.services
    body = await request.body()
    view, created = await run_in_threadpool(_import, services, body, activate)
    response.status_code = 201 if created else 200
    response.headers["location"] = f"/v1/calibrations/{view.id}"
    return view


def _import(services: Services, body: bytes, activate: bool) -> tuple[CalibrationView, bool]:
    calibration_id, created = import_calibration(services.database, body, activate=activate)
    with services.database.read() as session:
        view = Views(session, services.settings).calibration(get_calibration(session, calibration_id))
    services.cache.forget(view.device)
    return view, created


def _records(
    services: Services, table: type[Any], calibration_id: str, limit: int, cursor: str | None
) -> Page[RecordView]:
    after = 0 if cursor is None else decode_cursor(cursor, (int,))[0]
    with services.database.read() as session:
        get_calibration(session, calibration_id)
        found = records(session, table, calibration_id, after=after, limit=limit + 1)
        items = [
            RecordView(id=row.id, sweep=sweep, attempt=row.attempt, record=record_json(row), reading=reading_json(row))
            for sweep, row in found[:limit]
        ]
    return Page(items=items, next=encode_cursor(items[-1].id) if len(found) > limit else None)
