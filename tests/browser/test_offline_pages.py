"""The pages in a real browser: they render, and ask nobody but the service."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Page, sync_playwright
from pydantic import SecretStr
from sqlalchemy.orm import Session

from service import db
from service.app import create_app
from service.config import Settings
from service.models import Calibration

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class NoQueue:
    def enqueue(self, session: Session, calibration: Calibration) -> None:
        raise AssertionError("nothing is queued here")

    def close(self) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    settings = Settings(data_dir=tmp_path, database_url=SecretStr(f"sqlite:///{tmp_path}/pages.sqlite3"))
    db.upgrade(settings.url)
    config = uvicorn.Config(create_app(settings, NoQueue()), port=0, log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


@pytest.fixture
def page(chromium: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser.new_page()
        browser.close()


@pytest.mark.browser
def test_the_pages_render_without_asking_anyone_else(page: Page, address: str) -> None:
    requested: list[str] = []
    problems: list[Any] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(error))

    page.goto(f"{address}/docs")
    page.wait_for_selector("#operations-calibrations-post_calibration_v1_calibrations_post", timeout=20_000)
    assert page.locator(".info .title").inner_text().startswith("Calibration service")
    page.goto(address)
    assert page.locator("h1").inner_text() == "Calibration service"

    own = (f"{address}/", "data:", "blob:")
    assert [url for url in requested if not url.startswith(own)] == []
    assert len(requested) >= 5  # the page, its style, two scripts, the OpenAPI document
    assert problems == []
