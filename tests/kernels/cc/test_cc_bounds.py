"""No kernel reads or writes past its arrays: each is run with a page behind every array that faults when touched."""

from __future__ import annotations

import subprocess
import sys

GUARDED = """
import ctypes, mmap
import numpy as np
from kernels.backends import cc_team
from kernels.backends.base import *
from kernels.backends.cc import CcBackend
from kernels.parameters import LEAD, WIDE, Geometry

libc = ctypes.CDLL(None, use_errno=True)

def guarded(shape):
    elems = int(np.prod(shape))
    assert elems % 16 == 0, "the array must end where the page does and begin on a cache line"
    size = -(-4 * elems // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, size + mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = np.frombuffer(pages, np.uint8, count=1).ctypes.data
    assert libc.mprotect(ctypes.c_void_p(start + size), mmap.PAGESIZE, 0) == 0
    return np.frombuffer(pages, np.float32, count=elems, offset=size - 4 * elems).reshape(shape)

cc_team._array = guarded
backend = CcBackend()
with backend.open(backend.discover().devices[0].key) as device:
    elems = 10_000
    with device.open_workload(StreamProblem(elems)) as workload:
        for name in ("copy", "scale", "add", "triad"):
            for candidate in (StreamCandidate(32, 4, 4), StreamCandidate(64, 4, 8)):
                workload.prepare(StreamKernel(name, elems, candidate)).verify()
    for m, n, k in ((64, 512, 296), (64, 512, 40)):  # whole panels and a part, a part alone
        with device.open_workload(ContractionProblem(m, n, k)) as workload:
            workload.prepare(UntiledKernel(m, n, k)).verify()
            for geometry in (LEAD, WIDE, Geometry(64, 32, 8, 4, 4)):
                workload.prepare(BlocktileKernel(geometry, m, n, k)).verify()
    if {past_the_end}:
        ctypes.string_at(guarded((16,)).ctypes.data + 64, 1)
print("in bounds")
"""


def run(*, past_the_end: bool) -> subprocess.CompletedProcess[str]:
    code = GUARDED.replace("{past_the_end}", str(past_the_end))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_kernels_stay_within_their_arrays(compiled: None) -> None:
    done = run(past_the_end=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "in bounds\n"


def test_the_guard_page_would_have_told(compiled: None) -> None:
    assert run(past_the_end=True).returncode < 0
