"""References against hand calculations, and what a wrong element is reported as."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import verification
from kernels.backends.base import StreamCandidate, StreamKernel, StreamName
from kernels.errors import VerificationError
from kernels.verification import (
    ContractionReference,
    Float32,
    check_contraction,
    check_equal,
    check_stream,
    fma_reference,
    stream_streams,
)

CANDIDATE = StreamCandidate(32, 16, 4)


def arrays(**values: list[float]) -> dict[str, Float32]:
    return {name: np.array(numbers, np.float32) for name, numbers in values.items()}


def check(name: StreamName, held: dict[str, Float32]) -> None:
    kernel = StreamKernel(name, len(held["a"]), CANDIDATE)
    check_stream(kernel, lambda array, start, stop: held[array][start:stop])


def operands(k: int, m: int, n: int) -> dict[str, Float32]:
    rng = np.random.default_rng(1)
    return {"dy": rng.uniform(-1, 1, (k, m)).astype(np.float32), "x": rng.uniform(-1, 1, (k, n)).astype(np.float32)}


def test_copy_and_scale_move_two_streams_and_add_and_triad_three() -> None:
    assert [stream_streams(name) for name in ("copy", "scale", "add", "triad")] == [2, 2, 3, 3]


def test_the_results_of_all_four_kernels_by_hand_are_accepted() -> None:
    check("copy", arrays(a=[0.25, -1.0], b=[0, 0], c=[0.25, -1.0]))
    check("scale", arrays(a=[0.25, -1.0], b=[0.125, -0.5], c=[0, 0]))
    check("add", arrays(a=[0.25, -1.0], b=[0.5, 0.75], c=[0.75, -0.25]))
    check("triad", arrays(a=[0.625, 0.25], b=[0.5, 0.75], c=[0.25, -1.0]))


def test_one_unit_in_the_last_place_is_a_failure_that_names_all_it_needs() -> None:
    held = arrays(a=[0.25, 0.5, 0.5], b=[0, 0, 0], c=[0.25, 0.5, 0.5])
    held["c"][1] = np.nextafter(np.float32(0.5), np.float32(1))

    with pytest.raises(VerificationError) as caught:
        check("copy", held)

    message = str(caught.value)
    assert message.startswith("stream_copy block=32,vec=16,ept=4: 1 of 3 elements")
    assert "[1]: got 0.5000000596046448, expected 0.5" in message  # 0.5 + 2^-24


def test_an_element_that_was_left_poisoned_is_a_failure() -> None:
    with pytest.raises(VerificationError, match=r"2 of 2 .* got nan, expected -0\.25"):
        check("add", arrays(a=[-0.5, 1.0], b=[0.25, 0.0], c=[np.nan, np.nan]))


def test_wrong_elements_far_apart_are_all_counted_and_the_first_is_named() -> None:
    elems = 300_001  # three chunks, the last one short
    held = {"a": np.ones(elems, np.float32), "b": np.zeros(elems, np.float32), "c": np.ones(elems, np.float32)}
    held["c"][[200_000, 300_000]] = 2

    with pytest.raises(VerificationError, match=r"2 of 300001 .*\[200000\]: got 2\.0, expected 1\.0"):
        check("copy", held)


def test_triads_two_roundings_and_its_fma_agree_because_half_of_a_float_is_exact() -> None:
    rng = np.random.default_rng(7)
    b, c = (rng.uniform(-1, 1, 10_000).astype(np.float32) for _ in range(2))
    stepwise = b + np.float32(0.5) * c
    fused = (b.astype(np.longdouble) + np.longdouble(0.5) * c.astype(np.longdouble)).astype(np.float32)

    for result in (stepwise, fused):
        check("triad", {"a": result, "b": b, "c": c})


def test_the_contraction_by_hand() -> None:
    # dy = [[1, 2], [3, 4]], x = [[5, 6, 7], [8, 9, 10]]: dw[0] = 1*[5 6 7] + 3*[8 9 10], dw[1] = 2*[5 6 7] + 4*[8 9 10]
    held = {"dy": np.array([[1, 2], [3, 4]], np.float32), "x": np.array([[5, 6, 7], [8, 9, 10]], np.float32)}
    reference = ContractionReference(lambda name, start, stop: held[name][start:stop], m=2, n=3)

    assert reference.at(2).tolist() == [[29, 33, 37], [42, 48, 54]]
    assert reference.at(1).tolist() == [[5, 6, 7], [10, 12, 14]]


def test_a_longer_prefix_reads_only_the_rows_that_a_shorter_one_has_not() -> None:
    held = operands(96, 4, 8)
    rows: list[tuple[str, int, int]] = []

    def read(name: str, start: int, stop: int) -> Float32:
        rows.append((name, start, stop))
        return held[name][start:stop]

    reference = ContractionReference(read, m=4, n=8)
    reference.at(32)
    reference.at(96)
    reference.at(32)

    assert rows == [("dy", 0, 32), ("x", 0, 32), ("dy", 32, 96), ("x", 32, 96)]
    expected = held["dy"].astype(np.float64).T @ held["x"].astype(np.float64)
    np.testing.assert_allclose(reference.at(96), expected, rtol=0, atol=1e-13)


def test_large_results_are_computed_in_parts_and_only_the_last_prefix_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_PART_BYTES", 8 * 8 * 3)  # three rows of the result, two of the operands
    monkeypatch.setattr(verification, "_KEPT_BYTES", 8 * 4 * 8)  # one result
    held = operands(20, 4, 8)
    reference = ContractionReference(lambda name, start, stop: held[name][start:stop], m=4, n=8)

    for k in (7, 20, 3, 20):
        expected = held["dy"][:k].astype(np.float64).T @ held["x"][:k].astype(np.float64)
        np.testing.assert_allclose(reference.at(k), expected, rtol=0, atol=1e-14)
        assert len(reference._known) == 1


def test_a_cell_within_k_times_2_to_the_minus_23_passes_and_one_outside_fails() -> None:
    reference = np.full((2, 2), 1.0)
    got = np.full((2, 2), 1.0, np.float32)
    got[1, 0] = 1.0 + 4 * 2.0**-23

    check_contraction("blocktile", "32x32x8/4x4 k=4", got, reference, k=4)
    with pytest.raises(VerificationError, match=r"blocktile 32x32x8/4x4 k=3: 1 of 4 .*\[1, 0\]"):
        check_contraction("blocktile", "32x32x8/4x4 k=3", got, reference, k=3)


def test_wrong_cells_far_apart_are_all_counted_and_the_first_is_named() -> None:
    got = np.ones((1000, 300), np.float32)  # three chunks of rows
    got[[450, 999], [7, 299]] = 2

    with pytest.raises(VerificationError, match=r"2 of 300000 .*\[450, 7\]: got 2\.0, expected 1\.0"):
        check_contraction("untiled", "k=8", got, np.ones((1000, 300)), k=8)


def test_a_cell_that_is_not_a_number_fails() -> None:
    with pytest.raises(VerificationError, match="got nan"):
        check_contraction("untiled", "k=8", np.full((1, 1), np.nan, np.float32), np.zeros((1, 1)), k=8)


def test_the_float32_sum_in_any_order_stays_within_the_tolerance() -> None:
    held = operands(4096, 8, 8)
    reference = ContractionReference(lambda name, start, stop: held[name][start:stop], m=8, n=8).at(4096)
    forward = backward = np.zeros((8, 8), np.float32)
    for row in range(4096):
        forward = forward + np.outer(held["dy"][row], held["x"][row])
        backward = backward + np.outer(held["dy"][-1 - row], held["x"][-1 - row])

    for got in (forward, backward):
        check_contraction("untiled", "k=4096", got, reference, k=4096)


def test_chains_count_their_steps_and_refuse_more_than_float32_counts() -> None:
    start = np.array([0, 1023], np.float32)

    assert fma_reference(start, 10).tolist() == [10.0, 1033.0]
    assert fma_reference(start, 2**24 - 1024).tolist() == [2**24 - 1024, 2**24 - 1]
    with pytest.raises(ValueError, match="use fewer"):
        fma_reference(start, 2**24 - 1023)


def test_a_chain_one_step_short_fails() -> None:
    with pytest.raises(VerificationError, match=r"fma steps=10: 1 of 2 .*\[1\]: got 10\.0, expected 11\.0"):
        check_equal("fma", "steps=10", np.array([10, 10], np.float32), np.array([10, 11], np.float32))
