"""The engine's queues, and how our table and the engine are kept in step, apart from any worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import text

from service.jobs.hosts import beat
from service.jobs.reconcile import keep_reconciled, reconcile
from service.models import Calibration

MakeHost = Callable[..., Any]
ONE, TWO = {"name": "one"}, {"name": "two"}


@pytest.fixture
def host(make_host: MakeHost, any_database_url: str | None) -> Any:
    host = make_host(ONE, TWO, url=any_database_url)
    host.record_devices()
    return host


def set_engine_row(host: Any, calibration_id: str, **values: str | int) -> None:
    table = "workflow_status" if host.database.is_sqlite else "dbos.workflow_status"
    changes = ", ".join(f"{name} = :{name}" for name in values)
    with host.database.write() as session:
        session.execute(
            text(f"UPDATE {table} SET {changes} WHERE workflow_uuid = :id"), {"id": calibration_id, **values}
        )


def engine_row(host: Any, calibration_id: str) -> Any:
    (row,) = host.queue.client.list_workflows(workflow_ids=[calibration_id], load_input=False, load_output=False)
    return row


def in_step(host: Any, **options: Any) -> None:
    reconcile(host.database, host.queue, offline_s=20.0, **options)


def test_a_job_reaches_the_queue_of_its_device_with_its_row(host: Any) -> None:
    device = host.device("one")

    job = host.request(device, priority=7)

    row = engine_row(host, job)
    assert (row.status, row.queue_name, row.app_version, row.priority) == ("ENQUEUED", device, "calib-1", 7)


def test_a_transaction_that_fails_leaves_nothing_in_the_queue(host: Any) -> None:
    job = host.request(host.device("one"))
    with host.database.read() as session:
        copy = session.get_one(Calibration, job)
    copy.id = "00000000-0000-4000-8000-000000000000"

    def enqueue_and_fail() -> None:
        with host.database.write() as session:
            host.queue.enqueue(session, copy)
            raise LookupError("the caller's own failure")

    with pytest.raises(LookupError):
        enqueue_and_fail()

    assert host.queue.states([job, copy.id]) == {job: "ENQUEUED"}


def test_enqueueing_again_changes_nothing(host: Any) -> None:
    job = host.request(host.device("one"))
    with host.database.write() as session:
        host.queue.enqueue(session, session.get_one(Calibration, job))

    assert host.queue.states([job]) == {job: "ENQUEUED"}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    sqlite = f"sqlite:///{tmp_path}/engine.sqlite3"
    return sqlite if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


def test_many_processes_may_migrate_the_engine_at_once(empty_database_url: str) -> None:
    code = "import sys; from service.config import parse_database_url; from service.jobs.queue import migrate_engine; "
    code += "migrate_engine(parse_database_url(sys.argv[1]))"
    command = [sys.executable, "-c", code, empty_database_url]

    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0]
    assert said == ["", "", ""]


@pytest.mark.parametrize(
    ("state", "executor", "version"),
    [
        ("PENDING", "a-host-that-was", "calib-1"),
        ("PENDING", "test-host", "another-version"),
        ("ENQUEUED", "", "another-version"),
    ],
)
def test_a_job_that_no_worker_would_take_is_put_back(host: Any, state: str, executor: str, version: str) -> None:
    device = host.device("one")
    job = host.request(device)
    set_engine_row(host, job, status=state, executor_id=executor, application_version=version)

    healed = host.queue.heal("test-host", [device])

    row = engine_row(host, job)
    assert healed == [job]
    assert (row.status, row.queue_name, row.app_version) == ("ENQUEUED", device, "calib-1")


def test_healing_leaves_other_hosts_devices_and_good_jobs_alone(host: Any) -> None:
    one, two = host.device("one"), host.device("two")
    waiting, elsewhere = host.request(one), host.request(two)
    set_engine_row(host, elsewhere, status="PENDING", executor_id="another-host")

    healed = host.queue.heal("test-host", [one])

    assert healed == []
    assert host.queue.states([waiting, elsewhere]) == {waiting: "ENQUEUED", elsewhere: "PENDING"}


def test_a_job_under_an_unknown_name_is_queued_again_under_the_right_one(host: Any) -> None:
    device = host.device("one")
    job = host.request(device)
    set_engine_row(host, job, status="PENDING", executor_id="test-host", name="no_such_workflow")

    host.queue.heal("test-host", [device])
    in_step(host)

    row = engine_row(host, job)
    assert (row.status, row.name) == ("ENQUEUED", "drive")


def test_a_job_that_waits_can_be_withdrawn_and_one_that_runs_not(host: Any) -> None:
    device = host.device("one")
    waiting, running = host.request(device), host.request(device, activate=False)
    set_engine_row(host, running, status="PENDING", executor_id="test-host")

    for job in (waiting, running):
        host.queue.withdraw(job)

    assert host.queue.states([waiting, running]) == {running: "PENDING"}


def test_a_server_without_a_worker_ends_cancelled_jobs_of_hosts_that_are_gone(host: Any) -> None:
    job = host.request(host.device("one"))
    set_engine_row(host, job, status="PENDING", executor_id="test-host")
    with host.database.write() as session:
        calibration = session.get_one(Calibration, job)
        calibration.state, calibration.cancel_requested = "running", True
        session.execute(text("UPDATE hosts SET heartbeat_at = '2020-01-01 00:00:00+00:00'"))
    stop = Event()
    settings = host.settings.model_copy(update={"reconcile_s": 0.01})
    thread = Thread(target=keep_reconciled, args=(host.database, host.queue, settings, stop))

    thread.start()
    host.wait_state(job, "cancelled")
    stop.set()
    thread.join(10)

    assert not thread.is_alive()


def test_a_job_unknown_to_the_engine_is_queued_again(host: Any) -> None:
    job = host.request(host.device("one"))
    host.queue.client.delete_workflow(job)

    in_step(host)

    assert host.queue.states([job]) == {job: "ENQUEUED"}


def test_a_job_cancelled_in_the_engine_alone_is_queued_again(host: Any) -> None:
    job = host.request(host.device("one"))
    host.queue.client.cancel_workflow(job)

    in_step(host)

    assert host.queue.states([job]) == {job: "ENQUEUED"}
    assert host.calibration(job).state == "queued"


@pytest.mark.parametrize(
    ("state", "code", "advice"),
    [
        ("MAX_RECOVERY_ATTEMPTS_EXCEEDED", "worker_lost", "ask for the calibration again"),
        ("ERROR", "internal", "report it"),
        ("SUCCESS", "internal", "ask for the calibration again"),
    ],
)
def test_a_job_that_the_engine_gave_up_fails_in_words(host: Any, state: str, code: str, advice: str) -> None:
    job = host.request(host.device("one"))
    set_engine_row(host, job, status=state)

    in_step(host)

    calibration = host.calibration(job)
    assert (calibration.state, calibration.error_code) == ("failed", code)
    assert advice in str(calibration.error_message)
    assert calibration.finished_at is not None


def test_a_running_job_of_a_lost_worker_can_still_be_cancelled(host: Any) -> None:
    job = host.request(host.device("one"))
    set_engine_row(host, job, status="PENDING", executor_id="test-host")
    with host.database.write() as session:
        calibration = session.get_one(Calibration, job)
        calibration.state, calibration.cancel_requested = "running", True
        session.execute(text("UPDATE hosts SET heartbeat_at = '2020-01-01 00:00:00+00:00'"))

    in_step(host)

    assert host.calibration(job).state == "cancelled"


def test_a_running_job_of_a_live_worker_is_left_to_it(host: Any) -> None:
    job = host.request(host.device("one"))
    set_engine_row(host, job, status="PENDING", executor_id="test-host")
    with host.database.write() as session:
        calibration = session.get_one(Calibration, job)
        calibration.state, calibration.cancel_requested = "running", True
        beat(session, "test-host")

    in_step(host)

    assert host.calibration(job).state == "running"


def test_the_engine_forgets_ended_jobs_past_their_time_and_no_others(host: Any) -> None:
    device = host.device("one")
    old, fresh, waiting = (host.request(device, parameters={"stream": {"repeats": n}}) for n in (1, 2, 3))
    set_engine_row(host, old, status="SUCCESS", completed_at=1_600_000_000_000)  # September 2020, in milliseconds
    host.queue.client.cancel_workflow(fresh)

    host.queue.prune([device], datetime(2021, 1, 1, tzinfo=UTC))

    assert host.queue.states([old, fresh, waiting]) == {fresh: "CANCELLED", waiting: "ENQUEUED"}


def test_a_worker_compares_its_own_devices_jobs_only(host: Any) -> None:
    one, two = host.device("one"), host.device("two")
    mine, other = host.request(one), host.request(two)
    for job in (mine, other):
        set_engine_row(host, job, status="ERROR")

    in_step(host, device_keys=[one])

    assert (host.calibration(mine).state, host.calibration(other).state) == ("failed", "queued")
