"""A device of chosen true constants that answers times without running anything.

Its physics is written here from first principles and shares no formula with the cost model, so that a fit which finds
the planted constants again has proved something. Everything about it is marked simulated.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from kernels.backends.base import (
    BlocktileKernel,
    Conditions,
    FmaKernel,
    Kernel,
    LaunchFacts,
    Problem,
    Sample,
    StreamCandidate,
    StreamKernel,
    UntiledKernel,
)
from kernels.backends.simulated_launch import launch_facts, problem_bytes
from kernels.backends.truth import Failure, Truth, TruthError, read_truths
from kernels.device import DeviceDescription, Discovery, UnusableBackend
from kernels.errors import CompileError, NoDeviceError, OutOfMemoryError, VerificationError
from kernels.host import host_id
from kernels.parameters import DeviceLimits

_CANDIDATES: Mapping[StreamCandidate, float] = {  # and by how much each is slower than the best
    StreamCandidate(256, 4, 4): 1.00,
    StreamCandidate(256, 4, 1): 1.02,
    StreamCandidate(512, 4, 2): 1.03,
    StreamCandidate(256, 2, 4): 1.08,
    StreamCandidate(1024, 1, 4): 1.15,
    StreamCandidate(128, 1, 1): 1.30,
}
_NEIGHBOUR_SLOWDOWN = 3.0
_SIMULATED = "the device is simulated"
_UNMEASURED = tuple(field.name for field in fields(Conditions) if field.name not in ("throttle", "unknown"))


class SimulatedBackend:
    """The devices of `CALIBRATE_SIMULATED`; none without it."""

    name = "simulated"

    def discover(self) -> Discovery:
        """Return the devices, or why the setting can't be used."""
        try:
            return Discovery(devices=tuple(describe(truth) for truth in _configured()))
        except (TruthError, NoDeviceError) as error:
            return Discovery(unusable=(UnusableBackend(self.name, str(error)),))

    @contextmanager
    def open(self, key: str) -> Iterator[SimulatedDevice]:
        """Open one device by its key.

        Raises
        ------
        NoDeviceError
            When no configured device has that key.
        """
        try:
            truths = _configured()
        except TruthError as error:
            raise NoDeviceError(str(error)) from error
        for truth in truths:
            if describe(truth).key == key:
                yield SimulatedDevice(truth)
                return
        raise NoDeviceError(f"no simulated device has the key {key}; check CALIBRATE_SIMULATED")


def _configured() -> list[Truth]:
    setting = os.environ.get("CALIBRATE_SIMULATED", "")
    return read_truths(setting) if setting.strip() else []


def describe(truth: Truth) -> DeviceDescription:
    """Return who a simulated device is; its key follows from the host and its name alone."""
    digest = hashlib.sha256(f"simulated\n{host_id()}\n{truth.name}".encode()).hexdigest()
    return DeviceDescription(
        key=f"sim-{digest[:16]}",
        backend="simulated",
        kind="simulated",
        name=f"{truth.name} (simulated)",
        simulated=True,
        limits=DeviceLimits(
            backend="simulated",
            memory_bytes=truth.memory_bytes,
            last_level_cache_bytes=truth.last_level_cache_bytes,
            multiprocessors=truth.multiprocessors,
            sweeps=tuple(truth.sweeps),
            geometries=tuple(truth.geometry_factors),
        ),
        facts={
            "simulated": True,
            "multiprocessors": truth.multiprocessors,
            "memory_bytes": truth.memory_bytes,
            "last_level_cache_bytes": truth.last_level_cache_bytes,
            "compute_capability": None,
            "driver": None,
        },
    )


