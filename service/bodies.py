"""Request bodies: how large one may be, and that it is JSON, whatever a client calls it."""

from __future__ import annotations

from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

IMPORT_PATH = "/v1/calibrations/import"  # its handler reads a whole run's points, in a thread
MAX_REQUEST_BYTES = 4 * 2**20  # of any other body, which is parsed where the constants are served
_CONTENT_TYPE = b"content-type"
_JSON = b"application/json"
_WITH_BODY = frozenset({"POST", "PUT"})


def body_limit(path: str, max_body_bytes: int) -> int:
    """Return how many bytes a body may have at this path."""
    return max_body_bytes if path == IMPORT_PATH else min(max_body_bytes, MAX_REQUEST_BYTES)


class BodyLimitMiddleware:
    """Stops reading a body past its path's limit, with or without a declared length."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        """Wrap an application; `max_body_bytes` is the most of all paths."""
        self._import = RequestBodyLimitMiddleware(app, body_limit(IMPORT_PATH, max_body_bytes))
        self._other = RequestBodyLimitMiddleware(app, body_limit("", max_body_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on to the path's limit."""
        limited = self._import if scope.get("path") == IMPORT_PATH else self._other
        await limited(scope, receive, send)


class JsonBodyMiddleware:
    """Names a body JSON before the framework decides not to parse it: `curl -d` says it sends a form.

    A page of another site could send such a body without asking first; `service.auth` refuses it by its origin.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Replace the header, then pass on."""
        if scope["type"] == "http" and scope["method"] in _WITH_BODY:
            headers = [(name, value) for name, value in scope["headers"] if name != _CONTENT_TYPE]
            scope = {**scope, "headers": [*headers, (_CONTENT_TYPE, _JSON)]}
        await self.app(scope, receive, send)
