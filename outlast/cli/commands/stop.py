"""`outlast stop`."""

import click

from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
def stop(experiment: str) -> None:
    """End a run as stopped. Its checkpoints are kept; outlast resume continues it.

    Steps since the newest checkpoint are lost, and it says how many.

    \b
    outlast stop first
    """
    from outlast.cli import resume as resuming
    from outlast.cli import stack
    from outlast.cli.errors import reading

    with reading(experiment):
        deployed = stack.find(experiment)
        head = resuming.stop(deployed)
        lost = resuming.lost_steps(deployed, head)
    if lost:
        say(f"{experiment}: steps lost since its newest checkpoint: {lost}")
    say(
        f"{experiment}: stopped at step {head.step}; its VM leaves with its next heartbeat;"
        f" continue with: outlast resume {experiment}"
    )
