"""Compilers that are absent, old, broken or slow, and where their libraries are kept."""

from __future__ import annotations

import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels import host
from kernels.backends import cc_compiler
from kernels.backends.cc import CcBackend
from kernels.backends.cc_compiler import Compiler, find_compiler
from kernels.errors import CompileError, NoDeviceError

GEOMETRY = {"BM": 32, "BN": 32, "BK": 8}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and a host with an identity."""
    folder = tmp_path / "data"
    monkeypatch.setenv("CALIBRATE_DATA_DIR", str(folder))
    monkeypatch.setenv("CALIBRATE_HOST_ID", "test-host")
    monkeypatch.delenv("CALIBRATE_COMPILER", raising=False)
    return folder


def wrapper(folder: Path, lines: str, name: str = "wrapped-compiler") -> str:
    """A compiler command that runs `lines` of shell before the real compiler; `log` beside it counts compilations."""
    real = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    script = folder / name
    log = f'case " $* " in *" -shared "*) echo "$*" >> {folder}/log;; esac'
    script.write_text(f'#!/bin/sh\n{log}\n{lines}\nexec {real} "$@"\n')
    script.chmod(0o700)
    return str(script)


def refuse(argument: str, message: str) -> str:
    return f'case " $* " in *" {argument} "*) echo "{message}" >&2; exit 1;; esac'


def compilations(folder: Path) -> int:
    return len((folder / "log").read_text().splitlines())


def reason() -> str:
    (unusable,) = CcBackend().discover().unusable
    assert unusable.backend == "cc"
    return unusable.reason


def test_a_host_without_a_compiler_says_what_to_install(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert CcBackend().discover().devices == ()
    assert "no C compiler on PATH (gcc, clang, cc): install one" in reason()
    with pytest.raises(NoDeviceError, match="install one"), CcBackend().open("cpu-0123456789abcdef"):
        pass


@pytest.mark.parametrize(
    ("command", "expected"),
    [("no-such-compiler -O3", "there is no program 'no-such-compiler'"), ("gcc 'unclosed", "not a command")],
)
def test_a_chosen_compiler_that_is_none_is_named_and_no_other_is_taken(
    data: Path, monkeypatch: pytest.MonkeyPatch, command: str, expected: str
) -> None:
    monkeypatch.setenv("CALIBRATE_COMPILER", command)

    assert expected in reason()


def test_a_compiler_without_openmp_gets_a_reason_in_words(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "calibrate.h:10:10: fatal error: 'omp.h' file not found"
    monkeypatch.setenv("CALIBRATE_COMPILER", wrapper(tmp_path, refuse("-fopenmp", message), name="clang"))

    assert "has no OpenMP: install libomp-dev for clang, or use gcc" in reason()


def test_a_compiler_without_the_c_library_gets_a_reason_in_words(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "/usr/include/x.h:1: fatal error: stdint.h: No such file or directory"
    monkeypatch.setenv("CALIBRATE_COMPILER", wrapper(tmp_path, refuse("-shared", message)))

    assert "install libc6-dev" in reason()


def test_a_compiler_that_does_not_know_the_processor_flag_is_used_without_it_and_noted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = refuse("-march=native", "unknown flag") + "\n" + refuse("-mcpu=native", "unknown flag")
    monkeypatch.setenv("CALIBRATE_COMPILER", wrapper(tmp_path, lines))

    compiler = find_compiler("a processor")

    assert "native" not in " ".join(compiler.flags)
    assert "does not take -march=native" in compiler.notes[0]


def test_arguments_of_the_chosen_command_are_passed_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIBRATE_COMPILER", wrapper(tmp_path, ":") + " -DEXTRA='a b'")

    find_compiler("a processor")

    assert "-DEXTRA=a b" in (tmp_path / "log").read_text()


def test_a_second_start_compiles_nothing_and_another_macro_or_processor_compiles_anew(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIBRATE_COMPILER", wrapper(tmp_path, ":"))
    first = find_compiler("a processor")
    first.load("blocktile.c", GEOMETRY)
    assert compilations(tmp_path) == 2

    again = find_compiler("a processor")
    again.load("blocktile.c", GEOMETRY)
    assert compilations(tmp_path) == 2

    again.load("blocktile.c", GEOMETRY | {"BM": 64})
    find_compiler("another processor")
    assert compilations(tmp_path) == 4


def test_a_changed_source_is_compiled_anew(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(cc_compiler.SOURCES, sources)
    monkeypatch.setattr(cc_compiler, "SOURCES", sources)
    monkeypatch.setenv("CALIBRATE_COMPILER", wrapper(tmp_path, ":"))
    compiler = find_compiler("a processor")
    (sources / "calibrate.h").write_text((sources / "calibrate.h").read_text() + "\n/* changed */\n")

    compiler.load("host.c")

    assert compilations(tmp_path) == 2


def test_libraries_are_kept_where_only_their_owner_can_write(data: Path) -> None:
    find_compiler("a processor")

    folder = data / "compiled"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (library,) = folder.iterdir()
    assert stat.S_IMODE(library.stat().st_mode) == 0o700


@pytest.mark.parametrize("state", ["not a folder", "open to the group"])
def test_where_the_data_folder_can_not_keep_them_a_private_one_does(data: Path, state: str) -> None:
    if state == "not a folder":
        data.write_text("")
    else:
        (data / "compiled").mkdir(parents=True)
        (data / "compiled").chmod(0o770)

    find_compiler("a processor").load("host.c")

    if state == "open to the group":
        assert list((data / "compiled").iterdir()) == []
    private = host._temporary_dir()
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert [file.suffix for file in private.iterdir()] == [".so"]


def test_a_source_that_does_not_compile_gives_the_first_error_and_the_whole_log(data: Path) -> None:
    compiler = find_compiler("a processor")

    with pytest.raises(
        CompileError, match=r"can't compile blocktile\.c -DBM=32: .*error.*CALIBRATE_COMPILER"
    ) as caught:
        compiler.load("blocktile.c", {"BM": 32})

    assert caught.value.detail is not None
    assert caught.value.detail.startswith("$ ")
    assert "BN" in caught.value.detail
    assert [file.suffix for file in (data / "compiled").iterdir()] == [".so"]


@pytest.mark.parametrize("damage", ["cut to its magic number", "cut in the middle", "one bit flipped", "emptied"])
def test_a_damaged_library_is_built_again(data: Path, damage: str) -> None:
    compiler = find_compiler("a processor")
    compiler.load("contraction.c")
    library = next((data / "compiled").glob("contraction-*.so"))
    whole = library.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    library.unlink()  # not in place: this process has it mapped
    library.write_bytes(
        {
            "cut to its magic number": whole[:4],
            "cut in the middle": whole[: len(whole) // 2],
            "one bit flipped": bytes(flipped),
            "emptied": b"",
        }[damage]
    )

    assert compiler.load("contraction.c").untiled_columns() == 512
    assert library.read_bytes() == whole


def test_a_library_that_can_never_be_loaded_is_an_error_that_names_the_folder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "useless"
    script.write_text(
        '#!/bin/sh\nwhile [ "$1" != "-o" ] && [ $# -gt 0 ]; do shift; done\n[ $# -eq 0 ] || echo no > "$2"\n'
    )
    script.chmod(0o700)
    compiler = Compiler((str(script),), "1", (), "a processor")

    with pytest.raises(CompileError, match=f"can't be loaded from {data}/compiled.*noexec"):
        compiler.load("host.c")


def test_a_compiler_that_hangs_is_given_up(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cc_compiler, "_TIME_LIMIT_S", 0.2)
    compiler = Compiler((wrapper(tmp_path, "exec sleep 60"),), "1", (), "a processor")

    with pytest.raises(CompileError, match=r"did not end within 0\.2 s"):
        compiler.load("host.c")


def test_two_that_compile_the_same_at_once_both_get_a_whole_library(data: Path) -> None:
    compiler = find_compiler("a processor")

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: compiler.load("contraction.c"), range(4)))

    assert [library.untiled_columns() for library in loaded] == [512] * 4
    assert len(list((data / "compiled").glob("contraction-*"))) == 1
