"""STREAM on the host CPU, best candidate, against a plain one in C."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from ratio import Ratio, ratio_of

from kernels.backends.base import StreamKernel, StreamName, StreamProblem
from kernels.backends.cc import CcDevice
from kernels.backends.cc_workload import CcKernel

NAMES: tuple[StreamName, ...] = ("copy", "scale", "add", "triad")
GOAL, TARGET = 1.0, 1.2  # of the plain one's rate
_CHOICE_SAMPLES = 5


class PlainStream:
    """The peer, compiled with -O3 -march=native -fopenmp by the compiler that our kernels use."""

    def __init__(self, library: ctypes.CDLL, elems: int, threads: int) -> None:
        self._library = library
        self._elems = elems
        self._threads = threads
        library.plain_open.argtypes = [ctypes.c_int64, ctypes.c_int]
        library.plain_array.restype = ctypes.POINTER(ctypes.c_float)
        if library.plain_open(elems, threads) != 0:
            raise SystemExit(f"no memory for the peer's three arrays of {elems} elements; give a smaller --elems")

    def sample_ms(self, name: StreamName) -> float:
        run = getattr(self._library, f"plain_{name}")
        begin = time.perf_counter_ns()
        run(self._threads)
        return 1e-6 * (time.perf_counter_ns() - begin)

    def check_triad(self) -> None:
        self.sample_ms("triad")
        a, b, c = (np.ctypeslib.as_array(self._library.plain_array(i), (self._elems,)) for i in range(3))
        if not np.array_equal(a, b + np.float32(0.5) * c):
            raise SystemExit("the plain STREAM computed a wrong triad; the comparison is void")


@contextmanager
def plain_stream(device: CcDevice, elems: int) -> Iterator[PlainStream]:
    provenance = device.provenance()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "plain_stream.so"
        source = Path(__file__).with_name("plain_stream.c")
        flags = ["-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"]
        command = [*shlex.split(provenance["compiler_command"]), *flags, str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        loaded = ctypes.CDLL(str(library))
        try:
            yield PlainStream(loaded, elems, provenance["threads"])
        finally:
            loaded.plain_close()


def compare(device: CcDevice, *, elems: int, rounds: int) -> list[Ratio]:
    """One ratio a kernel; only triad's has the goal, the others are shown beside it."""
    with plain_stream(device, elems) as peer, device.open_workload(StreamProblem(elems)) as workload:
        peer.check_triad()
        results = []
        for name in NAMES:
            candidates = [StreamKernel(name, elems, item) for item in device.stream_candidates(elems)]
            prepared = [workload.prepare(kernel) for kernel in candidates]
            for kernel in prepared:
                kernel.verify()
            best = min(prepared, key=_best_ms)
            ours_ms, peer_ms = [], []
            for _ in range(rounds):
                ours_ms.append(best.sample().wall_ms)
                peer_ms.append(peer.sample_ms(name))
            label = f"stream {name}, {best.facts.label}, to plain C"
            results.append(ratio_of(label, ours_ms, peer_ms, work=best.facts.bytes, unit="B", goal=GOAL))
        return results


def _best_ms(kernel: CcKernel) -> float:
    return min(kernel.sample().wall_ms for _ in range(_CHOICE_SAMPLES))
