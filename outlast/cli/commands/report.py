"""`outlast report`."""

import json
from pathlib import Path

import click

from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The default is report-EXPERIMENT.html.",
)
@click.option("--json", "as_json", is_flag=True, help="Print its facts as JSON, without a page.")
def report(experiment: str, output: Path | None, as_json: bool) -> None:
    """Write one HTML page about a run, for a browser or phone without a network.

    It has the attempts on a timeline, the curves of all metrics, goodput, cost, configuration and
    the last lines of the logs. EXPERIMENT may also be a run's folder or gs:// path, and the run may
    still train. Text that looks like a key is left out. Exit code 1: the run cannot be read, or the
    page cannot be written.

    \b
    outlast report first
    outlast report first -o first.html
    """
    from outlast.cli import runs
    from outlast.cli.report import facts, page

    place = runs.find(experiment)
    found = facts.read(place)
    if as_json:
        say(json.dumps(found.as_json(), indent=2))
    else:
        to = output or page.file_name(found)
        page.write(page.html(found), to)
        say(str(to))
    for problem in found.problems:
        say(f"outlast: {problem}", err=True)
