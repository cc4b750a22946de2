"""The rules of which run counts, on sets made by hand."""

from collections.abc import Sequence
from typing import Any

import pytest

from fitting import CONSTANTS, Absent, AllCached, AllSpilled
from service.activation import contradictions, next_set
from service.constant_sets import Entry, empty_set

MEMORY, FLOPS = "model_peak_memory_bandwidth", "model_peak_flops"
CAPACITY, BANDWIDTH = "model_cache_capacity", "model_cache_bandwidth"
RATE, PROCESSORS, THREADS = "model_issue_rate", "model_multiprocessors", "model_fill_threads"


def value(name: str, number: float, **fields: Any) -> Entry:
    return Entry(name, CONSTANTS[name].unit, number, None, **fields)


def absent(name: str, reason: str) -> Entry:
    return Entry(name, CONSTANTS[name].unit, None, reason)


def a_set(*entries: Entry) -> dict[str, Entry]:
    return {**empty_set(), **{entry.name: entry for entry in entries}}


def values(entries: dict[str, Entry]) -> dict[str, float]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def following(old: dict[str, Entry], *measured: Entry, doubtful: Sequence[str] = (), **keywords: Any) -> Any:
    reasons = {entry.name: list(doubtful) for entry in measured}
    return next_set(old, {entry.name: entry for entry in measured}, doubtful=reasons, **keywords)


def test_the_first_run_fills_an_empty_set_and_leaves_the_rest_not_measured() -> None:
    result = following({}, value(MEMORY, 4e12))
    assert values(result.entries) == {MEMORY: 4e12}
    assert {entry.reason for name, entry in result.entries.items() if name != MEMORY} == {"not_measured"}
    assert result.replaced == ((MEMORY,),)


def test_a_run_that_gives_and_takes_no_value_replaces_nothing_but_the_reason() -> None:
    result = following(a_set(value(MEMORY, 4e12)), value(MEMORY, 5e12), absent(FLOPS, "no_rows"), doubtful=["noisy"])
    assert values(result.entries) == {MEMORY: 4e12}
    assert result.entries[FLOPS].reason == "no_rows"
    assert result.replaced == ()


def test_a_group_that_was_not_measured_is_carried_over() -> None:
    result = following(a_set(value(MEMORY, 4e12), value(FLOPS, 6e13)), value(MEMORY, 4.1e12))
    assert values(result.entries) == {MEMORY: 4.1e12, FLOPS: 6e13}


def test_a_smaller_peak_of_a_later_run_replaces_a_larger_one() -> None:
    assert values(following(a_set(value(MEMORY, 4e12)), value(MEMORY, 3e12)).entries) == {MEMORY: 3e12}


def test_a_group_is_replaced_as_a_whole() -> None:
    old = a_set(value(RATE, 1e13), value(PROCESSORS, 132), value(THREADS, 128))
    result = following(old, value(RATE, 2e13), value(PROCESSORS, 66), value(THREADS, 256))
    assert values(result.entries) == {RATE: 2e13, PROCESSORS: 66, THREADS: 256}


def test_an_issue_run_alone_keeps_the_fill_it_was_fitted_under() -> None:
    old = a_set(value(RATE, 1e13), value(PROCESSORS, 132), value(THREADS, 128))
    unmeasured = [absent(PROCESSORS, "not_measured"), absent(THREADS, "not_measured")]
    result = following(old, value(RATE, 2e13), *unmeasured)
    assert values(result.entries) == {RATE: 2e13, PROCESSORS: 132, THREADS: 128}


def test_a_run_without_a_value_keeps_the_old_one_and_notes_the_attempt() -> None:
    result = following(a_set(value(FLOPS, 6e13)), absent(FLOPS, "no_compute_bound_rows"), attempt="calibration 7")
    assert values(result.entries) == {FLOPS: 6e13}
    assert result.entries[FLOPS].notes == ("calibration 7 gave no value (no_compute_bound_rows)",)
    assert result.replaced == ()
    assert len(result.notes) == 1


def test_a_run_that_would_lose_half_a_group_leaves_all_of_it() -> None:
    old = a_set(value(CAPACITY, 50_000_000), value(BANDWIDTH, 9e12))
    result = following(old, absent(CAPACITY, "all_cached"), value(BANDWIDTH, 8e12))
    assert values(result.entries) == {CAPACITY: 50_000_000, BANDWIDTH: 9e12}
    assert "measured 8.000000e+12 byte/s" in result.entries[BANDWIDTH].notes[0]


