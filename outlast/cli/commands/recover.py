"""`outlast recover`."""

from typing import TYPE_CHECKING

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents import changes
from outlast.cli.terminal import say

if TYPE_CHECKING:
    from outlast.cli.recover import Recovered


@click.command()
@click.argument("experiment")
@json_option(changes.Recovered)
def recover(experiment: str, as_json: bool) -> None:
    """Recover a stack whose pulumi up was killed: its lock, and resources that were being
    created.

    \b
    outlast recover first
    """
    from outlast.cli import recover as recovery

    done = recovery.recover(experiment)
    if as_json:
        document: changes.Recovered = {
            "experiment": experiment,
            "recovered": done is not None,
            "resources": [*done.taken_up] if done else [],
        }
        say_json(document)
        return
    _say_taken_up(done)
    if done is None:
        say(f"{experiment}: nothing to recover")
    else:
        say(f"{experiment}: recovered; continue with pulumi up")


def recovered(experiment: str | None, *, err: bool = False) -> bool:
    """Recovers the stack and reports what, with `err` on stderr; False if there was nothing to
    recover.
    """
    from outlast.cli import recover as recovery

    done = recovery.recover(experiment)
    _say_taken_up(done, err=err)
    return done is not None


def _say_taken_up(done: "Recovered | None", *, err: bool = False) -> None:
    for name in done.taken_up if done else ():
        say(
            f"{name}: was being created when pulumi was killed; added to the state if it exists",
            err=err,
        )
