import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest
from sqlalchemy import func, select

from kernels.parameters import DeviceLimits
from service.api.paging import encode_cursor
from service.jobs.hosts import beat
from service.models import Calibration, SweepRun

STREAM = {"sweeps": ["stream"], "stream": {"elems": 67108864}}


def post(service: Any, **body: Any) -> Any:
    return service.client.post("/v1/calibrations", json=body)


def set_state(service: Any, calibration: str, state: str, **columns: Any) -> None:
    with service.database.write() as session:
        found = session.get_one(Calibration, calibration)
        for name, value in {"state": state, **columns}.items():
            setattr(found, name, value)


def test_a_request_is_accepted_queued_and_shown_with_its_resolved_parameters(service: Any) -> None:
    device = service.add_device()
    answer = post(service, device=device, **STREAM)
    view = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/calibrations/{view['id']}"
    assert (view["state"], view["device"], view["origin"]) == ("queued", device, "request")
    assert [(sweep["sweep"], sweep["parameters"]["elems"]) for sweep in view["sweeps"]] == [("stream", 67108864)]
    assert service.queue.queued == [view["id"]]
    assert service.client.get(answer.headers["location"]).json() | {"worker": None} == view | {"worker": None}


@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded", "text/plain", None])
def test_a_body_is_json_whatever_a_client_calls_it(sqlite_service: Any, content_type: str | None) -> None:
    sqlite_service.add_device()
    headers = {} if content_type is None else {"content-type": content_type}
    answer = sqlite_service.client.post("/v1/calibrations", content=json.dumps(STREAM), headers=headers)
    assert answer.status_code == 202


@pytest.mark.parametrize("body", ["{", "", "[]", "x"])
def test_a_body_that_is_no_json_object_is_refused(sqlite_service: Any, body: str) -> None:
    answer = sqlite_service.client.post("/v1/calibrations", content=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "body")


def test_without_sweeps_all_that_the_device_has_run_in_their_order(service: Any) -> None:
    device = service.add_device()
    sweeps = post(service, device=device).json()["sweeps"]
    assert [sweep["sweep"] for sweep in sweeps] == ["stream", "working_set", "launch", "issue"]


def test_an_identical_open_request_is_returned_instead(service: Any) -> None:
    device = service.add_device()
    first = post(service, device=device, **STREAM)
    again = post(service, device=device, **STREAM, priority=5, time_limit_s=60)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert again.headers["location"] == first.headers["location"]
    assert post(service, device=device, **STREAM, activate=False).status_code == 202
    set_state(service, first.json()["id"], "failed")
    assert post(service, device=device, **STREAM).status_code == 202


def test_concurrent_identical_requests_make_one_job(service: Any) -> None:
    device = service.add_device()
    gate = threading.Barrier(8)

    def ask() -> tuple[int, str]:
        gate.wait()
        answer = post(service, device=device, **STREAM)
        return answer.status_code, answer.json()["id"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(), range(8)))
    assert sorted(status for status, _ in answers) == [200] * 7 + [202]
    assert len({identity for _, identity in answers}) == 1
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Calibration)) == 1
        assert session.scalar(select(func.count()).select_from(SweepRun)) == 1


