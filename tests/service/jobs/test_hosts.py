"""What the database says of hosts, their workers and their devices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from kernels.backends.simulated import SimulatedBackend
from kernels.device import Discovery, UnusableBackend
from service.config import Settings
from service.jobs import hosts
from service.jobs.missing import request_missing
from service.models import Device, Host

MakeHost = Callable[..., Any]


@pytest.fixture
def host(make_host: MakeHost, any_database_url: str | None) -> Any:
    host = make_host({"name": "one"}, {"name": "two"}, url=any_database_url)
    host.record_devices()
    return host


def devices(host: Any) -> dict[str, Device]:
    with host.database.read() as session:
        return {device.name: device for device in session.scalars(select(Device))}


def test_the_databases_clock_is_aware_and_about_now(host: Any) -> None:
    with host.database.read() as session:
        now = hosts.database_now(session)

    assert now.tzinfo is UTC
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize(("age_s", "online"), [(0.0, True), (20.0, True), (20.5, False)])
def test_a_host_is_offline_past_twenty_seconds_of_silence(age_s: float, online: bool) -> None:
    now = datetime(2025, 1, 1, tzinfo=UTC)

    assert hosts.is_online(Host(heartbeat_at=now - timedelta(seconds=age_s)), now, 20.0) is online


def test_a_host_known_from_documents_alone_is_offline() -> None:
    assert not hosts.is_online(Host(heartbeat_at=None), datetime(2025, 1, 1, tzinfo=UTC), 20.0)


def test_a_heartbeat_is_a_later_time_of_the_database(host: Any) -> None:
    with host.database.write() as session:
        before = session.get_one(Host, "test-host").heartbeat_at
        hosts.beat(session, "test-host")
    with host.database.read() as session:
        after = session.get_one(Host, "test-host").heartbeat_at

    assert after > before


def test_a_device_that_is_gone_stays_with_the_reason_and_comes_back(host: Any) -> None:
    found = SimulatedBackend().discover()
    broken = Discovery(found.devices[:1], (UnusableBackend("simulated", "the driver does not answer"),))

    with host.database.write() as session:
        keys = hosts.record_discovery(session, "test-host", "1.0", broken)
    gone = devices(host)["two (simulated)"]
    host.record_devices()
    back = devices(host)["two (simulated)"]

    assert sorted(keys) == sorted(device.key for device in found.devices)
    assert (gone.usable, gone.reason) == (False, "the driver does not answer")
    assert (back.usable, back.reason) == (True, None)


def test_a_device_that_is_gone_without_a_word_says_so(host: Any) -> None:
    with host.database.write() as session:
        hosts.record_discovery(session, "test-host", "1.0", Discovery())

    assert "no longer found on this host" in str(devices(host)["one (simulated)"].reason)


def test_missing_constants_are_asked_for_once_and_simulated_ones_only_on_demand(host: Any) -> None:
    nobody = request_missing(host.database, host.queue, host.settings)
    first = request_missing(host.database, host.queue, host.settings, simulated=True)
    again = request_missing(host.database, host.queue, host.settings, simulated=True)

    assert (nobody, len(first), again) == ([], 4, [])
    assert set(host.queue.states(first).values()) == {"ENQUEUED"}
    assert [list(host.sweeps(job)) for job in first[:2]] == [["stream"], ["working_set", "launch", "issue"]]
    assert host.calibration(first[0]).origin == "missing"


def test_the_sweeps_of_missing_constants_can_be_chosen(host: Any) -> None:
    chosen = host.settings.model_copy(update={"missing_sweeps": ("stream",)})

    jobs = request_missing(host.database, host.queue, chosen, simulated=True)

    assert [list(host.sweeps(job)) for job in jobs] == [["stream"], ["stream"]]


def test_a_device_that_can_not_run_what_is_missing_keeps_no_other_from_it(host: Any) -> None:
    one, two = (devices(host)[f"{name} (simulated)"] for name in ("one", "two"))
    with host.database.write() as session:
        lacking = session.get_one(Device, one.key)
        lacking.limits = {**lacking.limits, "sweeps": ["stream"], "memory_bytes": 1}
    chosen = host.settings.model_copy(update={"missing_sweeps": ("stream", "issue")})

    jobs = request_missing(host.database, host.queue, chosen, simulated=True)

    assert [(host.calibration(job).device_key, *host.sweeps(job)) for job in jobs] == [
        (two.key, "stream"),
        (two.key, "issue"),
    ]


def test_an_unknown_sweep_is_refused_with_the_settings() -> None:
    with pytest.raises(ValidationError, match="missing_sweeps"):
        Settings(missing_sweeps="stream,cache")
