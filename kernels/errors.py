"""Every way a measurement can fail, each with a stable code and a message that says what to do."""

from __future__ import annotations

from typing import ClassVar


class MeasureError(Exception):
    """Base of all failures of a measurement; `code` is stable, the message is for a person.

    `crashed`: the measuring process died without an answer (a signal, a kill), so another attempt may succeed.
    """

    code: ClassVar[str] = "internal"
    detail: str | None
    crashed: bool

    def __init__(self, message: str, *, detail: str | None = None, crashed: bool = False) -> None:
        """Keep the message and an optional long `detail` (a compiler's log, a traceback)."""
        super().__init__(message)
        self.detail = detail
        self.crashed = crashed


class NoDeviceError(MeasureError):
    """The device asked for is not on this host, or can't be used."""

    code = "no_device"


class CompileError(MeasureError):
    """A kernel did not compile; `detail` holds the compiler's log."""

    code = "compile"


class OutOfMemoryError(MeasureError):
    """The device could not allocate what the sweep needs."""

    code = "out_of_memory"


class PointTimeoutError(MeasureError):
    """A point or a sweep ran past its time limit."""

    code = "timeout"


class ContendedError(MeasureError):
    """Other work on the device left too few admitted readings."""

    code = "contended"


class VerificationError(MeasureError):
    """A kernel's result differs from its reference; none of its times count."""

    code = "verification"


class UnsupportedError(MeasureError):
    """The backend lacks the kernel family that the sweep needs."""

    code = "unsupported"


class NoExactRowsError(MeasureError):
    """A stream pass gave no bytes-exact row, so the memory leg can't be fitted."""

    code = "no_exact_rows"


class CancelledError(MeasureError):
    """The caller cancelled the sweep."""

    code = "cancelled"


ERRORS: dict[str, type[MeasureError]] = {
    error.code: error
    for error in (
        MeasureError,
        NoDeviceError,
        CompileError,
        OutOfMemoryError,
        PointTimeoutError,
        ContendedError,
        VerificationError,
        UnsupportedError,
        NoExactRowsError,
        CancelledError,
    )
}
