import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

TRIAD = 3 * 4 * 2**20 / 1e-3  # bytes a second
DEVICE = "cpu-fedcba9876543210"
MakeDocument = Callable[..., dict[str, Any]]


def test_an_imported_document_is_a_succeeded_calibration_that_serves_nothing_unasked(
    service: Any, document: MakeDocument
) -> None:
    answer = service.client.post("/v1/calibrations/import", json=document())
    assert answer.status_code == 201
    view = answer.json()
    assert (view["state"], view["origin"], view["activated"], view["revision"]) == ("succeeded", "import", False, None)
    assert view["started_at"] == "2024-05-06T07:08:09Z"
    assert view["finished_at"] == "2024-05-06T07:09:00Z"
    assert answer.headers["location"] == f"/v1/calibrations/{view['id']}"
    assert service.client.get(f"/v1/devices/{DEVICE}/constants").json()["code"] == "not_calibrated"


def test_an_activated_import_serves_the_rate_of_its_fastest_row(service: Any, document: MakeDocument) -> None:
    calibration = service.import_document(document())
    body = service.client.get(f"/v1/devices/{DEVICE}/constants").json()
    peak = body["constants"]["model_peak_memory_bandwidth"]
    assert peak["value"] == pytest.approx(TRIAD, rel=1e-15)
    assert (peak["unit"], peak["outcome"], peak["calibration_id"]) == ("byte/s", "EnvelopeFit", calibration)
    assert peak["measured_at"] == "2024-05-06T07:08:09Z"
    assert peak["quality"]["witness"] == "stream_triad/block=256,vec=4 (d1)"
    fits = service.client.get(f"/v1/calibrations/{calibration}/fits").json()["items"]
    assert peak["fit_id"] in [fit["id"] for fit in fits if fit["kind"] == "envelope"]


def test_an_import_is_idempotent_by_its_id(service: Any, document: MakeDocument) -> None:
    service.import_document(document())
    again = service.client.post("/v1/calibrations/import?activate=true", json=document())
    assert again.status_code == 200
    assert service.client.get("/v1/calibrations").json()["next"] is None
    assert service.client.get(f"/v1/devices/{DEVICE}/constants").json()["revision"] == 1


def test_a_doubtful_import_asked_to_activate_again_and_again_makes_one_revision(
    service: Any, document: MakeDocument
) -> None:
    service.import_document(document())
    doubtful = document(id="6f1f7f36-3c56-4d1c-9d0b-0123456789ac")
    doubtful["sweeps"][0]["doubtful"] = ["noisy"]
    answers = [service.client.post("/v1/calibrations/import?activate=true", json=doubtful) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 200, 200]
    assert [(answer.json()["activated"], answer.json()["revision"]) for answer in answers] == [(False, 2)] * 3
    history = service.client.get(f"/v1/devices/{DEVICE}/constants/history").json()["items"]
    assert [item["revision"] for item in history] == [2, 1]


def test_an_import_that_was_only_kept_can_be_activated_later(service: Any, document: MakeDocument) -> None:
    service.import_document(document(), activate=False)
    again = service.client.post("/v1/calibrations/import?activate=true", json=document())
    assert again.status_code == 200
    assert again.json()["activated"] is True
    assert service.client.get(f"/v1/devices/{DEVICE}/constants").json()["revision"] == 1


def test_the_last_calibration_of_a_gpu_check_is_imported(service: Any, document: MakeDocument) -> None:
    check = {"schema": "calibration-service/gpu-check/1", "steps": {}, "calibrations": [{"odd": 1}, document()]}

    answer = service.client.post("/v1/calibrations/import?activate=true", json=check)

    assert answer.status_code == 201
    assert answer.json()["id"] == document()["id"]
    assert service.client.get(f"/v1/devices/{DEVICE}/constants").json()["revision"] == 1


def test_a_gpu_check_that_ended_early_says_so(sqlite_service: Any) -> None:
    check = {"schema": "calibration-service/gpu-check/1", "steps": {}, "calibrations": []}

    answer = sqlite_service.client.post("/v1/calibrations/import", json=check)

    assert answer.status_code == 422
    assert "ended before a calibration was done" in answer.json()["detail"]


