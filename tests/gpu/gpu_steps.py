"""What the GPU check measures beyond a calibration, each as a function from an open device to JSON values.

Every time is best of several; every kernel is verified before its time counts. What only CUDA has raises
NotMeasuredError on a simulated device.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

from kernels.backends.base import (
    BlocktileKernel,
    ContractionProblem,
    FmaKernel,
    FmaProblem,
    Kernel,
    OpenDevice,
    Phase,
    PreparedKernel,
    Problem,
    StreamCandidate,
    StreamKernel,
    StreamName,
    StreamProblem,
    UntiledKernel,
)
from kernels.backends.cuda import CudaDevice
from kernels.backends.cuda_source import every_plan, plan_untiled
from kernels.backends.cuda_workload import ContractionWorkload
from kernels.parameters import LEAD, parse_geometry
from kernels.timing import Clock, conditions_to_json, measure_window, repeats_policy, stream_policy, warm_up
from kernels.verification import STREAM_OUTPUT

NAMES: tuple[StreamName, ...] = tuple(STREAM_OUTPUT)
PHASES: tuple[Phase, ...] = ("aligned", "spread")
EXPONENTS = (26, 28, 30)
SHAPES = ((256, 1), (32, 8))
M, N, SEQUENCE = 256, 1024, 128
"""The layer whose weight gradient the predictions are of, and the tokens of one element of a batch."""
BATCHES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
COPY_BYTES = 1 << 30
VERIFY_ELEMS, ODD_ELEMS, CONTENTS_ELEMS = 1 << 26, (1 << 24) + 3, 1 << 28
ROUNDS = 3
QUEUED = 100
"""Launches a batch of a tiny kernel."""
CUBLAS_EXTENT = 8192


class NotMeasuredError(Exception):
    """Why a step has nothing to measure on this device."""


def cuda_only(device: OpenDevice) -> CudaDevice:
    """Return the device as a CUDA one; raises NotMeasuredError."""
    if not isinstance(device, CudaDevice):
        raise NotMeasuredError("only a CUDA device has this")
    return device


def surroundings(device: OpenDevice) -> dict[str, Any]:
    """Clocks, heat and neighbours at the start, versions, the launch latency, and a tiny kernel's time in a queue.

    The queue comes before the provenance, which tells whether it could be a graph.
    """
    conditions = device.conditions()
    with device.open_workload(FmaProblem()) as workload:
        tiny = workload.prepare(FmaKernel(1))
        tiny.verify()
        queued_ms = min(_device_ms(tiny, QUEUED) for _ in range(ROUNDS))
    return {
        "conditions": conditions_to_json(conditions),
        "launch_latency_ms": device.launch_latency_ms(),
        "queued_launch_ms": queued_ms,
        "provenance": dict(device.provenance()),
    }


def compile_all(device: OpenDevice) -> dict[str, Any]:
    """Compile every source, variant and geometry for this card; the driver tells what each takes."""
    context = cuda_only(device).context
    kernels = []
    for plan in every_plan():
        began = time.perf_counter()
        function = context.function(plan)
        kernels.append(
            {
                "source": plan.source,
                "label": plan.label,
                "guarded": plan.guarded,
                "registers": function.registers,
                "shared_bytes": function.shared_bytes,
                "local_bytes": function.local_bytes,
                "blocks_per_multiprocessor": function.blocks_per_multiprocessor,
                "seconds": time.perf_counter() - began,
            }
        )
    return {"kernels": kernels, "spilling": [each["label"] for each in kernels if each["local_bytes"]]}


def verify_all(device: OpenDevice) -> dict[str, Any]:
    """Compare every kernel's result with float64, element by element."""
    candidates = device.stream_candidates(VERIFY_ELEMS)
    exact = [StreamKernel(name, VERIFY_ELEMS, each) for name in NAMES for each in candidates]
    guarded = [StreamKernel(name, ODD_ELEMS, candidates[0]) for name in NAMES]
    geometries = [parse_geometry(label) for label in device.description.limits.geometries]
    work: list[tuple[Problem, Sequence[Kernel]]] = [
        (StreamProblem(VERIFY_ELEMS), exact),
        (StreamProblem(ODD_ELEMS), guarded),
        (ContractionProblem(M, N, 4096), [UntiledKernel(M, N, k, phase) for phase in PHASES for k in (256, 4096)]),
        (ContractionProblem(512, 1024, 2048), [BlocktileKernel(each, 512, 1024, 2048) for each in geometries]),
        (FmaProblem(), [FmaKernel(1 << 12)]),
    ]
    verified = []
    for problem, kernels in work:
        with device.open_workload(problem) as workload:
            for kernel in kernels:
                prepared = workload.prepare(kernel)
                prepared.verify()
                verified.append(f"{type(kernel).__name__} {prepared.facts.label}")
    return {"verified": len(verified), "kernels": verified}


