"""HTML for people: the devices with their constants, and the OpenAPI page; nothing is fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from fitting import format_number
from fitting.constants import INTEGERS
from service.api.views import Views
from service.constant_forms import constant_views
from service.constant_sets import Entry, active_sets, load_sets
from service.repository import list_devices
from service.schemas import ConstantView
from service.state import AppServices

router = APIRouter(include_in_schema=False)
MAX_DEVICES = 200

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_templates = Environment(loader=PackageLoader("service"), autoescape=True, undefined=StrictUndefined)


@router.get("/")
def get_index(services: AppServices) -> HTMLResponse:
    """Show the devices with their active constants."""
    with services.database.read() as session:
        views = Views(session, services.settings)
        listed = [device for _, device in list_devices(session, None, MAX_DEVICES)]
        active = active_sets(session, [device.key for device in listed])
        entries = load_sets(session, list(active.values()))
        devices = [
            {
                "device": views.device(device),
                "constants": _constants(entries[active[device.key].id]) if device.key in active else None,
            }
            for device in listed
        ]
        unusable = [{"host_id": host.id, **item} for host in views.hosts.values() for item in host.unusable]
    html = _templates.get_template("index.html").render(devices=devices, unusable=unusable)
    return HTMLResponse(html, headers=PAGE_HEADERS)


def _constants(entries: Mapping[str, Entry]) -> dict[str, dict[str, Any]]:
    return {name: _shown(name, constant) for name, constant in constant_views(entries).items()}


def _shown(name: str, constant: ConstantView) -> dict[str, Any]:
    if constant.value is None:
        text = constant.reason
    else:
        number = str(constant.value) if name in INTEGERS else format_number(constant.value)
        text = f"{number} {constant.unit}"
    return {"text": text, "absent": constant.value is None, "doubtful": constant.doubtful}


@router.get("/docs")
def get_docs() -> HTMLResponse:
    """Show the OpenAPI page."""
    return HTMLResponse(_templates.get_template("docs.html").render(), headers=PAGE_HEADERS)


def mount_assets(app: FastAPI) -> None:
    """Serve our own style and script, and Swagger UI from an installed package."""
    app.mount("/docs/assets", StaticFiles(directory=str(files("fastapi_offline") / "static")), name="docs-assets")
    app.mount("/static", StaticFiles(directory=str(files("service") / "static")), name="static")
