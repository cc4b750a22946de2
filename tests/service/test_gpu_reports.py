"""The reports of real cards that are kept with the project: they import, and their fits come out again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fitting import AllCached, FillFit, Transition, fit_to_json, measurements_of, refit

REPORTS = sorted((Path(__file__).parents[1] / "data" / "gpu").glob("*_20*.json"))


@pytest.fixture(params=REPORTS, ids=lambda path: path.stem)
def report(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text())


def test_there_is_one() -> None:
    assert REPORTS


def test_every_fit_of_a_report_is_recomputed_from_its_points_to_the_last_digit(report: Any) -> None:
    for document in report["calibrations"]:
        again = json.loads(json.dumps([fit_to_json(fit) for fit in refit(document)]))
        assert again == document["fits"]


def test_a_report_imports_and_serves_what_the_card_was_measured_at(service: Any, report: Any) -> None:
    answer = service.client.post("/v1/calibrations/import?activate=true", json=report)

    assert answer.status_code == 201, answer.text
    key = report["device"]["key"]
    body = service.client.get(f"/v1/devices/{key}/constants").json()
    document = report["calibrations"][-1]
    assert {name: found["value"] for name, found in body["constants"].items()} == {
        name: found["value"] for name, found in document["constants"].items()
    }
    assert body["device"]["simulated"] is False


def test_the_h200s_outcomes_are_those_its_figures_show() -> None:
    report = json.loads(next(path for path in REPORTS if path.stem.startswith("h200")).read_text())
    document = report["calibrations"][-1]
    outcomes = {(fit.kind, fit.phase): fit.outcome for fit in refit(document)}

    assert isinstance(outcomes["capacity", "aligned"], AllCached)
    control = outcomes["capacity", "spread"]
    assert isinstance(control, Transition)
    # 5.38 TB/s requested at 67 MiB of distinct bytes and 5.00 at 73, either side of sqrt(6.43 x 4.40) = 5.32
    spread = [each.record for each in measurements_of(document).working_set if each.phase == "spread"]
    split = [p.distinct / 2**20 for p in spread if p.working_set in (control.cached_ws, control.spilled_ws)]
    assert sorted(map(round, split)) == [67, 73]
    fill = outcomes["fill", None]
    assert isinstance(fill, FillFit)
    assert (fill.cores, fill.saturation) == (132, 640)
