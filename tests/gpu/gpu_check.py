"""One run on a GPU machine: compile, verify and measure everything, and write one JSON. Standalone.

Needs Python 3.11 or later, this repository, numpy and CuPy; pynvml (nvidia-ml-py) for clocks. No service, no database.

    python tests/gpu/gpu_check.py --out gpu-check.json

Exit status: 0 every step ran, whether or not its goals are met; 1 a step failed; 2 wrong usage; 3 no usable GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kernels.backends import registry
from kernels.backends.base import OpenDevice
from kernels.calibration import calibrate, device_to_json, versions
from kernels.device import DeviceDescription
from kernels.errors import MeasureError, PointTimeoutError
from kernels.events import Event, Progress
from kernels.lock import device_lock
from tests.gpu import gpu_steps
from tests.gpu.gpu_report import compare, constants_of, lines, predict, render, table_to_json

SCHEMA = "calibration-service/gpu-check/1"
BUDGET_S = 280.0
"""No step starts later than this, so that a run stays within five minutes."""
SWEEP_LIMIT_S = 120.0
OK, STEP_FAILED, NO_GPU = 0, 1, 3

_SIMULATED = '[{"name": "check"}]'


class Check:
    """A run under way: its steps, what they found, and the file it all goes to.

    Parameters
    ----------
    device
        What is checked.
    out
        The JSON file, written anew after each step and sweep, so that a crash loses one of them only.
    say
        Takes a line of progress.
    budget_s
        Seconds after which no further step starts.
    """

    def __init__(
        self, device: DeviceDescription, out: Path, say: Callable[[str], None], *, budget_s: float = BUDGET_S
    ) -> None:
        """Start the clock."""
        self._key = device.key
        self._out = out
        self._say = say
        self._began = time.monotonic()
        self._budget_s = budget_s
        self.report: dict[str, Any] = {
            "schema": SCHEMA,
            "simulated": device.simulated,
            "device": device_to_json(device),
            "versions": versions(),
            "started_at": datetime.now(UTC).isoformat(),
            "finished_at": None,
            "steps": {},
            "calibrations": [],
            "unfinished": {},
            "table": [],
        }

    def run(self, parameters: dict[str, dict[str, Any]] | None = None) -> int:
        """
        Run every step and return the exit status; `parameters` of the calibrations, defaults without.

        Notes
        -----
        What is worth most comes first, and the long second calibration after the short steps.
        """
        self._on_device("surroundings", gpu_steps.surroundings)
        self._on_device("compile", gpu_steps.compile_all)
        self._on_device("verify", gpu_steps.verify_all)
        self._calibration("calibration_1", parameters)
        self._on_device("blocktile", gpu_steps.blocktile_times)
        timed = self.report["steps"]["blocktile"]["result"]
        if timed is not None and self.report["calibrations"]:
            constants = constants_of(self.report["calibrations"][-1])
            self.step("predictions", lambda: {"points": predict(timed["points"], constants)})
        self._on_device("stream_sizes", gpu_steps.stream_sizes)
        self._on_device("device_copy", gpu_steps.device_copy)
        self._calibration("calibration_2", parameters)
        if len(self.report["calibrations"]) == 2:
            self.step("repeatability", lambda: {"constants": compare(*self.report["calibrations"])})
        self._on_device("untiled_shapes", gpu_steps.untiled_shapes)
        self._on_device("stream_contents", gpu_steps.stream_contents)
        self._on_device("cublas", gpu_steps.cublas)
        self.report["finished_at"] = datetime.now(UTC).isoformat()
        self._write()
        return STEP_FAILED if any(step["error"] for step in self.report["steps"].values()) else OK

    def step(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Run one step; what goes wrong is its result, not the end of the run."""
        step: dict[str, Any] = {"seconds": 0.0, "result": None, "error": None, "not_measured": None}
        self.report["steps"][name] = step
        began = time.monotonic()
        if began - self._began > self._budget_s:
            step["not_measured"] = f"the run's {self._budget_s:.0f} s were spent"
        else:
            self._say(f"{name} ...")
            try:
                step["result"] = _as_json(measure())
            except gpu_steps.NotMeasuredError as error:
                step["not_measured"] = str(error)
            except MeasureError as error:
                step["error"] = {"code": error.code, "message": str(error), "detail": error.detail}
            except Exception as error:  # noqa: BLE001 - told with its traceback; the other steps still run
                message = f"{type(error).__name__}: {' '.join(str(error).split())}"
                step["error"] = {"code": "internal", "message": message, "detail": traceback.format_exc()}
        step["seconds"] = time.monotonic() - began
        ending = step["not_measured"] or (step["error"] or {}).get("message") or f"{step['seconds']:.1f} s"
        self._say(f"{name}: {ending}")
        self._write()

    def _on_device(self, name: str, measure: Callable[[OpenDevice], dict[str, Any]]) -> None:
        def opened() -> dict[str, Any]:
            with device_lock(self._key, wait=self._wait), registry.open_device(self._key) as device:
                return measure(device)

        self.step(name, opened)

    def _wait(self) -> None:
        if time.monotonic() - self._began > self._budget_s:
            raise PointTimeoutError("another process on this host held the device all the time; wait for it or end it")
        time.sleep(0.25)

    def _calibration(self, name: str, parameters: dict[str, dict[str, Any]] | None) -> None:
        """Calibrate as one step; of one that fails, the document of its finished sweeps stays under `unfinished`."""
        last = time.monotonic()

        def on_event(sweep: str, event: Event) -> None:
            nonlocal last
            if isinstance(event, Progress) and time.monotonic() - last > 5:
                last = time.monotonic()
                self._say(f"  {sweep}: {event.message} ({event.done}/{event.total})")

        def on_document(document: dict[str, Any]) -> None:
            self.report["unfinished"][name] = _as_json(document)
            self._write()

        def measure() -> dict[str, Any]:
            document = calibrate(
                self._key,
                None,
                parameters,
                on_event=on_event,
                on_document=on_document,
                in_process=True,
                time_limit_s=SWEEP_LIMIT_S,
            )
            self.report["calibrations"].append(_as_json(document))
            del self.report["unfinished"][name]
            return {"document": len(self.report["calibrations"]) - 1}

        self.step(name, measure)

    def _write(self) -> None:
        self.report["table"] = table_to_json(lines(self.report))
        part = self._out.with_name(self._out.name + ".part")
        part.write_text(json.dumps(self.report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(self._out)


def _as_json(value: Any) -> Any:
    """Return a value as its JSON reads; raises ValueError for a number that is not finite, TypeError for no JSON."""
    return json.loads(json.dumps(value, allow_nan=False))


def choose(wanted: str | None) -> DeviceDescription | str:
    """Return the device to check, or in one line why there is none. `sim`: a simulated one."""
    backend = "simulated" if wanted == "sim" else "cuda"
    if backend == "simulated":
        os.environ.setdefault("CALIBRATE_SIMULATED", _SIMULATED)
    found = registry.discover_backend(backend)
    for device in found.devices:
        if wanted in (None, "sim", device.key):
            return device
    there = [f"there is {device.key} ({device.name})" for device in found.devices]
    return "; ".join([*there, *(item.reason for item in found.unusable)]) or "none was found"


def main(arguments: Sequence[str] | None = None, *, parameters: dict[str, dict[str, Any]] | None = None) -> int:
    """Run the check and return the exit status."""
    parser = argparse.ArgumentParser(prog="gpu-check", description="Compile, verify and measure everything on a GPU.")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="the JSON to write")
    parser.add_argument("--device", help="a GPU's key (GPU-... or MIG-...), or `sim`; the first GPU without")
    options = parser.parse_args(arguments)
    device = choose(options.device)
    if isinstance(device, str):
        print(f"gpu-check: no GPU to check: {device}", file=sys.stderr)
        return NO_GPU
    options.out.parent.mkdir(parents=True, exist_ok=True)
    check = Check(device, options.out, lambda line: print(line, flush=True))
    status = check.run(parameters)
    kind = "SIMULATED DEVICE, no figure is real: " if device.simulated else ""
    print("\n".join(["", *render(lines(check.report), title=f"{kind}{device.name} ({device.key})")]))
    print(f"written: {options.out}")
    return status


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
