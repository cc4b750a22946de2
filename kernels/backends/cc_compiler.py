"""The system's C compiler: found, probed, run, and its libraries kept.

A library is kept under a hash of all that it depends on, so that a second start compiles nothing and a changed source,
flag, compiler or processor never meets an old one. It ends with a hash of itself, so that one which a disk damaged is
built anew: the loader would crash on it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import CompileError, NoDeviceError
from kernels.host import private_dir

SOURCES = Path(__file__).resolve().parent.parent / "src"

_NAMES = ("gcc", "clang", "cc")
_COMMON = ("-std=gnu11", "-O3", "-fopenmp", "-fPIC", "-shared")
_TARGETS = (("-march=native",), ("-mcpu=native",), ())  # aarch64 compilers of some ages know only the second
_TIME_LIMIT_S = 120.0
_SEAL_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Compiler:
    """A compiler that builds OpenMP libraries here.

    `processor` is the model name, part of what a library depends on; `notes` say in words what had to be left out.
    """

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]
    processor: str
    notes: tuple[str, ...] = ()

    def load(self, source: str, defines: Mapping[str, int] | None = None) -> ctypes.CDLL:
        """Compile a source of `kernels/src`, unless that was done before, and load it.

        Parameters
        ----------
        source
            File name, for example `stream.c`.
        defines
            Macros and their values.

        Raises
        ------
        CompileError
            If it does not compile (`detail` holds the compiler's log) or the result can't be loaded.
        """
        library = self._built(source, dict(defines or {}))
        cores = os.sched_getaffinity(0)
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:
            raise CompileError(
                f"{source} was compiled but can't be loaded from {library.parent}: {error}; if that folder is mounted "
                "noexec, set CALIBRATE_DATA_DIR to one that is not"
            ) from error
        finally:
            os.sched_setaffinity(0, cores)  # OMP_PROC_BIND makes OpenMP bind whoever loads it to one core

    def _built(self, source: str, defines: Mapping[str, int]) -> Path:
        texts = [(SOURCES / name).read_text(encoding="utf-8") for name in (source, "calibrate.h")]
        depends = [self.command, self.version, self.flags, self.processor, sorted(defines.items()), texts]
        digest = hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:32]
        library = private_dir("compiled") / f"{Path(source).stem}-{digest}.so"
        if not _is_whole(library):
            macros = [f"-D{name}={value}" for name, value in defines.items()]
            self._compile(source, macros, library)
        return library

    def _compile(self, source: str, macros: list[str], library: Path) -> None:
        try:
            handle, unfinished = tempfile.mkstemp(dir=library.parent, prefix=library.stem, suffix=".tmp")
        except OSError as error:
            raise CompileError(
                f"nothing can be written in {library.parent}: {error.strerror}; make room there"
            ) from error
        os.close(handle)
        command = [*self.command, *self.flags, *macros, str(SOURCES / source), "-o", unfinished, "-lm"]
        try:
            done = _run(command)
            if done.returncode != 0:
                raise CompileError(
                    f"{self.command[0]} can't compile {source} {' '.join(macros)}: {_first_error(done.stderr)}; "
                    "set CALIBRATE_COMPILER to another compiler if this one is broken",
                    detail=f"$ {shlex.join(command)}\n{done.stderr}",
                )
            _seal(Path(unfinished))
            os.chmod(unfinished, 0o700)
            os.replace(unfinished, library)  # whoever loads it at this moment has the old file or the whole new one
        finally:
            Path(unfinished).unlink(missing_ok=True)


def find_compiler(processor: str) -> Compiler:
    """Return the first compiler that builds an OpenMP library for this processor.

    Parameters
    ----------
    processor
        The processor's model name.

    Raises
    ------
    NoDeviceError
        If there is none; the message says what to install.

    Notes
    -----
    `CALIBRATE_COMPILER` (a command, arguments allowed) and nothing else if it is set, else gcc, clang and cc on PATH.
    Each is tried with the flags for this very processor first, and without them where it doesn't know them.
    """
    try:
        chosen = shlex.split(os.environ.get("CALIBRATE_COMPILER", ""))
    except ValueError as error:
        raise NoDeviceError(f"CALIBRATE_COMPILER is not a command: {error}") from error
    reasons: list[str] = []
    for command in [chosen] if chosen else [[name] for name in _NAMES]:
        path = shutil.which(command[0])
        if path is None:
            if chosen:
                raise NoDeviceError(f"CALIBRATE_COMPILER: there is no program {command[0]!r}")
            continue
        try:
            return _probe((path, *command[1:]), processor)
        except CompileError as error:
            reasons.append(_reason(command[0], error))
    if reasons:
        raise NoDeviceError("; ".join(reasons))
    raise NoDeviceError(
        f"no C compiler on PATH ({', '.join(_NAMES)}): install one with OpenMP, for example gcc and libc6-dev on "
        "Debian, gcc on Fedora; or set CALIBRATE_COMPILER"
    )


def _probe(command: tuple[str, ...], processor: str) -> Compiler:
    version = (_run([*command, "--version"]).stdout.splitlines() or ["unknown"])[0].strip()
    failure: CompileError | None = None
    for target in _TARGETS:
        notes = (
            () if target == _TARGETS[0] else (f"{command[0]} does not take {_TARGETS[0][0]}: {target or 'no'} flag",)
        )
        compiler = Compiler(command, version, (*_COMMON, *target), processor, notes)
        try:
            compiler.load("host.c")
            return compiler
        except CompileError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _reason(name: str, error: CompileError) -> str:
    log = (error.detail or "").partition("\n")[2].lower()  # past the command, which names every flag
    if "omp.h" in log or "lomp" in log or "gomp" in log or "fopenmp" in log:
        return f"{name} has no OpenMP: install libomp-dev for clang, or use gcc"
    if "fatal error" in log and ".h" in log:
        return f"{name} lacks the C library's headers: install libc6-dev (Debian) or glibc-devel (Fedora)"
    return str(error)


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no message")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIME_LIMIT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(
            f"{command[0]} did not end within {_TIME_LIMIT_S:g} s; try again on a less busy host"
        ) from error
    except OSError as error:
        raise CompileError(f"{command[0]} can't be run: {error.strerror}") from error


def _seal(library: Path) -> None:
    """Append the hash of a library to it; loaders pass over what follows the last section."""
    digest = hashlib.sha256(library.read_bytes()).digest()
    with library.open("ab") as end:
        end.write(digest)


def _is_whole(library: Path) -> bool:
    try:
        content = library.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_SEAL_BYTES]).digest() == content[-_SEAL_BYTES:]
