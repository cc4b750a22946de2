"""Runs every static check, reports each failure, and fails if any did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CHECKS = {
    "format": [BIN / "ruff", "format", "--check", "."],
    "lint": [BIN / "ruff", "check", "."],
    "types": [BIN / "mypy"],
    "imports": [BIN / "lint-imports"],
    "dockerfile": [BIN / "hadolint", "Dockerfile"],
}


def main() -> int:
    failed = []
    for name, command in CHECKS.items():
        done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
        print(f"check {name}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stdout + done.stderr, flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
