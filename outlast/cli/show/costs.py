"""Shows what runs cost."""

from rich.table import Table

from outlast.base import numbers
from outlast.cli.costs import Costs, ProjectCosts
from outlast.cli.show.console import PRICES, Terminal, show_unread
from outlast.costs import pricing


def show_costs(costs: Costs) -> None:
    """The cost of a run by its attempts, and what preemptions cost."""
    console = Terminal()

    line = console.sentence

    line(
        f"{costs.experiment}: run {costs.run} is {costs.state}; its VMs cost {costs.said} in"
        f" {costs.hours:.2f} h so far"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("attempt", "VM", "zone", "from (UTC)", "to", "ended as"):
        table.add_column(name)
    for name in ("hours", "an hour", "cost"):
        table.add_column(name, justify="right")
    shares = costs.shares
    for share in shares:
        life, attempt = share.life, share.attempt
        is_now = life.alive and share.end == life.end
        table.add_row(
            str(attempt.term) if attempt else "none",
            life.instance,
            life.zone,
            f"{share.start:%m-%d %H:%M:%S}",
            "now" if is_now else f"{share.end:%m-%d %H:%M:%S}",
            str(attempt.reason or "") if attempt else "",
            f"{share.hours:.2f}",
            life.rate.said(),
            life.rate.said(share.hours),
        )
    if shares:
        console.print(table)
    for text in costs.sentences:
        line(text)
    line(f"storage: {costs.storage}")
    for what in costs.unknown:
        line(f"no price is known for {what}")
    line("not counted: requests, traffic, images")
    line(PRICES.format(date=pricing.dates()))


def show_project_costs(found: ProjectCosts) -> None:
    """The costs of all runs of a project."""
    console = Terminal()
    table = Table(box=None, pad_edge=False)
    for name in ("experiment", "run", "state"):
        table.add_column(name)
    for name in ("hours", "cost", "preemptions", "GiB kept"):
        table.add_column(name, justify="right")
    for run in found.runs:
        table.add_row(
            run.experiment,
            run.run,
            run.state,
            f"{run.hours:.2f}",
            run.said,
            pricing.dollars(run.preemptions.dollars),
            f"{run.gib:,.2f}",
        )
    if found.runs:
        console.print(table)
    count = len(found.runs)
    console.sentence(
        f"{numbers.count(count, 'run')}: VMs cost {found.said}, of which"
        f" {pricing.dollars(found.preempted)} for preemptions; what they keep in the bucket costs"
        f" {found.month_said} a month",
    )
    for what in dict.fromkeys(what for run in found.runs for what in run.unknown):
        console.sentence(f"no price is known for {what}")
    console.sentence(PRICES.format(date=pricing.dates()))
    show_unread(found.unread)
