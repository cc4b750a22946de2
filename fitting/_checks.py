"""Checks of arguments (they raise) and of measured values (they answer)."""

from __future__ import annotations

import sys
from numbers import Integral, Real
from typing import cast

from fitting.points import MAX_COUNT


def checked_count(name: str, value: object, *, least: int = 1) -> int:
    """Return `value` as an int, or raise ValueError unless it is an integer from `least` to 2^63-1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= MAX_COUNT:
        raise ValueError(f"{name} must be an integer from {least} to 2^63-1, got {value!r}")
    return int(value)


def checked_positive(name: str, value: object) -> float:
    """Return `value` as a float, or raise ValueError unless it is a finite number above zero."""
    if not isinstance(value, bool) and isinstance(value, Real) and is_positive(cast("float", value)):
        return float(value)
    raise ValueError(f"{name} must be a finite number above zero, got {value!r}")


def is_positive(value: float) -> bool:
    """Tell whether a number is above zero and finite; written as comparisons so that NaN and huge ints answer too."""
    return bool(0 < value <= sys.float_info.max)


def is_count(value: int) -> bool:
    """Tell whether a measured count is positive and within 2^63-1."""
    return 0 < value <= MAX_COUNT
