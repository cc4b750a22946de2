"""The OpenAPI document: errors as problem+json, bearer tokens, and the body that one route reads by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from service.auth import PUBLIC_PATHS
from service.documents import CalibrationDocument
from service.errors import MEDIA_TYPE
from service.schemas import ConstantsView, Problem

_REF = "#/components/schemas/{model}"
_PROBLEMS = {
    "400": "The request can't be read",
    "401": "No token, or an unknown one",
    "403": "The token lacks the scope, or another origin asks for a change",
    "404": "Unknown",
    "405": "Not offered here",
    "409": "Not in this state",
    "413": "Body too large",
    "421": "Not a host name of this service",
    "422": "A field breaks a rule",
    "503": "The database does not answer",
}
_EXTRA: tuple[type[BaseModel], ...] = (Problem, ConstantsView, CalibrationDocument)


def openapi_of(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Return what replaces `app.openapi`: made once, when first asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    return openapi


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in _EXTRA:
        schema = model.model_json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "Needed once the service has a token"}
    }
    problem = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in PUBLIC_PATHS else [{"bearer": []}]
            for status, words in _PROBLEMS.items():
                known = operation["responses"].get(status)
                if known is None or status == "422":
                    operation["responses"][status] = {"description": words, "content": problem}
                else:
                    known.setdefault("content", {}).update(problem)
    return document
