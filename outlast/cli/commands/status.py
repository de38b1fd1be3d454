"""`outlast status`."""

import sys

import click

from outlast.cli.commands.output import Form, json_option, say_json
from outlast.cli.documents.runs import Status
from outlast.cli.terminal import say


@click.command()
@click.argument("experiments", nargs=-1, metavar="[EXPERIMENT]...")
@json_option(Status, form=Form.SEVERAL)
def status(experiments: tuple[str, ...], as_json: bool) -> None:
    """Show how runs stand: state, attempts, last value of each metric, time left.

    Without an EXPERIMENT, all runs are listed, as by outlast list. EXPERIMENT may also be a run's
    folder or gs:// path. The records are in the bucket, so it works after a destroy too. A run is
    silent after three missed heartbeats, and lost once another VM may take it over.

    \b
    outlast status first second
    outlast status first --json | jq .state
    """
    from outlast.cli import runs
    from outlast.cli import status as states
    from outlast.cli.commands.list import list as list_runs
    from outlast.cli.errors import OperateError
    from outlast.cli.show.console import show_unread
    from outlast.cli.show.status import show_status

    if not experiments:
        list_runs.callback(mine=False, every=False, as_json=as_json)  # type: ignore[misc]
        return
    found: list[states.Status] = []
    errors: list[OperateError] = []
    for experiment in experiments:
        try:
            found.append(states.read(runs.find(experiment)))
        except OperateError as error:
            if len(experiments) == 1:
                raise
            errors.append(error)
    if as_json:
        given = [one.as_json() for one in found]
        say_json(given[0] if len(experiments) == 1 else given)
    else:
        for number, one in enumerate(found):
            if number:
                say("")
            show_status(one)
    show_unread([str(error) for error in errors])
    if errors:
        sys.exit(errors[0].exit_code)
