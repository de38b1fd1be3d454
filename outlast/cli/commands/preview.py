"""`outlast preview`."""

import sys
from pathlib import Path

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.previews import Review
from outlast.cli.engine_flags import SETTINGS, engine_flags, split
from outlast.cli.terminal import say


@click.command(context_settings=SETTINGS)
@click.argument("experiment", required=False)
@engine_flags
@click.option("--markdown", is_flag=True, help="Print it as a pull request's comment.")
@json_option(Review)
@click.option(
    "--policy-pack-config",
    "config",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Limits of the rules, in the file format of pulumi preview --policy-pack-config.",
)
def preview(
    experiment: str | None,
    flags: tuple[str, ...],
    markdown: bool,
    as_json: bool,
    config: Path | None,
) -> None:
    """Show what pulumi up would do to each run and to the bill, and which rules it would break.

    EXPERIMENT is a stack; the default is the selected one. Nothing is changed. Flags of pulumi
    preview may follow it; with --refresh, the preview also shows what others have changed.

    \b
    Exit codes
      0   no rule is broken
      3   a rule is broken
      4   not checked whether an open run would be replaced: its bucket cannot be read
      1   no preview: the program refuses the settings, or the engine failed
      64  bad usage

    \b
    outlast preview first --policy-pack-config limits.json
    """
    from outlast.cli.errors import OperateError
    from outlast.cli.review import preview as previews
    from outlast.cli.review.show import as_markdown, refused_as_markdown, show_review

    if markdown and as_json:
        raise click.UsageError("--markdown and --json: print one of them.")
    experiment, passed = split(experiment, flags)
    try:
        found = previews.review(experiment, config=config, flags=passed)
    except OperateError as error:
        # A comment with an older result must not stay on a change that is refused.
        if as_json:
            say_json(previews.refused(experiment, error))
        elif markdown:
            say(refused_as_markdown(experiment, error))
        raise
    if as_json:
        say_json(found.as_json())
    elif markdown:
        say(as_markdown(found))
    else:
        show_review(found)
    sys.exit(found.exit_code)
