"""`outlast recover`."""

import click

from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
def recover(experiment: str) -> None:
    """Recover a stack whose pulumi up was killed: its lock, and resources that were being
    created.
    """
    if recovered(experiment):
        say(f"{experiment}: recovered; continue with pulumi up")
    else:
        say(f"{experiment}: nothing to recover")


def recovered(experiment: str | None) -> bool:
    """Recovers the stack and reports what; False if there was nothing to recover."""
    from outlast.cli import recover as recovery

    done = recovery.recover(experiment)
    for name in done.taken_up if done else ():
        say(f"{name}: was being created when pulumi was killed; added to the state if it exists")
    return done is not None
