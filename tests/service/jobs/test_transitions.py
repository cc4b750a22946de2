"""The moves of a job: what each may change, and that none leaves an ended state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select

from fitting import CalibrationRow
from kernels.errors import CompileError, MeasureError
from kernels.measure import Reading, RowMeasured, SweepResult
from service.jobs import transitions
from service.jobs.transitions import AllMeasured, Attempt
from service.models import Calibration, Row

MakeHost = Callable[..., Any]

ROW = RowMeasured(
    CalibrationRow("simulated", "d1", "stream_copy", "block=256", 1.0, None, 1, 8, 8, False, False, False),
    Reading("seed", None, 0, 16, 1.0, 0.0, None, ({"best_ms": 1.0, "refused": None},)),
)
CRASH = MeasureError("the process was ended by SIGSEGV", crashed=True)


@pytest.fixture
def host(make_host: MakeHost, any_database_url: str | None) -> Any:
    host = make_host({"name": "one"}, url=any_database_url)
    host.record_devices()
    return host


@pytest.fixture
def job(host: Any) -> str:
    return str(host.request(host.device("one"), sweeps=["stream", "issue"]))


def begin(host: Any, job: str) -> Attempt | AllMeasured | None:
    with host.database.write() as session:
        return transitions.begin(session, job)


def move(host: Any, transition: Callable[..., None], *arguments: Any) -> None:
    with host.database.write() as session:
        transition(session, *arguments)


def set_job(host: Any, job: str, **values: Any) -> None:
    with host.database.write() as session:
        calibration = session.get_one(Calibration, job)
        for name, value in values.items():
            setattr(calibration, name, value)


def rows(host: Any) -> int:
    with host.database.read() as session:
        return int(session.scalar(select(func.count()).select_from(Row)))


def test_sweeps_run_in_order_and_each_start_is_counted(host: Any, job: str) -> None:
    first = begin(host, job)
    move(host, transitions.complete, first, [ROW], SweepResult(doubtful=("noisy",), facts={"a": 1}))
    second = begin(host, job)
    move(host, transitions.complete, second, [], SweepResult())
    last = begin(host, job)

    stream, issue = host.sweeps(job)["stream"], host.sweeps(job)["issue"]
    assert isinstance(first, Attempt)
    assert isinstance(second, Attempt)
    assert isinstance(last, AllMeasured)
    assert (first.sweep, second.sweep) == ("stream", "issue")
    assert (stream.starts, issue.starts) == (1, 1)
    assert (stream.state, stream.doubtful, stream.facts) == ("succeeded", ["noisy"], {"a": 1})
    assert (rows(host), host.calibration(job).progress_done) == (1, 200)


def test_a_new_start_deletes_what_the_last_one_left(host: Any, job: str) -> None:
    begin(host, job)
    with host.database.write() as session:
        transitions.records.store(session, host.sweeps(job)["stream"].id, 1, [ROW, ROW])

    begin(host, job)

    assert (rows(host), host.sweeps(job)["stream"].starts) == (0, 2)


def test_the_fourth_start_is_refused_in_words(host: Any, job: str) -> None:
    for _ in range(3):
        assert begin(host, job)

    assert begin(host, job) is None
    calibration = host.calibration(job)
    assert (calibration.state, calibration.error_code) == ("failed", "worker_lost")
    assert "in each of 3 starts of the stream sweep" in str(calibration.error_message)
    assert {run.state for run in host.sweeps(job).values()} == {"failed", "cancelled"}


def test_a_crash_is_tried_again_twice_then_fails_with_the_points_kept(host: Any, job: str) -> None:
    for number in (1, 2, 3):
        attempt = begin(host, job)
        assert host.calibration(job).state == "running"
        move(host, transitions.retry_or_fail, attempt, [ROW], CRASH)
        assert host.sweeps(job)["stream"].starts == number

    calibration = host.calibration(job)
    assert (calibration.state, calibration.error_code) == ("failed", "internal")
    assert "given up after 3 starts" in str(calibration.error_message)
    assert rows(host) == 1


def test_a_failure_that_is_final_is_not_tried_again(host: Any, job: str) -> None:
    attempt = begin(host, job)

    move(host, transitions.retry_or_fail, attempt, [ROW], CompileError("no compiler; install gcc", detail="log"))

    calibration = host.calibration(job)
    assert (calibration.state, calibration.error_code, calibration.error_detail) == ("failed", "compile", "log")
    assert calibration.error_message == "no compiler; install gcc"
    assert (rows(host), begin(host, job)) == (1, None)


def test_a_start_given_back_costs_nothing(host: Any, job: str) -> None:
    attempt = begin(host, job)

    move(host, transitions.give_back, attempt)

    assert (host.calibration(job).state, host.sweeps(job)["stream"].starts) == ("queued", 0)


def test_a_cancel_flag_ends_the_job_before_its_next_sweep(host: Any, job: str) -> None:
    begin(host, job)
    set_job(host, job, cancel_requested=True)

    assert begin(host, job) is None
    assert host.calibration(job).state == "cancelled"


def test_the_answer_of_a_start_that_no_longer_counts_is_dropped(host: Any, job: str) -> None:
    lost = begin(host, job)
    begin(host, job)

    move(host, transitions.complete, lost, [ROW], SweepResult())

    assert (host.sweeps(job)["stream"].state, rows(host)) == ("running", 0)


def test_a_commit_whose_answer_was_lost_is_not_made_twice(host: Any, job: str) -> None:
    attempt = begin(host, job)

    move(host, transitions.complete, attempt, [ROW], SweepResult())
    move(host, transitions.complete, attempt, [ROW], SweepResult())

    assert rows(host) == 1


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_an_ended_job_is_never_moved_again(host: Any, job: str, state: str) -> None:
    attempt = begin(host, job)
    set_job(host, job, state=state)

    move(host, transitions.complete, attempt, [ROW], SweepResult())
    move(host, transitions.retry_or_fail, attempt, [ROW], CRASH)
    move(host, transitions.stop_cancelled, attempt, [ROW])
    move(host, transitions.give_back, attempt)

    assert begin(host, job) is None
    assert (host.calibration(job).state, rows(host)) == (state, 0)


def test_time_of_finished_sweeps_counts_against_the_jobs_limit(host: Any, job: str) -> None:
    first = begin(host, job)
    move(host, transitions.complete, first, [], SweepResult())

    second = begin(host, job)

    stream = host.sweeps(job)["stream"]
    assert isinstance(first, Attempt)
    assert isinstance(second, Attempt)
    took = (stream.finished_at - stream.started_at).total_seconds()
    assert (first.seconds_left, second.seconds_left) == (900.0, pytest.approx(900.0 - took))