def test_a_job_that_the_engine_refuses_leaves_nothing_behind(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = service.add_device()

    def refuse(*arguments: Any) -> None:
        raise RuntimeError("secret of the engine")

    monkeypatch.setattr(service.queue, "enqueue", refuse)
    answer = post(service, device=device, **STREAM)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert service.client.get("/v1/calibrations").json()["items"] == []


def test_the_only_usable_device_needs_no_name(sqlite_service: Any) -> None:
    device = sqlite_service.add_device()
    sqlite_service.add_device("GPU-gone", usable=False, reason="the driver is gone")
    assert post(sqlite_service, **STREAM).json()["device"] == device


def test_with_several_usable_devices_one_must_be_named(sqlite_service: Any) -> None:
    devices = [sqlite_service.add_device(key) for key in ("cpu-a", "cpu-b")]
    answer = post(sqlite_service, **STREAM)
    assert (answer.status_code, answer.json()["code"]) == (422, "device_required")
    assert all(device in answer.json()["detail"] for device in devices)


def test_without_any_device_the_answer_says_so(sqlite_service: Any) -> None:
    answer = post(sqlite_service, **STREAM)
    assert (answer.status_code, answer.json()["code"]) == (409, "device_unusable")


def test_an_unusable_device_says_why(sqlite_service: Any) -> None:
    device = sqlite_service.add_device(usable=False, reason="no C compiler: install gcc")
    answer = post(sqlite_service, device=device, **STREAM)
    assert (answer.status_code, answer.json()["code"]) == (409, "device_unusable")
    assert "install gcc" in answer.json()["detail"]


def test_an_unknown_device_is_not_found(sqlite_service: Any) -> None:
    sqlite_service.add_device()
    assert post(sqlite_service, device="cpu-other", **STREAM).json()["code"] == "unknown_device"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"sweeps": ["stream"], "stream": {"elems": 1024}}, "stream.elems"),
        ({"sweeps": ["stream"], "stream": {"elems": 2**40}}, "stream.elems"),
        ({"sweeps": ["stream"], "stream": {"elems": "many"}}, "stream.elems"),
        ({"sweeps": ["stream"], "stream": {"speed": 1}}, "stream.speed"),
        ({"sweeps": ["stream"], "stream": {"repeats": 0}}, "stream.repeats"),
        ({"sweeps": ["working_set"], "working_set": {"ks": [512, 256]}}, "working_set.ks"),
        ({"sweeps": ["working_set"], "working_set": {"ks": [10**9]}}, "working_set.ks"),
        ({"sweeps": ["working_set"], "working_set": {"ks": []}}, "working_set.ks"),
        ({"sweeps": ["issue"], "issue": {"m": 33}}, "issue.m"),
        ({"sweeps": ["launch"], "launch": {"geometries": ["7x7x7/7x7"]}}, "launch.geometries"),
        ({"sweeps": ["launch"], "launch": {"sizes": [33]}}, "launch.geometries"),
        ({"sweeps": ["cache"]}, "sweeps"),
        ({"sweeps": []}, "sweeps"),
        ({"sweeps": ["stream", "stream"]}, "sweeps"),
        ({"sweeps": ["stream"], "issue": {}}, "issue"),
        ({"time_limit_s": 0}, "time_limit_s"),
        ({"priority": -1}, "priority"),
        ({"activate": "yes"}, "activate"),
        ({"speed": 1}, "speed"),
    ],
)
def test_a_bad_request_names_the_field_and_queues_nothing(
    sqlite_service: Any, body: dict[str, Any], field: str
) -> None:
    sqlite_service.add_device()
    answer = post(sqlite_service, **body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["field"] == field
    assert answer.json()["errors"][0]["rule"]
    assert sqlite_service.queue.queued == []


def test_a_nan_in_a_request_is_refused(sqlite_service: Any) -> None:
    sqlite_service.add_device()
    answer = sqlite_service.client.post("/v1/calibrations", content='{"time_limit_s": NaN}')
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "time_limit_s")


def test_a_name_that_no_text_can_hold_is_named_as_well_as_it_can_be(sqlite_service: Any) -> None:
    sqlite_service.add_device()
    answer = sqlite_service.client.post("/v1/calibrations", content='{"sweeps": ["stream"], "stream": {"\\ud800": 1}}')
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "stream.?")


def test_an_answer_names_at_most_twenty_faults(sqlite_service: Any) -> None:
    answer = post(sqlite_service, **{f"unknown_{number}": 1 for number in range(1000)})
    assert (answer.status_code, len(answer.json()["errors"])) == (422, 20)


def test_a_sweep_the_backend_lacks_says_which_backends_have_it(sqlite_service: Any) -> None:
    limits = DeviceLimits("hip", 2**34, 2**23, 60, ("stream",), ())
    sqlite_service.add_device("GPU-1", backend="hip", kind="gpu", limits=asdict(limits))
    answer = post(sqlite_service, sweeps=["launch"])
    assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")
    assert all(backend in answer.json()["detail"] for backend in ("cuda", "cc", "simulated"))


def test_a_list_is_newest_first_and_goes_on_where_it_stopped(service: Any) -> None:
    device = service.add_device()
    made = [post(service, device=device, sweeps=["stream"], stream={"elems": 2**power}) for power in (25, 26, 27)]
    identities = [answer.json()["id"] for answer in made]
    first = service.client.get("/v1/calibrations?limit=2").json()
    rest = service.client.get("/v1/calibrations", params={"cursor": first["next"]}).json()
    assert [item["id"] for item in first["items"] + rest["items"]] == identities[::-1]
    assert rest["next"] is None


