"""Every body here is JSON, whatever a client calls it: `curl -d` says it sends a form."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

_CONTENT_TYPE = b"content-type"
_JSON = b"application/json"
_WITH_BODY = frozenset({"POST", "PUT"})


class JsonBodyMiddleware:
    """Names a body JSON before the framework decides not to parse it.

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
