"""Jobs through the real worker process: to their end, through kills, stops, cancels and broken devices."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, func, make_url, select, text, update

from service.jobs.hosts import database_now, is_online
from service.models import Calibration, Constant, ConstantSet, Device, Host, Row, WorkingSetPointRow

MakeHost = Callable[..., Any]

FAST = {"name": "fast"}
SLOW = {"name": "slow", "delay_s": 0.001}  # a stream sweep takes about 3700 samples
SMALL = {"working_set": {"ks": [256, 512, 1024, 2048]}}


def broken(mode: str, **plan: Any) -> dict[str, Any]:
    return {"name": "broken", "failures": [{"mode": mode, **plan}]}


def constants(host: Any, device: str) -> dict[str, float | None]:
    with host.database.read() as session:
        revision = session.get_one(Device, device).active_revision
        query = select(Constant.name, Constant.value).join(ConstantSet, Constant.set_id == ConstantSet.id)
        query = query.where(ConstantSet.device_key == device, ConstantSet.revision == revision)
        return dict(session.execute(query).all())


def count(host: Any, table: Any) -> int:
    with host.database.read() as session:
        return int(session.scalar(select(func.count()).select_from(table)))


def cancel(host: Any, job: str) -> None:
    with host.database.write() as session:
        session.execute(update(Calibration).where(Calibration.id == job).values(cancel_requested=True))


def kill(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait()


@contextmanager
def outage(url: str) -> Iterator[None]:
    """Close every connection to a PostgreSQL database, and refuse new ones until the block ends."""
    target = make_url(url)
    engine = create_engine(target.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{target.database}" ALLOW_CONNECTIONS false'))
        kick = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
        connection.execute(kick, {"name": target.database})
        yield
        connection.execute(text(f'ALTER DATABASE "{target.database}" ALLOW_CONNECTIONS true'))
    engine.dispose()


def test_a_job_ends_in_active_constants(make_host: MakeHost, any_database_url: str | None) -> None:
    host = make_host(FAST, url=any_database_url)
    host.start()
    device = host.device("fast")

    job = host.request(device, sweeps=["stream", "working_set"], parameters=SMALL)
    calibration = host.wait_state(job, "succeeded", "failed")

    assert (calibration.state, calibration.error_message) == ("succeeded", None)
    assert (calibration.activated, calibration.revision) == (True, 1)
    assert calibration.progress_done == calibration.progress_total == 200
    assert calibration.started_at < calibration.finished_at
    assert calibration.versions["numpy"]
    # planted: 1.5e12 byte/s, slowed by at most 0.5 % of noise
    assert constants(host, device)["model_peak_memory_bandwidth"] == pytest.approx(1.5e12, rel=0.01)
    assert host.sweeps(job)["working_set"].constants_in_force["model_peak_memory_bandwidth"] > 0
    assert "dbos.dev" not in host.log()


def test_a_killed_worker_resumes_at_the_sweep_that_was_running(
    make_host: MakeHost, any_database_url: str | None
) -> None:
    host = make_host(SLOW, url=any_database_url)
    worker = host.start()
    job = host.request(host.device("slow"), sweeps=["stream", "working_set"], parameters=SMALL)
    host.wait_measuring(job, "working_set")
    kill(worker)
    stream_rows = count(host, Row)

    host.start()
    host.wait_state(job, "succeeded")

    sweeps = host.sweeps(job)
    assert (sweeps["stream"].starts, sweeps["working_set"].starts) == (1, 2)
    assert count(host, Row) == stream_rows
    with host.database.read() as session:
        grid = select(WorkingSetPointRow.k, WorkingSetPointRow.attempt)
        aligned = grid.where(WorkingSetPointRow.role == "grid", WorkingSetPointRow.phase.is_distinct_from("spread"))
        points = session.execute(aligned.order_by(WorkingSetPointRow.k)).all()
    assert points == [(256, 2), (512, 2), (1024, 2), (2048, 2)]


def test_a_job_that_kills_its_worker_three_times_is_given_up_in_words(make_host: MakeHost) -> None:
    host = make_host(SLOW)
    job = None
    for _ in range(3):
        worker = host.start()
        job = job or host.request(host.device("slow"))
        host.wait_measuring(job)
        kill(worker)
        with host.database.write() as session:
            session.get_one(Calibration, job).progress_message = "killed"

    host.start()
    calibration = host.wait_state(job, "failed")

    assert calibration.error_code == "worker_lost"
    assert "in each of 3 starts of the stream sweep" in str(calibration.error_message)


def test_sigterm_interrupts_a_sweep_at_once_and_costs_no_attempt(
    make_host: MakeHost, any_database_url: str | None
) -> None:
    host = make_host(SLOW, url=any_database_url)
    worker = host.start()
    job = host.request(host.device("slow"))
    host.wait_measuring(job)

    worker.terminate()
    code = worker.wait(8)
    stopped, starts = host.calibration(job), host.sweeps(job)["stream"].starts
    host.start()
    host.wait_state(job, "succeeded")

    assert (code, stopped.state, starts) == (0, "queued", 0)
    assert host.sweeps(job)["stream"].starts == 1


def test_a_cancelled_job_ends_and_frees_its_device_for_the_next(make_host: MakeHost) -> None:
    host = make_host(SLOW)
    host.start()
    device = host.device("slow")
    job, following = host.request(device), host.request(device, activate=False)
    host.wait_measuring(job)

    cancel(host, job)
    host.wait_state(job, "cancelled", seconds=5)
    host.wait_measuring(following)

    assert {run.state for run in host.sweeps(job).values()} == {"cancelled"}
    assert host.calibration(following).state == "running"


def test_a_device_that_hangs_ends_in_a_timeout_and_costs_one_start(make_host: MakeHost) -> None:
    host = make_host(broken("hang"), FAST)
    host.start()
    job = host.request(host.device("broken"), time_limit_s=2.0)

    calibration = host.wait_state(job, "failed")

    assert calibration.error_code == "timeout"
    assert "ask for a longer time limit" in str(calibration.error_message)
    assert host.sweeps(job)["stream"].starts == 1


def test_a_device_that_always_crashes_fails_after_three_starts_and_harms_nobody(make_host: MakeHost) -> None:
    host = make_host(broken("segfault"), FAST)
    worker = host.start()
    job = host.request(host.device("broken"))
    calibration = host.wait_state(job, "failed")
    other = host.request(host.device("fast"))
    host.wait_state(other, "succeeded")

    assert calibration.error_code == "internal"
    assert "SIGSEGV" in str(calibration.error_message)
    assert "given up after 3 starts" in str(calibration.error_message)
    assert host.sweeps(job)["stream"].starts == 3
    assert worker.poll() is None


def test_a_device_that_crashes_once_is_measured_at_the_second_start(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host(broken("segfault", times=1, counter=str(tmp_path / "crashes")))
    host.start()
    job = host.request(host.device("broken"))

    host.wait_state(job, "succeeded")

    assert host.sweeps(job)["stream"].starts == 2


@pytest.mark.parametrize("mode", ["verification", "compile", "out_of_memory"])
def test_a_final_failure_keeps_its_code_and_activates_nothing(make_host: MakeHost, mode: str) -> None:
    host = make_host(broken(mode, kernel="untiled"))
    host.start()
    device = host.device("broken")
    job = host.request(device, sweeps=["stream", "working_set"], parameters=SMALL)

    calibration = host.wait_state(job, "failed")

    assert (calibration.error_code, calibration.activated) == (mode, False)
    assert constants(host, device) == {}
    assert count(host, Row) > 0
    assert host.sweeps(job)["working_set"].starts == 1


def test_a_second_worker_on_the_host_is_refused(make_host: MakeHost) -> None:
    host = make_host(FAST)
    host.start()
    host.device("fast")

    second = host.start()

    assert second.wait(15) == 75
    assert "another worker serves this host" in host.log()


def test_jobs_of_one_device_never_overlap_and_devices_run_side_by_side(make_host: MakeHost) -> None:
    host = make_host({"name": "a", "delay_s": 0.00005}, {"name": "b", "delay_s": 0.00005})
    host.start()
    devices = [host.device("a"), host.device("b")]
    jobs = {
        host.request(device, parameters={"stream": {"repeats": repeats}}): device
        for repeats in range(1, 21)
        for device in devices
    }

    for job in jobs:
        host.wait_state(job, "succeeded", seconds=60)

    measured: dict[str, list[tuple[str, str]]] = {device: [] for device in devices}
    for job, device in jobs.items():
        with host.database.read() as session:
            windows = session.scalars(select(Row.windows).where(Row.sweep_run_id == host.sweeps(job)["stream"].id))
            times = sorted(window["started_at"] for row in windows for window in row)
        measured[device].append((times[0], times[-1]))
    for intervals in measured.values():
        intervals.sort()
        assert all(before[1] < after[0] for before, after in pairwise(intervals))
    assert any(a[0] < b[1] and b[0] < a[1] for a in measured[devices[0]] for b in measured[devices[1]])


def test_a_busy_worker_is_never_called_dead(make_host: MakeHost) -> None:
    host = make_host(SLOW)
    host.start()
    job = host.request(host.device("slow"))
    host.wait_measuring(job)
    with host.database.write() as session:
        session.execute(update(Host).values(heartbeat_at=database_now(session).replace(year=2020)))

    def online() -> bool:
        with host.database.read() as session:
            return is_online(session.get_one(Host, "test-host"), database_now(session), 20.0)

    host.wait_for(online, "a heartbeat")

    assert host.calibration(job).state == "running"


def test_an_orphan_of_another_version_does_not_block_its_device(make_host: MakeHost) -> None:
    host = make_host(FAST)
    host.record_devices()
    device = host.device("fast")
    orphan, following = host.request(device), host.request(device, activate=False)
    with host.database.write() as session:
        values = "status = 'PENDING', executor_id = 'old', application_version = 'old'"
        session.execute(text(f"UPDATE workflow_status SET {values} WHERE workflow_uuid = :id"), {"id": orphan})

    host.start()

    host.wait_state(orphan, "succeeded")
    host.wait_state(following, "succeeded")


def test_a_device_taken_away_fails_its_jobs_in_words(make_host: MakeHost) -> None:
    host = make_host(FAST)
    host.record_devices()
    job = host.request(host.device("fast"))

    host.start(CALIBRATE_SIMULATED="")
    calibration = host.wait_state(job, "failed")

    assert calibration.error_code == "no_device"
    with host.database.read() as session:
        assert not session.get_one(Device, calibration.device_key).usable


def test_a_worker_without_tables_says_what_to_do(tmp_path: Path, make_host: MakeHost) -> None:
    host = make_host(FAST)
    empty = tmp_path / "empty.sqlite3"

    worker = host.start(CALIBRATE_DATABASE_URL=f"sqlite:///{empty}", CALIBRATE_DATABASE_WAIT_S="0")

    assert worker.wait(15) == 1
    assert "calibrate db upgrade" in host.log()


@pytest.mark.postgres
def test_a_database_away_for_seconds_costs_neither_worker_nor_attempt(
    make_host: MakeHost, jobs_postgres_url: str
) -> None:
    host = make_host(SLOW, url=jobs_postgres_url)
    worker = host.start()
    job = host.request(host.device("slow"))
    host.wait_measuring(job)

    with outage(jobs_postgres_url):
        time.sleep(3)
    host.wait_state(job, "succeeded", seconds=60)

    assert worker.poll() is None
    assert host.sweeps(job)["stream"].starts == 1
    assert "database away, the sweep goes on" in host.log()
