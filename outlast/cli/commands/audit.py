"""`outlast audit`."""

import sys

import click

from outlast.cli.commands.options import MINUTES_MAX
from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.upkeep import Audit
from outlast.cli.terminal import confirmed, say


@click.command()
@click.option("--project", default="", metavar="ID", help="The Google project.")
@click.option("--remove", is_flag=True, help="Delete the findings, after showing them.")
@click.option("--open-runs", is_flag=True, help="With --remove: also what an open run may need.")
@click.option("--yes", "-y", is_flag=True, help="With --remove: do not ask.")
@click.option(
    "--min-age",
    default=60,
    show_default=True,
    metavar="MINUTES",
    type=click.IntRange(0, MINUTES_MAX),
    help="Skip what is younger: an up with another backend may be creating it.",
)
@json_option(Audit)
def audit(
    project: str, remove: bool, open_runs: bool, yes: bool, min_age: int, as_json: bool
) -> None:
    """List what is still there, and perhaps billed, although no stack owns it.

    That is everything with the labels of this folder's Pulumi project, in all zones, that no stack
    of the current backend has in its state, and VMs whose runs have ended. Each finding says why it
    is one and what it costs a month. Without --project, the Google project is that of the
    stacks' settings, else of the environment, else of gcloud. Exit code 3: there are findings, or
    some could not be removed; 1: something could not be read.

    \b
    outlast audit
    outlast audit --remove
    """
    from datetime import timedelta

    from outlast.cli import projects
    from outlast.cli.audit import audit as audits
    from outlast.cli.audit.show import show_audit

    if as_json and remove and not yes:
        raise click.UsageError("--json with --remove cannot ask: add --yes.")
    chosen = projects.choose(project)
    least = timedelta(minutes=min_age)
    found = audits.read(chosen.project, min_age=least, stack=chosen.stack)
    if as_json:
        say_json(found.as_json())
    else:
        show_audit(found)
    if not remove or not found.findings:
        sys.exit(found.exit_code)
    if not yes and not confirmed(f"Delete these {len(found.findings)}?"):
        sys.exit(found.exit_code)
    left, failed = audits.remove(found, open_runs=open_runs)
    for sentence in (*left, *failed):
        say(f"not deleted: {sentence}", err=True)
    sys.exit(audits.FOUND if left or failed else 1 if found.unread else 0)
