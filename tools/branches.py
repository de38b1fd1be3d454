"""Branches that the fast tests take, for the parts that decide what happens to a run.

    .venv/bin/python tools/branches.py build/coverage.json      what `make coverage` ends with

Prints a line for each part, and its files below the rule; ends with 1 if a part is below it. What
runs only in a killed process is not counted. Nor are files that need a framework, listed in
pyproject.toml: `make test-frameworks` has their tests.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LEAST_PERCENT = 95.0
PARTS = {
    "bucket": "outlast/bucket/",
    "supervisor": "outlast/supervisor/",
    "loop": "outlast/loop/",
    "local cloud's model": "outlast/localcloud/compute/fleet/",
}

Files = Mapping[str, Mapping[str, Any]]


def percent(files: Files) -> float | None:
    """Per cent of all branches that were taken; None if there are none."""
    sums = [file["summary"] for file in files.values()]
    every = sum(one["num_branches"] for one in sums)
    return 100 * sum(one["covered_branches"] for one in sums) / every if every else None


def lines(files: Files) -> Iterator[tuple[bool, str]]:
    """A line for each part, with whether the part keeps the rule."""
    for part, folder in PARTS.items():
        ours = {name: file for name, file in files.items() if name.startswith(folder)}
        found = percent(ours)
        if found is None:
            yield False, f"{part}: no branch of {folder} was measured"
            continue
        yield found >= LEAST_PERCENT, f"{part}: {found:.1f} % of branches"
        for name, file in sorted(ours.items()):
            alone = percent({name: file})
            if alone is not None and alone < LEAST_PERCENT:
                yield True, f"  {alone:5.1f} % {name}: {_untaken(file)}"


def _untaken(file: Mapping[str, Any]) -> str:
    """The lines at which a branch was not taken."""
    at = sorted({branch[0] for branch in file["missing_branches"]})
    return "at " + ", ".join(map(str, at))


def main(argv: Sequence[str]) -> int:
    found = list(lines(json.loads(Path(argv[0]).read_text())["files"]))
    print(*(line for _, line in found), sep="\n")
    if all(kept for kept, _ in found):
        return 0
    print(f"A part is below {LEAST_PERCENT:g} %: add a test of what is not taken, or delete it.")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
