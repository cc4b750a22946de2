"""The worker beside a server: started again when it dies, ended with the server however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.jobs.supervisor import Supervisor

MakeHost = Callable[..., Any]

SERVER = """
import time
from service.config import Settings
from service.jobs.supervisor import Supervisor
supervisor = Supervisor(Settings())
supervisor.start()
while True:
    print(supervisor.worker_pid, flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def host(make_host: MakeHost) -> Any:
    return make_host({"name": "slow", "delay_s": 0.001})


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_a_killed_worker_is_started_again_and_stop_ends_it(host: Any) -> None:
    supervisor = Supervisor(host.settings)
    supervisor.start()
    try:
        host.device("slow")
        first = host.wait_for(lambda: supervisor.worker_pid, "a worker")
        os.kill(first, signal.SIGKILL)

        def another() -> int | None:
            pid = supervisor.worker_pid
            return pid if pid not in (None, first) else None

        second = host.wait_for(another, "another worker")
    finally:
        supervisor.stop()

    assert not alive(first)
    assert not alive(second)


def test_worker_and_device_child_end_with_a_server_that_is_killed(host: Any) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        job = host.request(host.device("slow"))
        host.wait_measuring(job)
        assert server.stdout is not None
        worker = int(server.stdout.readline().strip().replace("None", "0") or 0)
        while not worker:
            worker = int(server.stdout.readline().strip().replace("None", "0"))
        measuring = children(worker)
        assert measuring
    finally:
        server.kill()
        server.communicate()

    host.wait_for(lambda: not alive(worker) and not any(alive(pid) for pid in measuring), "the processes' end")
    assert host.calibration(job).state == "queued"
    assert host.sweeps(job)["stream"].starts == 0
