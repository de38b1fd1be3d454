"""Writes docs/json.md, what `--json` prints and what exit codes mean: `python tools/json_page.py`.

With `--check`, says whether it is out of date; exit 1. A command's option declares its document,
one of the types in `outlast/cli/documents`.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import click  # noqa: E402
from tables import MADE, _cell, _fields, _joined  # noqa: E402

from outlast.base import exits  # noqa: E402
from outlast.cli.app import cli  # noqa: E402
from outlast.cli.audit.audit import FOUND  # noqa: E402
from outlast.cli.commands.output import JsonOption  # noqa: E402
from outlast.cli.doctor.examine import FOUND as UNHEALTHY  # noqa: E402
from outlast.cli.review.preview import NOT_CHECKED, RULE_BROKEN  # noqa: E402
from outlast.cli.watching import EXITS, TIMED_OUT  # noqa: E402

PAGE = ROOT / "docs" / "json.md"
DOCUMENTS = ROOT / "outlast" / "cli" / "documents"
TEXT = """# JSON and exit codes

{made}

For people who write scripts around `outlast`. With `--json`, stdout has only JSON; sentences for
people go to stderr. Later versions may add fields. Times are ISO 8601 in UTC, durations are
seconds, prices are US dollars. Fields in *italics* may be missing.

## Exit codes

| command | code | means |
|---|---|---|
"""

COMMON: Mapping[int, str] = {
    exits.DONE: "it worked",
    1: "it did not; one sentence on stderr says why",
    exits.USAGE: "bad usage: the same call fails again",
    exits.CTRL_C: "Ctrl-C",
}
ENDED = {code: f"the run is {state.value}" for state, code in EXITS.items()}
OWN: Mapping[str, Mapping[int, str]] = {
    "audit": {
        1: "something could not be read; the rest is printed",
        FOUND: "there are findings, or some could not be removed",
    },
    "data ls": {1: "a run could not be read, so data may have more uses; the rest is printed"},
    "doctor": {UNHEALTHY: "an up would not work"},
    "list": {1: "something could not be read; the rest is printed"},
    "preview": {
        RULE_BROKEN: "a rule is broken",
        NOT_CHECKED: "the bucket cannot be read, so an open run might be replaced; up is refused",
    },
    "prune": {1: "something could not be read or deleted"},
    "rehearse": {
        exits.DONE: "every guarantee was held",
        1: "a guarantee is broken, or an assumption does not hold",
        2: "neither, but some were not exercised or could not be asked",
    },
    "run": ENDED,
    "sweep leaderboard": {1: "a trial could not be read; the rest is printed"},
    "train": {
        exits.INTERRUPTED: "interrupted; the same command resumes",
        exits.FENCED: "another attempt holds the run",
    },
    "wait": {**ENDED, TIMED_OUT: "not ended in time"},
    "watch": ENDED,
}
"""What a command's codes mean, besides or instead of those that all have."""


def options() -> Iterator[tuple[str, JsonOption]]:
    """Every command with `--json`, by its words."""

    def of(command: click.Command, words: str) -> Iterator[tuple[str, JsonOption]]:
        for option in command.params:
            if isinstance(option, JsonOption):
                yield words, option
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from of(found, f"{words} {name}")

    return of(cli, "outlast")


def page() -> str:
    """The page's text."""
    lines = [TEXT.format(made=MADE).rstrip("\n")]
    for name, codes in {"any": COMMON, **OWN}.items():
        shown = name if name == "any" else f"`{name}`"
        lines += [f"| {shown} | {code} | {what} |" for code, what in codes.items()]
    lines += [
        "",
        "## Commands",
        "",
        "| command with `--json` | prints | how many |",
        "|---|---|---|",
    ]
    for words, option in options():
        kinds = ", ".join(f"[{one.__name__}](#{one.__name__.lower()})" for one in option.document)
        name = words.removeprefix("outlast ")
        lines.append(f"| `{name}` | {kinds} | {option.form} |")
    trees = [ast.parse(file.read_text()) for file in sorted(DOCUMENTS.glob("*.py"))]
    for node in (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)):
        lines += ["", f"## {node.name}", "", _joined(ast.get_docstring(node))]
        for base in node.bases:
            if (name := ast.unparse(base)) != "TypedDict":
                lines[-1] += f" It has the fields of [{name}](#{name.lower()}), and:"
        lines += ["", "| field | type | |", "|---|---|---|"]
        for one in _fields(node):
            name = f"*{one.name}*" if one.optional else one.name
            lines.append(f"| {name} | `{_cell(one.type)}` | {_cell(one.about)} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    is_current = PAGE.exists() and PAGE.read_text() == page()
    if "--check" in argv:
        if not is_current:
            print("docs/json.md: is out of date; run make tables", file=sys.stderr)
        return 0 if is_current else 1
    if not is_current:
        PAGE.write_text(page())
        print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
