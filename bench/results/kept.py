"""The files of results: what is kept of what a command wrote."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import table
from bench.result import ROOT
from bench.results.entries import Entry

FOLDER = Path(__file__).parent
KEPT = ("header", "seconds", "outcome", "parts")
"""What is printed. The figures behind it, such as ten thousand verdicts, are not kept."""


def read(entry: Entry) -> dict[str, Any] | None:
    """The kept result; None if the command has not been run."""
    path = FOLDER / f"{entry.name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def read_older(entry: Entry) -> str:
    """The result from before commands wrote a header, as a part of a page; empty if none."""
    path = FOLDER / f"{entry.name}.md"
    return path.read_text().strip() if path.exists() else ""


def run(entry: Entry, instead: Sequence[str] = ()) -> tuple[int, bool]:
    """Runs an entry's command, with `instead` in place of its arguments if there are any, and keeps
    what it found, also if it does not hold.

    Returns the command's exit code and whether it wrote a result; if not, the kept one stays.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        written = Path(scratch) / "result.json"
        words = [*(instead or entry.words), "--json", str(written)]
        done = subprocess.run([sys.executable, "-m", entry.module, *words], cwd=ROOT, check=False)
        if not written.exists():
            return done.returncode, False
        found = json.loads(written.read_text())
    keep(entry, found)
    return done.returncode, True


def keep(entry: Entry, found: Mapping[str, Any]) -> None:
    """Writes the result's file. A run of the full command replaces an older result as well."""
    table.write_json(FOLDER / f"{entry.name}.json", {key: found[key] for key in KEPT})
    if found["header"]["command"] == entry.command:
        (FOLDER / f"{entry.name}.md").unlink(missing_ok=True)
