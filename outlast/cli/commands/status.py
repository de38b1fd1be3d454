"""`outlast status`."""

import json

import click

from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(experiment: str, as_json: bool) -> None:
    """Show a run's state and attempts, from its records in the bucket.

    EXPERIMENT may also be a run's folder or gs:// path.
    """
    from outlast.cli import runs
    from outlast.cli import status as states
    from outlast.cli.render import show_status

    found = states.read(runs.find(experiment))
    if as_json:
        say(json.dumps(found.as_json(), indent=2))
    else:
        show_status(found)
