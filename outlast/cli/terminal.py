"""Prints to a terminal, without interpreting text from outside, and asks on it."""

import sys

import click

from outlast.base.visible import visible


def say(text: str, *, err: bool = False) -> None:
    """Prints lines to stdout or stderr, without control sequences."""
    click.echo(visible(text), err=err)


def confirmed(question: str) -> bool:
    """Whether the user says yes on this terminal. Raises UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on; add --yes.")
    return click.confirm(visible(question))
