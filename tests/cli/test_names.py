"""Completion in a shell, and help with an example, for every command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from outlast.base import exits
from outlast.cli import engine, names
from outlast.cli.app import COMMANDS, cli
from outlast.cli.commands.completion import SHELLS
from outlast.cli.errors import NoStack, OperateError
from outlast.loop.command import mark
from outlast.loop.command.__main__ import parser

OWN_HELP = {"outlast train": parser().format_help(), "outlast mark": mark.USAGE}
"""Commands that parse their own words."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its words, groups too."""

    def of(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
        yield words, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from of(found, f"{words} {name}")

    context = click.Context(cli)
    for name in cli.list_commands(context):
        found = cli.get_command(context, name)
        assert found is not None
        yield from of(found, f"outlast {name}")


@pytest.mark.parametrize("words", [words for words, _ in commands()])
def test_the_help_of_every_command_has_an_example(words: str) -> None:
    text = OWN_HELP.get(words)
    if text is None:
        done = CliRunner().invoke(cli, [*words.split()[1:], "--help"])
        assert done.exit_code == 0
        text = done.stdout
    lines = [line.strip() for line in text.splitlines()]
    examples = [line for line in lines if words in line and not line.startswith("Usage")]
    assert examples, text
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "Pulumi.yaml").write_text("name: mine\nruntime: python\n")
    for name in ("first", "first-b", "second"):
        (tmp_path / f"Pulumi.{name}.yaml").write_text("config: {}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(shell: str, line: str) -> list[str]:
    """What the shell gets for a line that ends where Tab is pressed."""
    words = line.split(" ")
    at = words[-1] if shell == "fish" else str(len(words) - 1)
    env = {
        **os.environ,
        names.VARIABLE: f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": at,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "outlast.cli"], env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_experiments_commands_and_options_are_completed(project: Path) -> None:
    assert completed("bash", "outlast stop fi") == ["plain,first", "plain,first-b"]
    assert completed("bash", "outlast status first s") == ["plain,second"]
    assert completed("fish", "outlast watch sec") == ["plain,second"]
    assert completed("zsh", "outlast stop second") == ["plain", "second", "_"]
    assert completed("bash", "outlast sto") == ["plain,stop"]
    assert "plain,--timeout-minutes" in completed("bash", "outlast stop --t")
    assert completed("bash", "outlast status ./ru") == ["file,./ru"]


def test_stack_files_may_be_in_their_own_folder(project: Path) -> None:
    (project / "stacks").mkdir()
    (project / "stacks" / "Pulumi.third.yaml").touch()
    (project / "Pulumi.yaml").write_text("name: mine\nstackConfigDir: stacks # here\n")
    assert names.stacks() == ["third"]


def test_a_completion_loads_no_library_that_takes_long(project: Path) -> None:
    code = (
        "import sys; from outlast.cli import names; from outlast.cli.app import cli;"
        "import click; context = click.Context(cli); "
        "[cli.get_command(context, name) for name in cli.list_commands(context)]; names.stacks();"
        "print(sorted(m for m in ('pulumi', 'google.cloud', 'rich', 'yaml', 'numpy', 'requests')"
        " if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_the_shells(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0 and names.VARIABLE in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


def test_a_shell_that_is_not_known_is_refused() -> None:
    assert CliRunner().invoke(cli, ["completion", "tcsh"]).exit_code == 2
    assert "completion" in COMMANDS


MORE_WORDS = {
    "outlast dev pull": ["logs", "."],
    "outlast data push": ["."],
    "outlast resume": [],
    "outlast ssh": [],
}
"""What else a command needs beside the name of an experiment."""
NEEDS_STACK = sorted(
    words
    for words, command in commands()
    if any(
        isinstance(one, click.Argument) and one.name in ("experiment", "experiments", "stack")
        for one in command.params
    )
    and words != "outlast prune"  # whose experiments are in buckets
)


@pytest.mark.parametrize("words", NEEDS_STACK)
def test_every_command_suggests_the_nearest_stack_and_lists_the_rest(
    project: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    pulumi = project / "bin" / "pulumi"
    pulumi.parent.mkdir()
    pulumi.write_text("#!/bin/sh\necho \"error: no stack named 'scond' found\" >&2\nexit 255\n")
    pulumi.chmod(0o755)
    monkeypatch.setenv("PATH", str(pulumi.parent))
    done = CliRunner().invoke(cli, [*words.split()[1:], "scond", *MORE_WORDS.get(words, [])])
    error = done.exception
    assert isinstance(error, OperateError), done.output
    assert "did you mean second? known are first, first-b, second" in f"{error}{done.output}"
    assert error.exit_code == exits.USAGE


def test_a_stack_with_settings_that_another_backend_has(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulumi = project / "bin" / "pulumi"
    pulumi.parent.mkdir()
    pulumi.write_text("#!/bin/sh\necho \"error: no stack named 'first' found\" >&2\nexit 255\n")
    pulumi.chmod(0o755)
    with pytest.raises(NoStack, match="stack first: has settings, but this backend has no such"):
        engine.run_engine(["preview"], env={"PATH": str(pulumi.parent)})
