"""`outlast report`."""

from pathlib import Path

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.reports import Facts
from outlast.cli.documents.sweeps import SweepFacts
from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The page; default: report-EXPERIMENT.html.",
)
@click.option("--sweep", "is_sweep", is_flag=True, help="EXPERIMENT is a sweep, or its file.")
@json_option(
    *(Facts, SweepFacts),
    help="Print the facts of the page as JSON, and write no page.",
)
def report(experiment: str, output: Path | None, is_sweep: bool, as_json: bool) -> None:
    """Write one HTML page about a run or sweep, for a browser or phone without a network.

    The page of a run shows its attempts on a timeline, the curves of all metrics, goodput, cost,
    configuration and the last lines of the logs; that of a sweep, its leaderboard and the curves of
    its trials. EXPERIMENT may also be a run's folder or gs:// path, or a sweep's name or file; the
    run may still be training. Text that looks like a key is left out. Exit code 1: the run cannot
    be read, or the page cannot be written.

    \b
    outlast report first
    outlast report first -o first.html
    outlast report lr --sweep
    """
    from outlast.cli.errors import OperateError, UsageError
    from outlast.cli.report import facts, page, sweep
    from outlast.cli.runs import find
    from outlast.cli.sweep.file import SUFFIXES

    if is_sweep or experiment.endswith(SUFFIXES):
        found = sweep.find(experiment)
    else:
        try:
            found = facts.read(find(experiment))
        except UsageError as error:  # A sweep may have this name.
            try:
                found = sweep.find(experiment)
            except OperateError:
                raise error from None
    if as_json:
        say_json(found.as_json())
    else:
        to = output or page.file_name(found.name)
        html = sweep.html(found) if isinstance(found, sweep.SweepFacts) else page.html(found)
        page.write(html, to)
        say(str(to))
    for problem in found.problems:
        say(f"outlast: {problem}", err=True)