def stream_sizes(device: OpenDevice) -> dict[str, Any]:
    """Time the best candidate of each STREAM kernel at 2^26, 2^28 and 2^30 elements."""
    sizes = []
    for exponent in EXPONENTS:
        elems = 1 << exponent
        if 12 * elems > device.description.limits.memory_bytes * 9 // 10:
            sizes.append({"elems": elems, "skipped": "three arrays do not fit"})
            continue
        with device.open_workload(StreamProblem(elems)) as workload:
            kernels: dict[str, Any] = {}
            for name in NAMES:
                prepared = [workload.prepare(StreamKernel(name, elems, c)) for c in device.stream_candidates(elems)]
                warm_up(prepared[0], device, Clock())
                best = min(prepared, key=lambda each: min(_device_ms(each) for _ in range(ROUNDS)))
                best.verify()
                kernels[name] = _rate(best, device)
            sizes.append({"elems": elems, "kernels": kernels})
    return {"sizes": sizes}


def stream_contents(device: OpenDevice) -> dict[str, Any]:
    """Time copy and triad over random and over constant arrays in turn: a device that compresses is faster on these."""
    cuda = cuda_only(device)
    elems, candidate = CONTENTS_ELEMS, StreamCandidate(256, 4, 2)
    rates: dict[str, Any] = {}
    with (
        cuda.open_workload(StreamProblem(elems)) as random,
        cuda.open_workload(StreamProblem(elems), contents="constant") as constant,
    ):
        for name in ("copy", "triad"):
            kernel = StreamKernel(name, elems, candidate)
            pair = {"random": random.prepare(kernel), "constant": constant.prepare(kernel)}
            for prepared in pair.values():
                prepared.verify()
            warm_up(pair["random"], device, Clock())
            best = dict.fromkeys(pair, 0.0)
            for _ in range(ROUNDS):
                for each, prepared in pair.items():
                    best[each] = max(best[each], _rate(prepared, device)["bytes_per_s"])
            rates[name] = {**best, "constant_over_random": best["constant"] / best["random"]}
    return {"elems": elems, "rates_bytes_per_s": rates}


def device_copy(device: OpenDevice) -> dict[str, Any]:
    """Time the driver's own device-to-device copy and our copy kernel in turn, the same bytes counted."""
    cuda = cuda_only(device)
    context, elems = cuda.context, COPY_BYTES // 4
    driver_best = kernel_best = 0.0
    with cuda.open_workload(StreamProblem(elems)) as workload:
        prepared = [workload.prepare(StreamKernel("copy", elems, each)) for each in cuda.stream_candidates(elems)]
        warm_up(prepared[0], device, Clock())
        kernel = min(prepared, key=_device_ms)
        kernel.verify()
        source, target = context.allocate(COPY_BYTES), context.allocate(COPY_BYTES)
        try:
            context.poison(source, COPY_BYTES)
            for _ in range(ROUNDS):
                driver_best = max(driver_best, 2 * COPY_BYTES / (_copy_ms(cuda, target, source) / 1e3))
                kernel_best = max(kernel_best, _rate(kernel, device)["bytes_per_s"])
        finally:
            context.free(source)
            context.free(target)
    return {
        "bytes": COPY_BYTES,
        "driver_bytes_per_s": driver_best,
        "kernel_bytes_per_s": kernel_best,
        "kernel_over_driver": kernel_best / driver_best,
    }


def _copy_ms(cuda: CudaDevice, target: int, source: int, copies: int = 8) -> float:
    context = cuda.context
    context.copy(target, source, COPY_BYTES)
    context.record(context.start)
    for _ in range(copies):
        context.copy(target, source, COPY_BYTES)
    context.record(context.end)
    context.synchronize()
    return context.elapsed_ms() / copies


