"""Whether the service lives, whether it is ready, and its metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from service.api.views import Views
from service.db import revisions
from service.models import STATES, Calibration
from service.schemas import View
from service.state import AppServices, Services

router = APIRouter(tags=["health"])
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class HealthView(View):
    """The process answers."""

    status: str


class ReadyView(View):
    """Each part in words."""

    ready: bool
    database: str
    migration: str
    workers: dict[str, str] = Field(
        description="By host id; an offline worker does not stop constants from being served"
    )


@router.get("/healthz")
async def get_health() -> HealthView:
    """Say that the process lives; touches nothing else."""
    return HealthView(status="ok")


@router.get("/readyz", responses={503: {"model": ReadyView, "description": "Not ready"}})
def get_ready(services: AppServices, response: Response) -> ReadyView:
    """Say whether constants can be served: database, migrations; and how the workers are."""
    view = _ready(services)
    if not view.ready:
        response.status_code = 503
    return view


def _ready(services: Services) -> ReadyView:
    try:
        with services.database.read() as session:
            found, needed = revisions(session)
            if found != needed:
                words = f"at {found or 'no tables'}, this version needs {needed}: run `calibrate db upgrade`"
                return ReadyView(ready=False, database="answers", migration=words, workers={})
            views = Views(session, services.settings)
            workers = {host_id: views.worker(host_id).message for host_id in views.hosts}
    except SQLAlchemyError:
        return ReadyView(ready=False, database="does not answer", migration="unknown", workers={})
    return ReadyView(ready=True, database="answers", migration=f"at {needed}", workers=workers)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def get_metrics(services: AppServices) -> Response:
    """Expose Prometheus metrics: requests by route, calibrations by state."""
    with services.database.read() as session:
        counted = session.execute(select(Calibration.state, func.count()).group_by(Calibration.state)).all()
    return Response(services.metrics.render({**dict.fromkeys(STATES, 0), **dict(counted)}), media_type=_EXPOSITION)
