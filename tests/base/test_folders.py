"""An installation without its data files says so in one sentence."""

import contextlib
import fnmatch
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.base.folders import DATA, PACKAGE


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a wheel installs it."""
    folder = tmp_path_factory.mktemp("installed")
    ignored = shutil.ignore_patterns("__pycache__", "pulumi", "interpreter")
    shutil.copytree(PACKAGE, folder / "outlast", ignore=ignored)
    return folder


@contextlib.contextmanager
def without(path: Path) -> Iterator[None]:
    kept = path.rename(path.with_name("kept"))
    try:
        yield
    finally:
        kept.rename(path)


def called(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_each_kind_of_file_that_a_wheel_has_is_looked_for():
    table = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    kinds = table["tool"]["setuptools"]["package-data"]["outlast"]
    without = [kind for kind in kinds if not fnmatch.filter(DATA, kind)]
    assert without == ["py.typed", "cli/commit.txt"]


@pytest.mark.parametrize("name", DATA)
def test_the_command_names_a_missing_file(installed: Path, name: str):
    path = installed / "outlast" / name
    (there,) = (installed / "outlast").glob(name)
    with without(there):
        done = called(installed, "-m", "outlast.cli", "init", "demo")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and not (installed / "demo").exists()
    assert line == (
        f"outlast: {path}: is missing, and Outlast does not work without it; install it again:"
        " pip install --force-reinstall outlast"
    )


def test_a_program_names_a_missing_file(installed: Path):
    path = installed / "outlast" / "startup" / "boot.sh"
    with without(path):
        done = called(installed, "-c", "from outlast import settings; settings.load()")
    assert done.stderr.splitlines()[-1].endswith("pip install --force-reinstall outlast")
    assert f"{path}: is missing" in done.stderr


def test_a_whole_installation_writes_a_project(installed: Path):
    done = called(installed, "-m", "outlast.cli", "init", "whole")
    assert done.returncode == 0, done.stderr
