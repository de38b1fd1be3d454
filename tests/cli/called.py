"""The command that words on a page call."""

import click

from outlast.cli.app import cli


def command_of(words: list[str]) -> click.Command:
    """The command that the words begin with, which are taken away; `cli` itself if none does."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command = found
        words.pop(0)
    return command
