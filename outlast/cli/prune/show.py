"""Renders a prune for people."""

from rich.table import Table

from outlast.base import numbers
from outlast.base.visible import one_line
from outlast.cli.prune.select import Plan
from outlast.cli.show.console import Terminal, show_unread
from outlast.costs import pricing

GIB = 2**30
SHOWN_OF_A_REASON = 3


def show_plan(found: Plan) -> None:
    """What would be deleted, with bytes and what they cost a month, and what stays."""
    console = Terminal()

    if found.items:
        table = Table(box=None, pad_edge=False)
        for name in ("kind", "what", "why"):
            table.add_column(name, overflow="fold")
        for name in ("size", "a month"):
            table.add_column(name, justify="right")
        for one in found.items:
            shown = (one.kind, one.url, one.why, size(one.size), one.month)
            table.add_row(*map(one_line, shown))
        console.print(table)
        console.whole_line(
            f"{len(found.items)} to delete, {size(found.size)}, {found.month} a month at list"
            f" prices of {pricing.dates()}"
        )
    else:
        console.whole_line("nothing to prune by this rule")
    stays: dict[str, list[str]] = {}
    for one in found.left:
        stays.setdefault(one.why, []).append(one.url)
    for why, all_of in stays.items():
        more = len(all_of) - SHOWN_OF_A_REASON
        others = f" and {more} more (--json lists them)" if more > 0 else ""
        console.whole_line(f"stays: {', '.join(all_of[:SHOWN_OF_A_REASON])}{others}: {why}")
    show_unread(found.unread)


def size(bytes_: int) -> str:
    """`1.25 GiB`."""
    return numbers.gib(bytes_ / GIB)
