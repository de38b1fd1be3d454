"""`outlast data`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from outlast.cli.commands.output import Form, json_option, say_json
from outlast.cli.documents.files import DataListed, DataPushed
from outlast.cli.terminal import say


@click.group()
def data() -> None:
    """Put data into the bucket for runs to read, and list what is there.

    \b
    outlast data push digits
    """


def _bucket_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--bucket", help="Default: the bucket of this project's stacks.")(function)


@data.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("name", required=False)
@_bucket_option
@click.option(
    "--delete", is_flag=True, help="Delete files from the bucket that FOLDER does not have."
)
@json_option(DataPushed, help="Print path and fingerprint as JSON.")
def push(folder: Path, name: str | None, bucket: str | None, delete: bool, as_json: bool) -> None:
    """Upload a folder or file as gs://BUCKET/data/NAME, which every VM may read.

    By default, NAME is the name of FOLDER. Files that are already there are skipped, so the same
    command continues an interrupted push. A push is refused if it would change data of an open run.

    \b
    outlast data push ~/datasets/mnist
    pulumi config set outlast:data gs://my-project-outlast/data/mnist
    """
    from outlast.base import numbers
    from outlast.cli import data as pushing

    store, found = pushing.chosen_bucket(bucket)
    pushed = pushing.push(store, found, folder, name or folder.resolve().name, delete=delete)
    if as_json:
        say_json(pushed.as_json())
        return
    deleted = f", {pushed.deleted} deleted" if pushed.deleted else ""
    say(
        f"{pushed.fingerprint.name}: {pushed.fingerprint.size} bytes in"
        f" {numbers.count(pushed.files, 'file')},"
        f" CRC32C {pushed.fingerprint.crc32c}; {pushed.sent} sent{deleted}"
    )


@data.command()
@_bucket_option
@json_option(DataListed, form=Form.LIST)
def ls(bucket: str | None, as_json: bool) -> None:
    """List the data in the bucket: name, files, bytes, fingerprint, the runs that use it.

    Exit code 1: a run could not be read, so data may have more uses.

    \b
    outlast data ls
    """
    from outlast.cli import data as listing
    from outlast.cli.errors import reading
    from outlast.cli.show.console import show_unread
    from outlast.cli.show.files import show_data

    store, found = listing.chosen_bucket(bucket)
    with reading(f"gs://{found}"):
        lines, unread = listing.listed(store, found)
    if as_json:
        say_json([line.as_json() for line in lines])
    else:
        show_data(lines)
    show_unread(unread)
    sys.exit(1 if unread else 0)
