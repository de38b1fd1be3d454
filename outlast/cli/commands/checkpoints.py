"""`outlast checkpoints`."""

import click

from outlast.cli.commands.output import Form, json_option, say_json
from outlast.cli.documents.files import Checkpoint
from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@json_option(Checkpoint, form=Form.LIST, help="Print them as JSON.")
def checkpoints(experiment: str, as_json: bool) -> None:
    """List a run's checkpoints, with the name by which another run can start from each.

    EXPERIMENT may also be a run's folder or gs:// path. The name under a checkpoint is what
    outlast:init takes, and init of outlast.train.

    \b
    outlast checkpoints first
    """
    from outlast.cli.runs import OpenedRun, find

    found = [dict(row) for row in OpenedRun(find(experiment)).checkpoints()]
    if as_json:
        say_json(found)
        return
    for row in found:
        tags = f"  {row['tags']}" if row["tags"] else ""
        part = f"{row['part']}  " if "part" in row else ""
        say(f"{part}step {row['step']}  term {row['term']}{tags}\n  {row['init']}")
    if not found:
        say(f"{experiment}: no checkpoint is committed yet")
