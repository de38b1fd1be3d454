"""Writes docs/complaints.md from tests/complaints.yaml: `python tools/complaints_page.py`.

With `--check`, says whether the page is out of date; exit 1. Rows that cannot be shown end it with
their sentences: a number twice, a missing number, a test that does not exist, a row that claims
something without a test.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from tables import MADE, _cell  # noqa: E402

TABLE = ROOT / "tests" / "complaints.yaml"
PAGE = ROOT / "docs" / "complaints.md"
NUMBERS = frozenset(
    {
        *(*range(1, 8), *range(9, 16), 17, 18, 20),
        *(*range(21, 24), *range(25, 29), *range(30, 37), 38),
        *(*range(39, 43), *range(44, 47), *range(48, 57), 58),
        *(*range(59, 63), *range(64, 69)),
        *(70, 71, 73, 74),
        *(75, *range(77, 82), 83),
    }
)
"""The complaints of the survey of November 2026. What it dropped left gaps; none is used again."""
KINDS: Mapping[str, frozenset[str]] = {
    "tests": frozenset({"here", "tests"}),
    "does_not_apply": frozenset({"does_not_apply"}),
    "not_shown_yet": frozenset({"not_shown_yet"}),
}
"""What a row has besides its number, threads and `there`: exactly one of these sets."""
THREAD = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:#(?P<number>\d+))?")
BATS = re.compile(r'^@test "(.+)" \{$', re.M)

TEXT = """# Complaints about others, and how you know

{made}

For platform engineers who met one of these in another product and ask whether Outlast does it too.
Each row names public threads, what went wrong there, what Outlast does, and tests that would have
failed there. [One test by its name](../CONTRIBUTING.md#one-test) runs on your machine, without an
account. None of this has run against Google's own API yet; [assumptions](assumptions.md) has what
that leaves open. A thread may have been resolved since; a missing number was dropped.
"""


def table() -> list[dict[str, Any]]:
    """The sections with their rows."""
    return yaml.safe_load(TABLE.read_text())


def rows(sections: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """All rows of all sections."""
    for section in sections:
        yield from section["rows"]


def problems(sections: list[dict[str, Any]], root: Path = ROOT) -> list[str]:
    """Sentences about what is wrong with the table; the tests are looked for below `root`."""
    found: list[str] = []
    counts = Counter(row.get("number") for row in rows(sections))
    found += [f"{number}: is there {often} times" for number, often in counts.items() if often > 1]
    found += [f"{number}: is missing" for number in sorted(NUMBERS - counts.keys())]
    found += [f"{number}: is not a number of the survey" for number in counts.keys() - NUMBERS]
    for row in rows(sections):
        found += [f"{row.get('number')}: {why}" for why in _faults(row, root)]
    return found


def _faults(row: Mapping[str, Any], root: Path) -> Iterator[str]:
    fields = frozenset(row) - {"number", "threads", "there"}
    if fields not in KINDS.values():
        yield f"has {', '.join(sorted(fields)) or 'nothing'} instead of one of its three kinds"
        return
    for name in ("there", *sorted(fields - {"tests"})):
        text = row.get(name)
        if not isinstance(text, str) or not text.endswith("."):
            yield f"{name}: must be a sentence"
    if not row.get("threads"):
        yield "names no thread"
    for thread in row.get("threads") or ():
        if not THREAD.fullmatch(thread):
            yield f"{thread}: must be OWNER/REPOSITORY#NUMBER"
    if "tests" in fields and not row["tests"]:
        yield "names no test"
    for test in row.get("tests") or ():
        if test.partition("::")[2] not in _tests_of(root / test.partition("::")[0]):
            yield f"{test}: there is no such test"


def _tests_of(file: Path) -> frozenset[str]:
    """The names of the tests in a file, which is read and not imported."""
    if not file.is_file():
        return frozenset()
    text = file.read_text()
    if file.suffix == ".bats":
        return frozenset(BATS.findall(text))
    if file.suffix != ".py" or not file.name.startswith("test_"):
        return frozenset()
    functions = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    return frozenset(one.name for one in functions if one.name.startswith("test_"))


def page(sections: list[dict[str, Any]]) -> str:
    """The page. Rows that no test shows yet are under their own heading, and nowhere else."""
    lines = [TEXT.format(made=MADE)]
    head = "| | threads | what went wrong there | Outlast | tests |\n|---|---|---|---|---|"
    for section in sections:
        shown = [row for row in section["rows"] if "not_shown_yet" not in row]
        if shown:
            lines += [f"## {section['section']}", "", head, *map(_row, shown), ""]
    missing = [row for row in rows(sections) if "not_shown_yet" in row]
    if missing:
        lines += ["## Not shown yet", "", "| | threads | what went wrong there | missing here |"]
        lines += ["|---|---|---|---|"]
        for row in missing:
            cells = (str(row["number"]), _threads(row), row["there"], row["not_shown_yet"])
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(row: Mapping[str, Any]) -> str:
    here = row.get("here") or f"Does not apply: {row['does_not_apply']}"
    tests = "<br>".join(f"`{test}`" for test in row.get("tests", ()))
    cells = (str(row["number"]), _threads(row), row["there"], here, tests)
    return f"| {' | '.join(map(_cell, cells))} |"


def _threads(row: Mapping[str, Any]) -> str:
    return ", ".join(f"[{thread}]({_address(thread)})" for thread in row["threads"])


def _address(thread: str) -> str:
    """Of an issue or a pull request: the host leads from one to the other."""
    found = THREAD.fullmatch(thread)
    assert found
    address = f"https://github.com/{found['repository']}"
    return f"{address}/issues/{found['number']}" if found["number"] else address


def main(argv: list[str]) -> int:
    sections = table()
    if wrong := problems(sections):
        print(*(f"tests/complaints.yaml: {why}" for why in wrong), sep="\n", file=sys.stderr)
        return 1
    is_current = PAGE.exists() and PAGE.read_text() == page(sections)
    if "--check" in argv:
        if not is_current:
            print("docs/complaints.md: is out of date; run make tables", file=sys.stderr)
        return 0 if is_current else 1
    if not is_current:
        PAGE.write_text(page(sections))
        print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