def test_a_contradicted_capacity_becomes_absent_with_the_reason() -> None:
    old = a_set(value(CAPACITY, 50_000_000), value(BANDWIDTH, 9e12))
    measured = [absent(CAPACITY, "all_cached"), value(BANDWIDTH, 8e12)]
    result = following(old, *measured, contradicted=[CAPACITY])
    assert values(result.entries) == {BANDWIDTH: 8e12}
    assert result.entries[CAPACITY].reason == "all_cached"


@pytest.mark.parametrize(
    ("outcome", "reason", "expected"),
    [
        (AllCached(largest_ws=50_000_000, cache_rate=9e12), "all_cached", [CAPACITY]),
        (AllCached(largest_ws=49_999_999, cache_rate=9e12), "all_cached", []),
        (AllSpilled(smallest_ws=50_000_000), "all_spilled", [CAPACITY]),
        (AllSpilled(smallest_ws=50_000_001), "all_spilled", []),
        (AllCached(largest_ws=50_000_000, cache_rate=9e12), "low_contrast", []),
    ],
)
def test_an_outcome_contradicts_a_capacity_on_its_own_side(
    outcome: AllCached | AllSpilled, reason: str, expected: list[str]
) -> None:
    old = a_set(value(CAPACITY, 50_000_000))
    assert contradictions(old, {CAPACITY: Absent(CAPACITY, "byte", reason, outcome)}) == expected


def test_nothing_is_contradicted_where_nothing_was_known() -> None:
    measured = {CAPACITY: Absent(CAPACITY, "byte", "all_spilled", AllSpilled(smallest_ws=1))}
    assert contradictions({}, measured) == []


def test_a_doubtful_group_activates_where_there_is_nothing_and_is_marked() -> None:
    result = following({}, value(MEMORY, 4e12), doubtful=["stream: windows differ by 12 %"])
    assert values(result.entries) == {MEMORY: 4e12}
    assert result.entries[MEMORY].doubtful == ("stream: windows differ by 12 %",)


def test_a_doubtful_group_does_not_replace_anything() -> None:
    result = following(a_set(value(MEMORY, 4e12)), value(MEMORY, 3e12), doubtful=["stream: steal over 5 %"])
    assert values(result.entries) == {MEMORY: 4e12}
    assert result.entries[MEMORY].doubtful == ()
    assert "doubtful: stream: steal over 5 %" in result.entries[MEMORY].notes[0]


def test_a_doubtful_group_does_not_replace_a_doubtful_one() -> None:
    old = a_set(value(MEMORY, 4e12, doubtful=("stream: steal over 5 %",)))
    result = following(old, value(MEMORY, 3e12), doubtful=["stream: steal over 5 %"])
    assert values(result.entries) == {MEMORY: 4e12}


def test_a_good_run_replaces_a_doubtful_value_and_clears_the_mark() -> None:
    old = a_set(value(MEMORY, 4e12, doubtful=("stream: steal over 5 %",), notes=("an attempt",)))
    result = following(old, value(MEMORY, 3e12))
    assert (result.entries[MEMORY].value, result.entries[MEMORY].doubtful) == (3e12, ())
    assert result.entries[MEMORY].notes == ()


def test_one_doubtful_constant_makes_its_whole_group_doubtful() -> None:
    measured = [value(CAPACITY, 1e6, doubtful=("not monotone",)), value(BANDWIDTH, 9e12)]
    result = following({}, *measured)
    assert {result.entries[name].doubtful for name in (CAPACITY, BANDWIDTH)} == {("not monotone",)}


def test_a_doubtful_run_contradicts_nothing() -> None:
    old = a_set(value(CAPACITY, 50_000_000), value(BANDWIDTH, 9e12))
    measured = [absent(CAPACITY, "all_spilled"), absent(BANDWIDTH, "all_spilled")]
    result = following(old, *measured, doubtful=["working_set: drift"], contradicted=[CAPACITY])
    assert values(result.entries) == {CAPACITY: 50_000_000, BANDWIDTH: 9e12}


def test_only_the_last_five_attempts_are_noted() -> None:
    entries = a_set(value(FLOPS, 6e13))
    for number in range(7):
        entries = dict(following(entries, absent(FLOPS, "no_compute_bound_rows"), attempt=f"run {number}").entries)
    assert [note.split(" gave")[0] for note in entries[FLOPS].notes] == [f"run {number}" for number in range(2, 7)]
