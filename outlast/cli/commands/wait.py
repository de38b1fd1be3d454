"""`outlast wait`."""

import sys

import click

from outlast.cli.commands.options import MINUTES_MAX, Amount, notify_option
from outlast.cli.commands.output import Form, json_option, say_json
from outlast.cli.documents.runs import Line
from outlast.cli.terminal import say


@click.command()
@click.argument("experiments", nargs=-1, required=True, metavar="EXPERIMENT...")
@click.option(
    "--timeout-minutes",
    type=Amount(0, MINUTES_MAX, min_open=True),
    help="Give up after this time.",
)
@json_option(Line, form=Form.LIST, help="Print how they ended as JSON.")
@notify_option
def wait(
    experiments: tuple[str, ...], timeout_minutes: float | None, as_json: bool, notify: bool
) -> None:
    """Wait until runs have ended; the exit code says how.

    It looks every 30 s, less often while nothing changes. EXPERIMENT may also be a run's folder or
    gs:// path. Exit code 0: all are done. Otherwise that of the first run that is not: 3 failed, 4
    stopped, 5 expired, 6 pruned, 124 timed out. 1: a run cannot be read; 64: it does not exist.

    \b
    outlast wait first && outlast fetch first
    outlast wait first second --timeout-minutes 90
    """
    from outlast.cli import notifying, runs, watching
    from outlast.cli.show.console import show_unread
    from outlast.cli.show.overview import summary

    notifier = notifying.Notifier.of_environment() if notify else None
    places = [runs.find(experiment) for experiment in experiments]
    limit_sec = None if timeout_minutes is None else 60 * timeout_minutes
    said = [""] * len(places)
    lines = []
    for lines in watching.rounds(places, watching.pauses(places), limit_sec=limit_sec):
        for number, line in enumerate(lines):
            state = line.status.state
            if state != said[number]:
                said[number] = state
                say(summary(line), err=True)
        if notifier is not None:
            show_unread(notifier.look(lines))
    if as_json:
        say_json([line.as_json() for line in lines])
    sys.exit(watching.exit_code(lines))
