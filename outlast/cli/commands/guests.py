"""The options for what a VM of the local cloud is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

GUESTS = ("process", "vm")


def guest_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--guest` and `--guest-image`."""
    function = click.option(
        "--guest-image",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Boot every VM from this cloud image, raw or qcow2; means --guest vm.",
    )(function)
    return click.option(
        "--guest",
        type=click.Choice(GUESTS),
        default=GUESTS[0],
        help="What a VM is: a process tree (the default), or a QEMU machine with a real Debian "
        "(make guest-image).",
    )(function)


def guest_images(guest: str, file: Path | None) -> dict[str, Path] | None:
    """The guest images for QEMU by family; None for process trees. Raises EngineError if there are
    none."""
    from outlast.cli import guest_image
    from outlast.cli.errors import EngineError
    from outlast.cli.parts import SetupError

    if guest == "process" and file is None:
        return None
    try:
        return guest_image.families_of(file) if file else guest_image.families()
    except SetupError as error:
        raise EngineError(str(error)) from None


def guest_variables(guest: str, file: Path | None = None) -> dict[str, str]:
    """What this shell says about package indexes and proxies, for machines of QEMU."""
    from outlast.cli.guest_image import operator_variables

    return operator_variables() if guest == "vm" or file else {}
