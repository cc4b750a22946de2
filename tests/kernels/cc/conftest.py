"""The host CPU, opened, with its compiled kernels kept for the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.backends.cc import CcBackend, CcDevice


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def compiled(compiled_once: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALIBRATE_DATA_DIR", str(compiled_once))
        patch.delenv("CALIBRATE_COMPILER", raising=False)
        yield


@pytest.fixture(scope="module")
def device(compiled: None) -> Iterator[CcDevice]:
    backend = CcBackend()
    (found,) = backend.discover().devices
    with backend.open(found.key) as opened:
        yield opened
