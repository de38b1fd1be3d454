"""Flags of Pulumi that `outlast up`, `preview` and `destroy` pass on."""

from collections.abc import Callable
from typing import Any

import click

SETTINGS = {"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
"""Context settings of a command that takes them."""


def engine_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument `flags`: what follows the experiment, except options of the command."""
    return click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[PULUMI FLAGS]...")(
        command
    )


def split(experiment: str | None, flags: tuple[str, ...]) -> tuple[str | None, list[str]]:
    """The experiment, or None if the line begins with a flag, and the flags.

    Raises UsageError if a flag would choose another stack or ask questions.
    """
    given = list(flags)
    if experiment is not None and experiment.startswith("-"):
        experiment, given = None, [experiment, *given]
    for flag in given:
        name = flag.partition("=")[0]
        if name in ("-s", "--stack"):
            raise click.UsageError(f"{name}: name the stack as EXPERIMENT, before Pulumi's flags.")
        if name in ("-C", "--cwd"):
            raise click.UsageError(f"{name}: change to the project's folder instead.")
    return experiment, given
