"""NVRTC without CuPy and without a GPU: compile for a card, read registers and spills off the log, disassemble."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resources:
    """What `ptxas -v` says of one kernel: registers a thread, bytes a thread and a block."""

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int


class NvrtcError(RuntimeError):
    """The source did not compile; the message is NVRTC's log."""


def _find(package: str, pattern: str) -> Path:
    """Return the one file below one of NVIDIA's packages, which may be spread over several folders."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed"
    found = [path for folder in spec.submodule_search_locations or () for path in Path(folder).glob(pattern)]
    assert found, f"{package} has no {pattern}"
    return found[0]


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(_find("nvidia.cuda_nvrtc", "lib/libnvrtc.so.*")))


def version() -> tuple[int, int]:
    """Return NVRTC's version."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    return major.value, minor.value


def compile_cubin(source: str, options: Sequence[str], arch: int) -> tuple[bytes, dict[str, Resources]]:
    """Return the cubin for `sm_<arch>` and the resources of each kernel in it; raises NvrtcError."""
    cubin, log = _compile(source, [*options, f"-arch=sm_{arch}", "--ptxas-options=-v"], "CUBIN")
    return cubin, parse_log(log)


def compile_ptx(source: str, options: Sequence[str], arch: int) -> str:
    """Return the PTX for `compute_<arch>`; raises NvrtcError."""
    ptx, _ = _compile(source, [*options, f"-arch=compute_{arch}"], "PTX")
    return ptx.rstrip(b"\0").decode()


def _compile(source: str, words: Sequence[str], form: str) -> tuple[bytes, str]:
    nvrtc = _library()
    program = ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    assert status == 0, status
    try:
        array = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
        status = nvrtc.nvrtcCompileProgram(program, len(words), array)
        log = _text(program)
        if status != 0:
            raise NvrtcError(log)
        size = ctypes.c_size_t()
        assert getattr(nvrtc, f"nvrtcGet{form}Size")(program, ctypes.byref(size)) == 0
        code = ctypes.create_string_buffer(size.value)
        assert getattr(nvrtc, f"nvrtcGet{form}")(program, code) == 0
        return code.raw, log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    assert _library().nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
    log = ctypes.create_string_buffer(size.value)
    assert _library().nvrtcGetProgramLog(program, log) == 0
    return log.value.decode()


_ENTRY = re.compile(
    r"Function properties for (?P<name>\w+)\s*\n"
    r"(?:ptxas)?[ .]*(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\s*\n"
    r".*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)"
)


def parse_log(log: str) -> dict[str, Resources]:
    """Return the resources of each kernel named in a `ptxas -v` log."""
    found = {}
    for entry in _ENTRY.finditer(log):
        shared = re.search(r"(\d+) bytes smem", entry["rest"])
        found[entry["name"]] = Resources(
            registers=int(entry["registers"]),
            stack_bytes=int(entry["stack"]),
            spill_bytes=int(entry["stores"]) + int(entry["loads"]),
            shared_bytes=int(shared[1]) if shared else 0,
        )
    return found


def disassemble(cubin: bytes) -> dict[str, list[str]]:
    """Return the SASS instructions (without predicates and operands) of each kernel of a cubin."""
    binary = _find("nvidia", "cu*/bin/nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([str(binary), "-c", file.name], capture_output=True, text=True, check=True)
    kernels: dict[str, list[str]] = {}
    current: list[str] = []
    for line in done.stdout.splitlines():
        if named := re.match(r"\.text\.(\w+):", line):
            current = kernels.setdefault(named[1], [])
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line):
            current.append(instruction[1])
    return kernels
