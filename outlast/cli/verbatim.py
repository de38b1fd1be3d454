"""Commands that hand their words to a program of the trainer's side."""

import os
import signal
import sys
from typing import NoReturn

import click


class Verbatim(click.Command):
    """A command that parses its own words, ``--`` among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = list(args)
        return []


def become(*words: str) -> NoReturn:
    """Run a program of the trainer's side in place of this one, by Python with these words. Ctrl-C
    waits until that program is ready for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(sys.executable, [sys.executable, *words])
