"""`outlast costs`."""

import sys

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.costs import Costs, ProjectCosts, RefreshedPrices
from outlast.cli.terminal import say


@click.command()
@click.argument("experiment", required=False)
@click.option("--all", "every", is_flag=True, help="Every run in the project's buckets.")
@click.option("--refresh-prices", is_flag=True, help="Take the price list from Google's catalog.")
@json_option(
    *(Costs, ProjectCosts, RefreshedPrices),
    help="Print them as JSON.",
)
def costs(experiment: str | None, every: bool, refresh_prices: bool, as_json: bool) -> None:
    """Count what a run has cost so far, by attempt, and what preemptions cost, at list prices.

    EXPERIMENT may also be a run's gs:// path, even if its stack no longer exists. What a run will
    cost is in outlast preview. Exit code 1: something could not be read.

    \b
    outlast costs first
    outlast costs --all --json | jq .dollars
    outlast costs --refresh-prices
    """
    from outlast.cli import costs as counting
    from outlast.cli import runs
    from outlast.cli.show.costs import show_costs, show_project_costs

    if (experiment is not None) + every + refresh_prices != 1:
        raise click.UsageError("name one EXPERIMENT, or give --all or --refresh-prices.")
    if refresh_prices:
        _refresh(as_json=as_json)
        return
    if experiment is not None:
        found = counting.count(runs.find(experiment))
        if as_json:
            say_json(found.as_json())
        else:
            show_costs(found)
        return
    project = counting.count_all()
    if as_json:
        say_json(project.as_json())
    else:
        show_project_costs(project)
    sys.exit(1 if project.unread else 0)


def _refresh(*, as_json: bool) -> None:
    from outlast.cli import price_refresh

    found = price_refresh.refresh()
    if as_json:
        say_json(found.as_json())
        return
    say(
        f"{found.prices} prices of {found.date} in {found.regions} regions are in {found.file};"
        f" prices that the catalog does not have, and {found.ambiguous} with two values, keep their"
        " date"
    )
