"""`outlast dev`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.files import Pulled
from outlast.cli.terminal import say

if TYPE_CHECKING:
    from outlast.cli.dev.vms import Way
    from outlast.cli.stack import Deployed


@click.group()
def dev() -> None:
    """Try changed code on a running VM, beside the experiment's own run.

    \b
    outlast dev sync first
    """


user_option = click.option(
    "--user", default="", help="User to log in as; default: gcloud's choice."
)


def _way(experiment: str, user: str) -> "tuple[Deployed, Way]":
    from outlast.cli import stack
    from outlast.cli.dev.vms import Way
    from outlast.cli.errors import NotUp

    deployed = stack.find(experiment)
    if deployed.group is None:
        raise NotUp(f"stack {experiment}: has no group of VMs; outlast up {experiment} creates it")
    return deployed, Way(deployed.group, user)


@dev.command()
@click.argument("experiment")
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    help="The folder to follow; default: outlast:source of the stack.",
)
@click.option(
    "--destination", help="Folder on the VM; default: outlast-dev/EXPERIMENT in the home folder."
)
@user_option
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Files to leave out as well; repeatable."
)
@click.option(
    "--share-gpu", is_flag=True, help="Train even while the experiment's open run may use the GPU."
)
def sync(
    experiment: str,
    source: Path | None,
    destination: str | None,
    user: str,
    exclude: tuple[str, ...],
    share_gpu: bool,
) -> None:
    """Keep code on the VM up to date and train it as run dev-…, until Ctrl-C.

    Everything that `outlast up` would deliver of the folder is copied to the VM, never back; what
    you delete here is deleted there. Each change of the code starts another dev run, in the
    experiment's folder of the bucket. The experiment's own run continues, on the same machine. A
    recreated VM gets everything again. A dev run uses the packages of the experiment's run, and its
    code runs as the user who logs in.

    \b
    outlast dev sync first
    outlast dev sync first --source code --exclude '*.ipynb'
    """
    from outlast.cli.dev.source import Source
    from outlast.cli.dev.sync import Sync

    deployed, way = _way(experiment, user)
    folder = source or _source_of(experiment)
    Sync(
        deployed,
        way,
        Source(folder, exclude),
        destination or f"outlast-dev/{experiment}",
        share_gpu,
    ).run()


def _source_of(experiment: str) -> Path:
    from outlast.cli import experiments
    from outlast.cli.errors import UsageError

    for one in experiments.settings():
        if one.stack == experiment and one.source is not None:
            return one.source
    raise UsageError(
        f"source: stack {experiment} does not set outlast:source in its settings file; name the"
        " folder with --source FOLDER"
    )


@dev.command()
@click.argument("experiment")
@click.argument("remote")
@click.argument("local", type=click.Path(path_type=Path))
@user_option
@json_option(Pulled, help="Print path, files and bytes as JSON.")
def pull(experiment: str, remote: str, local: Path, user: str, as_json: bool) -> None:
    """Copy a file or folder from the VM to LOCAL, verified by size and SHA-256.

    REMOTE is absolute, or relative to the home folder on the VM. If LOCAL is an existing folder,
    the copy goes into it. No existing file is replaced, and links are refused.

    \b
    outlast dev pull first outlast-dev/first/profile.json .
    """
    from outlast.base import numbers
    from outlast.cli.dev import pull as pulling

    _, way = _way(experiment, user)
    pulled = pulling.pull(way, experiment, remote, local)
    if as_json:
        say_json(pulled.as_json())
    else:
        say(f"{pulled.path}: {pulled.size} bytes in {numbers.count(pulled.files, 'file')}")
