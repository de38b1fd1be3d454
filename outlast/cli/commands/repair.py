"""`outlast repair`."""

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.changes import Repaired
from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@json_option(Repaired)
def repair(experiment: str, as_json: bool) -> None:
    """Repair a HEAD that is lost, unreadable, or names no readable checkpoint.

    EXPERIMENT may also be the folder or gs:// path of a run without a stack.

    \b
    outlast repair first && outlast resume first
    """
    from outlast.base import numbers
    from outlast.bucket.layout import is_run_path
    from outlast.cli import repair as repairing
    from outlast.cli import runs, stack
    from outlast.cli.errors import reading

    alone = is_run_path(experiment)
    with reading(experiment):
        if alone:
            done = repairing.repair_alone(runs.find_damaged(experiment))
        else:
            deployed = stack.find(experiment)
            done = repairing.repair(deployed.store(), deployed.layout, deployed.owner)
    if as_json:
        document: Repaired = {
            "experiment": experiment,
            "state": done.head.state,
            "step": done.head.step,
            "set_aside": done.set_aside,
        }
        say_json(document)
        return
    if done.set_aside:
        say(f"{experiment}: {numbers.count(done.set_aside, 'newer checkpoint')} could not be used")
    if alone:
        then = f"at step {done.head.step}; its own command resumes from there"
    else:
        then = f"stopped at step {done.head.step}; continue with: outlast resume {experiment}"
    say(f"{experiment}: HEAD is repaired, {then}")
