"""How the command writes to a terminal: text from outside stays text."""

import click

from outlast.base.visible import visible


def say(text: str, *, err: bool = False) -> None:
    """Lines to stdout, or to stderr, in which nothing is a control sequence."""
    click.echo(visible(text), err=err)
