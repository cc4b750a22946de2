"""The real CuPy on a machine without a GPU: the states a user meets, through a stub of the driver's library."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.backends.cuda_discovery import NO_DRIVER
from kernels.backends.cuda_driver import load_driver
from tests.kernels.cuda_shim.emulated_cupy import EmulatedCupy

ROOT = Path(__file__).resolve().parents[2]
STUB = Path(__file__).with_name("cuda_shim") / "stub_driver.c"
DISCOVER = """
import json
from kernels.backends.cuda import CudaBackend
from kernels.errors import NoDeviceError

backend = CudaBackend()
found = backend.discover()
try:
    with backend.open("GPU-any"):
        opened = "opened"
except NoDeviceError as error:
    opened = str(error)
print(json.dumps([backend.name, len(found.devices), [item.reason for item in found.unusable], opened]))
"""

LAUNCH = """
import cupy
from kernels.backends.cuda_context import Arguments, Context, Function
from kernels.backends.cuda_source import Plan

context = Context.__new__(Context)  # there is no device to make one on
context._driver, context.stream = cupy.cuda.driver, 0x99
context._errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
plan = Plan("", (), "", (2**31 - 1, 65535), (256, 4), ("out", 1 << 40, 1.5), "", 0, 0)
resident = context.call(context._driver.occupancyMaxActiveBlocksPerMultiprocessor, 0x1234, 256, 0)
context.launch(Function(0x1234, None, 0, 0, 0, resident), plan, Arguments(plan.arguments, {"out": 0x7F0000001000}))
print(resident)
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(STUB)], check=True)
    return folder


def run(script: str, **settings: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **settings}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def discover(**settings: str) -> str:
    """The one reason that a fresh process gives, which must also be why nothing can be opened."""
    name, devices, (reason,), opened = json.loads(run(DISCOVER, **settings))
    assert (name, devices) == ("cuda", 0)
    assert opened == f"GPU-any: {reason}"
    return str(reason)


def test_no_driver_or_one_whose_devices_are_hidden() -> None:
    hidden = "the NVIDIA driver works but shows no device; CUDA_VISIBLE_DEVICES is '' and may hide them"

    assert discover(CUDA_VISIBLE_DEVICES="") == (NO_DRIVER if load_driver() is None else hidden)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"STUB_VERSION": "11040"},
            "the NVIDIA driver is too old: it supports CUDA 11.4, and this CuPy is built for CUDA 1",
        ),
        ({"STUB_INIT": "100"}, "the NVIDIA driver works but shows no device"),
        ({"STUB_INIT": "999"}, "cudaErrorUnknown: unknown error (status 999): the driver is broken"),
        ({"STUB_INIT": "804"}, "(status 804): a forward-compatibility library"),
        ({"STUB_INIT": "803"}, "(status 803): the driver's kernel module and library differ"),
        ({"STUB_INIT": "802"}, "(status 802): the system is not initialised yet"),
    ],
    ids=["old driver", "no device", "broken", "compatibility", "mismatch", "not initialised"],
)
def test_a_driver_that_is_there_and_does_not_work(stub: Path, settings: dict[str, str], expected: str) -> None:
    assert expected in discover(LD_LIBRARY_PATH=str(stub), **settings)


def test_a_home_in_which_cupy_can_keep_no_kernels_hides_no_device(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").touch()  # a file: no folder can be made in it, not even by root
    for name in ("CUPY_CACHE_DIR", "CALIBRATE_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)

    reason = discover(LD_LIBRARY_PATH=str(stub), STUB_INIT="100", HOME=str(tmp_path / "home"))

    assert "the NVIDIA driver works but shows no device" in reason


def test_a_launch_reaches_the_driver_as_it_was_planned(stub: Path) -> None:
    launched, resident = run(LAUNCH, LD_LIBRARY_PATH=str(stub)).splitlines()

    assert launched == (
        "0x1234 grid 2147483647 65535 1 block 256 4 1 shared 0 stream 0x99 extra 0: 0x7f0000001000 1099511627776 1.5"
    )
    assert resident == "8"


def names(emulated: Any) -> set[str]:
    return {name for name in dir(emulated) if not name.startswith("_")} - {"capture", "left_open", "open", "functions"}


def test_the_emulated_cupy_has_nothing_that_the_real_one_lacks() -> None:
    cupy = importlib.import_module("cupy")
    emulated = EmulatedCupy()

    for part in ("runtime", "driver", "nvrtc", "compiler"):
        for name in names(getattr(emulated.cuda, part)):
            assert hasattr(getattr(cupy.cuda, part), name), f"cupy.cuda.{part}.{name}"
    for name in ("memcpyHostToDevice", "memcpyDeviceToHost", "memcpyDeviceToDevice", "streamNonBlocking"):
        assert getattr(cupy.cuda.runtime, name) == getattr(emulated.cuda.runtime, name), name
    for name in ("num_regs", "shared_size_bytes", "local_size_bytes", "kernel"):
        assert hasattr(cupy.RawKernel, name)
    assert hasattr(cupy.cuda.function.Function, "ptr")
    assert isinstance(cupy.cuda.runtime.is_hip, bool)
    assert cupy.cuda.runtime.CUDARuntimeError(2).status == 2
    assert issubclass(cupy.cuda.compiler.CompileException, Exception)
    assert 90 in cupy.cuda.nvrtc.getSupportedArchs()
    assert cupy.__version__.split(".")[0] == emulated.__version__.split(".")[0]
