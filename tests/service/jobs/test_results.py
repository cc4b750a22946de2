"""A job's end: its fits are those of its export, and what was cancelled is not activated."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

import fitting
from service.constant_sets import Entry, add_set, lock_device
from service.documents import export_calibration
from service.jobs.drive import Driver
from service.models import Calibration, Device

MakeHost = Callable[..., Any]

SMALL = {
    "working_set": {"ks": [256, 512, 1024]},
    "launch": {"sizes": [32, 64, 128]},
    "issue": {"ks": [256, 512, 1024]},
}


@pytest.fixture
def host(make_host: MakeHost, any_database_url: str | None) -> Any:
    host = make_host({"name": "one"}, url=any_database_url)
    host.record_devices()
    return host


def activate(host: Any, device: str, **values: float) -> None:
    with host.database.write() as session:
        found = lock_device(session, device)
        entries = {name: Entry(name, fitting.CONSTANTS[name].unit, value, None) for name, value in values.items()}
        add_set(session, found, entries, cause="rollback")


def export(host: Any, job: str) -> dict[str, Any]:
    with host.database.read() as session:
        document: dict[str, Any] = export_calibration(session, job)
    return document


def at_each_sweep(driver: Driver, monkeypatch: pytest.MonkeyPatch, then: Callable[[str], None]) -> None:
    """Call `then` with the sweep once it is measured."""
    measure = driver._measure

    def measured(attempt: Any) -> None:
        measure(attempt)
        then(attempt.sweep)

    monkeypatch.setattr(driver, "_measure", measured)


def test_fits_are_those_of_the_export_whatever_changes_during_the_run(
    host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = host.device("one")
    before = {"model_peak_memory_bandwidth": 1e12, "model_multiprocessors": 108, "model_fill_threads": 256}
    activate(host, device, **before)
    driver = Driver(host.database, Event())
    job = host.request(
        device, sweeps=["working_set", "issue"], parameters={key: SMALL[key] for key in ("working_set", "issue")}
    )

    def change(sweep: str) -> None:
        activate(host, device, model_peak_memory_bandwidth=2e12, model_multiprocessors=7, model_fill_threads=32)

    at_each_sweep(driver, monkeypatch, change)
    driver.drive(job)

    document = export(host, job)
    fits = {(fit["kind"], fit["phase"]): fit for fit in document["fits"]}
    assert fits["capacity", "aligned"]["inputs"] == {"dram_rate": 1e12}
    assert fits["issue_rate", None]["inputs"] == {"fill": "active", "multiprocessors": 108, "fill_threads": 256}
    assert document["sweeps"][1]["constants_in_force"]["model_peak_memory_bandwidth"] == 2e12
    assert [fitting.fit_to_json(fit) for fit in fitting.refit(document)] == document["fits"]


def test_the_fill_is_fitted_under_the_multiprocessors_that_the_sweep_found(
    host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = host.device("one")
    driver = Driver(host.database, Event())
    job = host.request(device, sweeps=["launch"], parameters={"launch": SMALL["launch"]})

    def reconfigure(sweep: str) -> None:
        with host.database.write() as session:
            found = session.get_one(Device, device)
            found.limits = {**found.limits, "multiprocessors": 54}

    at_each_sweep(driver, monkeypatch, reconfigure)
    driver.drive(job)

    document = export(host, job)
    fill = next(fit for fit in document["fits"] if fit["kind"] == "fill")
    assert fill["inputs"]["multiprocessors"] == 108
    assert [fitting.fit_to_json(fit) for fit in fitting.refit(document)] == document["fits"]


def test_a_job_cancelled_after_its_last_sweep_activates_nothing(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = host.device("one")
    driver = Driver(host.database, Event())
    job = host.request(device)
    persist = driver._persist

    def cancel_before_the_end(move: Callable[[Any], Any]) -> Any:
        if host.calibration(job).progress_message == "fitting":
            with host.database.write() as session:
                session.get_one(Calibration, job).cancel_requested = True
        return persist(move)

    monkeypatch.setattr(driver, "_persist", cancel_before_the_end)
    driver.drive(job)

    calibration = host.calibration(job)
    assert (calibration.state, calibration.activated, calibration.revision) == ("cancelled", False, None)
    assert {run.state for run in host.sweeps(job).values()} == {"succeeded"}
