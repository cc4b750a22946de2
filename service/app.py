"""The composition root: one application out of settings, a database and a job queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

import anyio.to_thread
import structlog
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from service import errors
from service.api import calibrations, constants, devices, fits, health, openapi, pages, records
from service.auth import Access, AccessMiddleware
from service.bodies import BodyLimitMiddleware, JsonBodyMiddleware
from service.config import Settings
from service.constants_cache import ConstantsCache
from service.db import Database
from service.metrics import Metrics, MetricsMiddleware
from service.repository import Queue
from service.state import Services

_DESCRIPTION = (
    "Measures, fits, stores and serves the constants of an autotuner's cost model, per device. Numbers are in base "
    "units; a field's name or description says which."
)
_log = structlog.get_logger(__name__)


def create_app(settings: Settings, queue: Queue | None = None) -> FastAPI:
    """Return the application; nothing is connected before it starts or the first request comes.

    Parameters
    ----------
    settings
        The installation. Its database is migrated already: `service.db.upgrade`.
    queue
        The job engine; None makes the real one.

    Notes
    -----
    `app.state.services.stopping` is to be set true when the process is told to end: open event streams then end too.
    """
    database = Database(settings.url, pool_size=settings.pool_size)
    services = Services(
        settings=settings,
        database=database,
        queue=queue or _job_queue(settings),
        cache=ConstantsCache(database),
        access=Access.of(settings),
        metrics=Metrics(),
    )
    app = FastAPI(
        title="Calibration service",
        version=version("calibration-service"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.services = services
    errors.install(app)
    constants.add_hot_route(app)
    for router in (
        devices.router,
        constants.router,
        records.import_router,
        calibrations.router,
        records.router,
        fits.router,
        health.router,
        pages.router,
    ):
        app.include_router(router)
    pages.mount_assets(app)
    app.openapi = openapi.openapi_of(app)  # type: ignore[method-assign]  # how FastAPI documents replacing it
    app.add_middleware(JsonBodyMiddleware)
    app.add_middleware(BodyLimitMiddleware, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(AccessMiddleware, access=services.access)
    app.add_middleware(MetricsMiddleware, metrics=services.metrics)
    return app


def _job_queue(settings: Settings) -> Queue:
    """The engine is imported here, so that an application with another queue runs without it."""
    from service.jobs.queue import JobQueue

    return JobQueue(settings)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    anyio.to_thread.current_default_thread_limiter().total_tokens = services.settings.pool_size
    await run_in_threadpool(services.refresh)
    stop = asyncio.Event()
    polling = asyncio.create_task(_poll(services, stop))
    try:
        yield
    finally:
        services.stopping = True
        stop.set()
        # Not cancelled at once: a look that is under way would go on in its thread and leave its connection behind.
        await asyncio.wait({polling}, timeout=services.settings.shutdown_grace_s)
        polling.cancel()
        services.queue.close()
        services.database.dispose()


async def _poll(services: Services, stop: asyncio.Event) -> None:
    """Notice what other processes write; while the database is away, what is known goes on being served."""
    is_away = False
    while not await _is_set(stop, services.settings.revision_poll_s):
        try:
            await run_in_threadpool(services.refresh)
        except SQLAlchemyError as error:
            if not is_away:
                _log.warning("database away: serving what is known", error=type(error).__name__)
            is_away = True
        else:
            is_away = False


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, so long at most; return whether it is set."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
