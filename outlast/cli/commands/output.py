"""`--json`: the option, with the type of what it prints, and the printing."""

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import click

from outlast.cli.terminal import say


class Form(StrEnum):
    """How many documents a command prints; a sentence's end for `docs/json.md`."""

    ONE = "one"
    LIST = "a list"
    SEVERAL = "one; a list for several experiments"
    LINES = "one a line"


class JsonOption(click.Option):
    """`--json`."""

    def __init__(self, *args: Any, document: tuple[type, ...], form: Form, **more: Any) -> None:
        super().__init__(*args, **more)
        self.document = document
        """What it prints: one of these."""
        self.form = form


def json_option(
    *document: type, form: Form = Form.ONE, help: str = "Print it as JSON."
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--json` as `as_json`. `document`: what it prints, of `outlast/cli/documents`."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help=help,
        cls=JsonOption,
        document=document,
        form=form,
    )


def say_json(document: Any, *, line: bool = False) -> None:
    """Prints a document; with `line`, on one line."""
    say(json.dumps(document, indent=None if line else 2))