class SimulatedDevice:
    """An open simulated device; samples follow from `Truth` and a seeded generator, so a run can be repeated."""

    def __init__(self, truth: Truth) -> None:
        """Simulate `truth`."""
        self.truth = truth
        self.description = describe(truth)
        self.generator = random.Random(truth.seed)
        self.prepared: Counter[str] = Counter()

    def stream_candidates(self, elems: int) -> Sequence[StreamCandidate]:
        """Return the six candidates, whatever the extent."""
        return tuple(_CANDIDATES)

    @contextmanager
    def open_workload(self, problem: Problem) -> Iterator[SimulatedWorkload]:
        """Pretend to allocate.

        Raises
        ------
        OutOfMemoryError
            When the problem is larger than the device.
        """
        needed = problem_bytes(problem)
        if needed > self.truth.memory_bytes:
            raise OutOfMemoryError(f"needs {needed} bytes; the device has {self.truth.memory_bytes} bytes")
        yield SimulatedWorkload(self, problem)

    def conditions(self) -> Conditions:
        """Return the planted throttle reasons; everything else is unknown."""
        return Conditions(throttle=self.truth.throttle, unknown=dict.fromkeys(_UNMEASURED, _SIMULATED))

    def launch_latency_ms(self) -> float:
        """Return the planted latency."""
        return self.truth.launch_latency_ms

    def provenance(self) -> Mapping[str, Any]:
        """Return the planted constants, so that no reader takes them for measured ones."""
        return {"simulated": True, "seed": self.truth.seed, "noise": self.truth.noise}

    def busy_ms(self, kernel: Kernel, facts: LaunchFacts) -> float:
        """
        Return the milliseconds the device works on one launch, without launch latency and noise.

        Notes
        -----
        Work of several kinds overlaps, so the slowest decides. STREAM: bytes over the memory's rate. Untiled: each
        block's reads over the rate of the place they come from: the cache while the blocks that run at once fit
        there together, else memory. Blocktiled: operations over the rate of the multiprocessor threads in flight; a
        block brings at most `fill_threads` useful ones, and the device has room for P x `fill_threads`. FMA chains: the
        arithmetic peak.
        """
        truth = self.truth
        arithmetic_s = facts.flops / truth.peak_flops
        memory_s = facts.bytes / truth.peak_memory_bandwidth
        if isinstance(kernel, StreamKernel):
            memory_s *= _CANDIDATES[kernel.candidate]
        elif isinstance(kernel, UntiledKernel):
            panel = 4 * kernel.k * (facts.threads + 1)
            if kernel.phase == "spread":
                fits = facts.bytes <= truth.last_level_cache_bytes
            else:
                fits = truth.cache_capacity is None or panel * facts.resident_blocks <= truth.cache_capacity
            source = truth.cache_bandwidth if fits else truth.peak_memory_bandwidth
            memory_s = max(memory_s, panel * facts.blocks / source)
        elif isinstance(kernel, BlocktileKernel):
            rate_a_thread = truth.issue_rate / (truth.multiprocessors * truth.fill_threads)
            useful = min(facts.threads, truth.fill_threads) * facts.blocks
            in_flight = min(useful, truth.multiprocessors * truth.fill_threads)
            factor = truth.geometry_factors[kernel.geometry.label]
            arithmetic_s = max(arithmetic_s, facts.flops / (rate_a_thread * factor * in_flight))
        return 1e3 * max(arithmetic_s, memory_s)

    def slowdown(self) -> float:
        """Return this sample's factor >= 1: noise, and a neighbour now and then."""
        factor = 1.0 + self.truth.noise * self.generator.random()
        if self.generator.random() < self.truth.contention:
            factor *= _NEIGHBOUR_SLOWDOWN
        return factor

    def failure_of(self, kernel: Kernel) -> Failure | None:
        """Count a prepared kernel and return the failure planted on it, if it is still due."""
        kinds = _kinds(kernel)
        self.prepared.update(kinds)
        for failure in self.truth.failures:
            if failure.kernel in kinds and self.prepared[failure.kernel] == failure.at and _still_due(failure):
                return failure
        return None


class SimulatedWorkload:
    """The pretended arrays of one problem."""

    def __init__(self, device: SimulatedDevice, problem: Problem) -> None:
        """Belong to `device`."""
        self._device = device
        self._problem = problem

    def prepare(self, kernel: Kernel) -> SimulatedKernel:
        """Return the kernel, or fail as planted.

        Raises
        ------
        ValueError
            For a kernel of another problem, or extents that the kernel does not divide.
        UnsupportedError
            For a geometry the device was not given.
        """
        facts = launch_facts(kernel, self._problem, self._device.truth)
        failure = self._device.failure_of(kernel)
        if failure is not None and failure.mode == "compile":
            _spend(failure)
            raise CompileError(f"{facts.label}: planted compile failure", detail="simulated.cu(1): error: planted")
        if failure is not None and failure.mode == "out_of_memory":
            _spend(failure)
            raise OutOfMemoryError(f"{facts.label}: planted allocation failure")
        return SimulatedKernel(self._device, kernel, facts, failure)


class SimulatedKernel:
    """One pretended kernel."""

    def __init__(self, device: SimulatedDevice, kernel: Kernel, facts: LaunchFacts, failure: Failure | None) -> None:
        """Answer times of `kernel`."""
        self.facts = facts
        self._device = device
        self._failure = failure
        self._busy_ms = device.busy_ms(kernel, facts)

    def verify(self) -> None:
        """Pass, unless a failure is planted here.

        Raises
        ------
        VerificationError
            As planted.
        """
        if self._failure is not None and self._failure.mode == "verification":
            _spend(self._failure)
            raise VerificationError(f"{self.facts.label}: planted wrong result")

    def sample(self) -> Sample:
        """Return the times of one launch: busy time on the device, and the latency on top for the host."""
        return self.sample_queued(1)

    def sample_queued(self, batch: int) -> Sample:
        """Return times per launch of `batch` launches that pay the latency once."""
        if self._failure is not None and self._failure.mode in ("segfault", "hang"):
            _die(self._failure)
        truth = self._device.truth
        if truth.delay_s:
            time.sleep(truth.delay_s)
        slowdown = self._device.slowdown()
        busy_ms = self._busy_ms * slowdown
        return Sample(wall_ms=busy_ms + truth.launch_latency_ms * slowdown / batch, device_ms=busy_ms)


def _kinds(kernel: Kernel) -> tuple[str, ...]:
    if isinstance(kernel, BlocktileKernel):
        return ("blocktile", kernel.geometry.label)
    return ({StreamKernel: "stream", UntiledKernel: "untiled", FmaKernel: "fma"}[type(kernel)],)


def _still_due(failure: Failure) -> bool:
    if failure.times is None or failure.counter is None:
        return True
    path = Path(failure.counter)
    return not path.exists() or path.stat().st_size < failure.times


def _spend(failure: Failure) -> None:
    if failure.counter is not None:
        with Path(failure.counter).open("ab") as counter:
            counter.write(b".")


def _die(failure: Failure) -> None:
    _spend(failure)
    if failure.mode == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    while True:  # a kernel that never ends
        time.sleep(60)
