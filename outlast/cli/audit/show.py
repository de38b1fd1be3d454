"""Renders an audit for people."""

from rich.table import Table

from outlast.base import numbers
from outlast.base.visible import one_line
from outlast.cli.audit.audit import Audit
from outlast.cli.show.console import Terminal, show_unread
from outlast.costs import pricing


def show_audit(found: Audit) -> None:
    """The findings with what they cost, then what is not judged, kept, or not looked at."""
    console = Terminal()

    if found.findings:
        table = Table(box=None, pad_edge=False)
        for name in ("kind", "name", "why"):
            table.add_column(name, overflow="fold")
        table.add_column("a month", justify="right")
        for one in found.findings:
            why = f"{one.why} ({one.held})" if one.held else one.why
            table.add_row(*map(one_line, (one.kind, one.name, why, one.month)))
        console.print(table)
        cost = found.cost
        month = cost.said(pricing.HOURS_A_MONTH) if cost.items else "nothing"
        many = numbers.count(len(found.findings), "finding")
        console.whole_line(
            f"{many} in {found.project}, {month} a month at list prices of {pricing.dates()}"
        )
    else:
        console.whole_line(f"{found.project}: no findings")
    for sentence in found.waiting:
        console.whole_line(f"not judged: {sentence}")
    for sentence in found.kept:
        console.whole_line(sentence)
    for project, count in sorted(found.others.items()):
        console.whole_line(
            f"{count} of Pulumi project {project} were not looked at; run the audit in its folder"
        )
    show_unread(found.unread)
