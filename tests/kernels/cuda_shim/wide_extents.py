"""Run the last block of each kernel over arrays of more than 2^31 elements and print the last cell it wrote.

The arrays are reserved, not held: only the pages that a block touches take memory.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from kernels.backends.base import BlocktileKernel, StreamCandidate, StreamKernel, UntiledKernel
from kernels.backends.cuda_source import Plan, plan_blocktile, plan_stream, plan_untiled
from kernels.parameters import LEAD
from kernels.verification import Float32
from tests.kernels.cuda_shim.emulator import build

MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.13 on


def reserve(elements: int) -> Float32:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, 4 * elements, flags=flags), np.float32)


NARROW = "--narrow" in sys.argv
"""Whether extents are broken to 32 bits, as a test of this test."""


def run_last_block(plan: Plan, arrays: dict[str, Float32]) -> None:
    cells = [
        ctypes.c_void_p(arrays[value].ctypes.data) if isinstance(value, str) else ctypes.c_longlong(int(value))
        for value in plan.arguments
    ]
    pointers = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
    last = tuple(extent - 1 for extent in plan.grid)
    text = plan.text.replace("typedef long long Extent", "typedef int Extent") if NARROW else plan.text
    build(text).launch(plan.entry, plan.grid, plan.block, ctypes.addressof(pointers), first=last)


def main() -> None:
    elems = (1 << 31) + 8192
    streams = {name: reserve(elems) for name in "abc"}
    streams["b"][-1], streams["c"][-1] = 3.0, 2.0
    run_last_block(plan_stream(StreamKernel("triad", elems, StreamCandidate(256, 1, 8))), streams)
    print(f"stream_triad a[{elems - 1}] = {streams['a'][-1]}")

    wide = 1 << 28
    for plan in (
        plan_untiled(UntiledKernel(16, wide, 16)),
        plan_blocktile(BlocktileKernel(LEAD, 32, wide, 16)),
    ):
        m, n, k = (int(extent) for extent in plan.arguments[3:])
        operands = {"dy": reserve(k * m), "x": reserve(k * n), "dw": reserve(m * n)}
        operands["dy"][-1], operands["x"][-1] = 2.0, 3.0
        run_last_block(plan, operands)
        print(f"{plan.entry} dw[{m * n - 1}] = {operands['dw'][-1]}")


if __name__ == "__main__":
    main()
