"""`outlast up`."""

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.commands.recover import recovered
from outlast.cli.documents.changes import Upped
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
@json_option(Upped, help="Print the outcome as JSON, and Pulumi's output to stderr.")
@click.option("--yes", "-y", is_flag=True, hidden=True, expose_value=False)  # pulumi's own habit
def up(experiment: str | None, flags: tuple[str, ...], latest: bool, as_json: bool) -> None:
    """Run pulumi up without its questions, after recovering from an interrupted update.

    EXPERIMENT is a stack; the default is the selected one. Flags of pulumi up may follow it, such
    as --policy-pack policy. With --latest, the newest commit of the
    branch is first written into the stack's configuration (outlast:gitCommit).

    \b
    outlast up first && outlast watch first
    """
    from outlast.cli import up as stack_up

    experiment, passed = split(experiment, flags)
    was_recovered = recovered(experiment, err=as_json)
    commit = None
    if latest:
        found = stack_up.latest(experiment)
        commit = found.commit
        same = " as before" if found.commit == found.before else ""
        say(f"outlast:gitCommit: {found.ref} is at {found.commit}{same}", err=as_json)
    done = stack_up.up(experiment, passed, aside=as_json)
    if as_json:
        document: Upped = {
            "experiment": done.experiment,
            "recovered": was_recovered,
            "commit": commit,
            "why": done.why,
        }
        say_json(document)
        return
    if done.why:
        say(f"warning: {done.why}", err=True)
    if done.experiment:
        say(f"next: outlast watch {done.experiment}", err=True)
