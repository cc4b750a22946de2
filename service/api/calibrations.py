"""Calibrations: ask for one, list them, watch one, cancel it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from kernels.parameters import SWEEPS
from service.api.paging import Cursor, Limit, decode_time_cursor, encode_cursor
from service.api.views import Views
from service.errors import FinishedError
from service.jobs import transitions
from service.models import OPEN_STATES
from service.repository import Filter, NewJob, get_calibration, list_calibrations, submit
from service.schemas import CalibrationRequest, CalibrationView, Page, PastTime, State, SweepName, Text
from service.state import AppServices, Services

router = APIRouter(prefix="/v1/calibrations", tags=["calibrations"])
CalibrationId = Annotated[str, Path(description="Id of the calibration")]
EVENT_POLL_S = 0.5


@router.post("", status_code=202, responses={200: {"model": CalibrationView, "description": "An identical open one"}})
def post_calibration(services: AppServices, wanted: CalibrationRequest, response: Response) -> CalibrationView:
    """Ask for a calibration; an identical one that is still open is returned instead, with 200."""
    given = {sweep: getattr(wanted, sweep) for sweep in SWEEPS if getattr(wanted, sweep) is not None}
    job = NewJob(
        device=wanted.device,
        sweeps=wanted.sweeps,
        parameters=given,
        priority=wanted.priority,
        time_limit_s=wanted.time_limit_s,
        activate=wanted.activate,
    )
    calibration_id, created = submit(services.database, services.queue, job)
    response.status_code = 202 if created else 200
    response.headers["location"] = f"/v1/calibrations/{calibration_id}"
    return _view(services, calibration_id)


@router.get("")
def get_calibrations(
    services: AppServices,
    device: Annotated[Text | None, Query(description="Device key")] = None,
    state: Annotated[State | None, Query()] = None,
    sweep: Annotated[SweepName | None, Query(description="Only those with this sweep")] = None,
    since: Annotated[PastTime | None, Query(description="Requested at or after")] = None,
    until: Annotated[PastTime | None, Query(description="Requested before")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[CalibrationView]:
    """List calibrations, newest first."""
    after = None if cursor is None else decode_time_cursor(cursor)
    wanted = Filter(device, state, sweep, since, until)
    with services.database.read() as session:
        found = list_calibrations(session, wanted, after, limit + 1)
        following = None
        if len(found) > limit:
            last = found[limit - 1]
            following = encode_cursor(last.requested_at.isoformat(), last.id)
        items = Views(session, services.settings).calibrations(found[:limit])
    return Page(items=items, next=following)


@router.get("/{calibration_id}")
def get_one_calibration(services: AppServices, calibration_id: CalibrationId) -> CalibrationView:
    """Show a calibration: state, progress, each sweep with its doubts, the error if it failed."""
    return _view(services, calibration_id)


@router.delete("/{calibration_id}", responses={202: {"model": CalibrationView, "description": "It will stop soon"}})
def delete_calibration(services: AppServices, calibration_id: CalibrationId, response: Response) -> CalibrationView:
    """Cancel: a queued one at once (200), a running one within seconds (202); what was measured is kept."""
    with services.database.write() as session:
        found = get_calibration(session, calibration_id, lock=True)
        if found.state not in OPEN_STATES:
            raise FinishedError(f"calibration {calibration_id} is {found.state} already; nothing is left to cancel")
        found.cancel_requested = True
        was_queued = found.state == "queued"
        if was_queued:
            transitions.cancel(session, found)
    if was_queued:
        services.queue.withdraw(calibration_id)
    else:
        response.status_code = 202
    return _view(services, calibration_id)


def _existing(services: AppServices, calibration_id: CalibrationId) -> str:
    with services.database.read() as session:
        return get_calibration(session, calibration_id).id


@router.get("/{calibration_id}/events", response_class=EventSourceResponse)
async def get_events(
    request: Request, calibration_id: Annotated[str, Depends(_existing)]
) -> AsyncIterator[ServerSentEvent]:
    """Stream progress as server-sent events: `progress` when something changes, `end` when it has finished."""
    services: Services = request.app.state.services
    last: dict[str, Any] | None = None
    while not services.stopping:
        current = await run_in_threadpool(_progress, services, calibration_id)
        if current != last:
            is_over = current["state"] not in OPEN_STATES
            yield ServerSentEvent(data=current, event="end" if is_over else "progress")
            if is_over:
                return
            last = current
        await anyio.sleep(EVENT_POLL_S)


def _progress(services: Services, calibration_id: str) -> dict[str, Any]:
    with services.database.read() as session:
        found = get_calibration(session, calibration_id)
        return {
            "id": found.id,
            "state": found.state,
            "done": found.progress_done,
            "total": found.progress_total,
            "message": found.progress_message,
            "error_code": found.error_code,
            "activated": found.activated,
        }


def _view(services: Services, calibration_id: str) -> CalibrationView:
    with services.database.read() as session:
        return Views(session, services.settings).calibration(get_calibration(session, calibration_id))
