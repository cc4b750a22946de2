"""Every refusal of the API: one base with a status and a stable code, rendered as RFC 9457 problem+json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

MEDIA_TYPE = "application/problem+json"
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_MOST_FIELDS = 20  # faults named in one answer: a body may have thousands
_HTTP_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
_log = structlog.get_logger(__name__)


class ServiceError(Exception):
    """Base: the message says what is wrong and what to do; `fields` lists `{"field", "rule"}` of a bad request."""

    status: ClassVar[HTTPStatus] = HTTPStatus.INTERNAL_SERVER_ERROR
    code: ClassVar[str] = "internal"
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, detail: str, *, fields: Sequence[Mapping[str, str]] = ()) -> None:
        """Keep the message and the fields at fault."""
        super().__init__(detail)
        self.detail = detail
        self.fields = tuple(fields)


class UnauthorizedError(ServiceError):
    status, code = HTTPStatus.UNAUTHORIZED, "unauthorized"
    headers: ClassVar[Mapping[str, str]] = {"www-authenticate": "Bearer"}


class ForbiddenError(ServiceError):
    status, code = HTTPStatus.FORBIDDEN, "forbidden"


class OriginError(ServiceError):
    status, code = HTTPStatus.FORBIDDEN, "origin_not_allowed"


class HostError(ServiceError):
    status, code = HTTPStatus.MISDIRECTED_REQUEST, "host_not_allowed"


class UnknownDeviceError(ServiceError):
    status, code = HTTPStatus.NOT_FOUND, "unknown_device"


class NotCalibratedError(ServiceError):
    status, code = HTTPStatus.NOT_FOUND, "not_calibrated"


class UnknownRevisionError(ServiceError):
    status, code = HTTPStatus.NOT_FOUND, "unknown_revision"


class UnknownCalibrationError(ServiceError):
    status, code = HTTPStatus.NOT_FOUND, "unknown_calibration"


class FinishedError(ServiceError):
    status, code = HTTPStatus.CONFLICT, "finished"


class NotSucceededError(ServiceError):
    status, code = HTTPStatus.CONFLICT, "not_succeeded"


class DeviceUnusableError(ServiceError):
    status, code = HTTPStatus.CONFLICT, "device_unusable"


class ConflictError(ServiceError):
    status, code = HTTPStatus.CONFLICT, "conflict"


class BodyTooLargeError(ServiceError):
    status, code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large"


class InvalidRequestError(ServiceError):
    status, code = HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request"


class DeviceRequiredError(ServiceError):
    status, code = HTTPStatus.UNPROCESSABLE_ENTITY, "device_required"


class UnsupportedSweepError(ServiceError):
    status, code = HTTPStatus.UNPROCESSABLE_ENTITY, "unsupported"


class DatabaseUnavailableError(ServiceError):
    status, code = HTTPStatus.SERVICE_UNAVAILABLE, "database_unavailable"
    headers: ClassVar[Mapping[str, str]] = {"retry-after": "5"}


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    fields: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Render a problem document; a lone surrogate that a request smuggled in, which UTF-8 can't hold, is a `?`."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    if fields:
        body["errors"] = list(fields[:_MOST_FIELDS])
    content = json.dumps(body, ensure_ascii=False).encode(errors="replace")
    return Response(content, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def render(error: ServiceError) -> Response:
    """Render one of our own errors."""
    return problem(error.status, error.code, error.detail, fields=error.fields, headers=error.headers)


def install(app: FastAPI) -> None:
    """Register the handlers; nothing leaves the service in another form."""
    app.exception_handler(ServiceError)(_on_service_error)
    app.exception_handler(HTTPException)(_on_http_exception)
    app.exception_handler(RequestValidationError)(_on_validation_error)
    app.exception_handler(OperationalError)(_on_database_error)
    app.exception_handler(PoolTimeoutError)(_on_database_error)
    app.exception_handler(Exception)(_on_unexpected)


async def _on_service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return render(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    phrase = HTTPStatus(error.status_code).phrase
    detail = error.detail
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["allow"] = ", ".join(allowed_methods(request.app, request.scope))
        detail = f"{request.method} is not offered here; see the Allow header"
    elif error.status_code == HTTPStatus.NOT_FOUND and detail == phrase:
        detail = "nothing is served at this path; /docs lists what is"
    return problem(error.status_code, _HTTP_CODES.get(error.status_code, "http_error"), detail, headers=headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fields = [_field(item) for item in error.errors()]
    detail = "; ".join(f"{item['field']}: {item['rule']}" for item in fields[:3])
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, InvalidRequestError.code, detail, fields=fields)


def _field(item: Mapping[str, Any]) -> dict[str, str]:
    source, *path = item["loc"]
    if item["type"] == "json_invalid":
        return {"field": "body", "rule": f"is not JSON: {item['ctx']['error']} at character {path[0]}"}
    return {"field": ".".join(map(str, path)) or str(source), "rule": str(item["msg"])}


async def _on_database_error(request: Request, error: Exception) -> Response:
    _log.error("database unavailable", path=request.url.path, reason=str(getattr(error, "orig", error)))
    return render(DatabaseUnavailableError("the database does not answer; try again in a few seconds"))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    """Say nothing of the cause: the server's log has the traceback."""
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, ServiceError.code, "an error on our side; the service's log has the cause"
    )


def allowed_methods(app: FastAPI, scope: Scope) -> list[str]:
    """Return the methods of every route at this path: the framework's own answer names the first route's only."""
    return [
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.router.routes)
    ]
