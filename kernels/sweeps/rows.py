"""Calibration rows and prices of what a sweep timed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fitting import (
    CalibrationRow,
    FillModel,
    LaunchContext,
    floor_milliseconds,
    ranking_seconds,
    roofline_seconds,
)
from kernels.backends.base import LaunchFacts


def calibration_row(
    backend: str,
    routine: str,
    label: str,
    facts: LaunchFacts,
    best_ms: float,
    constants: Mapping[str, float],
    *,
    extents: str,
) -> CalibrationRow:
    """
    Return the row of one timed kernel.

    Parameters
    ----------
    routine, label : str
        The computation, and the candidate within it.
    facts : LaunchFacts
        Exact counts, or marked approximate.
    best_ms : float
        Milliseconds.
    constants : mapping
        In force; `model_ms` is None without a peak among them.
    extents : str
        The problem's sizes; they enter the digest, so that it tells problems apart.

    Notes
    -----
    Times are floored as a row file floors them, so that the exported rows give the constants that are served.
    """
    bound = bound_ms(facts, constants)
    digest = hashlib.sha256("\n".join((backend, routine, label, extents)).encode()).hexdigest()[:12]
    return CalibrationRow(
        backend=backend,
        digest=digest,
        routine=routine,
        label=label,
        measured_ms=floor_milliseconds(best_ms),
        model_ms=None if bound is None else floor_milliseconds(bound),
        kernels=facts.kernels,
        flops=facts.flops,
        bytes=facts.bytes,
        flops_approx=facts.flops_approx,
        bytes_approx=facts.bytes_approx,
        opaque=False,
    )


def launch_context(facts: LaunchFacts) -> LaunchContext:
    """Return the parallel shape of a kernel without tile-MMA work."""
    return LaunchContext(facts.blocks, facts.threads, facts.flops)


def bound_ms(facts: LaunchFacts, constants: Mapping[str, float]) -> float | None:
    """Return the roofline bound in milliseconds under the constants in force, None without a peak."""
    return _milliseconds(
        roofline_seconds(
            flops=facts.flops,
            bytes=facts.bytes,
            peak_flops=constants.get("model_peak_flops"),
            peak_memory_bandwidth=constants.get("model_peak_memory_bandwidth"),
        )
    )


def rank_ms(
    facts: LaunchFacts,
    constants: Mapping[str, float],
    *,
    requested: int | None = None,
    working_set: int | None = None,
) -> float | None:
    """
    Return the ranking score in milliseconds under the constants in force, None where nothing can be priced.

    Parameters
    ----------
    requested, working_set : int or None
        Bytes, of an untiled kernel only.
    """
    multiprocessors = constants.get("model_multiprocessors")
    fill_threads = constants.get("model_fill_threads")
    fill = None
    if multiprocessors is not None and fill_threads is not None:
        fill = FillModel(round(multiprocessors), round(fill_threads))
    return _milliseconds(
        ranking_seconds(
            scalar_ops=facts.flops,
            distinct=facts.bytes,
            contexts=(launch_context(facts),),
            requested=requested,
            working_set=working_set,
            peak_flops=constants.get("model_peak_flops"),
            peak_memory_bandwidth=constants.get("model_peak_memory_bandwidth"),
            cache_capacity=constants.get("model_cache_capacity"),
            cache_bandwidth=constants.get("model_cache_bandwidth"),
            issue_rate=constants.get("model_issue_rate"),
            fill=fill,
        )
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
