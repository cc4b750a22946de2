"""Which tests can run here: a missing program deselects its tests with a printed line; in CI they fail."""

import ctypes
import os
import shutil
from pathlib import Path
from typing import Any

import pytest


def postgres_programs() -> Path | None:
    """The folder of PostgreSQL's server programs, the newest of those installed."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


def chromium_program() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path is not None), None)


def has_gpu() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def missing_programs() -> dict[str, str]:
    """Marker to why its tests are deselected; none in CI, where they fail instead."""
    missing = {}
    if os.environ.get("CI") != "true":
        if postgres_programs() is None:
            missing["postgres"] = "PostgreSQL's server programs are absent (Debian: apt-get install postgresql)"
        if chromium_program() is None:
            missing["browser"] = "Chromium is absent (Debian: apt-get install chromium)"
    return missing


def pytest_report_header() -> list[str]:
    return [f"{marker} tests are deselected: {why}" for marker, why in missing_programs().items()]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests recorded as their `summary`, in whichever process they ran."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if name == "summary" and report.when == "call":
                    terminalreporter.write_line(text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker in missing_programs():
        deselected = [item for item in items if item.get_closest_marker(marker)]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]
    if os.environ.get("REQUIRE_GPU") != "1" and not has_gpu():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device; REQUIRE_GPU=1 makes this a failure"))


@pytest.fixture(scope="session")
def postgres_bin() -> Path:
    found = postgres_programs()
    assert found is not None, "PostgreSQL's server programs are absent: apt-get install postgresql"
    return found


@pytest.fixture(scope="session")
def chromium() -> str:
    found = chromium_program()
    assert found is not None, "Chromium is absent: apt-get install chromium"
    return found
