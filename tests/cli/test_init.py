"""`outlast init`: a project in a new folder, and what it refuses."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from outlast.base.folders import PACKAGE
from outlast.cli import init
from outlast.cli.app import cli
from outlast.cli.errors import OperateError, UsageError


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_project_has_a_program_of_ten_lines_and_a_trainer(tmp_path: Path) -> None:
    written = init.write(tmp_path / "demo")
    assert set(written) == files(tmp_path / "demo") == set(init.FILES)
    program = (tmp_path / "demo/__main__.py").read_text()
    assert len(program.splitlines()) <= 10
    ast.parse(program)
    project = yaml.safe_load((tmp_path / "demo/Pulumi.yaml").read_text())
    assert project["name"] == "demo"
    environment = tmp_path / "demo" / project["runtime"]["options"]["virtualenv"]
    assert environment.resolve() == Path(sys.prefix).resolve()
    stack = yaml.safe_load((tmp_path / "demo/Pulumi.dev.yaml").read_text())["config"]
    trainer = f"{stack['outlast:source']}/{stack['outlast:trainer']}.py"
    assert (tmp_path / "demo" / trainer).is_file()
    workflow = yaml.safe_load((tmp_path / "demo/.github/workflows/review.yml").read_text())
    runs = [step.get("run", "") for step in workflow["jobs"]["review"]["steps"]]
    assert "outlast preview first --markdown > review.md" in runs
    assert "pip install outlast==0.1.0" in runs


def test_its_trainer_trains(tmp_path: Path) -> None:
    init.write(tmp_path / "demo")
    done = subprocess.run(
        [sys.executable, "train/mine.py", "--steps", "30"],
        cwd=tmp_path / "demo",
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "demo/runs").rglob("w.npy"))


def test_what_belongs_to_the_project_is_not_ignored(tmp_path: Path) -> None:
    init.write(tmp_path / "demo")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path / "demo", check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=tmp_path / "demo",
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(listed.stdout.split()) == set(init.FILES)


def test_the_folder_where_one_stands_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    runner = CliRunner()
    before = Path.cwd()
    os.chdir(tmp_path / "here")
    try:
        done = runner.invoke(cli, ["init"])
    finally:
        os.chdir(before)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "next: outlast rehearse"
    assert files(tmp_path / "here") == set(init.FILES)


def test_a_repository_or_an_environment_may_be_there(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    for name in (".git", ".venv"):
        (folder / name).mkdir(parents=True)
    assert init.write(folder)


def test_a_folder_with_files_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    (folder / "notes").mkdir()
    with pytest.raises(UsageError, match="demo: contains notes and 1 more; name a new or an empty"):
        init.write(folder)
    assert files(folder) == {"thesis.tex"}


def test_the_home_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="is your home folder; name a new one"):
        init.write(tmp_path)
    assert not files(tmp_path)


@pytest.mark.parametrize("name", ["my project", "a" * 101, "ä"])
def test_a_name_that_no_project_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a project's name"):
        init.write(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_file_or_a_link_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("file", "link"):
        with pytest.raises(UsageError, match=f"{name}: is not a folder; name another"):
            init.write(tmp_path / name)
    assert not files(tmp_path / "elsewhere")


def test_nothing_is_left_of_a_project_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(init.FILES, "/proc/no/such", "gitignore")
    with pytest.raises(OperateError, match="cannot be written"):
        init.write(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_a_folder_that_was_there_is_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(init.FILES, "/proc/no/such", "gitignore")
    (tmp_path / "demo" / ".git").mkdir(parents=True)
    with pytest.raises(OperateError, match="cannot be written"):
        init.write(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [".git"]


def test_without_git_a_project_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert init.write(tmp_path / "demo")
