"""What the endpoints share, made once by `create_app`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request
from sqlalchemy import select

from service.auth import Access, load_tokens
from service.config import Settings
from service.constants_cache import ConstantsCache
from service.db import Database
from service.metrics import Metrics
from service.models import Device
from service.repository import Queue


@dataclass
class Services:
    """The parts of one running API process.

    `stopping` is set when the process is told to end, so that open event streams do not hold it.
    """

    settings: Settings
    database: Database
    queue: Queue
    cache: ConstantsCache
    access: Access
    metrics: Metrics
    stopping: bool = False

    def refresh(self) -> None:
        """Notice what other processes changed: tokens, and which constants are active."""
        with self.database.read() as session:
            tokens = load_tokens(session)
            active = dict(session.execute(select(Device.key, Device.active_revision)).all())
        self.access.tokens = tokens
        self.cache.note_revisions(active)


def services_of(request: Request) -> Services:
    """Return the parts of the application that got this request."""
    return cast(Services, request.app.state.services)


AppServices = Annotated[Services, Depends(services_of)]
