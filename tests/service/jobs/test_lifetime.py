"""How a worker is told to stop."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_finds_the_main_thread_within_the_event_stops_it_all_the_same(name: str) -> None:
    program = f"""
import os, signal, threading, time
from service.jobs.lifetime import stop_on_signals
stop = threading.Event()
stop_on_signals(stop)
with stop._cond:  # where the main thread is when a signal interrupts its wait
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.05)
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.05)
assert stop.wait(10)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0
