"""`outlast inspect`."""

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.files import Inspected


@click.command()
@click.argument("experiment")
@click.option("--best", is_flag=True, help="The best checkpoint, instead of the result.")
@click.option("--newest", is_flag=True, help="The newest checkpoint, instead of the result.")
@click.option("--part", metavar="NAME", help="Only this part of a run with parts.")
@json_option(Inspected)
def inspect(experiment: str, best: bool, newest: bool, part: str | None, as_json: bool) -> None:
    """Show the parameters of a result or checkpoint: name, shape, type, count and norm.

    For an XGBoost model, show its trees. Everything is verified first, and nothing is unpickled: a
    file that may hold a pickle is only named. EXPERIMENT may also be a run's folder or gs:// path.
    Exit code 1: the result or checkpoint does not exist or cannot be read.

    \b
    outlast inspect first
    outlast inspect first --best --json
    """
    from outlast.cli import fetch, inspecting, runs
    from outlast.cli.show.files import show_inspected

    if best and newest:
        raise click.UsageError("--best and --newest: choose one of them")
    which = "best" if best else "newest" if newest else None
    with fetch.verified(runs.find(experiment), which, part) as folder:
        found = inspecting.inspect(folder)
    if as_json:
        document = {
            "parameters": [one.as_json() for one in found.parameters],
            "trees": [one.as_json() for one in found.trees],
            "others": dict(found.others),
            "count": found.count,
        }
        say_json(document)
    else:
        show_inspected(found)