def test_other_data_under_a_known_id_is_a_conflict(service: Any, document: MakeDocument) -> None:
    given = document()
    service.import_document(given)
    other = copy.deepcopy(given)
    other["sweeps"][0]["rows"][0]["reading"]["median_ms"] = 0.9
    answer = service.client.post("/v1/calibrations/import", json=other)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_an_export_can_be_imported_elsewhere_and_is_the_same_again(
    make_service: Any, sqlite_service: Any, document: MakeDocument, database_url: str
) -> None:
    sqlite_service.import_document(document())
    exported = sqlite_service.client.get(f"/v1/calibrations/{document()['id']}/export").json()
    elsewhere = make_service(database_url)
    elsewhere.import_document(exported)
    again = elsewhere.client.get(f"/v1/calibrations/{document()['id']}/export").json()
    assert again == {**exported, "origin": "import"}
    assert sqlite_service.client.post("/v1/calibrations/import", json=again).status_code == 200


def test_the_constants_of_a_document_are_not_believed(service: Any, document: MakeDocument) -> None:
    given = document()
    given["constants"] = {"model_peak_memory_bandwidth": {"value": 1e15}}
    service.import_document(given)
    constants = service.client.get(f"/v1/devices/{DEVICE}/constants").json()["constants"]
    assert constants["model_peak_memory_bandwidth"]["value"] == pytest.approx(TRIAD, rel=1e-15)


def test_fits_that_the_points_do_not_give_are_refused(sqlite_service: Any, document: MakeDocument) -> None:
    given = document()
    given["fits"][0]["result"]["fits"][0]["peak_memory_bandwidth"][0] *= 1.001
    answer = sqlite_service.client.post("/v1/calibrations/import", json=given)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"][0]["field"] == "document.fits[0].result.fits[0].peak_memory_bandwidth[0]"


def test_a_document_without_its_fits_is_refused(sqlite_service: Any, document: MakeDocument) -> None:
    answer = sqlite_service.client.post("/v1/calibrations/import", json={**document(), "fits": []})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "document.fits"


def test_what_was_measured_on_a_simulated_device_stays_marked(service: Any, document: MakeDocument) -> None:
    base = document()
    simulated = {
        **base["device"],
        "key": "sim-fedcba9876543210",
        "backend": "simulated",
        "kind": "simulated",
        "simulated": True,
        "limits": {**base["device"]["limits"], "backend": "simulated"},
    }
    given = document(device=simulated, sweeps=_with_backend(base, "simulated"))
    calibration = service.import_document(given)
    assert service.client.get(f"/v1/calibrations/{calibration}").json()["simulated"] is True
    answer = service.client.get("/v1/devices/sim-fedcba9876543210/constants?format=config")
    assert "# SIMULATED device" in answer.text
    assert answer.headers["calibration-simulated"] == "true"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"simulated": True}, "document.device.simulated"),
        ({"key": "sim-fedcba9876543210"}, "document.device.simulated"),
        ({"key": "cpu-1\nmodel_x=1"}, "document.device.key"),
        ({"backend": "cuda"}, "document.device.limits.backend"),
        ({"name": "a\x00b"}, "document.device.name"),
        ({"facts": {"cores": 2**63}}, "document.device.facts.cores"),
    ],
)
def test_a_document_about_an_impossible_device_is_refused(
    sqlite_service: Any, document: MakeDocument, change: dict[str, Any], field: str
) -> None:
    given = document()
    given["device"] = {**given["device"], **change}
    answer = sqlite_service.client.post("/v1/calibrations/import", json=given)
    assert answer.status_code == 422
    assert field in [error["field"] for error in answer.json()["errors"]]


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("row", "measured_ms"), -1.0, "document.sweeps[0].rows[0].row.measured_ms"),
        (("row", "bytes"), 1.5, "document.sweeps[0].rows[0].row.bytes"),
        (("row", "surplus"), 1, "document.sweeps[0].rows[0].row.surplus"),
        (("reading", "role"), "x" * 17, "document.sweeps.0.rows.0.reading.role"),
    ],
)
def test_a_bad_record_in_a_document_is_named(
    sqlite_service: Any, document: MakeDocument, path: tuple[str, str], value: Any, field: str
) -> None:
    given = document()
    given["sweeps"][0]["rows"][0][path[0]][path[1]] = value
    answer = sqlite_service.client.post("/v1/calibrations/import", json=given)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"cores": 2', '"cores": 1e400'),
        ('"samples": 16', '"samples": -1e400'),
        ('"median_ms": 1.0', '"median_ms": 1e400'),
    ],
)
def test_a_number_past_a_floats_range_is_refused(
    sqlite_service: Any, document: MakeDocument, before: str, after: str
) -> None:
    text = json.dumps(document())
    assert before in text
    answer = sqlite_service.client.post("/v1/calibrations/import", content=text.replace(before, after))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("body", [b"", b"[", b"null", b'{"schema": NaN}', b"\xff", b"[" * 5000])
