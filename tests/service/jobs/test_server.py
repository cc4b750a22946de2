"""The serving process as a whole: how it starts, and how it ends with its worker."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

MakeHost = Callable[..., Any]

SERVE = """
import sys
from service.config import Settings
from service.server import serve
sys.exit(serve(Settings(), with_worker=True, calibrate_missing=False))
"""


@contextmanager
def serving(host: Any) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a server on a free port until the block ends; yields it with the port."""
    with (host.folder / "worker.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-c", SERVE], stdout=log, stderr=log)
    try:
        url = host.wait_for(lambda: re.search(r"url=http://localhost:(\d+)", host.log()), "the server")
        yield server, int(url[1])
    finally:
        server.kill()
        server.wait()


def test_a_stop_ends_streams_and_gives_the_running_sweep_back_before_the_server_ends(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIBRATE_PORT", "0")
    host = make_host({"name": "slow", "delay_s": 0.001})
    with serving(host) as (server, port):
        job = host.request(host.device("slow"))
        host.wait_measuring(job)
        with socket.create_connection(("127.0.0.1", port)) as follower:
            follower.sendall(f"GET /v1/calibrations/{job}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert follower.recv(64).startswith(b"HTTP/1.1 200 OK")
            server.terminate()
            code = server.wait(15)

        assert (code, host.calibration(job).state, host.sweeps(job)["stream"].starts) == (0, "queued", 0)
        assert "Traceback" not in host.log()


def test_a_database_that_can_not_be_used_is_one_line_without_its_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(tmp_path))
    (tmp_path / "calibrations.sqlite3").write_bytes(b"no database" * 1000)
    for url, words in (("postgresql://me:secret@127.0.0.1:1/x", "connection"), ("", "not a database")):
        monkeypatch.setenv("CALIBRATE_DATABASE_URL", url)
        ended = subprocess.run([sys.executable, "-c", SERVE], capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, words in ended.stderr) == (1, True), ended.stderr
        assert ended.stderr.startswith("calibrate: the database ")
        assert "Traceback" not in ended.stderr
        assert "secret" not in ended.stderr
