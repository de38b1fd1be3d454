"""`outlast watch`."""

import sys

import click

from outlast.base import exits
from outlast.cli.commands.options import notify_option
from outlast.cli.commands.output import Form, json_option
from outlast.cli.documents.runs import Line
from outlast.cli.terminal import say


@click.command()
@click.argument("experiments", nargs=-1, required=True, metavar="EXPERIMENT...")
@json_option(Line, form=Form.LINES, help="Print each change as a line of JSON.")
@notify_option
def watch(experiments: tuple[str, ...], as_json: bool, notify: bool) -> None:
    """Show the progress of runs until they have ended.

    Progress bars on a terminal, otherwise a line for each change. Ctrl-C ends only the watching;
    the runs continue. EXPERIMENT may also be a run's folder or gs:// path. Exit codes are those of
    outlast wait, and 130 after Ctrl-C.

    \b
    outlast watch first second
    """
    sys.exit(watched(experiments, as_json=as_json, notify=notify))


def watched(experiments: tuple[str, ...], *, as_json: bool = False, notify: bool = False) -> int:
    """Shows them; returns the exit code. Raises OperateError."""
    from outlast.cli import notifying, runs, watching
    from outlast.cli.show.console import show_unread
    from outlast.cli.show.overview import Progresses

    notifier = notifying.Notifier.of_environment() if notify else None
    places = [runs.find(experiment) for experiment in experiments]
    lines = []
    try:
        with Progresses(as_json=as_json) as shown:
            for lines in watching.rounds(places, watching.pauses(places)):
                shown.show(lines)
                if notifier is not None:
                    show_unread(notifier.look(lines))
    except KeyboardInterrupt:
        names = " ".join(experiments)
        say(f"outlast: the runs continue; to watch them again: outlast watch {names}", err=True)
        return exits.CTRL_C
    return watching.exit_code(lines)
