"""Writes docs/complaints.md from tests/complaints.yaml and tests/faults.yaml:
`python tools/complaints_page.py`.

With `--check`, says whether the page is out of date; exit 1. Rows that cannot be shown end it with
their sentences: a number twice, a missing number, a test that does not exist, a row that claims
something without a test.
"""

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from tables import MADE, _cell  # noqa: E402

PAGE = ROOT / "docs" / "complaints.md"
KINDS: Mapping[str, frozenset[str]] = {
    "tests": frozenset({"here", "tests"}),
    "does_not_apply": frozenset({"does_not_apply"}),
    "not_shown_yet": frozenset({"not_shown_yet"}),
}
"""What a row has besides what all rows of its table have: exactly one of these sets."""
THREAD = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:#(?P<number>\d+))?")
BATS = re.compile(r'^@test "(.+)" \{$', re.M)

Sections = list[dict[str, Any]]


@dataclass(frozen=True)
class Table:
    """A file of sections with rows, and what a row of it has."""

    file: Path
    numbers: frozenset[int | str]
    """Each row has one as its `number`."""
    wrong: str
    """The field that says what went wrong."""
    has_threads: bool
    """Whether a row names public threads."""

    def read(self) -> Sections:
        """The sections with their rows."""
        return yaml.safe_load(self.file.read_text())


COMPLAINTS = Table(
    ROOT / "tests" / "complaints.yaml",
    frozenset(
        {
            *(*range(1, 8), *range(9, 16), 17, 18, 20),
            *(*range(21, 24), *range(25, 29), *range(30, 37), 38),
            *(*range(39, 43), *range(44, 47), *range(48, 57), 58),
            *(*range(59, 63), *range(64, 69)),
            *(70, 71, 73, 74),
            *(75, *range(77, 82), 83),
        }
    ),
    wrong="there",
    has_threads=True,
)
"""The complaints of the survey of November 2026. What it dropped left gaps; none is used again."""


def _numbered(letter: str, *parts: Iterable[int]) -> Iterator[str]:
    return (f"{letter}{number}" for part in parts for number in part)


FAULTS = Table(
    ROOT / "tests" / "faults.yaml",
    frozenset(
        {
            *_numbered("L", range(1, 20), range(21, 28)),
            *_numbered("R", range(1, 13), (14, 16, 17, 19), range(21, 25), range(26, 30)),
            *_numbered("G", range(1, 26)),
            *("S1b", *_numbered("S", range(1, 25)), *_numbered("P", range(1, 26))),
            *_numbered("X", range(1, 14)),
        }
    ),
    wrong="was",
    has_threads=False,
)
"""Those found before the first release, with the letters L (loop), R (reports), G (Google), S and P
(researchers' and platform engineers' trials) and X (security). Gaps were there from the start."""

TEXT = """# Complaints about others, and how you know

{made}

For platform engineers who met one of these in another product and ask whether Outlast does it too.
Each row names public threads, what went wrong there, what Outlast does, and tests that would have
failed there. [One test by its name](../CONTRIBUTING.md#one-test) runs on your machine, without an
account. None of this has run against Google's own API yet; [assumptions](assumptions.md) has what
that leaves open. A thread may have been resolved since; a missing number was dropped.
[Faults that Outlast had](#faults-that-outlast-had) itself come after them.
"""
HAD = """## Faults that Outlast had

Before its first release, people tried to break Outlast and to use it without help. Each row names
the kind of fault that they met, what Outlast does now, and tests that would have failed before.
"""


