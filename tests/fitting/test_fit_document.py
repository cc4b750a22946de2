"""The JSON forms and the calibration document."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from typing import Any

import pytest

from fitting import (
    DOCUMENT_SCHEMA,
    AllSpilled,
    CalibrationRow,
    DocumentError,
    EnvelopeFit,
    IssuePoint,
    LaunchContext,
    LaunchPoint,
    Measured,
    Measurements,
    TooFewPoints,
    WorkingSetPoint,
    fit_calibration,
    measurements_of,
    outcome_to_json,
    point_from_json,
    record_to_json,
    refit,
    row_from_json,
)

ROW = CalibrationRow("cc", "d", "stream_copy", "block=64", 1.5, None, 1, 0, 800, False, True, False)
CONTEXT = LaunchContext(16, 64, 1000, 5)
POINTS = {
    "working_set": WorkingSetPoint(256, (256, 256, 1024), 10, 20, 30, 1.5, 2.5, None),
    "issue": IssuePoint(256, 1000, 5, 1, 1.5, None, 0.5, (CONTEXT,)),
    "launch": LaunchPoint("32x32x8/4x4", 128, 128, 64, (CONTEXT,), 1.5),
}


def test_a_row_is_its_twelve_fields_both_ways() -> None:
    form = record_to_json(ROW)

    assert list(form.values()) == ["cc", "d", "stream_copy", "block=64", 1.5, None, 1, 0, 800, False, True, False]
    assert row_from_json(json.loads(json.dumps(form))) == ROW


@pytest.mark.parametrize("sweep", POINTS)
def test_a_point_reads_back(sweep: str) -> None:
    assert point_from_json(sweep, json.loads(json.dumps(record_to_json(POINTS[sweep])))) == POINTS[sweep]


def test_tuples_are_lists_and_contexts_are_objects() -> None:
    assert record_to_json(POINTS["working_set"])["loops"] == [256, 256, 1024]
    assert record_to_json(POINTS["launch"])["contexts"] == [
        {"blocks": 16, "threads": 64, "scalar_ops": 1000, "mma_ops": 5}
    ]


def test_what_has_a_default_may_be_left_out() -> None:
    point = point_from_json("issue", {"k": 1, "scalar_ops": 2, "mma_ops": 0, "kernels": 1, "ms": 0})

    assert point == IssuePoint(1, 2, 0, 1, 0.0)


@pytest.mark.parametrize(
    ("change", "path", "rule"),
    [
        ({"ms": math.nan}, "point.ms", "finite"),
        ({"ms": "1"}, "point.ms", "finite"),
        ({"ms": -1}, "point.ms", "zero or more"),
        ({"ms": True}, "point.ms", "finite"),
        ({"k": 1.0}, "point.k", "integer"),
        ({"k": 2**63}, "point.k", "integer"),
        ({"geometry": 5}, "point.geometry", "string"),
        ({"contexts": None}, "point.contexts", "list"),
        ({"contexts": [5]}, "point.contexts[0]", "object"),
        ({"contexts": [{"blocks": 1, "threads": 1}]}, "point.contexts[0].scalar_ops", "required"),
        ({"speed": 1}, "point.speed", "not a field"),
    ],
)
def test_a_bad_point_names_the_field_and_the_rule(change: dict[str, Any], path: str, rule: str) -> None:
    with pytest.raises(DocumentError, match=rule) as error:
        point_from_json("launch", {**record_to_json(POINTS["launch"]), **change})

    assert error.value.path == path


def test_a_sweep_without_points_is_refused() -> None:
    with pytest.raises(DocumentError, match="working_set, issue, launch"):
        point_from_json("stream", {})


def test_a_row_that_is_no_object_or_has_a_text_for_a_flag_is_refused() -> None:
    with pytest.raises(DocumentError, match="row: must be an object"):
        row_from_json([])
    with pytest.raises(DocumentError, match=r"row\.opaque: must be true or false"):
        row_from_json({**record_to_json(ROW), "opaque": "false"})


def test_a_record_that_is_not_finite_is_not_written() -> None:
    with pytest.raises(DocumentError, match=r"IssuePoint\.ms"):
        record_to_json(IssuePoint(1, 1, 0, 1, math.inf))


def test_an_outcome_is_its_class_and_fields() -> None:
    envelope = EnvelopeFit("cc", 1, 0, 0, 0, 0, 0, None, None, (5.0, "w"))

    assert outcome_to_json(AllSpilled(5)) == {"outcome": "AllSpilled", "result": {"smallest_ws": 5}}
    assert outcome_to_json(TooFewPoints()) == {"outcome": "TooFewPoints", "result": {}}
    form = outcome_to_json([envelope])
    assert form["outcome"] == "EnvelopeFits"
    assert form["result"]["fits"][0]["peak_memory_bandwidth"] == [5.0, "w"]


def reading(item: Measured[Any]) -> dict[str, Any]:
    windows = [{"best_ms": ms, "refused": None} for ms in item.window_ms]
    return {"role": item.role, "phase": item.phase, "windows": [*windows, {"best_ms": None, "refused": "contended"}]}


def sweep(name: str, rows: tuple[Measured[Any], ...], points: tuple[Measured[Any], ...], **more: Any) -> dict[str, Any]:
    return {
        "sweep": name,
        "constants_in_force": {},
        "facts": {},
        "rows": [{"row": record_to_json(item.record), "reading": reading(item)} for item in rows],
        "points": [{"point": record_to_json(item.record), "reading": reading(item)} for item in points],
        **more,
    }


def document_of(run: Measurements) -> dict[str, Any]:
    return {
        "schema": DOCUMENT_SCHEMA,
        "device": {"backend": "simulated", "limits": {"multiprocessors": 99}},
        "sweeps": [
            sweep("stream", run.rows[:2], (), constants_in_force={"model_fill_threads": 64, "model_peak_flops": None}),
            sweep("working_set", (), run.working_set),
            sweep("launch", (), run.launch, facts={"multiprocessors": 8}),
            sweep("issue", run.rows[2:], run.issue),
        ],
    }


def test_a_document_gives_its_measurements_back(full_run: Measurements) -> None:
    document = json.loads(json.dumps(document_of(full_run), allow_nan=False))

    assert measurements_of(document) == full_run


def test_a_refit_agrees_with_the_fits_to_the_last_digit(full_run: Measurements) -> None:
    document = json.loads(json.dumps(document_of(full_run)))

    assert refit(document) == fit_calibration(
        full_run, backend="simulated", multiprocessors=8, in_force={"model_fill_threads": 64.0}
    )


def test_without_a_sweep_that_found_the_multiprocessors_the_devices_limit_is_used(full_run: Measurements) -> None:
    document = document_of(full_run)
    document["sweeps"][2]["facts"] = {}

    fill = next(fit for fit in refit(document) if fit.kind == "fill")

    assert fill.inputs["multiprocessors"] == 99


@pytest.mark.parametrize(
    ("keys", "bad", "path"),
    [
        (("schema",), "other/1", "document.schema"),
        (("sweeps",), {}, "document.sweeps"),
        (("sweeps", 0, "sweep"), "speed", "document.sweeps[0].sweep"),
        (("sweeps", 0, "rows", 1, "row", "bytes"), -1, "document.sweeps[0].rows[1].row.bytes"),
        (("sweeps", 1, "points", 0, "point", "ms"), math.inf, "document.sweeps[1].points[0].point.ms"),
        (("sweeps", 0, "rows", 0, "reading", "role"), None, "document.sweeps[0].rows[0].reading.role"),
        (("device",), None, "document.device"),
        (("device", "backend"), 5, "document.device.backend"),
        (("sweeps", 2, "facts", "multiprocessors"), 2.5, "document.sweeps[2].facts.multiprocessors"),
        (
            ("sweeps", 0, "constants_in_force", "model_peak_flops"),
            0,
            "document.sweeps[0].constants_in_force.model_peak_flops",
        ),
    ],
)
def test_a_bad_document_names_the_place(full_run: Measurements, keys: tuple[Any, ...], bad: Any, path: str) -> None:
    document = deepcopy(document_of(full_run))
    place: Any = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = bad

    with pytest.raises(DocumentError) as error:
        refit(document)

    assert error.value.path == path
