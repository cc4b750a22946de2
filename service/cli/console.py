"""What the commands print: tables, progress, errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class CliError(Exception):
    """A failure told in one message; `exit_code` 1 the work failed, 2 the input can't be used."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        """Keep the message and the code."""
        super().__init__(message)
        self.exit_code = exit_code


def say(text: str = "") -> None:
    """Print a line of the result to stdout; end quietly where nobody reads on, as before `| head`."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        # what the buffer still holds must not fail once more when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(1) from error
        raise CliError(f"the output can't be written: {error.strerror}") from error


def note(text: str) -> None:
    """Print a line beside the result to stderr."""
    sys.stderr.write(text + "\n")


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lay cells out in columns: text to the left, numbers to the right; None is a dash. Never cut to a width."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(headers))]
    widths = [max([len(header), *(len(row[i]) for row in cells)]) for i, header in enumerate(headers)]
    lines = []
    for line in [list(headers), *cells]:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


class ProgressDisplay:
    """A bar on a terminal, a plain line elsewhere at each new message, both on stderr."""

    def __init__(self) -> None:
        """Choose by what stderr is."""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last = ""
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        """Start the bar."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def update(self, stage: str, done: int, total: int, message: str) -> None:
        """Show `done` of `total` steps of `stage`."""
        text = f"{stage}: {message}" if message else stage
        if self._bar is None:
            line = f"[{done}/{total}] {text}"
            if line != self._last:
                note(line)
            self._last = line
            return
        if self._task is None:
            self._task = self._bar.add_task(text, total=total)
        self._bar.update(self._task, description=text[:60], completed=done, total=max(total, 1))
