"""`outlast list`."""

import sys

import click

from outlast.cli.commands.output import Form, json_option, say_json
from outlast.cli.documents.runs import Line


@click.command()
@click.option("--mine", is_flag=True, help="Only experiments of this project's stacks.")
@click.option("--every", is_flag=True, help="Every run, not only the newest of each experiment.")
@json_option(Line, form=Form.LIST, help="Print them as JSON.")
def list(mine: bool, every: bool, as_json: bool) -> None:
    """List the runs: state, step, steps a second, time left, last heartbeat, cost so far.

    The runs are read from the bucket that OUTLAST_BUCKET names, or else from those that the
    settings of this project's stacks name; no stack has to be up. --mine leaves out experiments
    that no settings file of this project names; it does not know which person started a run. Exit
    code 1: something could not be read.

    \b
    outlast list --mine
    outlast list --json | jq -r '.[] | select(.state == "silent").experiment'
    """
    from outlast.cli import overview
    from outlast.cli.show.console import show_unread
    from outlast.cli.show.overview import show_overview

    found = overview.read(mine=mine, every=every)
    if as_json:
        say_json([line.as_json() for line in found.lines])
        show_unread(found.unread)
    else:
        show_overview(found)
    sys.exit(1 if found.unread else 0)
