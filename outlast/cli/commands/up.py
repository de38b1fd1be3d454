"""`outlast up`."""

import click

from outlast.cli.commands.recover import recovered
from outlast.cli.engine_flags import SETTINGS, engine_flags, split
from outlast.cli.terminal import say


@click.command(context_settings=SETTINGS)
@click.argument("experiment", required=False)
@engine_flags
@click.option(
    "--latest",
    is_flag=True,
    help="First set outlast:gitCommit to the newest commit of outlast:gitRef.",
)
@click.option("--yes", "-y", is_flag=True, hidden=True, expose_value=False)  # pulumi's own habit
def up(experiment: str | None, flags: tuple[str, ...], latest: bool) -> None:
    """Run pulumi up without its questions, after recovering from an interrupted update.

    EXPERIMENT is a stack; the default is the selected one. Flags of pulumi up may follow it, such
    as --policy-pack policy. With --latest, the newest commit of the
    branch is first written into the stack's configuration (outlast:gitCommit).
    """
    from outlast.cli import up as stack_up

    experiment, passed = split(experiment, flags)
    recovered(experiment)
    if latest:
        found = stack_up.latest(experiment)
        same = " as before" if found.commit == found.before else ""
        say(f"outlast:gitCommit: {found.ref} is at {found.commit}{same}")
    done = stack_up.up(experiment, passed)
    if done.why:
        say(f"warning: {done.why}", err=True)
    if done.experiment:
        say(f"next: outlast watch {done.experiment}", err=True)
