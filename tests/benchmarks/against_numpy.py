"""The register-blocktiled contraction on the host CPU against numpy's matmul on the same operands."""

from __future__ import annotations

import time

import numpy as np
from ratio import Ratio, ratio_of

from kernels.backends.base import BlocktileKernel, ContractionProblem
from kernels.backends.cc import CcDevice
from kernels.parameters import LEAD, WIDE

GOAL = 0.75  # of numpy's rate
SHAPES = ((512, 512, 1024), (512, 512, 8192), (1024, 1024, 1024), (256, 1024, 4096))  # m, n, k
_SAMPLES = 5  # a window; its best counts
_PAUSE_S = 0.1  # a BLAS thread spins for 2^26 ticks after a product, and would hold a core of ours


def compare(device: CcDevice, *, rounds: int) -> list[Ratio]:
    """One ratio a geometry and shape."""
    results = []
    for m, n, k in SHAPES:
        with device.open_workload(ContractionProblem(m, n, k)) as workload:
            dy, x = workload.array("dy"), workload.array("x")
            product = np.empty((m, n), np.float32)
            kernels = {g.label: workload.prepare(BlocktileKernel(g, m, n, k)) for g in (LEAD, WIDE)}
            for kernel in kernels.values():
                kernel.verify()
            np.matmul(dy.T, x, out=product)
            if np.abs(product - workload.array("dw")).max() > 2 * k * 2.0**-23:
                raise SystemExit("numpy's product and ours differ; the comparison is void")
            ours_ms: dict[str, list[float]] = {label: [] for label in kernels}
            peer_ms: list[float] = []
            for _ in range(rounds):
                time.sleep(_PAUSE_S)
                for label, kernel in kernels.items():
                    ours_ms[label].append(min(kernel.sample().wall_ms for _ in range(_SAMPLES)))
                time.sleep(_PAUSE_S)
                peer_ms.append(min(_matmul_ms(dy, x, product) for _ in range(_SAMPLES)))
            for label, samples in ours_ms.items():
                name = f"blocktile {label} {m}x{n}x{k}, to numpy"
                results.append(ratio_of(name, samples, peer_ms, work=2 * m * n * k, unit="op", goal=GOAL))
    return results


def _matmul_ms(
    dy: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    x: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    out: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> float:
    begin = time.perf_counter_ns()
    np.matmul(dy.T, x, out=out)
    return 1e-6 * (time.perf_counter_ns() - begin)
