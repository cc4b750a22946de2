"""Compile CUDA C for the host and run it; run as a script, execute one case in a process of its own that may crash."""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import json
import mmap
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
FLAGS = (
    "-std=c++20",
    "-O2",
    "-shared",
    "-fPIC",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fsanitize=alignment,bounds",
    "-fsanitize-undefined-trap-on-error",
    "-Wno-unknown-pragmas",
    "-include",
    str(HERE / "emulate.hpp"),
)
_KERNEL = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^\n]*\)\s+)?(\w+)\(')

Float32 = NDArray[np.float32]


class EmulationError(RuntimeError):
    """A block did not end as a CUDA block must."""


class Module:
    """A compiled translation unit."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def launch(
        self,
        entry: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        parameters: int,
        *,
        first: tuple[int, ...] = (0, 0, 0),
        backwards: bool = False,
    ) -> None:
        """Run a kernel's blocks from `first` on; `parameters` is the address of an array of pointers to arguments."""
        grid3, block3 = ((ctypes.c_uint * 3)(*(*shape, 1, 1)[:3]) for shape in (grid, block))
        first3 = (ctypes.c_uint * 3)(*(*first, 0, 0)[:3])
        kernel = ctypes.cast(getattr(self._library, f"emulated_{entry}"), ctypes.c_void_p)
        packed = ctypes.c_void_p(parameters)
        if self._library.emulate_launch(kernel, grid3, block3, packed, first3, int(backwards)) != 0:
            raise EmulationError(f"{entry}: a barrier that not all threads of the block reach")


@functools.cache
def build(source: str) -> Module:
    """Compile with g++ and load."""
    return Module(build_library(source))


@functools.cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="cuda-emulation-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def build_library(source: str) -> Path:
    """Return the shared library of a source, which lives as long as this process."""
    entries = _KERNEL.findall(source)
    assert entries, "no kernel in the source"
    text = source + "".join(f"\nEMULATED({entry})" for entry in entries) + "\n"
    path = _folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    command = ["g++", *FLAGS, "-x", "c++", "-", "-o", str(path)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


class GuardedArray:
    """float32 elements that end at a page no one may touch, so that an access past the end is a fault.

    `alignment` bytes divide the address, and what lies between the end and the page is checked to be unchanged.
    """

    CANARY = 0x5A

    def __init__(self, elements: int, *, alignment: int = 16) -> None:
        size, page = 4 * elements, mmap.PAGESIZE
        pages = -(-size // page) * page + page
        self._memory = mmap.mmap(-1, pages + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (base, base + pages + page):
            assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
        end = base + page + pages
        self.address = (end - size) // alignment * alignment
        self._slack = (ctypes.c_uint8 * (end - size - self.address)).from_address(self.address + size)
        ctypes.memset(self._slack, self.CANARY, len(self._slack))
        buffer = (ctypes.c_float * elements).from_address(self.address)
        self.array: Float32 = np.ctypeslib.as_array(buffer)
        self.array.view(np.uint32)[:] = 0xFFFFFFFF

    def intact(self) -> bool:
        """Whether nothing was written between the end and the guard page."""
        return all(byte == self.CANARY for byte in self._slack)


@dataclass(frozen=True)
class Outcome:
    """How a case ended: its arrays, or the signal that killed it, or what it said."""

    arrays: Mapping[str, Float32]
    signal: int
    message: str


@dataclass(frozen=True)
class Launch:
    """One launch; arguments are array names, ints (64 bits) and floats (32 bits)."""

    entry: str
    grid: tuple[int, int]
    block: tuple[int, int]
    arguments: tuple[str | int | float, ...]


def run_isolated(
    library: Path,
    launches: Sequence[Launch],
    arrays: Mapping[str, Float32 | int],
    folder: Path,
    *,
    backwards: bool = False,
    shift: int = 0,
) -> Outcome:
    """Run launches one after another in a process of its own, every array against a guard page.

    `arrays` gives each array's contents, or the number of elements of an output that starts as NaN. `shift` moves every
    array that many bytes off its alignment.
    """
    case: dict[str, Any] = {f"in_{name}": value for name, value in arrays.items()}
    np.savez(folder / "case.npz", **case)
    order = {
        "library": str(library),
        "launches": [asdict(launch) for launch in launches],
        "backwards": backwards,
        "shift": shift,
    }
    (folder / "order.json").write_text(json.dumps(order))
    command = [sys.executable, str(HERE / "emulator.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [""]
        return Outcome({}, -done.returncode if done.returncode < 0 else 0, lines[-1])
    with np.load(folder / "result.npz") as saved:
        return Outcome(dict(saved), 0, "")


def _main(folder: Path) -> None:
    order = json.loads((folder / "order.json").read_text())
    guarded: dict[str, GuardedArray] = {}
    with np.load(folder / "case.npz") as case:
        for name in case.files:
            value = case[name]
            guarded[name.removeprefix("in_")] = held = GuardedArray(int(value) if value.ndim == 0 else value.size)
            if value.ndim:
                held.array[:] = value.ravel()
    module = Module(Path(order["library"]))
    for launch in order["launches"]:
        cells = [_cell(value, guarded, order["shift"]) for value in launch["arguments"]]
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*map(ctypes.addressof, cells))
        module.launch(
            launch["entry"],
            tuple(launch["grid"]),
            tuple(launch["block"]),
            ctypes.addressof(pointers),
            backwards=order["backwards"],
        )
    for name, held in guarded.items():
        if not held.intact():
            raise EmulationError(f"a kernel wrote past the end of {name}")
    np.savez(folder / "result.npz", **{name: held.array for name, held in guarded.items()})


def _cell(value: str | int | float, guarded: Mapping[str, GuardedArray], shift: int) -> Any:
    if isinstance(value, str):
        return ctypes.c_void_p(guarded[value].address - shift)
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_longlong(value)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
