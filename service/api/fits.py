"""Stateless fits: your points in, the outcome back; nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

import fitting
from fitting import (
    DEFAULT_FILL_CANDIDATES,
    MAX_COUNT,
    CalibrationRow,
    FillModel,
    IssuePoint,
    LaunchContext,
    LaunchPoint,
    WorkingSetPoint,
)
from service.errors import InvalidRequestError
from service.schemas import Request, Text, View

router = APIRouter(prefix="/v1/fits", tags=["fits"])

MAX_RECORDS = 4096
MAX_TERMS = 65_536  # launches, times the saturations tried: the work of a fit, about a second
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Milliseconds = Annotated[float, Field(ge=0, description="Milliseconds")]
Rate = Annotated[float, Field(gt=0)]


class RowIn(Request):
    """One row of an autotuner's row file."""

    backend: Text
    digest: Text = ""
    routine: Text = ""
    label: Text = ""
    measured_ms: Milliseconds
    model_ms: Milliseconds | None = None
    kernels: Count = Field(default=1, description="Kernels launched (count)")
    flops: Count = Field(description="Operations; an FMA counts two")
    bytes: Count = Field(description="Distinct bytes read and written")
    flops_approx: bool = False
    bytes_approx: bool = False
    opaque: bool = False


class ContextIn(Request):
    """One kernel's launch."""

    blocks: Positive = Field(description="Blocks (count)")
    threads: Positive = Field(description="Threads a block (count)")
    scalar_ops: Count = Field(description="Scalar operations")
    mma_ops: Count = Field(default=0, description="Tile-MMA operations")


class WorkingSetPointIn(Request):
    """A point of the working-set sweep."""

    k: Positive = Field(description="Reduction extent")
    loops: list[Count] = Field(default=[], max_length=16, description="Loop extents, outermost first")
    working_set: Positive = Field(description="Bytes")
    requested: Positive = Field(description="Bytes")
    distinct: Count = Field(default=0, description="Bytes")
    ms: Milliseconds
    rank_ms: Milliseconds | None = None
    bound_ms: Milliseconds | None = None


class IssuePointIn(Request):
    """A point of the issue sweep."""

    k: Positive = Field(description="Reduction extent")
    scalar_ops: Count = Field(description="Scalar operations")
    mma_ops: Count = Field(default=0, description="Tile-MMA operations")
    kernels: Count = Field(default=1, description="Kernels launched (count)")
    ms: Milliseconds
    rank_ms: Milliseconds | None = None
    bound_ms: Milliseconds | None = None
    contexts: list[ContextIn] = Field(default=[], max_length=64)


class LaunchPointIn(Request):
    """A point of the launch sweep."""

    geometry: Text = Field(description="bm x bn x bk / tm x tn, e.g. 32x32x8/4x4")
    m: Positive = Field(description="Output extent")
    n: Positive = Field(description="Output extent")
    k: Positive = Field(description="Reduction extent")
    contexts: list[ContextIn] = Field(min_length=1, max_length=64)
    ms: Milliseconds


class FillModelIn(Request):
    """A launch-fill model: P multiprocessors that each saturate at t threads."""

    multiprocessors: Positive = Field(description="P (count)")
    fill_threads: Positive = Field(description="t (threads)")


class EnvelopeRequest(Request):
    rows: list[RowIn] = Field(min_length=1, max_length=MAX_RECORDS)


class CapacityRequest(Request):
    points: list[WorkingSetPointIn] = Field(min_length=1, max_length=MAX_RECORDS)
    dram_rate: Rate | None = Field(default=None, description="DRAM bandwidth, bytes per second")


class IssueRateRequest(Request):
    points: list[IssuePointIn] = Field(min_length=1, max_length=MAX_RECORDS)
    fill: FillModelIn | None = None


class FillRequest(Request):
    points: list[LaunchPointIn] = Field(min_length=1, max_length=1024)
    multiprocessors: Positive = Field(description="P (count)")
    candidates: list[Positive] | None = Field(
        default=None, min_length=1, max_length=64, description="Saturations to try (threads)"
    )
    starved: float = Field(default=0.125, ge=0, lt=1, description="Fraction of a geometry's best throughput")


class OutcomeView(View):
    """A fit's outcome; one that says nothing can be fitted is an outcome too."""

    outcome: str = Field(description="Name of the case, e.g. Transition or TooFewPoints")
    result: dict[str, Any] = Field(description="Working sets in bytes, rates per second, latency_ms in milliseconds")


@router.post("/envelope")
def post_envelope(given: EnvelopeRequest) -> OutcomeView:
    """Fit the roofline envelope: per backend, the two peaks that no exact row beats."""
    return _outcome(fitting.fit_envelope, [CalibrationRow(**row.model_dump()) for row in given.rows])


@router.post("/capacity")
def post_capacity(given: CapacityRequest) -> OutcomeView:
    """Fit the cache capacity and the rate at which re-reads are served within it."""
    points = [WorkingSetPoint(**{**point.model_dump(), "loops": tuple(point.loops)}) for point in given.points]
    return _outcome(fitting.fit_capacity, points, given.dram_rate)


@router.post("/issue_rate")
def post_issue_rate(given: IssueRateRequest) -> OutcomeView:
    """Fit the scalar issue rate, plain or under a launch-fill model."""
    _check_work(given.points)
    points = [IssuePoint(**{**point.model_dump(), "contexts": _contexts(point.contexts)}) for point in given.points]
    fill = None if given.fill is None else FillModel(given.fill.multiprocessors, given.fill.fill_threads)
    return _outcome(fitting.fit_issue_rate, points, fill)


@router.post("/fill")
def post_fill(given: FillRequest) -> OutcomeView:
    """Fit the threads at which a multiprocessor saturates, and the rate at full fill."""
    candidates = DEFAULT_FILL_CANDIDATES if given.candidates is None else tuple(given.candidates)
    _check_work(given.points, len(candidates))
    points = [LaunchPoint(**{**point.model_dump(), "contexts": _contexts(point.contexts)}) for point in given.points]
    return _outcome(
        fitting.fit_fill,
        points,
        multiprocessors=given.multiprocessors,
        candidates=candidates,
        starved=given.starved,
    )


def _check_work(points: Sequence[IssuePointIn | LaunchPointIn], candidates: int = 1) -> None:
    """Refuse what would keep the server from everything else for long."""
    if sum(len(point.contexts) for point in points) * candidates > MAX_TERMS:
        rule = f"contexts, times candidates, may be at most {MAX_TERMS} in all"
        raise InvalidRequestError(f"points: {rule}", fields=[{"field": "points", "rule": rule}])


def _contexts(contexts: Sequence[ContextIn]) -> tuple[LaunchContext, ...]:
    return tuple(LaunchContext(**context.model_dump()) for context in contexts)


def _outcome(fit: Any, *arguments: Any, **keywords: Any) -> OutcomeView:
    try:
        outcome = fit(*arguments, **keywords)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
    return OutcomeView(**fitting.outcome_to_json(outcome))
