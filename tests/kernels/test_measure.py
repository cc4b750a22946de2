"""The device child: whatever happens to it ends as an error of a known code, and nothing stays behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import measure
from kernels.backends import registry
from kernels.child import run_sweep
from kernels.errors import (
    CancelledError,
    CompileError,
    MeasureError,
    OutOfMemoryError,
    PointTimeoutError,
    VerificationError,
)
from kernels.events import PointMeasured, Progress, RowMeasured
from kernels.lock import device_lock, lock_folder
from kernels.measure import SweepRequest, discover_in_child, measure_sweep
from kernels.parameters import resolve


def request(device, sweep="issue", **limits):
    return SweepRequest(device.key, sweep, resolve(sweep, {}, device.limits), **limits)


def measured(asked, cancelled=lambda: False):
    events = []
    return events, measure_sweep(asked, on_event=events.append, cancelled=cancelled)


def records(events):
    return [
        event.row if isinstance(event, RowMeasured) else event.point
        for event in events
        if isinstance(event, RowMeasured | PointMeasured)
    ]


def is_locked(key):
    def give_up():
        raise BlockingIOError

    try:
        with device_lock(key, wait=give_up):
            return False
    except BlockingIOError:
        return True


@pytest.mark.parametrize("sweep", ["stream", "working_set", "launch", "issue"])
def test_a_child_measures_what_this_process_would(simulated, sweep):
    device = simulated(noise=0.01, seed=7)
    here = []
    result = run_sweep(request(device, sweep), here.append)
    events, from_child = measured(request(device, sweep))
    assert records(events) == records(here)
    assert [type(event) for event in events] == [type(event) for event in here]
    assert from_child.facts.keys() == result.facts.keys()
    assert (from_child.doubtful, from_child.notes) == (result.doubtful, result.notes)


def test_what_the_child_prints_does_not_disturb_the_stream(simulated, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text('import sys\nprint("noise")\nprint("more", file=sys.stderr)\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    events, _ = measured(request(simulated()))
    assert records(events)


@pytest.mark.parametrize(
    ("mode", "error", "crashed"),
    [
        ("verification", VerificationError, False),
        ("compile", CompileError, False),
        ("out_of_memory", OutOfMemoryError, False),
    ],
)
def test_a_failure_keeps_its_code_message_and_detail(simulated, mode, error, crashed):
    device = simulated(failures=[{"mode": mode, "kernel": "blocktile"}])
    with pytest.raises(error, match="planted") as caught:
        measured(request(device))
    assert caught.value.crashed is crashed
    if error is CompileError:
        assert caught.value.detail == "simulated.cu(1): error: planted"


def test_a_segfault_is_a_crash_with_the_signal_and_the_place(simulated):
    device = simulated(failures=[{"mode": "segfault", "kernel": "fma"}])
    with pytest.raises(MeasureError, match="SIGSEGV") as caught:
        measured(request(device))
    assert caught.value.code == "internal"
    assert caught.value.crashed
    assert "Segmentation fault" in caught.value.detail
    assert not is_locked(device.key)


def test_a_crash_may_be_tried_again_and_succeed(simulated, tmp_path):
    counter = tmp_path / "starts"
    failure = {"mode": "segfault", "kernel": "fma", "times": 2, "counter": str(counter)}
    device = simulated(failures=[failure])
    for _ in range(2):
        with pytest.raises(MeasureError) as caught:
            measured(request(device))
        assert caught.value.crashed
    events, _ = measured(request(device))
    assert records(events)
    assert counter.read_bytes() == b".."


def test_a_hung_kernel_ends_at_its_points_hard_limit(simulated):
    device = simulated(failures=[{"mode": "hang", "kernel": "fma"}])
    start = time.monotonic()
    with pytest.raises(PointTimeoutError, match=r"hard limit of 0\.5 s") as caught:
        measured(request(device, point_time_limit_s=0.5))
    assert time.monotonic() - start < 10
    assert "Timeout (0:00:00.500000)!" in caught.value.detail
    assert not is_locked(device.key)


def test_a_sweep_ends_at_its_time_limit_and_names_the_point(simulated):
    device = simulated(delay_s=0.02)
    with pytest.raises(PointTimeoutError, match=r"time limit ran out while timing"):
        measured(request(device, time_limit_s=1.5))


def test_a_child_that_ignores_its_time_limit_is_killed(simulated, monkeypatch):
    monkeypatch.setattr(measure, "GRACE_S", 0.5)
    device = simulated(failures=[{"mode": "hang", "kernel": "fma"}])
    with pytest.raises(PointTimeoutError, match=r"issue sweep ran past its 0\.5 s"):
        measured(request(device, time_limit_s=0.5))
    assert not is_locked(device.key)


def test_a_cancelled_sweep_stops_soon_and_frees_the_device(simulated):
    device = simulated(failures=[{"mode": "hang", "kernel": "fma"}])
    begun = threading.Event()
    start = time.monotonic()
    with pytest.raises(CancelledError):
        measure_sweep(request(device), on_event=lambda event: begun.set(), cancelled=begun.is_set)
    assert time.monotonic() - start < 5
    assert not is_locked(device.key)


def test_an_error_of_the_caller_ends_the_child_and_passes_through(simulated):
    device = simulated(delay_s=0.01)

    def fail(event):
        raise LookupError("the database is gone")

    with pytest.raises(LookupError, match="the database is gone"):
        measure_sweep(request(device), on_event=fail, cancelled=lambda: False)
    assert not is_locked(device.key)


def test_an_unexpected_exception_is_final_and_its_traceback_the_detail(simulated):
    asked = replace(request(simulated()), sweep="nonsense")
    with pytest.raises(MeasureError, match="failed unexpectedly") as caught:
        measured(asked)
    assert not caught.value.crashed
    assert "KeyError: 'nonsense'" in caught.value.detail


def test_an_unknown_device_is_no_device(simulated):
    asked = replace(request(simulated()), device="sim-ffffffffffffffff")
    with pytest.raises(MeasureError) as caught:
        measured(asked)
    assert caught.value.code == "no_device"


def test_a_held_device_is_waited_for_and_said_so(simulated):
    device = simulated()
    seen = []
    with device_lock(device.key, wait=lambda: None):
        release = threading.Event()
        asked = request(device)
        with pytest.raises(CancelledError):
            measure_sweep(asked, on_event=lambda event: (seen.append(event), release.set()), cancelled=release.is_set)
    assert seen[0] == Progress(0, 1, "waiting for the device")
    events, _ = measured(asked)
    assert not any(isinstance(event, Progress) and "waiting" in event.message for event in events)


def spans(devices):
    """When each device's sweep, all started at once, opened its first and its last window, by this host's clock."""

    def span(device):
        events, _ = measured(request(device))
        starts = [
            window["started_at"]
            for event in events
            if not isinstance(event, Progress)
            for window in event.reading.windows
        ]
        return min(starts), max(starts)

    with ThreadPoolExecutor(len(devices)) as pool:
        return sorted(pool.map(span, devices))


def test_two_sweeps_of_one_device_run_one_after_the_other(simulated):
    device = simulated(delay_s=0.002)
    (_, first_end), (second_start, _) = spans([device, device])
    assert first_end < second_start


def test_sweeps_of_two_devices_run_at_once(simulated, monkeypatch):
    simulated()
    monkeypatch.setenv("CALIBRATE_SIMULATED", '[{"name": "a", "delay_s": 0.01}, {"name": "b", "delay_s": 0.01}]')
    (_, first_end), (second_start, _) = spans(registry.discover_backend("simulated").devices)
    assert second_start < first_end


def test_waiting_for_a_device_ends_at_the_time_limit(simulated):
    device = simulated()
    with (
        device_lock(device.key, wait=lambda: None),
        pytest.raises(PointTimeoutError, match=r"another process on this host held the device for 0\.3 s"),
    ):
        measured(request(device, time_limit_s=0.3))


def test_the_lock_file_may_be_shared_by_other_users(simulated):
    device = simulated()
    with device_lock(device.key, wait=lambda: None):
        (lock,) = lock_folder().iterdir()
        assert lock.name == f"{device.key}.lock"
        assert lock.stat().st_mode & 0o777 == 0o666
        assert lock_folder().stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize("linked", [False, True])
def test_a_lock_folder_that_was_there_keeps_its_mode(monkeypatch, tmp_path, linked):
    there = tmp_path / "there"
    there.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(there)
    monkeypatch.setenv("CALIBRATE_LOCK_DIR", str(tmp_path / "link" if linked else there))
    with device_lock("cpu-0", wait=lambda: None):
        assert is_locked("cpu-0")
    assert there.stat().st_mode & 0o7777 == 0o700


def test_a_lock_file_that_is_a_link_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("CALIBRATE_LOCK_DIR", str(tmp_path))
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "cpu-0.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(MeasureError, match="set CALIBRATE_LOCK_DIR"), device_lock("cpu-0", wait=lambda: None):
        pass


def test_a_lock_folder_that_cannot_be_made_says_which_setting_to_change(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CALIBRATE_LOCK_DIR", str(tmp_path / "file" / "locks"))
    with pytest.raises(MeasureError, match="set CALIBRATE_LOCK_DIR"), device_lock("cpu-0", wait=lambda: None):
        pass


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def test_a_child_dies_with_a_parent_that_is_killed(simulated):
    device = simulated(failures=[{"mode": "hang", "kernel": "fma"}])
    program = (
        "from kernels.measure import *\nfrom kernels.parameters import resolve\nfrom kernels.backends import registry\n"
        f"device = registry.find({device.key!r}, registry.discover_backend('simulated'))\n"
        "request = SweepRequest(device.key, 'issue', resolve('issue', {}, device.limits))\n"
        "measure_sweep(request, on_event=lambda event: None, cancelled=lambda: False)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    _wait_until(lambda: is_locked(device.key))
    (child,) = map(int, children.read_text().split())
    assert os.getpgid(child) == child  # its own group, so that a cancel takes all it started
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _wait_until(lambda: not _is_alive(child))
    _wait_until(lambda: not is_locked(device.key))  # a moment later: the kernel ends the child's other threads last


def test_a_child_that_is_stopped_ends_at_its_time_limit(simulated, monkeypatch):
    monkeypatch.setattr(measure, "GRACE_S", 0.5)
    device = simulated(failures=[{"mode": "hang", "kernel": "fma"}])

    def stop(event):
        if isinstance(event, Progress) and event.message.startswith("checking"):
            (child,) = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
            os.kill(int(child), signal.SIGSTOP)

    with pytest.raises(PointTimeoutError, match=r"issue sweep ran past its 0\.5 s"):
        measure_sweep(request(device, time_limit_s=0.5), on_event=stop, cancelled=lambda: False)
    assert not is_locked(device.key)


def test_what_a_child_started_and_left_ends_with_it(simulated, monkeypatch, tmp_path):
    note = tmp_path / "left"
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, subprocess, sys\nif sys.orig_argv[-1] == 'sweep':\n"
        f"    pathlib.Path({str(note)!r}).write_text(str(subprocess.Popen(['sleep', '60']).pid))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    measured(request(simulated()))
    _wait_until(lambda: not _is_alive(int(note.read_text())))


def test_a_file_of_the_current_folder_is_never_imported(simulated, monkeypatch, tmp_path):
    for name in ("json.py", "numpy.py", "kernels.py"):
        (tmp_path / name).write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    device = simulated()
    assert discover_in_child(backends=("simulated",)).devices == (device,)


def test_discovery_in_a_child_finds_what_discovery_here_does(simulated):
    device = simulated()
    assert discover_in_child(backends=("simulated",)) == registry.discover_backend("simulated")
    assert device in discover_in_child().devices


def test_a_backend_whose_discovery_crashes_takes_no_other_with_it(simulated, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\nif sys.orig_argv[-1] == 'cuda':\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    device = simulated()
    found = discover_in_child(backends=("cuda", "simulated"))
    assert found.devices == (device,)
    assert found.unusable[0].reason == "looking for devices was ended by SIGSEGV"


def test_a_discovery_that_fails_unexpectedly_says_with_what(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\nsys.modules['kernels.backends.cuda'] = types.ModuleType('broken')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (unusable,) = discover_in_child(backends=("cuda",)).unusable
    assert unusable.reason == (
        "looking for devices ended with exit code 1 and no result:"
        " AttributeError: module 'broken' has no attribute 'CudaBackend'"
    )


def test_a_discovery_that_hangs_is_given_up(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (unusable,) = discover_in_child(0.3, backends=("cuda",)).unusable
    assert "took more than 0.3 s" in unusable.reason


def test_a_missing_library_is_a_reason_and_no_exception(monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels.backends.cuda", None)
    (unusable,) = registry.discover_backend("cuda").unusable
    assert unusable.backend == "cuda"
    assert "can't be loaded" in unusable.reason
