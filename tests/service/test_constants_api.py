import copy
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

DEVICE = "cpu-fedcba9876543210"
PATH = f"/v1/devices/{DEVICE}/constants"
MakeDocument = Callable[..., dict[str, Any]]

# 3 x 4 MiB in 1 ms, bumped by 2e-6: 12 582 912 000 x 1.000002 = 12 582 937 165.824
CONFIG_LINE = "model_peak_memory_bandwidth=1.258294e+10"


def activate_another(service: Any, document: MakeDocument, triad_ms: float) -> str:
    """Activate a run whose triad row takes `triad_ms` for its 3 x 4 MiB."""
    given = copy.deepcopy(document())
    for item in given["sweeps"][0]["rows"]:
        item["row"]["measured_ms"] = item["reading"]["median_ms"] = triad_ms * 2
    given["sweeps"][0]["rows"][3]["row"]["measured_ms"] = triad_ms
    return str(service.import_document(document(id=str(uuid.uuid4()), sweeps=given["sweeps"])))


def test_all_seven_constants_are_listed_with_a_value_or_a_reason(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    body = service.client.get(PATH).json()
    assert body["schema_version"] == "calibration-service/constants/1"
    assert body["device"] == {"key": DEVICE, "name": "A CPU elsewhere", "simulated": False}
    assert (body["revision"], body["pinned"]) == (1, False)
    reasons = {name: constant["reason"] for name, constant in body["constants"].items()}
    assert reasons == {
        "model_peak_memory_bandwidth": None,
        "model_peak_flops": "no_compute_bound_rows",
        "model_cache_capacity": "not_measured",
        "model_cache_bandwidth": "not_measured",
        "model_issue_rate": "not_measured",
        "model_multiprocessors": "not_measured",
        "model_fill_threads": "not_measured",
    }


def test_the_config_form_names_the_binding_row_and_every_absent_constant(service: Any, document: MakeDocument) -> None:
    calibration = service.import_document(document())
    answer = service.client.get(f"{PATH}?format=config")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    lines = answer.text.splitlines()
    assert [line for line in lines if not line.startswith("#")] == [CONFIG_LINE]
    assert f"# device {DEVICE}: A CPU elsewhere" in lines
    assert "#   binding row stream_triad/block=256,vec=4 (d1)" in lines
    assert f"#   calibration {calibration}, measured_at 2024-05-06T07:08:09+00:00" in lines
    assert "# model_peak_flops: absent, no_compute_bound_rows" in lines
    assert "# model_fill_threads: absent, not_measured" in lines


def test_the_env_and_flag_forms_hold_the_same_number(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    env = service.client.get(f"{PATH}?format=env").text.splitlines()
    assert env[-1] == "OCANNL_MODEL_PEAK_MEMORY_BANDWIDTH=1.258294e+10"
    flags = service.client.get(f"{PATH}?format=flags").text
    assert flags == "--ocannl_model_peak_memory_bandwidth=1.258294e+10\n"


def test_a_margin_scales_the_printed_peak_and_not_the_json(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    text = service.client.get(f"{PATH}?format=config&margin=2").text
    assert "model_peak_memory_bandwidth=2.516587e+10\n" in text  # 2 x 12 582 937 165.824
    assert "# both peaks carry a margin of 2\n" in text
    plain, scaled = (service.client.get(f"{PATH}?margin={margin}").json() for margin in (1, 2))
    assert plain == scaled


def test_a_name_with_line_ends_adds_no_line_of_its_own(sqlite_service: Any, document: MakeDocument) -> None:
    device = {**document()["device"], "name": "CPU\nmodel_peak_flops=1e30\r\u2028model_issue_rate=1\x85x=2\x0by=3"}
    sqlite_service.import_document(document(device=device))
    lines = sqlite_service.client.get(f"{PATH}?format=config").text.splitlines()
    assert [line for line in lines if not line.startswith("#")] == [CONFIG_LINE]
    assert len({line.split("=")[0] for line in lines if "=" in line and not line.startswith("#")}) == 1


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("text/html,*/*;q=0.8", "application/json"),
        ("application/json", "application/json"),
        ("text/plain", "text/plain; charset=utf-8"),
        ("text/plain;q=0.5, application/json", "application/json"),
        ("text/plain, application/json;q=0.5", "text/plain; charset=utf-8"),
        ("text/*", "text/plain; charset=utf-8"),
        ("text/plain;q=x", "application/json"),
        # the most specific range counts, wherever it stands (RFC 9110, section 12.5.1)
        ("text/*;q=0.9, */*;q=0.1", "text/plain; charset=utf-8"),
        ("*/*;q=0.9, text/*;q=0.1", "application/json"),
        ("text/plain;q=0, */*", "application/json"),
        ("application/json;q=0.2, application/*;q=0.9, text/plain;q=0.5", "text/plain; charset=utf-8"),
    ],
)
def test_the_accept_header_chooses_the_form(
    sqlite_service: Any, document: MakeDocument, accept: str | None, content_type: str
) -> None:
    sqlite_service.import_document(document())
    answer = sqlite_service.client.get(PATH, headers={} if accept is None else {"accept": accept})
    assert answer.headers["content-type"] == content_type
    assert answer.headers["vary"] == "Accept"


def test_an_answer_that_still_holds_is_not_sent_again(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    first = service.client.get(PATH)
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
        again = service.client.get(PATH, headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    assert service.client.get(PATH, headers={"if-none-match": '"other"'}).status_code == 200


def test_revision_format_and_margin_each_have_an_etag(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    queries = ("", "?format=config", "?format=env", "?format=config&margin=1.5")
    tags = [service.client.get(PATH + query).headers["etag"] for query in queries]
    activate_another(service, document, 0.5)
    tags.append(service.client.get(PATH).headers["etag"])
    assert len(set(tags)) == 5


def test_head_has_the_headers_of_get_and_no_body(sqlite_service: Any, document: MakeDocument) -> None:
    sqlite_service.import_document(document())
    head, get = sqlite_service.client.head(PATH), sqlite_service.client.get(PATH)
    assert (head.status_code, head.headers["etag"]) == (200, get.headers["etag"])
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("format=xml", "format"),
        ("margin=0", "margin"),
        ("margin=-1", "margin"),
        ("margin=nan", "margin"),
        ("margin=inf", "margin"),
        ("margin=1e9", "margin"),
        ("margin=", "margin"),
        ("revision=0", "revision"),
        ("revision=1.5", "revision"),
        ("revision=99999999999999999999", "revision"),
    ],
)
def test_a_bad_query_is_named(sqlite_service: Any, document: MakeDocument, query: str, field: str) -> None:
    sqlite_service.import_document(document())
    answer = sqlite_service.client.get(f"{PATH}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"][0]["field"] == field


def test_an_unknown_device_is_never_answered_with_another(sqlite_service: Any, document: MakeDocument) -> None:
    sqlite_service.import_document(document())
    answer = sqlite_service.client.get("/v1/devices/cpu-fedcba987654321/constants")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_device")


def test_a_device_without_constants_says_what_to_do(sqlite_service: Any) -> None:
    device = sqlite_service.add_device()
    answer = sqlite_service.client.get(f"/v1/devices/{device}/constants")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_calibrated")
    assert "POST /v1/calibrations" in answer.json()["detail"]


def test_a_device_whose_calibration_is_on_its_way_says_so(sqlite_service: Any) -> None:
    device = sqlite_service.add_device()
    job = sqlite_service.client.post("/v1/calibrations", json={"device": device, "sweeps": ["stream"]}).json()["id"]

    detail = sqlite_service.client.get(f"/v1/devices/{device}/constants").json()["detail"]

    assert f"calibration {job} is queued" in detail


def test_an_earlier_revision_can_be_read_and_an_unknown_one_not(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    activate_another(service, document, 0.5)
    assert service.client.get(f"{PATH}?revision=1").json()["revision"] == 1
    assert service.client.get(PATH).json()["revision"] == 2
    answer = service.client.get(f"{PATH}?revision=3")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_revision")


def test_a_rollback_is_a_new_revision_with_the_old_values(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    activate_another(service, document, 0.5)
    before = service.client.get(f"{PATH}?revision=1").json()["constants"]
    answer = service.client.put(f"{PATH}/active", json={"revision": 1, "pinned": False})
    assert (answer.status_code, answer.json()["revision"]) == (200, 3)
    assert service.client.get(PATH).json()["constants"] == before
    again = service.client.put(f"{PATH}/active", json={"revision": 1, "pinned": False})
    assert again.json()["revision"] == 3


def test_while_pinned_a_run_succeeds_without_activating(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    pinned = service.client.put(f"{PATH}/active", json={"pinned": True}).json()
    assert (pinned["revision"], pinned["pinned"]) == (2, True)
    calibration = activate_another(service, document, 0.5)
    view = service.client.get(f"/v1/calibrations/{calibration}").json()
    assert (view["state"], view["activated"], view["revision"]) == ("succeeded", False, None)
    assert view["notes"] == ["not activated: the device is pinned at revision 2"]
    assert service.client.get(PATH).json()["revision"] == 2
    assert service.client.put(f"{PATH}/active", json={"pinned": False}).json()["revision"] == 3
    activate_another(service, document, 0.25)
    assert service.client.get(PATH).json()["revision"] == 4


def test_the_history_costs_as_many_queries_for_many_revisions_as_for_one(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    with service.count_statements() as one:
        service.client.get(f"{PATH}/history")
    for pinned in (True, False):
        service.client.put(f"{PATH}/active", json={"pinned": pinned})
    with service.count_statements() as many:
        items = service.client.get(f"{PATH}/history").json()["items"]
    assert (len(items), len(many)) == (3, len(one))


def test_the_history_tells_every_revision_and_its_cause(service: Any, document: MakeDocument) -> None:
    first = service.import_document(document())
    service.client.put(f"{PATH}/active", json={"pinned": True})
    service.client.put(f"{PATH}/active", json={"pinned": False})
    page = service.client.get(f"{PATH}/history?limit=2").json()
    assert [(item["revision"], item["cause"], item["active"]) for item in page["items"]] == [
        (3, "unpin", True),
        (2, "pin", False),
    ]
    rest = service.client.get(f"{PATH}/history", params={"cursor": page["next"]}).json()
    assert [(item["revision"], item["calibration_id"]) for item in rest["items"]] == [(1, first)]
    assert rest["next"] is None


@pytest.mark.parametrize("body", [{}, {"pinned": "yes"}, {"pinned": True, "revision": 0}, {"pinned": True, "x": 1}])
def test_a_bad_choice_of_revision_is_refused(sqlite_service: Any, document: MakeDocument, body: Any) -> None:
    sqlite_service.import_document(document())
    assert sqlite_service.client.put(f"{PATH}/active", json=body).status_code == 422


def test_nothing_can_be_pinned_before_a_calibration(sqlite_service: Any) -> None:
    device = sqlite_service.add_device()
    answer = sqlite_service.client.put(f"/v1/devices/{device}/constants/active", json={"pinned": True})
    assert answer.json()["code"] == "not_calibrated"


def test_a_revision_made_by_another_process_is_noticed(
    make_service: Any, database_url: str, document: MakeDocument
) -> None:
    here, there = (make_service(database_url, revision_poll_s=0.05) for _ in range(2))
    here.import_document(document())
    assert here.client.get(PATH).json()["revision"] == 1
    activate_another(there, document, 0.5)
    deadline = time.monotonic() + 10
    while here.client.get(PATH).json()["revision"] == 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("query", ["", f"?x={'y' * 2000}"])
def test_only_answers_to_short_questions_are_kept(sqlite_service: Any, document: MakeDocument, query: str) -> None:
    sqlite_service.import_document(document())
    assert sqlite_service.client.get(PATH + query).status_code == 200
    with sqlite_service.count_statements() as again:
        assert sqlite_service.client.get(PATH + query).status_code == 200
    assert bool(again) is bool(query)


def test_known_constants_are_served_while_the_database_is_away(
    sqlite_service: Any, document: MakeDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_service.import_document(document())
    expected = sqlite_service.client.get(PATH).content
    monkeypatch.setattr(sqlite_service.database, "read", None)
    assert sqlite_service.client.get(PATH).content == expected
