"""Shows the effects of a change: on a terminal, and as a comment in Markdown."""

import re

from rich.table import Table

from outlast.base.visible import one_line
from outlast.cli.review.preview import Review
from outlast.cli.show.console import PRICES, Terminal
from outlast.costs import pricing

_MARKS = re.compile(r"[\\`<>\[\]!&@]")


def show_review(review: Review) -> None:
    """The effects of a change, for a terminal."""
    console = Terminal()

    line = console.sentence

    line(f"Stack {review.stack}")
    line()
    for run in review.runs:
        line(f"run {run.run} {run.said}: {run.why}")
    if not review.runs:
        line("no run")
    line()
    table = Table(box=None, pad_edge=False)
    for name in ("cost", "before", "after"):
        table.add_column(name)
    for row in _costs(review):
        table.add_row(*row)
    console.print(table)
    if review.after.sum.items:
        line(f"an hour: {', '.join(map(_item, review.after.sum.items))}")
    for text in (*review.bakes, *review.storage):
        line(text)
    line(PRICES.format(date=pricing.dates()))
    line()
    for word, names in review.changes.items():
        line(f"{word}: {', '.join(names)}")
    if not review.changes:
        line("no resource changes")
    for text in review.warnings:
        line(f"warning: {text}")
    for text in review.advice:
        line(f"advice: {text}")
    line()
    for broken in review.broken:
        line(f"REFUSED  {_named(broken.rule, broken.resource)}: {broken.why}")
    for text in review.not_checked:
        line(f"GUARD NOT CHECKED  {text}")
    if not review.broken:
        line("no rule is broken")


def refused_as_markdown(stack: str | None, error: Exception) -> str:
    """The comment in place of a review that the error prevented."""
    name = f"stack `{_code(stack)}`" if stack else "the selected stack"
    return f"### Outlast: {name}\n\n**Refused**\n\n- {_markdown(str(error))}"


def as_markdown(review: Review) -> str:
    """The effects of a change, as a pull request's comment."""
    lines = [
        f"### Outlast: stack `{_code(review.stack)}`",
        "",
        "| run | then | why |",
        "|---|---|---|",
    ]
    lines += [f"| `{_code(run.run)}` | **{run.said}** | {_cell(run.why)} |" for run in review.runs]
    if not review.runs:
        lines.append("| none | | |")
    lines += ["", "| cost | before | after |", "|---|---|---|"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in _costs(review)]
    lines += [
        "",
        *(
            line
            for text in map(_markdown, review.bakes)
            for line in (text[0].upper() + text[1:], "")
        ),
    ]
    if review.broken:
        lines += ["**Refused**", ""]
        lines += [
            f"- `{_code(_named(broken.rule, broken.resource))}`: {_markdown(broken.why)}"
            for broken in review.broken
        ]
    else:
        lines.append("No rule is broken.")
    if review.not_checked:
        lines += ["", "**Guard not checked**", ""]
        lines += [f"- {_markdown(text)}" for text in review.not_checked]
    remarks = [*(f"warning: {text}" for text in review.warnings), *review.advice]
    if remarks:
        lines += ["", *(f"- {_markdown(text)}" for text in remarks)]
    count = sum(map(len, review.changes.values()))
    lines += ["", f"<details><summary>resources that change: {count}</summary>", ""]
    for word, names in review.changes.items():
        lines += [f"**{word}**", "", *(f"- {_markdown(name)}" for name in names), ""]
    lines += ["</details>", "", "<details><summary>what the price is made of</summary>", ""]
    for when, stack_run in (("before", review.before), ("after", review.after)):
        for item in stack_run.sum.items:
            lines.append(f"- {when}: {_markdown(_item(item))} an hour")
    lines += [f"- {_markdown(text)}" for text in review.storage]
    lines += ["", PRICES.format(date=pricing.dates()), "", "</details>"]
    return "\n".join(lines)


def _costs(review: Review) -> list[tuple[str, str, str]]:
    before, after = review.before, review.after
    return [
        ("an hour, while its VM runs", before.an_hour, after.an_hour),
        ("a day of it", before.a_day, after.a_day),
        ("at most, to its limit", before.at_the_limit, after.at_the_limit),
    ]


def _item(item: pricing.Item) -> str:
    return f"{item.what} {'unknown' if item.hour is None else pricing.dollars(item.hour)}"


def _named(rule: str, resource: str) -> str:
    return f"{rule} {resource}".strip()


def _cell(text: str) -> str:
    return _markdown(text).replace("|", "\\|")


def _code(text: str) -> str:
    """Text within backquotes, in a table's cell too."""
    return one_line(text).replace("`", "'").replace("|", "\\|")


def _markdown(text: str) -> str:
    """Text that Markdown shows literally: no link, picture, tag or mention."""
    return _MARKS.sub(lambda found: f"&#{ord(found[0])};", one_line(text))
