import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from sqlalchemy import text
from starlette.testclient import TestClient

from service.app import create_app
from service.config import Settings

MakeDocument = Callable[..., dict[str, Any]]


def test_a_migrated_service_is_ready_and_says_how_its_workers_are(service: Any) -> None:
    service.add_device()
    body = service.client.get("/readyz").json()
    assert (body["ready"], body["database"], body["migration"]) == (True, "answers", "at 0001")
    assert body["workers"]["host-1"].startswith("offline, last sign of life ")


def test_a_database_of_another_revision_is_not_ready(make_service: Any, own_database_url: str) -> None:
    service = make_service(own_database_url)
    with service.database.write() as session:
        session.execute(text("UPDATE calibration_alembic_version SET version_num = '0000'"))
    answer = service.client.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert "calibrate db upgrade" in answer.json()["migration"]
    assert service.client.get("/healthz").status_code == 200


def test_a_stop_waits_for_a_look_that_is_under_way_before_it_closes_the_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sqlite_database_url: str, fake_queue: Any
) -> None:
    settings = Settings(data_dir=tmp_path, database_url=SecretStr(sqlite_database_url), revision_poll_s=0.01)
    app = create_app(settings, fake_queue)
    services = app.state.services
    order: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def look() -> None:
        begun.set()
        go_on.wait(5)
        order.append("looked")

    monkeypatch.setattr(services.database, "dispose", lambda: order.append("closed"))
    with TestClient(app, base_url="http://localhost"):
        monkeypatch.setattr(services, "refresh", look)
        assert begun.wait(5)
        threading.Timer(0.2, go_on.set).start()

    assert order == ["looked", "closed"]


def test_a_database_that_is_gone_is_told_without_its_address(sqlite_service: Any) -> None:
    path = Path(sqlite_service.database.url.database)
    sqlite_service.database.dispose()
    path.unlink()
    path.mkdir()
    answer = sqlite_service.client.get("/readyz")
    assert (answer.status_code, answer.json()["database"]) == (503, "does not answer")
    problem = sqlite_service.client.get("/v1/devices")
    assert (problem.status_code, problem.json()["code"]) == (503, "database_unavailable")
    assert problem.headers["retry-after"] == "5"
    assert "sqlite" not in problem.text


def test_requests_are_counted_by_route_and_jobs_by_state(service: Any) -> None:
    device = service.add_device()
    service.client.post("/v1/calibrations", json={"device": device, "sweeps": ["stream"]})
    service.client.get(f"/v1/devices/{device}")
    service.client.get("/no/such/path/of/a/stranger")
    answer = service.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    device_route = (("method", "GET"), ("route", "/v1/devices/{device}"), ("status", "200"))
    assert samples["http_requests_total", device_route] == 1
    assert samples["http_requests_total", (("method", "GET"), ("route", "unrouted"), ("status", "404"))] == 1
    assert samples["calibrations", (("state", "queued"),)] == 1
    assert samples["calibrations", (("state", "failed"),)] == 0
    assert "stranger" not in answer.text


def test_the_page_lists_devices_with_their_constants(service: Any, document: MakeDocument) -> None:
    service.add_device("sim-1", name="<b>toy</b>", backend="simulated", kind="simulated", simulated=True)
    service.import_document(document())
    html = service.client.get("/").text
    assert "1.258291e+10 byte/s" in html
    assert "&lt;b&gt;toy&lt;/b&gt;" in html
    assert '<span class="mark">simulated</span>' in html
    assert "no_compute_bound_rows" in html
    assert "No constants yet" in html


def test_the_page_costs_as_many_queries_for_many_devices_as_for_one(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    with service.count_statements() as one:
        service.client.get("/")
    other = document(id="6f1f7f36-3c56-4d1c-9d0b-0123456789ac")
    other["device"]["key"] = "cpu-0000000000000001"
    service.import_document(other)
    with service.count_statements() as many:
        page = service.client.get("/").text
    assert (page.count("Revision 1:"), len(many)) == (2, len(one))


def test_a_page_without_devices_says_so(sqlite_service: Any) -> None:
    assert "No device is known yet" in sqlite_service.client.get("/").text


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_may_load_nothing_from_elsewhere(sqlite_service: Any, path: str) -> None:
    answer = sqlite_service.client.get(path)
    assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
    assert "//" not in answer.text.replace("<!doctype html>", "")


def test_devices_are_listed_gpus_first_with_what_can_not_be_used(service: Any) -> None:
    service.add_device("sim-1", kind="simulated", backend="simulated", simulated=True)
    service.add_device("cpu-1")
    service.add_device("GPU-1", kind="gpu", backend="cuda")
    with service.database.write() as session:
        session.execute(
            text("UPDATE hosts SET unusable = :unusable"),
            {"unusable": json.dumps([{"backend": "hip", "reason": "no driver"}])},
        )
    first = service.client.get("/v1/devices?limit=2").json()
    rest = service.client.get("/v1/devices", params={"cursor": first["next"]}).json()
    assert [item["key"] for item in first["items"] + rest["items"]] == ["GPU-1", "cpu-1", "sim-1"]
    assert first["unusable"] == [{"host_id": "host-1", "backend": "hip", "reason": "no driver"}]
    alone = service.client.get("/v1/devices/GPU-1").json()
    assert alone | {"worker": None} == first["items"][0] | {"worker": None}  # whose message counts the seconds


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/calibrations", "GET, POST"),
        ("POST", "/v1/devices/cpu-1/constants", "GET, HEAD"),
        ("POST", "/v1/calibrations/some-id", "DELETE, GET"),
        ("GET", "/v1/fits/envelope", "POST"),
    ],
)
def test_a_method_that_is_not_offered_names_all_that_are(
    sqlite_service: Any, method: str, path: str, allow: str
) -> None:
    answer = sqlite_service.client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allow


def test_an_unknown_path_is_a_problem_document(sqlite_service: Any) -> None:
    answer = sqlite_service.client.get("/v2/devices")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "nothing is served at this path; /docs lists what is",
        "code": "not_found",
    }
