"""Options that several commands have."""

import math
from collections.abc import Callable
from typing import Any

import click

MINUTES_MAX = 1_000_000


class Amount(click.FloatRange):
    """A finite number in a range; every comparison with NaN is false, also one with a limit."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return found


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
