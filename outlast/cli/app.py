"""The command `outlast`: finds its subcommand, and shows errors as one sentence."""

import importlib
import sys

import click

from outlast.base import exits
from outlast.base.console import write_line
from outlast.base.log import log_to
from outlast.cli import names
from outlast.cli.terminal import say

COMMANDS = (
    *("rehearse", "init", "train", "mark", "status", "costs", "checkpoints", "up", "destroy"),
    *("resume", "stop", "recover", "repair", "preview", "handover", "cloud", "list", "logs"),
    *("wait", "watch", "fetch", "run", "inspect", "report", "sweep", "data", "dev", "ssh"),
    *("completion", "audit", "doctor", "prune"),
)
"""The subcommands; each is a module of `outlast.cli.commands`."""


class Commands(click.Group):
    """Imports each subcommand when it is called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found = getattr(importlib.import_module(f"outlast.cli.commands.{cmd_name}"), cmd_name)
        return names.complete_experiments(found)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, asked: _show_version(context) if asked else None,
    help="Show the version and the commit.",
)
def cli() -> None:
    """Train on preemptible Compute Engine VMs; a preemption costs only minutes."""


def _show_version(context: click.Context) -> None:
    from outlast.cli import version

    say(f"outlast {version.text()}")
    context.exit()


def main() -> None:
    """Shows errors for people as one sentence on stderr."""
    from outlast.cli.errors import OperateError

    log_to(write_line)
    try:
        cli(standalone_mode=False, complete_var=names.VARIABLE)
    except click.ClickException as error:
        say(f"outlast: {error.format_message()}", err=True)
        sys.exit(exits.USAGE if isinstance(error, click.UsageError) else error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        say("outlast: interrupted; everything it started has ended", err=True)
        sys.exit(exits.CTRL_C)
    except OperateError as error:
        say(f"outlast: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
