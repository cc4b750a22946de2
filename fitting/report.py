"""Constants as text: the lines an autotuner's config file, environment or command line takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fitting._checks import checked_positive
from fitting.constants import CONSTANTS, INTEGERS, PEAKS

Form = Literal["config", "env", "flags"]

PEAK_BUMP = 2e-6
"""Relative bump of a printed peak: over the 5e-7 that seven digits can cut off, so no peak prints below the fitted."""

_PATTERNS: dict[Form, str] = {
    "config": "{name}={value}",
    "env": "OCANNL_{upper}={value}",
    "flags": "--ocannl_{name}={value}",
}


def format_number(value: float) -> str:
    """Write a number with seven significant digits in exponent form, without the exponent's leading zero.

    Parameters
    ----------
    value : float
        Finite and above zero, as every constant is.

    Returns
    -------
    str
        For example `8.400000e+11` or `1.000000e-3`.

    Raises
    ------
    ValueError
        When `value` is zero, negative or not finite.

    References
    ----------
    calibration-rows.md, "The report, as the autotuner pastes it".
    """
    mantissa, exponent = f"{checked_positive('value', value):.6e}".split("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0') or '0'}"


def format_constant(name: str, value: float, *, margin: float = 1.0) -> str:
    """Write one constant's value the way it is served.

    Parameters
    ----------
    name : str
        One of `CONSTANTS`.
    value : float
        The fitted value, unbumped.
    margin : float
        Factor on the two peaks, above zero: headroom against candidates faster than any seen yet.

    Returns
    -------
    str
        A peak bumped by 2e-6 and multiplied by the margin; a rate with seven digits; a plain integer for a capacity,
        multiprocessors or fill threads.

    Raises
    ------
    ValueError
        When the name is unknown, or the value or margin is not a finite number above zero, or their product isn't.
    """
    if name not in CONSTANTS:
        raise ValueError(f"{name} is no constant of the model; known are {', '.join(CONSTANTS)}")
    checked_positive("margin", margin)
    if name in INTEGERS:
        return str(round(checked_positive(name, value)))
    if name in PEAKS:
        return format_number(checked_positive(name, value) * (1 + PEAK_BUMP) * margin)
    return format_number(value)


def constant_lines(values: Mapping[str, float], form: Form = "config", margin: float = 1.0) -> list[str]:
    """Write one line a constant, in display order.

    Parameters
    ----------
    values : mapping of str to float
        Constant -> fitted value, unbumped.
    form : "config", "env" or "flags"
        `model_peak_flops=...`, `OCANNL_MODEL_PEAK_FLOPS=...` or `--ocannl_model_peak_flops=...`.
    margin : float
        Factor on the two peaks, above zero.

    Returns
    -------
    list of str
        Lines without line ends.

    Raises
    ------
    ValueError
        For an unknown form or constant, or a number that `format_constant` refuses.
    """
    if form not in _PATTERNS:
        raise ValueError(f"form must be one of {', '.join(_PATTERNS)}, got {form!r}")
    order = list(CONSTANTS)
    names = sorted(values, key=lambda name: order.index(name) if name in order else -1)
    texts = {name: format_constant(name, values[name], margin=margin) for name in names}
    return [_PATTERNS[form].format(name=name, upper=name.upper(), value=text) for name, text in texts.items()]