def cublas(device: OpenDevice) -> dict[str, Any]:
    """Time CuPy's float32 matrix product, where cuBLAS is installed: the yardstick of the blocktiled rate."""
    cuda_only(device)
    cupy = importlib.import_module("cupy")
    extent = CUBLAS_EXTENT
    try:
        left = cupy.empty((extent, extent), dtype="float32")
        right, product = cupy.empty_like(left), cupy.empty_like(left)
        for array in (left, right):
            array.data.memset(0x3F, array.nbytes)  # 0.747 in every cell: zeros would draw less power
        cupy.matmul(left, right, out=product)
    except (ImportError, OSError, RuntimeError) as error:
        raise NotMeasuredError(f"no cuBLAS: {error}") from error
    start, end, best_ms = cupy.cuda.Event(), cupy.cuda.Event(), float("inf")
    for _ in range(10):
        start.record()
        cupy.matmul(left, right, out=product)
        end.record()
        end.synchronize()
        best_ms = min(best_ms, cupy.cuda.get_elapsed_time(start, end))
    del left, right, product
    cupy.get_default_memory_pool().free_all_blocks()
    return {"extent": extent, "ops_per_s": 2 * extent**3 / (best_ms / 1e3)}


def untiled_shapes(device: OpenDevice) -> dict[str, Any]:
    """Time the untiled contraction over 256 x 1 and 32 x 8 blocks in both phases: how much the shape hides."""
    cuda = cuda_only(device)
    points: list[dict[str, Any]] = []
    ks = [SEQUENCE * batch for batch in BATCHES]
    with cuda.open_workload(ContractionProblem(M, N, ks[-1])) as workload:
        if not isinstance(workload, ContractionWorkload):
            raise NotMeasuredError("no contraction on this device")
        for shape in SHAPES:
            for phase in PHASES:
                for k in ks:
                    kernel = workload.prepare_plan(plan_untiled(UntiledKernel(M, N, k, phase), block=shape), k)
                    kernel.verify()
                    if not points:
                        warm_up(kernel, device, Clock())
                    samples = [kernel.sample() for _ in range(ROUNDS + 2)]
                    best_ms = min(sample.wall_ms for sample in samples)
                    requested = 4 * k * (shape[0] + shape[1]) * kernel.facts.blocks
                    points.append(
                        {
                            "block": list(shape),
                            "phase": phase,
                            "k": k,
                            "ms": best_ms,
                            "device_ms": min(sample.device_ms for sample in samples if sample.device_ms is not None),
                            "requested_bytes": requested,
                            "distinct_bytes": kernel.facts.bytes,
                            "requested_bytes_per_s": requested / (best_ms / 1e3),
                        }
                    )
    return {"m": M, "n": N, "points": points}


def blocktile_times(device: OpenDevice) -> dict[str, Any]:
    """Time the blocktiled contraction of the layer at batch 2 to 512, to compare with what the constants predict."""
    points = []
    ks = [SEQUENCE * batch for batch in BATCHES]
    clock, policy = Clock(), repeats_policy(10)
    with device.open_workload(ContractionProblem(M, N, ks[-1])) as workload:
        for batch, k in zip(BATCHES, ks, strict=True):
            kernel = workload.prepare(BlocktileKernel(LEAD, M, N, k))
            kernel.verify()
            if batch == BATCHES[0]:
                warm_up(kernel, device, clock)
            window = measure_window(kernel, policy, device, clock)
            facts = kernel.facts
            points.append(
                {
                    "batch": batch,
                    "k": k,
                    "ms": min(window.readings_ms),
                    "device_ms": window.device_ms,
                    "refused": window.refused,
                    "ops": facts.flops,
                    "bytes": facts.bytes,
                    "blocks": facts.blocks,
                    "threads": facts.threads,
                }
            )
    return {"m": M, "n": N, "geometry": LEAD.label, "points": points}


def _device_ms(kernel: PreparedKernel, batch: int = 1) -> float:
    sample = kernel.sample_queued(batch)
    return sample.wall_ms if sample.device_ms is None else sample.device_ms


def _rate(kernel: PreparedKernel, device: OpenDevice) -> dict[str, Any]:
    """A window by the STREAM rule, as a rate."""
    window = measure_window(kernel, stream_policy(16), device, Clock())
    best_ms = min(window.readings_ms)
    return {
        "label": kernel.facts.label,
        "ms": best_ms,
        "bytes_per_s": kernel.facts.bytes / (best_ms / 1e3),
        "refused": window.refused,
        "sm_clock_mhz": window.after.sm_clock_mhz,
    }
