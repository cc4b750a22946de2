"""The `calibrate` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, also while its modules are still being loaded."""
    try:
        from service.cli.app import start

        start()
    except KeyboardInterrupt:
        sys.exit(130)
