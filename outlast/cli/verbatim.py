"""Commands that pass their arguments to a program of the trainer's side."""

import os
import signal
import sys
from typing import NoReturn

import click


class Verbatim(click.Command):
    """A command that parses its own arguments, including ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = list(args)
        return []


def become(*words: str) -> NoReturn:
    """Replaces this process by a program of the trainer's side, run by Python with these arguments.
    Ctrl-C waits until that program is ready.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(sys.executable, [sys.executable, *words])
