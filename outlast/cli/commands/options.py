"""Options that several commands have."""

from collections.abc import Callable
from typing import Any

import click


def provider_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--provider`, which `engine.chosen_plugin` reads."""
    return click.option(
        "--provider",
        type=click.Choice(["stand-in", "plugin"]),
        default="stand-in",
        show_default=True,
        help="What the engine creates resources with; plugin: Google's pulumi-resource-gcp.",
    )(function)
