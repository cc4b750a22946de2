import math
from typing import Any

import pytest

ROW = {"backend": "cc", "measured_ms": 1.0, "flops": 2 * 2**20, "bytes": 12 * 2**20}


def post(service: Any, kind: str, **body: Any) -> Any:
    return service.client.post(f"/v1/fits/{kind}", json=body)


def working_set_point(working_set: int, gigabytes_per_s: float) -> dict[str, Any]:
    requested = 10 * working_set
    return {"k": 8, "working_set": working_set, "requested": requested, "ms": requested / gigabytes_per_s / 1e6}


def test_the_envelope_of_one_row_is_its_rates(sqlite_service: Any) -> None:
    answer = post(sqlite_service, "envelope", rows=[ROW]).json()
    assert answer["outcome"] == "EnvelopeFits"
    (fit,) = answer["result"]["fits"]
    assert fit["peak_flops"][0] == pytest.approx(2 * 2**20 / 1e-3)
    assert fit["peak_memory_bandwidth"][0] == pytest.approx(12 * 2**20 / 1e-3)


def test_a_capacity_lies_between_the_last_cached_and_the_first_spilled_point(sqlite_service: Any) -> None:
    points = [working_set_point(10**6, 900), working_set_point(4 * 10**6, 900), working_set_point(16 * 10**6, 100)]
    answer = post(sqlite_service, "capacity", points=points, dram_rate=1e11).json()
    assert answer["outcome"] == "Transition"
    assert answer["result"]["capacity"] == 8 * 10**6  # the geometric mean of 4 and 16 MB
    assert answer["result"]["cache_rate"] == pytest.approx(9e11)


def test_an_issue_rate_is_the_slope_of_its_line(sqlite_service: Any) -> None:
    points = [{"k": k, "scalar_ops": k * 10**6, "ms": 0.5 + k / 10} for k in (1, 2, 4)]
    answer = post(sqlite_service, "issue_rate", points=points).json()
    assert answer["outcome"] == "IssueFit"
    assert answer["result"]["rate"] == pytest.approx(1e10)  # 10^6 operations in 0.1 ms
    assert answer["result"]["latency_ms"] == pytest.approx(0.5)


def test_a_fill_is_fitted_from_launches_on_both_sides_of_full(sqlite_service: Any) -> None:
    def point(blocks: int) -> dict[str, Any]:
        ops, fill = 10**9, min(1.0, blocks * 64 / (8 * 128))
        contexts = [{"blocks": blocks, "threads": 64, "scalar_ops": ops}]
        return {"geometry": "32x32x8/4x4", "m": 32, "n": 32, "k": 512, "contexts": contexts, "ms": ops / fill / 1e9}

    answer = post(sqlite_service, "fill", points=[point(b) for b in (4, 8, 16, 32, 64)], multiprocessors=8).json()
    assert answer["outcome"] == "FillUnfittable" or answer["result"]["tied_candidates"]


@pytest.mark.parametrize(
    ("kind", "body", "outcome"),
    [
        ("capacity", {"points": [working_set_point(10**6, 900)]}, "TooFewPoints"),
        ("capacity", {"points": [{**working_set_point(10**6, 900), "ms": 0}] * 3}, "TooFewPoints"),
        ("issue_rate", {"points": [{"k": 1, "scalar_ops": 10, "ms": 1}]}, "IssueUnfittable"),
        ("issue_rate", {"points": [{"k": k, "scalar_ops": k, "ms": 9 - k} for k in (1, 2, 3)]}, "IssueUnfittable"),
        ("issue_rate", {"points": [{"k": k, "scalar_ops": k, "ms": 1} for k in (1, 2, 3)]}, "IssueUnfittable"),
    ],
)
def test_degenerate_points_give_a_typed_outcome(
    sqlite_service: Any, kind: str, body: dict[str, Any], outcome: str
) -> None:
    answer = post(sqlite_service, kind, **body)
    assert (answer.status_code, answer.json()["outcome"]) == (200, outcome)


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        ("envelope", {"rows": []}, "rows"),
        ("envelope", {"rows": [ROW] * 4097}, "rows"),
        ("envelope", {"rows": [{**ROW, "measured_ms": -1}]}, "rows.0.measured_ms"),
        ("envelope", {"rows": [{**ROW, "bytes": 2**63}]}, "rows.0.bytes"),
        ("envelope", {"rows": [{**ROW, "bytes": "1"}]}, "rows.0.bytes"),
        ("envelope", {"rows": [{**ROW, "opaque": 1}]}, "rows.0.opaque"),
        ("envelope", {"rows": [{**ROW, "speed": 1}]}, "rows.0.speed"),
        ("capacity", {"points": []}, "points"),
        ("capacity", {"points": [working_set_point(1, 1)], "dram_rate": 0}, "dram_rate"),
        ("capacity", {"points": [{**working_set_point(1, 1), "working_set": 0}]}, "points.0.working_set"),
        ("issue_rate", {"points": []}, "points"),
        ("issue_rate", {"points": [{"k": 1, "scalar_ops": 1, "ms": 1}], "fill": {}}, "fill.multiprocessors"),
        ("fill", {"points": [], "multiprocessors": 1}, "points"),
        ("fill", {"points": [{}], "multiprocessors": 0}, "points.0.geometry"),
    ],
)
def test_a_bad_fit_request_names_the_field(sqlite_service: Any, kind: str, body: dict[str, Any], field: str) -> None:
    answer = post(sqlite_service, kind, **body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"][0]["field"] == field


def test_more_work_than_a_second_or_so_is_refused(sqlite_service: Any) -> None:
    contexts = [{"blocks": 1, "threads": 1, "scalar_ops": 1}] * 64
    launch = {"geometry": "32x32x8/4x4", "m": 1, "n": 1, "k": 1, "contexts": contexts, "ms": 1}
    issue = {"k": 1, "scalar_ops": 1, "ms": 1, "contexts": contexts}
    # 64 x 64 x 17 = 69 632 and 64 x 1025 = 65 600, past 65 536; 64 x 64 x 16 and 64 x 1024 are just that
    fill = {"points": [launch] * 64, "multiprocessors": 1, "candidates": list(range(1, 18))}
    answers = [
        post(sqlite_service, "fill", **fill),
        post(sqlite_service, "issue_rate", points=[issue] * 1025),
    ]
    assert [(answer.status_code, answer.json()["errors"][0]["field"]) for answer in answers] == [(422, "points")] * 2
    fill["candidates"] = list(range(1, 17))
    assert post(sqlite_service, "fill", **fill).status_code == 200


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(sqlite_service: Any, number: str) -> None:
    content = f'{{"rows": [{{"backend": "cc", "measured_ms": {number}, "flops": 1, "bytes": 1}}]}}'
    answer = sqlite_service.client.post("/v1/fits/envelope", content=content)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "rows.0.measured_ms")
    assert math.isfinite(answer.json()["status"])
