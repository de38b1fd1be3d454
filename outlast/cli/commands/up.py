"""`outlast up`."""

import click

from outlast.cli.commands.recover import recovered
from outlast.cli.terminal import say


@click.command()
@click.argument("experiment", required=False)
@click.option(
    "--latest",
    is_flag=True,
    help="First set outlast:gitCommit to the newest commit of outlast:gitRef.",
)
@click.option("--yes", "-y", is_flag=True, hidden=True, expose_value=False)  # pulumi's own habit
def up(experiment: str | None, latest: bool) -> None:
    """Run pulumi up without its questions, after recovering from an interrupted update.

    EXPERIMENT is a stack; the default is the selected one. With --latest, the newest commit of the
    branch is first written into the stack's configuration (outlast:gitCommit).
    """
    from outlast.cli import up as stack_up

    recovered(experiment)
    if latest:
        found = stack_up.latest(experiment)
        same = " as before" if found.commit == found.before else ""
        say(f"outlast:gitCommit: {found.ref} is at {found.commit}{same}")
    if why := stack_up.up(experiment):
        say(f"warning: {why}", err=True)
