"""Completes names of experiments in a shell, from the names of the project's stack files.

It is called with each press of Tab, so it reads no file but the project's, and imports little.
"""

import re
from typing import Any

import click
from click.shell_completion import CompletionItem

from outlast.base import folders

VARIABLE = "_OUTLAST_COMPLETE"
"""With which a shell asks for completions."""
_HOME = re.compile(r"^stackConfigDir:[ \t]*['\"]?([^'\"#\n]+)", re.M)


class Experiment(click.types.StringParamType):
    """An experiment, or the path of a run."""

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        if incomplete[:1] in (".", "/", "~"):
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in stacks() if name.startswith(incomplete)]


def stacks() -> list[str]:
    """The stacks of this project that have a settings file; empty without a project."""
    try:
        project = folders.project()
        text = (project / folders.PROJECT_FILE).read_text()
    except (OSError, ValueError):
        return []
    match = _HOME.search(text)
    home = project / (match[1].strip() if match else ".")
    return sorted(file.stem.removeprefix("Pulumi.") for file in home.glob("Pulumi.*.yaml"))


def complete_experiments(command: click.Command) -> click.Command:
    """Lets the shell complete the command's experiments."""
    for one in command.params:
        if one.name in ("experiment", "experiments") and one.type is click.STRING:
            one.type = Experiment()
    return command
