"""`outlast handover`."""

from typing import cast

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.changes import HandedOver
from outlast.cli.terminal import say


@click.command()
@click.argument("run")
@click.argument("owner")
@click.option(
    "--to",
    metavar="gs://BUCKET",
    help="Move the run to this bucket; it can then not continue in the old one.",
)
@json_option(HandedOver)
def handover(run: str, owner: str, to: str | None, as_json: bool) -> None:
    """Give a run to another stack, while no VM works on it.

    RUN is the run's gs:// path, OWNER the stack that continues it, as organization/project/stack: a
    stack that was renamed, or moved to another backend, project or bucket. A refused preview prints
    both. With --to, everything is copied and compared before the run moves; if that is interrupted,
    the same command finishes it, and the command without --to undoes it.

    \b
    outlast handover gs://runs/experiments/first/0123456789 organization/outlast/second
    """
    from outlast.bucket.store import BucketStore, StoreError, open_store
    from outlast.cli import handover as handing
    from outlast.cli import runs
    from outlast.cli.errors import UsageError, reading

    if not run.startswith("gs://"):
        raise UsageError(f"{run}: must be a run's path, gs://BUCKET/experiments/NAME/RUN.")
    with reading(run):
        place = runs.find_damaged(run)
        if to is None:
            done = handing.hand_over(place.store, place.layout, owner)
        else:
            if not to.startswith("gs://"):
                raise UsageError(f"--to {to}: must be gs://BUCKET.")
            try:
                target = open_store(to)
            except StoreError as error:
                raise UsageError(f"--to {error}") from None
            # Both are buckets.
            stores = cast(BucketStore, place.store), cast(BucketStore, target)
            done = handing.hand_over_into(*stores, place.layout, owner)
    if as_json:
        document: HandedOver = {
            "run": done.place,
            "owner": done.head.owner,
            "before": done.before,
            "step": done.head.step,
            "copied": to is not None,
        }
        say_json(document)
    elif to is not None:
        say(
            f"{run}: was copied to {done.place}, where it is at step {done.head.step} and belongs"
            f" to {done.head.owner}; that stack's pulumi up continues it, with outlast:bucket"
            f" {to.removeprefix('gs://').rstrip('/')}"
        )
    elif done.before == owner:
        say(f"{run}: belongs to {owner} already")
    else:
        say(
            f"{run}: at step {done.head.step}, belongs to {owner} now, and no longer to"
            f" {done.before}; its pulumi up continues the run"
        )
