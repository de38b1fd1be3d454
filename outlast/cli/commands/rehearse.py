"""`outlast rehearse`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from outlast.base import exits
from outlast.cli.commands.guests import guest_images, guest_options, guest_variables
from outlast.cli.commands.options import Amount, provider_option
from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.rehearsals import OnGoogle, Rehearsal

if TYPE_CHECKING:
    from outlast.cli.rehearsal.report import Report

ON_GOOGLE = ("project", "zone", "image", "max_cost", "probes_only", "clean_up")
"""Options of a rehearsal on Google alone."""


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
@click.option("--on", type=click.Choice(["google"]), help="Rehearse on Google, for cents.")
@click.option("--project", metavar="ID", help="On Google: the project, which has to be named.")
@click.option("--zone", metavar="ZONE", help="On Google: the zone; default us-central1-a.")
@click.option("--image", metavar="IMAGE", help="On Google: the image; default Debian 13.")
@click.option(
    "--max-cost",
    metavar="DOLLARS",
    type=Amount(min=0),
    help="On Google: refuse if it could cost more; default 0.50.",
)
@click.option("--probes-only", is_flag=True, help="On Google: ask the probes, and train nothing.")
@click.option("--clean-up", is_flag=True, help="On Google: only delete what an earlier one left.")
@json_option(Rehearsal, OnGoogle, help="Print the report as JSON.")
def rehearse(
    scenario: str | None,
    lists: bool,
    on: str | None,
    epochs: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run the stack with a scenario's faults, and check the guarantees: on this machine, or in a
    project of yours on Google.

    Without a scenario, the run is preempted once and killed twice. docs/scenarios.md has the
    scenarios, how to write one, and what happens on Google.

    \b
    Exit codes
      0   every guarantee was held, and every assumption about Google holds
      1   a guarantee is broken, or an assumption does not hold
      2   none of these, but some were not exercised or could not be asked

    \b
    outlast rehearse
    outlast rehearse --scenario baseline --stack first
    """
    if lists or scenario == "list":
        _list(as_json)
        return
    google = {key: given.pop(key) for key in ON_GOOGLE}
    if on:
        _refuse(given, "is for a rehearsal on this machine; leave it out with --on google")
        code = _on_google(scenario, epochs, as_json=as_json, **google)
    else:
        _refuse(google, "needs --on google")
        code = _here(scenario, epochs, as_json=as_json, **given)
    if code:
        sys.exit(code)


def _list(as_json: bool) -> None:
    from outlast.cli.rehearsal import scenario as scenarios
    from outlast.cli.rehearsal.show import show_scenarios

    listed = scenarios.listed()
    if as_json:
        say_json(dict(listed))
    else:
        show_scenarios(listed)


def _refuse(given: dict[str, Any], why: str) -> None:
    """Refuses options that the user has given."""
    context = click.get_current_context()
    for name in given:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')}: {why}.")


def _here(
    scenario: str | None,
    epochs: int | None,
    *,
    stack: str | None,
    data: tuple[str, ...],
    limit_rows: int | None,
    guest: str,
    guest_image: Path | None,
    provider: str,
    as_json: bool,
) -> int:
    from outlast.cli.rehearsal import rehearse as rehearsal
    from outlast.cli.rehearsal.show import Screen, show_report

    with Screen(quiet=as_json) as screen:
        report = rehearsal.rehearse(
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
        say_json(report.as_json())
    else:
        show_report(report)
    return _code(report)


def _code(report: "Report") -> int:
    from outlast.cli.rehearsal.guarantees import Verdict

    if report.count(Verdict.BROKEN):
        return 1
    return exits.DONE if report.held else 2


def _on_google(
    scenario: str | None,
    epochs: int | None,
    *,
    project: str | None,
    probes_only: bool,
    clean_up: bool,
    as_json: bool,
    **chosen: Any,
) -> int:
    from outlast.cli.rehearsal.google import rehearse as google
    from outlast.cli.rehearsal.google.assumptions import Outcome
    from outlast.cli.rehearsal.show import Screen, show_google_report

    if not project:
        raise click.UsageError("--on google: needs --project, so that no other is used by mistake.")
    if probes_only and (scenario or epochs):
        raise click.UsageError("--probes-only: trains nothing; leave --scenario and --epochs out.")
    asked = {key: value for key, value in chosen.items() if value is not None}
    order = google.Order(
        project, scenario=scenario, epochs=epochs, probes_only=probes_only, **asked
    )
    with Screen(quiet=as_json) as screen:
        if clean_up:
            google.clean_up(order, screen)
            return exits.DONE
        report = google.rehearse(order, screen)
    if as_json:
        say_json(report.as_json())
    else:
        show_google_report(report)
    codes = [_code(report.run)] if report.run else []
    if report.count(Outcome.FAILS) or 1 in codes:
        return 1
    return 2 if report.count(Outcome.UNASKED) or 2 in codes else exits.DONE
