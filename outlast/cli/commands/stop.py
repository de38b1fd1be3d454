"""`outlast stop`."""

import click

from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
def stop(experiment: str) -> None:
    """End a run as stopped. Its checkpoints are kept; outlast resume continues it."""
    from outlast.cli import resume as resuming
    from outlast.cli import stack
    from outlast.cli.errors import reading

    with reading(experiment):
        head = resuming.stop(stack.find(experiment))
    say(
        f"{experiment}: stopped at step {head.step}; its VM leaves with its next heartbeat;"
        f" continue with: outlast resume {experiment}"
    )
