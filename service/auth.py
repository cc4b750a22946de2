"""Who may ask: host names, origins and bearer tokens, checked before anything else sees a request."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.bodies import body_limit
from service.config import LOOPBACK_HOSTS, Settings
from service.db import Database
from service.errors import (
    BodyTooLargeError,
    ForbiddenError,
    HostError,
    InvalidRequestError,
    OriginError,
    ServiceError,
    UnauthorizedError,
    render,
)
from service.models import Token

TokenScope = Literal["read", "calibrate"]
SCOPES: tuple[TokenScope, ...] = ("read", "calibrate")
BOOTSTRAP_TOKEN_NAME = "bootstrap"

PROBE_PATHS = frozenset({"/healthz", "/readyz"})  # asked for by address, so under any host name
PUBLIC_PATHS = PROBE_PATHS | {"/docs", "/openapi.json"}
PUBLIC_PREFIXES = ("/docs/", "/static/")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_STATELESS_PREFIX = "/v1/fits/"  # posts that change nothing


class BindError(ServiceError):
    """The service would be open to anyone on the network; the message says what to do."""


def check_bind(settings: Settings, has_tokens: bool) -> None:
    """Refuse to listen beyond this host while there is no token; raises BindError."""
    if has_tokens or is_loopback(settings.host):
        return
    raise BindError(
        f"refusing to listen on {settings.host} without a token: anyone could start work on this host's devices. "
        "Create one with `calibrate token create NAME`, set CALIBRATE_TOKEN, or listen on 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether a name or address can only be reached from this host."""
    if host.lower() in LOOPBACK_HOSTS:
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def token_digest(token: str) -> str:
    """SHA-256 in hex: tokens are long and random, so a slow hash would add nothing."""
    return hashlib.sha256(token.encode()).hexdigest()


def create_token(session: Session, name: str, scopes: tuple[TokenScope, ...]) -> str:
    """Store a new token's digest and return the token, which is shown only now."""
    token = secrets.token_urlsafe(32)
    session.add(_row(name, token, scopes))
    session.flush()
    return token


def bootstrap(database: Database, settings: Settings) -> bool:
    """Make `CALIBRATE_TOKEN` valid in place of the one before it; returns whether there is any token."""
    with database.write() as session:
        if settings.token is not None:
            _make_valid(session, settings.token.get_secret_value())
        return session.scalar(select(Token.id).limit(1)) is not None


def _make_valid(session: Session, token: str) -> None:
    digest = token_digest(token)
    if session.scalar(select(Token).where(Token.digest == digest)) is not None:
        return
    earlier = session.scalar(select(Token).where(Token.name == BOOTSTRAP_TOKEN_NAME))
    if earlier is not None:
        earlier.digest = digest
    else:
        session.add(_row(BOOTSTRAP_TOKEN_NAME, token, SCOPES))
        session.flush()


def load_tokens(session: Session) -> dict[str, frozenset[str]]:
    """Scopes by digest."""
    return {token.digest: frozenset(token.scopes) for token in session.scalars(select(Token))}


def _row(name: str, token: str, scopes: tuple[TokenScope, ...]) -> Token:
    return Token(name=name, digest=token_digest(token), scopes=list(scopes), created_at=datetime.now(UTC))


@dataclass
class Access:
    """What a request is checked against; `tokens` is replaced as a whole when the table changes.

    Without any token a service on loopback is open; one that others reach is closed, as when its last was revoked.
    """

    hosts: frozenset[str]
    tokens: Mapping[str, frozenset[str]]
    needs_token: bool
    max_body_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> Access:
        """Return the access rules of an installation, before its tokens are read."""
        own = () if settings.host in ("0.0.0.0", "::", "") else (settings.host.lower(),)
        hosts = frozenset((*LOOPBACK_HOSTS, *settings.allowed_hosts, *own))
        return cls(hosts, {}, not is_loopback(settings.host), settings.max_body_bytes)

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raise the ServiceError that says why a request is not allowed."""
        if "\x00" in path:
            raise InvalidRequestError("a path has no NUL character")
        if path not in PROBE_PATHS:
            self._check_host(headers.get("host", ""))
        if method not in _SAFE_METHODS:
            self._check_origin(headers)
            self._check_length(headers.get("content-length", ""), body_limit(path, self.max_body_bytes))
        is_guarded = self.needs_token or bool(self.tokens)
        if is_guarded and path not in PUBLIC_PATHS and not path.startswith(PUBLIC_PREFIXES):
            self._check_token(headers.get("authorization", ""), required_scope(method, path))

    def _check_host(self, host: str) -> None:
        name = host_name(host)
        if name not in self.hosts:
            raise HostError(
                "this service does not answer under that host name; if it should, add the name to "
                "CALIBRATE_ALLOWED_HOSTS"
            )

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
            raise OriginError("a page of another origin may not change anything here")

    def _check_length(self, length: str, limit: int) -> None:
        if length.isascii() and length.isdigit() and int(length[:19]) > limit:
            raise BodyTooLargeError(f"a body may have at most {limit} bytes here")

    def _check_token(self, authorization: str, scope: TokenScope) -> None:
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or not token:
            raise UnauthorizedError("send a token: Authorization: Bearer ...")
        scopes = self.tokens.get(token_digest(token.strip()))
        if scopes is None:
            raise UnauthorizedError("this token is unknown or was removed")
        if scope not in scopes:
            raise ForbiddenError(f"this token lacks the scope {scope}")


def host_name(host: str) -> str:
    """Return the name in a Host header, without port or brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def required_scope(method: str, path: str) -> TokenScope:
    """Return the scope a request needs: `read` where it changes nothing."""
    return "read" if method in _SAFE_METHODS or path.startswith(_STATELESS_PREFIX) else "calibrate"


class AccessMiddleware:
    """Refuses before routing, so that a path's existence is not told to strangers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """Wrap an application."""
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] == "http":
            try:
                self.access.check(scope["method"], scope["path"], Headers(scope=scope))
            except ServiceError as error:
                await render(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)
