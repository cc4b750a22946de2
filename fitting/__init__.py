"""Fits: what the data of a calibration says. Pure functions over records; no I/O, no clock, no web."""

from fitting._json_object import DocumentError
from fitting.calibration import (
    Fit,
    Measured,
    Measurements,
    Outcome,
    fit_calibration,
)
from fitting.capacity import (
    AllCached,
    AllSpilled,
    CapacityFit,
    NoTransition,
    TooFewPoints,
    Transition,
    fit_capacity,
)
from fitting.constants import CONSTANTS, GROUP_SWEEPS, GROUPS, ConstantInfo
from fitting.cost_model import (
    FillForm,
    FillModel,
    context_fill,
    effective_ops,
    launch_fill,
    ranking_seconds,
    roofline_seconds,
)
from fitting.document import (
    DOCUMENT_SCHEMA,
    constant_to_json,
    fit_to_json,
    measurements_of,
    outcome_name,
    outcome_to_json,
    refit,
)
from fitting.envelope import EnvelopeFit, fit_envelope
from fitting.issue_rate import IssueFit, IssueRateFit, IssueUnfittable, fit_issue_rate
from fitting.launch_fill import (
    DEFAULT_FILL_CANDIDATES,
    FillFit,
    FillOutcome,
    FillUnfittable,
    fit_fill,
)
from fitting.points import MAX_COUNT, IssuePoint, LaunchContext, LaunchPoint, WorkingSetPoint
from fitting.records import point_from_json, record_to_json, row_from_json
from fitting.report import Form, constant_lines, format_constant, format_number
from fitting.rows import CalibrationRow, ParsedRows, floor_milliseconds, parse_rows
from fitting.served import Absent, Constant, ConstantValue, ServedOutcome
from fitting.serving import constants_of
from fitting.traffic import UntiledTraffic, contraction_distinct_bytes, contraction_ops, untiled_traffic

__all__ = [
    "CONSTANTS",
    "DEFAULT_FILL_CANDIDATES",
    "DOCUMENT_SCHEMA",
    "GROUPS",
    "GROUP_SWEEPS",
    "MAX_COUNT",
    "Absent",
    "AllCached",
    "AllSpilled",
    "CalibrationRow",
    "CapacityFit",
    "Constant",
    "ConstantInfo",
    "ConstantValue",
    "DocumentError",
    "EnvelopeFit",
    "FillFit",
    "FillForm",
    "FillModel",
    "FillOutcome",
    "FillUnfittable",
    "Fit",
    "Form",
    "IssueFit",
    "IssuePoint",
    "IssueRateFit",
    "IssueUnfittable",
    "LaunchContext",
    "LaunchPoint",
    "Measured",
    "Measurements",
    "NoTransition",
    "Outcome",
    "ParsedRows",
    "ServedOutcome",
    "TooFewPoints",
    "Transition",
    "UntiledTraffic",
    "WorkingSetPoint",
    "constant_lines",
    "constant_to_json",
    "constants_of",
    "context_fill",
    "contraction_distinct_bytes",
    "contraction_ops",
    "effective_ops",
    "fit_calibration",
    "fit_capacity",
    "fit_envelope",
    "fit_fill",
    "fit_issue_rate",
    "fit_to_json",
    "floor_milliseconds",
    "format_constant",
    "format_number",
    "launch_fill",
    "measurements_of",
    "outcome_name",
    "outcome_to_json",
    "parse_rows",
    "point_from_json",
    "ranking_seconds",
    "record_to_json",
    "refit",
    "roofline_seconds",
    "row_from_json",
    "untiled_traffic",
]
