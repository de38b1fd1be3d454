"""`outlast rehearse`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.base import exits
from outlast.cli.commands.guests import guest_images, guest_options, guest_variables
from outlast.cli.commands.options import provider_option
from outlast.cli.terminal import say

if TYPE_CHECKING:
    from outlast.cli.rehearsal.report import Report


@click.command()
@click.option("--scenario", metavar="NAME|FILE", help="The faults that happen; default storm.")
@click.option("--list", "lists", is_flag=True, help="List the named scenarios.")
@click.option("--stack", metavar="NAME", help="Rehearse your own stack, Pulumi.NAME.yaml.")
@click.option(
    "--data",
    metavar="gs://BUCKET/PATH=FOLDER",
    multiple=True,
    help="Put a folder's files into the local bucket first; repeatable.",
)
@click.option("--limit-rows", type=click.IntRange(min=64), help="Train only on the first N rows.")
@click.option("--epochs", type=click.IntRange(min=1), help="Train for fewer epochs.")
@guest_options
@provider_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def rehearse(
    scenario: str | None,
    lists: bool,
    stack: str | None,
    data: tuple[str, ...],
    limit_rows: int | None,
    epochs: int | None,
    guest: str,
    guest_image: Path | None,
    provider: str,
    as_json: bool,
) -> None:
    """Run the stack on this machine with a scenario's faults, and check the guarantees.

    Without a scenario, the run is preempted once and killed twice. docs/scenarios.md has the
    scenarios, and how to write one.

    \b
    Exit codes
      0   every guarantee was held
      1   a guarantee is broken
      2   none is broken, but some were not exercised
    """
    from outlast.cli.rehearsal import rehearse as rehearsal
    from outlast.cli.rehearsal import scenario as scenarios
    from outlast.cli.rehearsal.guarantees import Verdict
    from outlast.cli.render import Screen, show_report, show_scenarios

    if lists or scenario == "list":
        listed = scenarios.listed()
        if as_json:
            say(json.dumps(dict(listed), indent=2))
        else:
            show_scenarios(listed)
        return
    with Screen(quiet=as_json) as screen:
        report: Report = rehearsal.rehearse(
            watcher=screen,
            name=scenario,
            stack=stack,
            data=data,
            limit_rows=limit_rows,
            args={} if epochs is None else {"epochs": epochs},
            guest_images=guest_images(guest, guest_image),
            guest_env=guest_variables(guest, guest_image),
            provider=provider,
        )
    if as_json:
        say(json.dumps(report.as_json(), indent=2))
    else:
        show_report(report)
    if report.count(Verdict.BROKEN):
        sys.exit(1)
    sys.exit(exits.DONE if report.held else 2)
