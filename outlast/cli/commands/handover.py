"""`outlast handover`."""

import click

from outlast.cli.terminal import say


@click.command()
@click.argument("run")
@click.argument("owner")
def handover(run: str, owner: str) -> None:
    """Give a run to another stack, while no VM works on it.

    RUN is the run's gs:// path, OWNER the stack that continues it, as organization/project/stack: a
    stack that was renamed, or moved to another backend or project. A refused preview prints both.
    """
    from outlast.cli import handover as handing
    from outlast.cli import runs
    from outlast.cli.errors import UsageError, reading

    if not run.startswith("gs://"):
        raise UsageError(f"{run}: must be a run's path, gs://BUCKET/experiments/NAME/RUN.")
    with reading(run):
        place = runs.find_damaged(run)
        done = handing.hand_over(place.store, place.layout, owner)
    if done.before == owner:
        say(f"{run}: belongs to {owner} already")
    else:
        say(
            f"{run}: at step {done.head.step}, belongs to {owner} now, and no longer to"
            f" {done.before}; its pulumi up continues the run"
        )
