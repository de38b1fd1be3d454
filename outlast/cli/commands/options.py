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


def notify_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--notify`, for commands that look at runs again and again."""
    return click.option(
        "--notify",
        is_flag=True,
        help="Send a message to OUTLAST_WEBHOOK if a run is silent or lost, or never starts.",
    )(function)
