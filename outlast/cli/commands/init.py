"""`outlast init`."""

from pathlib import Path

import click

from outlast.cli.terminal import say


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("."))
def init(folder: Path) -> None:
    """Write a new project: a program of ten lines, a trainer, a stack to rehearse.

    FOLDER is created if it does not exist; the default is the current folder.

    \b
    outlast init my-project
    """
    from outlast.cli import init as projects

    for name in projects.write(folder):
        say(str(folder / name))
    where = "" if folder == Path(".") else f"cd {folder} && "
    say(f"next: {where}outlast rehearse")
