"""Prints to a terminal, without interpreting text from outside."""

import click

from outlast.base.visible import visible


def say(text: str, *, err: bool = False) -> None:
    """Prints lines to stdout or stderr, without control sequences."""
    click.echo(visible(text), err=err)