def rows(sections: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """All rows of all sections."""
    for section in sections:
        yield from section["rows"]


def problems(table: Table, sections: Sections, root: Path = ROOT) -> list[str]:
    """Sentences about what is wrong with the rows; the tests are looked for below `root`."""
    found: list[str] = []
    counts = Counter(row.get("number") for row in rows(sections))
    found += [f"{number}: is there {often} times" for number, often in counts.items() if often > 1]
    found += [f"{number}: is missing" for number in sorted(table.numbers - counts.keys(), key=str)]
    found += [f"{number}: is not a number of the table" for number in counts.keys() - table.numbers]
    for row in rows(sections):
        found += [f"{row.get('number')}: {why}" for why in _faults(table, row, root)]
    return found


def _faults(table: Table, row: Mapping[str, Any], root: Path) -> Iterator[str]:
    common = {"number", table.wrong, *(("threads",) if table.has_threads else ())}
    fields = frozenset(row) - common
    if fields not in KINDS.values():
        yield f"has {', '.join(sorted(fields)) or 'nothing'} instead of one of its three kinds"
        return
    for name in (table.wrong, *sorted(fields - {"tests"})):
        text = row.get(name)
        if not isinstance(text, str) or not text.endswith("."):
            yield f"{name}: must be a sentence"
    if table.has_threads and not row.get("threads"):
        yield "names no thread"
    for thread in row.get("threads") or ():
        if not THREAD.fullmatch(thread):
            yield f"{thread}: must be OWNER/REPOSITORY#NUMBER"
    if "tests" in fields and not row["tests"]:
        yield "names no test"
    for test in row.get("tests") or ():
        file, _, name = test.partition("::")
        if name not in _tests_of(root / file):
            yield f"{test}: there is no such test"


@functools.cache
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


def page(complaints: Sections, faults: Sections) -> str:
    """The page. Rows that no test shows yet are under their own heading, and nowhere else."""
    lines = [TEXT.format(made=MADE), *_tables(COMPLAINTS, complaints, "##")]
    lines += [HAD, *_tables(FAULTS, faults, "###")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _tables(table: Table, sections: Sections, heading: str) -> Iterator[str]:
    """The lines of a table's sections, and of those of its rows that no test shows yet."""
    went = ["threads", "what went wrong there"] if table.has_threads else ["what was wrong"]
    for section in sections:
        shown = [row for row in section["rows"] if "not_shown_yet" not in row]
        if shown:
            yield from (f"{heading} {section['section']}", "")
            yield from _head(*went, "Outlast", "tests")
            yield from (_line(_cells(row, table, _here(row), _tests(row))) for row in shown)
            yield ""
    missing = [row for row in rows(sections) if "not_shown_yet" in row]
    if missing:
        yield from (f"{heading} Not shown yet", "")
        yield from _head(*went, "missing here")
        yield from (_line(_cells(row, table, row["not_shown_yet"])) for row in missing)
        yield ""


def _head(*titles: str) -> Iterator[str]:
    """A table's first two lines; the first column is the number."""
    yield _line(["", *titles]).replace("|  |", "| |", 1)
    yield f"|{'---|' * (len(titles) + 1)}"


def _cells(row: Mapping[str, Any], table: Table, *more: str) -> list[str]:
    threads = [_threads(row)] if table.has_threads else []
    return [str(row["number"]), *threads, row[table.wrong], *more]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _here(row: Mapping[str, Any]) -> str:
    return row.get("here") or f"Does not apply: {row['does_not_apply']}"


def _tests(row: Mapping[str, Any]) -> str:
    return "<br>".join(f"`{test}`" for test in row.get("tests", ()))


def _threads(row: Mapping[str, Any]) -> str:
    return ", ".join(f"[{thread}]({_address(thread)})" for thread in row["threads"])


def _address(thread: str) -> str:
    """Of an issue or a pull request: the host leads from one to the other."""
    found = THREAD.fullmatch(thread)
    assert found
    address = f"https://github.com/{found['repository']}"
    return f"{address}/issues/{found['number']}" if found["number"] else address


def main(argv: list[str]) -> int:
    read = [(table, table.read()) for table in (COMPLAINTS, FAULTS)]
    wrong = [
        f"tests/{table.file.name}: {why}"
        for table, sections in read
        for why in problems(table, sections)
    ]
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    text = page(*(sections for _, sections in read))
    is_current = PAGE.exists() and PAGE.read_text() == text
    if "--check" in argv:
        if not is_current:
            print("docs/complaints.md: is out of date; run make tables", file=sys.stderr)
        return 0 if is_current else 1
    if not is_current:
        PAGE.write_text(text)
        print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
