"""`outlast destroy`."""

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.commands.recover import recovered
from outlast.cli.documents.changes import Destroyed
from outlast.cli.engine_flags import SETTINGS, engine_flags, split
from outlast.cli.terminal import say


@click.command(context_settings=SETTINGS)
@click.argument("experiment")
@engine_flags
@json_option(Destroyed, help="Print the outcome as JSON, and Pulumi's output to stderr.")
@click.option("--yes", "-y", is_flag=True, hidden=True, expose_value=False)
def destroy(experiment: str, flags: tuple[str, ...], as_json: bool) -> None:
    """Run pulumi destroy without its questions, after recovering from an interrupted update.

    Resources that the stack's state has lost are deleted too: they are found in the project by the
    stack's labels, or by the mark in their descriptions. The bucket stays, with everything that the
    run has committed, so the next up resumes the run. Flags of pulumi destroy may follow
    EXPERIMENT.

    \b
    outlast fetch first && outlast destroy first
    """
    from outlast.cli import up as stack_up

    name, passed = split(experiment, flags)
    if name is None:
        raise click.UsageError("Missing argument 'EXPERIMENT': it comes before Pulumi's flags.")
    was_recovered = recovered(experiment, err=as_json)
    left = stack_up.destroy(experiment, passed, aside=as_json)
    if as_json:
        document: Destroyed = {
            "experiment": experiment,
            "recovered": was_recovered,
            "left": left,
        }
        say_json(document)
    elif left:
        say(f"{experiment}: {left}")
