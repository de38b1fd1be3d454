"""`outlast mark`."""

import click

from outlast.base.folders import PACKAGE
from outlast.cli.verbatim import Verbatim, become


@click.command(cls=Verbatim)
def mark(words: list[str]) -> None:
    """Inside outlast train: say that the checkpoint is complete.

    \b
    outlast mark
    """
    become("-I", "-S", str(PACKAGE / "loop" / "command" / "mark.py"), "mark", *words)