def test_a_body_that_is_no_document_is_refused(sqlite_service: Any, body: bytes) -> None:
    answer = sqlite_service.client.post("/v1/calibrations/import", content=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_rows_come_back_as_the_lines_of_a_row_file(service: Any, document: MakeDocument) -> None:
    calibration = service.import_document(document())
    answer = service.client.get(f"/v1/calibrations/{calibration}/rows?format=tsv")
    assert answer.headers["content-type"].startswith("text/tab-separated-values")
    lines = answer.text.splitlines()
    assert lines[3].split("\t") == [
        "cc", "d1", "stream_triad", "block=256,vec=4", "1.000000", "", "1", "2097152", "12582912",
        "false", "false", "false",
    ]  # fmt: skip
    assert service.client.get(f"/v1/devices/{DEVICE}/rows.tsv").text == answer.text


def test_a_point_timed_again_to_see_drift_is_in_no_row_file(service: Any, document: MakeDocument) -> None:
    given = document()
    rows = given["sweeps"][0]["rows"]
    again = copy.deepcopy(rows[0])
    again["reading"]["role"] = "repeat"
    rows.append(again)
    calibration = service.import_document(given)

    answer = service.client.get(f"/v1/calibrations/{calibration}/rows?format=tsv")

    assert len(answer.text.splitlines()) == len(rows) - 1
    assert service.client.get(f"/v1/devices/{DEVICE}/rows.tsv").text == answer.text
    assert len(service.client.get(f"/v1/calibrations/{calibration}/rows").json()["items"]) == len(rows)


def test_rows_are_paged(service: Any, document: MakeDocument) -> None:
    calibration = service.import_document(document())
    path = f"/v1/calibrations/{calibration}/rows?limit=3"
    first = service.client.get(path).json()
    rest = service.client.get(path, params={"limit": 3, "cursor": first["next"]}).json()
    names = [item["record"]["routine"] for item in first["items"] + rest["items"]]
    assert names == ["stream_copy", "stream_scale", "stream_add", "stream_triad"]
    assert rest["next"] is None


def test_an_unfinished_calibration_has_no_export(sqlite_service: Any) -> None:
    device = sqlite_service.add_device()
    made = sqlite_service.client.post("/v1/calibrations", json={"device": device, "sweeps": ["stream"]}).json()
    answer = sqlite_service.client.get(f"/v1/calibrations/{made['id']}/export")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_succeeded")


def test_no_answer_holds_a_number_that_json_has_not(service: Any, document: MakeDocument) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} in an answer")

    calibration = service.import_document(document())
    for path in ("", "/rows", "/fits", "/export", "/points/issue"):
        answer = service.client.get(f"/v1/calibrations/{calibration}{path}")
        assert answer.status_code == 200
        json.loads(answer.text, parse_constant=refuse)


def _with_backend(document: dict[str, Any], backend: str) -> list[dict[str, Any]]:
    sweeps = copy.deepcopy(document["sweeps"])
    for item in sweeps[0]["rows"]:
        item["row"]["backend"] = backend
    return sweeps
