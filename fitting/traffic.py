"""What the contraction `dw[o,i] = sum_k dy[k,o] x[k,i]` does and moves: its operations and its byte charges."""

from __future__ import annotations

from dataclasses import dataclass

from fitting._checks import checked_count

FLOAT_BYTES = 4
"""Bytes of a float32."""


def contraction_ops(m: int, n: int, k: int) -> int:
    """Return the operations of `dw[o,i] = sum_k dy[k,o] x[k,i]` over m x n outputs: one FMA, so two, a step."""
    return 2 * checked_count("m", m) * checked_count("n", n) * checked_count("k", k)


def contraction_distinct_bytes(m: int, n: int, k: int) -> int:
    """Return the distinct float32 bytes of the contraction: k x m and k x n read, m x n written."""
    for name, value in (("m", m), ("n", n), ("k", k)):
        checked_count(name, value)
    return FLOAT_BYTES * (k * (m + n) + m * n)


@dataclass(frozen=True)
class UntiledTraffic:
    """Byte charges of an untiled contraction: `per_block` reads of one block, the rest as in `WorkingSetPoint`."""

    blocks: int
    per_block: int
    working_set: int
    requested: int
    distinct: int


def untiled_traffic(m: int, n: int, k: int, *, resident_blocks: int, bx: int, by: int = 1) -> UntiledTraffic:
    """Return the byte charges of the untiled contraction, one thread an output cell.

    Parameters
    ----------
    m, n, k : int
        Output rows and columns, reduction extent.
    resident_blocks : int
        Blocks the device holds at once: P x blocks a multiprocessor on a GPU, P on a CPU.
    bx, by : int
        Cells of a block along n and m: 256 x 1 on a GPU, 512 x 1 on a CPU.

    Returns
    -------
    UntiledTraffic
        Bytes, float32.

    Raises
    ------
    ValueError
        When an argument is not a positive integer, or a block does not divide the output.

    Notes
    -----
    B = (n / bx) (m / by); per_block = 4 k (bx + by); working_set = per_block x min(B, resident_blocks);
    requested = per_block x B; distinct = 4 (k (m + n) + m n).

    References
    ----------
    calibrate-module.txt, "Cache-capacity calibration".
    """
    for name, value in (("m", m), ("n", n), ("k", k), ("resident_blocks", resident_blocks), ("bx", bx), ("by", by)):
        checked_count(name, value)
    if n % bx or m % by:
        raise ValueError(f"a {bx}x{by} block does not divide {n} columns and {m} rows; choose n and m as multiples")
    blocks = (n // bx) * (m // by)
    per_block = FLOAT_BYTES * k * (bx + by)
    return UntiledTraffic(
        blocks=blocks,
        per_block=per_block,
        working_set=per_block * min(blocks, resident_blocks),
        requested=per_block * blocks,
        distinct=contraction_distinct_bytes(m, n, k),
    )
