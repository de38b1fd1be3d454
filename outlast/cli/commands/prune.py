"""`outlast prune`."""

import sys

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.upkeep import Prune
from outlast.cli.terminal import confirmed, say


@click.command()
@click.argument("experiments", metavar="[EXPERIMENT]...", nargs=-1)
@click.option(
    "--older-than",
    default="30d",
    show_default=True,
    metavar="AGE",
    help="How long ago a run ended, such as 12h.",
)
@click.option(
    "--state",
    default="done,failed",
    show_default=True,
    metavar="STATES",
    help="The states of the runs to delete.",
)
@click.option("--keep-results", is_flag=True, help="Of a done run, delete only the checkpoints.")
@click.option("--bundles", is_flag=True, help="Also delete bundles that nothing uses.")
@click.option(
    "--environments", is_flag=True, help="Also delete installed packages that nothing uses."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option(Prune, help="Print it as JSON; delete only with --yes.")
def prune(
    experiments: tuple[str, ...],
    older_than: str,
    state: str,
    keep_results: bool,
    bundles: bool,
    environments: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete old runs from the buckets, after showing how large they are and what they cost.

    Open runs stay, and so does everything that an open run, or a stack that is up, needs. Without
    EXPERIMENT, all experiments of this project are pruned. If a prune is interrupted, run it again.
    Exit code 1: something could not be read or deleted.

    \b
    outlast prune --older-than 90d --keep-results --bundles --environments
    """
    from outlast.cli.prune import delete, select
    from outlast.cli.prune.show import show_plan

    rule = select.Rule(
        *(select.age_of(older_than), select.states_of(state), keep_results, bundles, environments),
        only=frozenset(experiments),
    )
    found = select.plan(rule)
    if as_json:
        say_json(found.as_json())
    else:
        show_plan(found)
    code = 1 if found.unread else 0
    if dry_run or not found.items or (as_json and not yes):
        sys.exit(code)
    if not yes and not confirmed(f"Delete these {len(found.items)}? They cannot be restored."):
        sys.exit(code)
    # A run that began meanwhile may need some of it.
    again = select.plan(rule)
    failed = [one for one in again.unread if one not in found.unread]
    failed += delete.delete(select.both(found, again))
    for sentence in failed:
        say(f"not deleted: {sentence}", err=True)
    sys.exit(1 if failed else code)
