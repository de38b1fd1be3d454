"""`outlast run`."""

import sys
from pathlib import Path

import click

from outlast.base import exits
from outlast.cli.commands.fetch import into_folder
from outlast.cli.commands.output import Form, json_option, say_json
from outlast.cli.documents.files import Fetched
from outlast.cli.documents.runs import Line
from outlast.cli.engine_flags import SETTINGS, engine_flags, split
from outlast.cli.terminal import say


@click.command(context_settings=SETTINGS)
@click.argument("experiment")
@engine_flags
@into_folder
@click.option("--destroy", is_flag=True, help="Destroy the stack once the result is verified.")
@json_option(
    *(Line, Fetched),
    form=Form.LINES,
    help="Print progress and result as JSON lines.",
)
def run(experiment: str, flags: tuple[str, ...], into: Path, destroy: bool, as_json: bool) -> None:
    """Bring a stack up, watch its run and fetch the result: up, watch and fetch in one.

    Ctrl-C ends only this command: the run continues in the cloud, and outlast watch and outlast
    fetch continue here. Flags of pulumi up may follow EXPERIMENT. With --destroy, the stack is
    destroyed once the result is here and verified; without a result it stays. Exit codes are those
    of outlast wait, and 130 after Ctrl-C.

    \b
    outlast run first --destroy
    """
    from outlast.cli import fetch as fetching
    from outlast.cli import runs
    from outlast.cli import up as stack_up
    from outlast.cli.commands.recover import recovered
    from outlast.cli.commands.watch import watched

    name, passed = split(experiment, flags)
    if name is None:
        raise click.UsageError("Missing argument 'EXPERIMENT': it comes before Pulumi's flags.")
    recovered(name, err=as_json)
    done = stack_up.up(name, passed, aside=as_json)
    if done.why:
        say(f"warning: {done.why}", err=True)
    code = watched((name,), as_json=as_json)
    if code == exits.CTRL_C:
        say(f"outlast: once it is done: outlast fetch {name}", err=True)
    if code != exits.DONE:
        sys.exit(code)
    found = fetching.fetch(runs.find(name), into)
    if as_json:
        say_json(found.as_json(), line=True)
    else:
        say(str(found.path))
    if destroy and (left := stack_up.destroy(name, aside=as_json)):
        say(f"{name}: {left}", err=True)