def test_jobs_of_one_moment_are_neither_lost_nor_repeated_between_parts(service: Any) -> None:
    device = service.add_device()
    made = [post(service, device=device, sweeps=["stream"], stream={"elems": 2**power}) for power in (25, 26, 27)]
    with service.database.write() as session:
        moment = session.get_one(Calibration, made[0].json()["id"]).requested_at
        for answer in made:
            session.get_one(Calibration, answer.json()["id"]).requested_at = moment
    seen, cursor = [], None
    while True:
        page = service.client.get("/v1/calibrations", params={"limit": 1} | ({"cursor": cursor} if cursor else {}))
        seen += [item["id"] for item in page.json()["items"]]
        cursor = page.json()["next"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(answer.json()["id"] for answer in made)


def test_a_list_costs_as_many_queries_for_many_devices_as_for_one(service: Any) -> None:
    post(service, device=service.add_device("cpu-a"), sweeps=["stream"])
    with service.count_statements() as one:
        service.client.get("/v1/calibrations")
    post(service, device=service.add_device("cpu-b"), sweeps=["stream"])
    post(service, device=service.add_device("cpu-c"), sweeps=["stream"])
    with service.count_statements() as many:
        items = service.client.get("/v1/calibrations").json()["items"]
    assert (len(items), len(many)) == (3, len(one))


def test_a_list_is_filtered_by_device_state_sweep_and_time(service: Any) -> None:
    one, two = service.add_device("cpu-a"), service.add_device("cpu-b")
    first = post(service, device=one, sweeps=["stream"]).json()
    second = post(service, device=two, sweeps=["issue"]).json()
    set_state(service, first["id"], "failed", error_code="compile", error_message="install gcc")

    def listed(**query: Any) -> list[str]:
        return [item["id"] for item in service.client.get("/v1/calibrations", params=query).json()["items"]]

    assert listed(device=one) == [first["id"]]
    assert listed(state="queued") == [second["id"]]
    assert listed(sweep="stream") == [first["id"]]
    assert listed(since=second["requested_at"]) == [second["id"]]
    assert listed(until=second["requested_at"]) == [first["id"]]
    assert listed(device=one, state="queued") == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "state=done", "sweep=cache", "since=yesterday", "since=2024-01-01T00:00:00",
     "since=0001-01-01T00:00:00%2B23:00", "cursor=x", "cursor=WzFd", "cursor=%00", "device=%00",
     f"cursor={encode_cursor('2024-01-01T00:00:00+00:00', chr(0xD800))}"],
)  # fmt: skip
def test_a_bad_query_of_a_list_is_refused(service: Any, query: str) -> None:
    answer = service.client.get(f"/v1/calibrations?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_a_failed_job_tells_code_cause_and_detail(service: Any) -> None:
    device = service.add_device()
    made = post(service, device=device, **STREAM).json()
    set_state(service, made["id"], "failed", error_code="compile", error_message="install gcc", error_detail="log")
    view = service.client.get(f"/v1/calibrations/{made['id']}").json()
    assert view["error"] == {"code": "compile", "message": "install gcc", "detail": "log"}


def test_a_queued_job_is_cancelled_at_once(service: Any) -> None:
    device = service.add_device()
    made = post(service, device=device, **STREAM).json()
    answer = service.client.delete(f"/v1/calibrations/{made['id']}")
    view = answer.json()
    assert (answer.status_code, view["state"]) == (200, "cancelled")
    assert view["finished_at"] is not None
    assert {sweep["state"] for sweep in view["sweeps"]} == {"cancelled"}
    assert service.queue.queued == []


def test_a_running_job_is_asked_to_stop(service: Any) -> None:
    device = service.add_device()
    made = post(service, device=device, **STREAM).json()
    set_state(service, made["id"], "running")
    answer = service.client.delete(f"/v1/calibrations/{made['id']}")
    assert (answer.status_code, answer.json()["state"], answer.json()["cancel_requested"]) == (202, "running", True)


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_can_not_be_cancelled(service: Any, state: str) -> None:
    device = service.add_device()
    made = post(service, device=device, **STREAM).json()
    set_state(service, made["id"], state)
    answer = service.client.delete(f"/v1/calibrations/{made['id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "finished")


def test_an_unknown_job_is_not_found_under_every_path(sqlite_service: Any) -> None:
    path = "/v1/calibrations/00000000-0000-4000-8000-000000000000"
    for under in ("", "/events", "/rows", "/rows?format=tsv", "/points/issue", "/fits", "/export"):
        answer = sqlite_service.client.get(path + under)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_calibration")
    assert sqlite_service.client.delete(path).json()["code"] == "unknown_calibration"


def test_events_tell_progress_and_end_with_the_job(service: Any) -> None:
    device = service.add_device()
    made = post(service, device=device, **STREAM).json()
    set_state(service, made["id"], "running", progress_done=1, progress_total=2)
    with service.client.stream("GET", f"/v1/calibrations/{made['id']}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = []
        for line in answer.iter_lines():
            if line.startswith("event:"):
                events.append(line.removeprefix("event:").strip())
            if line.startswith("data:"):
                events.append(json.loads(line.removeprefix("data:"))["state"])
                if events[-1] == "running":
                    set_state(service, made["id"], "succeeded")
    assert events == ["progress", "running", "end", "succeeded"]


def test_events_end_when_the_service_is_told_to_stop(sqlite_service: Any) -> None:
    device = sqlite_service.add_device()
    made = post(sqlite_service, device=device, **STREAM).json()
    sqlite_service.client.app.state.services.stopping = True
    answer = sqlite_service.client.get(f"/v1/calibrations/{made['id']}/events")
    assert (answer.status_code, answer.text) == (200, "")


def test_an_offline_worker_is_told_with_the_job(service: Any) -> None:
    device = service.add_device()
    view = post(service, device=device, **STREAM).json()
    assert view["worker"]["online"] is False
    assert "calibrate worker" in view["worker"]["message"]


def test_a_heartbeat_of_this_moment_is_online(service: Any) -> None:
    device = service.add_device()
    with service.database.write() as session:
        beat(session, "host-1")
    assert service.client.get(f"/v1/devices/{device}").json()["worker"]["online"] is True
