"""`outlast train`."""

import click

from outlast.cli.verbatim import Verbatim, become


@click.command(cls=Verbatim)
def train(words: list[str]) -> None:
    """Run any training command so that it survives being killed.

    \b
    outlast train -- python train.py
    """
    become("-P", "-m", "outlast.loop.command", *words)
