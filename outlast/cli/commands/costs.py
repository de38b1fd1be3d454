"""`outlast costs`."""

import json

import click

from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def costs(experiment: str, as_json: bool) -> None:
    """Count what a run has cost so far: every VM's hours, at list prices.

    EXPERIMENT may also be a run's gs:// path, even if its stack no longer exists.
    """
    from outlast.cli import costs as counting
    from outlast.cli import runs
    from outlast.cli.render import show_costs

    found = counting.count(runs.find(experiment))
    if as_json:
        say(json.dumps(found.as_json(), indent=2))
    else:
        show_costs(found)
