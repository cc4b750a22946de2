"""What ships: locks without hosts, and a wheel that has everything it needs at run time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted(ROOT.glob("requirements*.lock"))


def test_there_are_locks_for_run_time_development_and_both_cuda_generations() -> None:
    assert [path.name for path in LOCKS] == [
        "requirements-cuda12.lock",
        "requirements-cuda13.lock",
        "requirements-dev.lock",
        "requirements.lock",
    ]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_no_host_and_every_package_has_a_hash(path: Path) -> None:
    text = path.read_text()

    assert not re.search(r"://|--index|--extra-index|--find-links|@ file", text)
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 30
    for entry in entries:
        assert re.match(r"[a-z0-9-]+(\[[a-z,]+\])?==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(source)], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_source_template_and_migration_that_the_repository_has(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    wanted = {
        str(path.relative_to(ROOT))
        for package in ("service", "kernels", "fitting", "migrations")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wanted if name.endswith((".c", ".cu", ".html"))}
    assert wanted <= names, sorted(wanted - names)
    assert not [name for name in names if name.startswith("tests/")]


def test_the_installed_wheel_migrates_lists_the_cpu_and_fits_with_no_repository_in_sight(
    wheel: Path, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    (dependencies,) = (Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CALIBRATE_DATA_DIR": str(tmp_path / "data"),
        "CALIBRATE_LOCK_DIR": str(tmp_path / "locks"),
        # The dependencies of the running environment, behind the wheel and without its editable install.
        "PYTHONPATH": os.pathsep.join([str(site), str(dependencies)]),
    }
    rows = tmp_path / "rows.tsv"
    rows.write_text("cc\tabc\tstream_copy\tblock=1\t1.000000\t\t1\t0\t1000000\tfalse\tfalse\tfalse\n")

    def calibrate(*words: str) -> str:
        command = [str(tmp_path / "venv/bin/python"), "-S", "-c", "from service.cli import main; main()", *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    calibrate("db", "upgrade")
    assert (tmp_path / "data" / "calibrations.sqlite3").exists()
    assert "cpu-" in calibrate("devices")
    assert "model_peak_memory_bandwidth=1.000002e+9" in calibrate("fit", str(rows))
