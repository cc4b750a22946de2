"""The envelope fit: the tightest peaks under which no roofline bound exceeds a measured time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fitting._checks import checked_positive, is_count, is_positive
from fitting.report import constant_lines
from fitting.rows import CalibrationRow

Witnessed = tuple[float, str]
"""A value and the name of the row that set it."""


@dataclass(frozen=True)
class EnvelopeFit:
    """The envelope of one backend's rows.

    Parameters
    ----------
    backend : str
        As in the rows.
    rows : int
        Timed rows: not opaque, with a finite measured time above zero.
    opaque : int
        Opaque rows, timed or not.
    flops_approx, bytes_approx, multi_kernel : int
        Of the timed rows: approximate in that leg, and with more than one kernel.
    violations : int
        Timed rows, exact in both legs, whose recorded bound exceeds their measured time: the constants in force back
        then were too low.
    fission_slack : (float, str) or None
        Factor above 1 that both peaks were multiplied by, and the row that set it.
    peak_flops : (float, str) or None
        Operations/s and the row that set it, slack included; None without a timed row exact in operations.
    peak_memory_bandwidth : (float, str) or None
        Bytes/s and the row that set it, slack included; None without a timed row exact in bytes.
    """

    backend: str
    rows: int
    opaque: int
    flops_approx: int
    bytes_approx: int
    multi_kernel: int
    violations: int
    fission_slack: Witnessed | None
    peak_flops: Witnessed | None
    peak_memory_bandwidth: Witnessed | None

    def report(self, margin: float = 1.0) -> str:
        """Write the fit as the autotuner pastes it: `#` comments and one `model_...=...` line a constant.

        Parameters
        ----------
        margin : float
            Factor on both peaks, above zero: headroom against candidates faster than any seen yet.

        Returns
        -------
        str
            Lines joined by newlines, without one at the end.

        Raises
        ------
        ValueError
            When the margin is not a finite number above zero, or takes a peak out of a float's range.

        References
        ----------
        calibration-rows.md, "The report, as the autotuner pastes it".
        """
        checked_positive("margin", margin)
        backend = " ".join(self.backend.split())
        lines = [
            f"# {backend}: rows timed {self.rows}, opaque {self.opaque}",
            f"# of the timed: approximate in operations {self.flops_approx}, in bytes {self.bytes_approx}, "
            f"multi-kernel {self.multi_kernel}",
        ]
        if self.violations:
            lines.append(
                f"# violations {self.violations}: rows beat their recorded bound, the constants then were too low"
            )
        if self.fission_slack:
            slack, witness = self.fission_slack
            lines.append(f"# fission slack {slack:.6f} on both peaks, set by {witness}")
        if margin != 1.0:
            lines.append(f"# margin {margin:g} on both peaks")
        lines += _leg_lines("model_peak_flops", "operations", self.peak_flops, margin)
        lines += _leg_lines("model_peak_memory_bandwidth", "bytes", self.peak_memory_bandwidth, margin)
        return "\n".join(lines)


def fit_envelope(rows: Iterable[CalibrationRow]) -> list[EnvelopeFit]:
    """Fit both peaks of every backend.

    Parameters
    ----------
    rows : iterable of CalibrationRow
        Any mix of backends.

    Returns
    -------
    list of EnvelopeFit
        One a backend, in order of first appearance; empty without rows. A leg without an exact row is None.

    Notes
    -----
    A leg's peak is the largest count / time over its exact rows. A routine's bound adds its kernels' max-of-legs, so
    for multi-kernel rows the two maxima are not enough: over those, exact in both legs,

        slack = max (flops / peak_flops + bytes / peak_memory_bandwidth) / seconds

    and both peaks are multiplied by it where it is above 1. Ties for a witness go to the first row. A row whose rate
    leaves a float's range is not used.

    References
    ----------
    calibration-rows.md, "The envelope fit".
    """
    by_backend: dict[str, list[CalibrationRow]] = {}
    for row in rows:
        by_backend.setdefault(row.backend, []).append(row)
    return [_fit_backend(backend, members) for backend, members in by_backend.items()]


def flops_rate(row: CalibrationRow) -> float | None:
    """Return the operations/s that a timed row proves, or None when it proves none."""
    return None if row.flops_approx or not _is_timed(row) else _rate(row.flops, row.measured_ms)


def bytes_rate(row: CalibrationRow) -> float | None:
    """Return the bytes/s that a timed row proves, or None when it proves none."""
    return None if row.bytes_approx or not _is_timed(row) else _rate(row.bytes, row.measured_ms)


def leading_row(
    rows: Iterable[CalibrationRow], rate_of: Callable[[CalibrationRow], float | None]
) -> tuple[float, CalibrationRow] | None:
    """Return the largest rate and the first row that shows it, or None when no row shows one."""
    lead: tuple[float, CalibrationRow] | None = None
    for row in rows:
        rate = rate_of(row)
        if rate is not None and (lead is None or rate > lead[0]):
            lead = (rate, row)
    return lead


def _fit_backend(backend: str, rows: Sequence[CalibrationRow]) -> EnvelopeFit:
    timed = [row for row in rows if _is_timed(row)]
    flops = leading_row(timed, flops_rate)
    moved = leading_row(timed, bytes_rate)
    slack = _fission_slack(timed, flops[0], moved[0]) if flops and moved else None
    factor = slack[0] if slack else 1.0
    return EnvelopeFit(
        backend=backend,
        rows=len(timed),
        opaque=sum(row.opaque for row in rows),
        flops_approx=sum(row.flops_approx for row in timed),
        bytes_approx=sum(row.bytes_approx for row in timed),
        multi_kernel=sum(row.kernels > 1 for row in timed),
        violations=sum(_beats_its_bound(row) for row in timed),
        fission_slack=slack,
        peak_flops=(flops[0] * factor, flops[1].name) if flops else None,
        peak_memory_bandwidth=(moved[0] * factor, moved[1].name) if moved else None,
    )


def _fission_slack(timed: Iterable[CalibrationRow], peak_flops: float, peak_bandwidth: float) -> Witnessed | None:
    """Return the slack above 1 and its row; rates over peaks, so that a peak's own row gives exactly 1 in its leg."""

    def slack_of(row: CalibrationRow) -> float | None:
        if row.kernels <= 1 or row.flops_approx or row.bytes_approx:
            return None
        return (flops_rate(row) or 0.0) / peak_flops + (bytes_rate(row) or 0.0) / peak_bandwidth

    lead = leading_row(timed, slack_of)
    return (lead[0], lead[1].name) if lead and lead[0] > 1 else None


def _is_timed(row: CalibrationRow) -> bool:
    return not row.opaque and is_positive(row.measured_ms)


def _beats_its_bound(row: CalibrationRow) -> bool:
    exact = not row.flops_approx and not row.bytes_approx
    return exact and row.model_ms is not None and is_positive(row.model_ms) and row.model_ms > row.measured_ms


def _rate(count: int, milliseconds: float) -> float | None:
    """Return count / time in 1/s, or None for a zero count or a rate whose double (slack is at most 2) overflows."""
    if not is_count(count):
        return None
    rate = count * 1e3 / milliseconds
    return rate if is_positive(2 * rate) else None


def _leg_lines(name: str, counted: str, peak: Witnessed | None, margin: float) -> list[str]:
    if peak is None:
        return [f"# {name}: none, no timed row has an exact, positive count of {counted}"]
    value, witness = peak
    return [f"# {name} is set by {witness}", *constant_lines({name: value}, "config", margin)]
