"""Prometheus metrics: requests by route, jobs by state."""

from __future__ import annotations

import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_UNROUTED = "unrouted"
_OTHER_METHOD = "OTHER"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})


class Metrics:
    """One registry an application, so that two in a process do not collide."""

    def __init__(self) -> None:
        """Declare the metrics."""
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("http_requests", "Requests answered", labels, registry=self.registry)
        self.seconds = Histogram(
            "http_request_duration_seconds", "Time to answer, seconds", ("method", "route"), registry=self.registry
        )
        self.calibrations = Gauge("calibrations", "Calibrations by state", ("state",), registry=self.registry)

    def render(self, calibrations: Mapping[str, int]) -> bytes:
        """Return the exposition text, with jobs counted by state."""
        for state, count in calibrations.items():
            self.calibrations.labels(state).set(count)
        return generate_latest(self.registry)


class MetricsMiddleware:
    """Counts every request under its route's template, never under the path a stranger chose."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap an application."""
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Time and pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started = time.perf_counter()
        try:
            await self.app(scope, receive, observe)
        finally:
            route = getattr(scope.get("route"), "path_format", _UNROUTED)
            method = scope["method"] if scope["method"] in _METHODS else _OTHER_METHOD
            self.metrics.requests.labels(method, route, status).inc()
            self.metrics.seconds.labels(method, route).observe(time.perf_counter() - started)
