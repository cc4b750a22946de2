"""Measures the host CPU's kernels against their peers, taken in turn in one run, and prints the ratios.

Exit status: 0 when everything ran, whatever the ratios; 1 when it could not run or a result was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import against_numpy
import against_plain_stream
from ratio import Ratio

from kernels.backends.cc import CcBackend, CcDevice
from kernels.errors import MeasureError

BENCHMARKS = ("stream", "blocktile")
SLOWING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # hold numpy below what it can do here


def main() -> int:
    arguments = parse(sys.argv[1:])
    backend = CcBackend()
    discovery = backend.discover()
    if not discovery.devices:
        print(f"no CPU device: {discovery.unusable[0].reason}", file=sys.stderr)
        return 1
    restart_for_the_peer(discovery.devices[0].limits.multiprocessors)
    try:
        with backend.open(discovery.devices[0].key) as device:
            ratios = measure(device, arguments)
    except MeasureError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        document = {
            "device": discovery.devices[0].name,
            "provenance": discovery.devices[0].facts,
            "ratios": [ratio.to_json() for ratio in ratios],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("benchmarks", nargs="*", metavar="{stream,blocktile}", help="which ones; default all")
    parser.add_argument("--elems", type=int, default=1 << 26, help="elements of a STREAM array (default 2^26)")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of samples a ratio is the median of (default 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the ratios there")
    arguments = parser.parse_args(words)
    for name in arguments.benchmarks:
        if name not in BENCHMARKS:
            parser.error(f"unknown benchmark {name!r}; choose from {', '.join(BENCHMARKS)}")
    if arguments.elems < 1 or arguments.rounds < 2:
        parser.error("--elems must be at least 1 and --rounds at least 2")
    arguments.benchmarks = arguments.benchmarks or list(BENCHMARKS)
    return arguments


def restart_for_the_peer(threads: int) -> None:
    """Start this process again where numpy, which reads both at import, has other threads or is held back."""
    wanted = {name: value for name, value in os.environ.items() if name not in SLOWING}
    wanted["OPENBLAS_NUM_THREADS"] = str(threads)
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)


def measure(device: CcDevice, arguments: argparse.Namespace) -> list[Ratio]:
    provenance = device.provenance()
    print(f"{device.description.name}, {provenance['threads']} threads, {provenance['compiler']}")
    print("ratio = our rate / the peer's: median [quartiles] over rounds taken in turn")
    ratios: list[Ratio] = []
    if "stream" in arguments.benchmarks:
        ratios += against_plain_stream.compare(device, elems=arguments.elems, rounds=arguments.rounds)
        print(*(ratio.line() for ratio in ratios), sep="\n", flush=True)
        reached = ratios[-1].median >= against_plain_stream.TARGET
        print(f"      triad's target of {against_plain_stream.TARGET} is {'reached' if reached else 'not reached'}")
    if "blocktile" in arguments.benchmarks:
        blocktile = against_numpy.compare(device, rounds=arguments.rounds)
        print(*(ratio.line() for ratio in blocktile), sep="\n")
        ratios += blocktile
    return ratios


if __name__ == "__main__":
    sys.exit(main())
