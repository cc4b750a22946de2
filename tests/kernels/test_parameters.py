"""Which requests can be run, and the field and rule that a refused one names."""

import math
from dataclasses import replace

import pytest

from kernels.parameters import (
    LEAD,
    SWEEPS,
    WIDE,
    DeviceLimits,
    ParameterError,
    UnsupportedSweepError,
    bytes_needed,
    launch_extent,
    launch_pairs,
    parse_geometry,
    resolve,
    resolve_all,
)

GIB = 1 << 30
LIMITS = DeviceLimits(
    backend="cc",
    memory_bytes=8 * GIB,
    last_level_cache_bytes=32 << 20,
    multiprocessors=2,
    sweeps=SWEEPS,
    geometries=(LEAD.label, WIDE.label),
)


def refused(sweep, given, limits=LIMITS):
    with pytest.raises(ParameterError) as caught:
        resolve(sweep, given, limits)
    return caught.value.field, caught.value.rule


def test_the_defaults_are_those_of_the_reference():
    assert resolve("stream", {}, LIMITS) == {"elems": 1 << 26, "repeats": 16}
    assert resolve("working_set", {}, LIMITS) == {
        "m": 256,
        "n": 1024,
        "ks": [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
        "repeats": 10,
    }
    assert resolve("issue", {}, LIMITS) == {
        "m": 512,
        "n": 512,
        "ks": [256, 512, 1024, 2048, 4096, 8192, 16384, 32768],
        "repeats": 10,
    }
    assert resolve("launch", {}, LIMITS) == {
        "geometries": ["32x32x8/4x4", "64x64x8/4x4"],
        "sizes": [32, 64, 128, 256, 512, 1024],
        "max_size": 4096,
        "target_ops": 1 << 31,
        "max_k": 1 << 20,
        "repeats": 10,
    }


def test_a_large_cache_raises_the_default_elems_to_four_times_its_size_in_a_power_of_two():
    # 96 MiB of cache ask for 384 MiB an array = 100 663 296 floats; the next power of two is 2^27
    assert resolve("stream", {}, replace(LIMITS, last_level_cache_bytes=96 << 20))["elems"] == 1 << 27


def test_a_small_memory_lowers_the_default_elems_but_never_under_the_cache_rule():
    # 12 * 2^26 bytes are 768 MiB; of 600 MiB three quarters hold 2^25 elements, 384 MiB, exactly at 4 x 32 MiB
    assert resolve("stream", {}, replace(LIMITS, memory_bytes=600 << 20))["elems"] == 1 << 25


def test_a_cache_larger_than_the_memory_allows_is_refused_with_both_sizes():
    limits = replace(LIMITS, memory_bytes=2 * GIB, last_level_cache_bytes=GIB)
    assert refused("stream", {}, limits) == (
        "stream.elems",
        "needs 12884901888 bytes; the device has 2147483648 bytes",
    )


def test_elems_under_four_times_the_cache_are_refused_with_the_least_allowed():
    field, rule = refused("stream", {"elems": (1 << 25) - 1})
    assert field == "stream.elems"
    assert "the least is 33554432 elements" in rule
    assert resolve("stream", {"elems": 1 << 25}, LIMITS)["elems"] == 1 << 25


def test_elems_beyond_the_memory_are_refused_with_the_bytes_needed_and_there():
    assert refused("stream", {"elems": 1 << 40}) == (
        "stream.elems",
        "needs 13194139533312 bytes; the device has 8589934592 bytes",
    )


def test_elems_need_not_be_a_power_of_two():
    assert resolve("stream", {"elems": 100_000_007}, LIMITS)["elems"] == 100_000_007


@pytest.mark.parametrize("value", [True, 1.0, math.nan, "16", None, [16]])
@pytest.mark.parametrize(("sweep", "name"), [("stream", "repeats"), ("issue", "m"), ("launch", "target_ops")])
def test_only_integers_are_integers(sweep, name, value):
    field, rule = refused(sweep, {name: value})
    assert field == f"{sweep}.{name}"
    assert rule.startswith("must be an integer")


@pytest.mark.parametrize(
    ("sweep", "given", "field", "rule"),
    [
        ("working_set", {"ks": []}, "working_set.ks", "1 to 64 values"),
        ("working_set", {"ks": [0]}, "working_set.ks", "from 1"),
        ("working_set", {"ks": [-8]}, "working_set.ks", "from 1"),
        ("working_set", {"ks": [512, 256]}, "working_set.ks", "ascending"),
        ("working_set", {"ks": [256, 256]}, "working_set.ks", "ascending"),
        ("working_set", {"ks": [100]}, "working_set.ks", "multiple of 8"),
        ("working_set", {"ks": [10**9]}, "working_set.ks", "bytes"),
        ("working_set", {"ks": list(range(8, 8_000_001, 8))}, "working_set.ks", "not 1000000"),
        ("working_set", {"ks": 256}, "working_set.ks", "list"),
        ("working_set", {"ks": [1 << 20], "m": 8192, "n": 512}, "working_set.ks", "bytes"),
        ("working_set", {"ks": [32768], "m": 8192, "n": 16384}, "working_set.ks", "operations"),
        ("working_set", {"n": 1000}, "working_set.n", "multiple of the untiled kernel's block of 512"),
        ("working_set", {"repeats": 0}, "working_set.repeats", "from 1 to 1000"),
        ("working_set", {"repeats": 10**6}, "working_set.repeats", "from 1 to 1000"),
        ("issue", {"m": 500}, "issue.m", "multiple of 32"),
        ("issue", {"n": 33}, "issue.n", "multiple of 32"),
        ("issue", {"ks": [12]}, "issue.ks", "multiple of 8"),
        ("issue", {"m": 10**5000}, "issue.m", "from 1"),
        ("launch", {"geometries": []}, "launch.geometries", "list"),
        ("launch", {"geometries": ["16x16x8/4x4"]}, "launch.geometries", "not in the family"),
        ("launch", {"geometries": [7]}, "launch.geometries", "not in the family"),
        ("launch", {"geometries": [LEAD.label] * 2}, "launch.geometries", "twice"),
        ("launch", {"sizes": [32]}, "launch.geometries", "64x64x8/4x4 tiles none of the sizes [32]"),
        ("launch", {"sizes": list(range(64, 64 * 40, 64))}, "launch.sizes", "at most 64 points"),
        ("launch", {"max_size": 512}, "launch.max_size", "from 1024"),
        ("launch", {"max_k": 256}, "launch.max_k", "from 512"),
        ("launch", {"target_ops": 1 << 43}, "launch.target_ops", "4398046511104"),
        ("launch", {"block": 3}, "launch.block", "unknown parameter"),
        ("stream", [], "stream", "object"),
        ("warp", {}, "sweeps", "unknown sweep 'warp'"),
    ],
)
def test_a_bad_request_names_the_field_and_the_rule(sweep, given, field, rule):
    named, told = refused(sweep, given)
    assert named == field
    assert rule in told


def test_a_size_that_only_one_geometry_tiles_is_skipped_and_listed():
    assert resolve("launch", {"sizes": [32, 64]}, LIMITS)["max_size"] == 64
    pairs, skipped = launch_pairs([LEAD.label, WIDE.label], [32, 64])
    assert pairs == [(LEAD, 32), (LEAD, 64), (WIDE, 64)]
    assert skipped == ["64x64x8/4x4 does not tile 32 x 32"]


def test_a_sweep_that_the_device_lacks_says_which_backends_have_it():
    with pytest.raises(UnsupportedSweepError) as caught:
        resolve("launch", {}, replace(LIMITS, sweeps=("stream",)))
    assert caught.value.field == "sweeps"
    assert caught.value.backends == ("cuda", "hip", "cc", "simulated")
    assert "cuda, hip, cc, simulated" in caught.value.rule


def test_defaults_shrink_to_a_small_memory_instead_of_being_refused():
    small = replace(LIMITS, memory_bytes=200 << 20, last_level_cache_bytes=4 << 20)
    for sweep in SWEEPS:
        assert bytes_needed(sweep, resolve(sweep, {}, small)) <= small.memory_bytes


def test_bytes_needed_by_hand():
    assert bytes_needed("stream", {"elems": 1000}) == 12_000  # three arrays of four bytes an element
    # 4 * (k (m + n) + m n) = 4 * (16 * 3072 + 1024 * 2048)
    assert bytes_needed("issue", {"m": 1024, "n": 2048, "ks": [8, 16]}) == 4 * (16 * 3072 + 1024 * 2048)
    launch = {"geometries": [LEAD.label, WIDE.label], "sizes": [32, 64], "target_ops": 1 << 22, "max_k": 1 << 20}
    # size 32: 2^22 / 2^11 = 2048; size 64: 2^22 / 2^13 = 512
    assert bytes_needed("launch", launch) == 4 * (2048 * 64 + 32 * 32) + 4 * (512 * 128 + 64 * 64)


@pytest.mark.parametrize(
    ("size", "k"),
    [(32, 1 << 20), (64, 1 << 18), (128, 1 << 16), (256, 1 << 14), (512, 1 << 12), (1024, 1 << 10), (2048, 512)],
)
def test_reduction_extents_put_two_to_the_31_operations_in_each_launch_and_are_never_under_512(size, k):
    assert launch_extent(size, 1 << 31, 1 << 20) == k


def test_a_reduction_extent_is_the_nearest_power_of_two_in_the_ratio():
    # 2^31 / (2 * 96^2) = 116508.4, which is past sqrt(2) * 65536 = 92681.9
    assert launch_extent(96, 1 << 31, 1 << 20) == 1 << 17
    # 2^31 / (2 * 120^2) = 74565.4 is not
    assert launch_extent(120, 1 << 31, 1 << 20) == 1 << 16


def test_geometries_are_read_back_from_their_labels():
    assert parse_geometry("32x32x8/4x4") == LEAD
    assert parse_geometry("64x64x8/4x4") == WIDE
    assert (LEAD.threads, WIDE.threads) == (64, 256)


@pytest.mark.parametrize("label", ["", "32x32x8", "32x32x8/4x4x4", "0x32x8/4x4", "32x32x8/5x4", "32x32x8/4x-4"])
def test_what_is_no_geometry_is_a_value_error(label):
    with pytest.raises(ValueError, match=r"geometry|zero|divide"):
        parse_geometry(label)


def test_sweeps_run_in_the_order_that_lets_each_use_the_constants_before_it():
    assert list(resolve_all(None, {}, LIMITS)) == ["stream", "working_set", "launch", "issue"]
    assert list(resolve_all(["issue", "stream"], {"issue": {"repeats": 3}}, LIMITS)) == ["stream", "issue"]


@pytest.mark.parametrize(
    ("sweeps", "given", "field"),
    [
        ([], {}, "sweeps"),
        (["stream", "stream"], {}, "sweeps"),
        (["nope"], {}, "sweeps"),
        (["stream"], {"issue": {}}, "issue"),
    ],
)
def test_a_list_of_sweeps_is_checked_too(sweeps, given, field):
    with pytest.raises(ParameterError) as caught:
        resolve_all(sweeps, given, LIMITS)
    assert caught.value.field == field
