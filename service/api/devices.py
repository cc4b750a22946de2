"""The devices of the fleet, and why others can't be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse

from service.api.paging import Cursor, Limit, decode_cursor, encode_cursor
from service.api.views import Views
from service.evidence import device_rows, row_line
from service.repository import get_device, list_devices
from service.schemas import DevicePage, DeviceView, UnusableView
from service.state import AppServices, Services

router = APIRouter(prefix="/v1/devices", tags=["devices"])
CHUNK_ROWS = 1000
DeviceKey = Annotated[str, Path(description="Device key: a GPU's UUID, or the id of a CPU or a simulated device")]


class RowFile(StreamingResponse):
    """Rows as an autotuner's row file holds them."""

    media_type = "text/tab-separated-values"


@router.get("")
def get_devices(services: AppServices, limit: Limit = 50, cursor: Cursor = None) -> DevicePage:
    """List devices: GPUs first, then CPUs, then simulated ones; and each host's unusable backends, in words."""
    rank, key = (None, None) if cursor is None else decode_cursor(cursor, (int, str))
    with services.database.read() as session:
        found = list_devices(session, None if rank is None or key is None else (rank, key), limit + 1)
        views = Views(session, services.settings)
        unusable = [
            UnusableView(host_id=host.id, backend=item["backend"], reason=item["reason"])
            for host in views.hosts.values()
            for item in host.unusable
        ]
        following = None
        if len(found) > limit:
            last_rank, last = found[limit - 1]
            following = encode_cursor(last_rank, last.key)
        items = [views.device(device) for _, device in found[:limit]]
    return DevicePage(items=items, next=following, unusable=unusable)


@router.get("/{device}")
def get_one_device(services: AppServices, device: DeviceKey) -> DeviceView:
    """Describe a device: who it is, what it can run, whether its worker lives."""
    with services.database.read() as session:
        return Views(session, services.settings).device(get_device(session, device))


@router.get("/{device}/rows.tsv", response_class=RowFile)
def get_device_rows(services: AppServices, device: DeviceKey) -> RowFile:
    """Export every row of the device's succeeded calibrations, 12 columns a line, oldest first."""
    with services.database.read() as session:
        get_device(session, device)

    return RowFile(_lines(services, device))


def _lines(services: Services, device: str) -> Iterator[str]:
    """Yield a chunk at a time; a slow reader holds no connection in between."""
    after = 0
    while True:
        with services.database.read() as session:
            rows = device_rows(session, device, after=after, limit=CHUNK_ROWS)
        if not rows:
            return
        yield "".join(map(row_line, rows))
        after = rows[-1].id
