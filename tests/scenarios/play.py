"""Plays the named scenarios and their mutants, and prints a table of the verdicts.

    python -m tests.scenarios.play [NAME ...] [--without-mutants] [--json FILE]

Exit code 0 only if every scenario held, and every mutant was found out by its own guarantee.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outlast.cli.rehearsal import scenario
from tests.scenarios.mutants import MUTANTS, ROOT, Mutant, copy_of_checkout

LIMIT_SEC = 900
CLEAR_SEC = 60
"""An interrupted rehearsal has so long to put everything away."""
LAST_LINES = 8
"""Of what a rehearsal said that did not end."""
ROW = "{:20}  {:8}  {:>7}  {:22}  {:8}  {:>7}"


@dataclass(frozen=True)
class Played:
    """What one rehearsal said."""

    held: bool
    broken: tuple[str, ...]
    seconds: float
    error: str = ""
    """Why it could not be carried out; empty if it was."""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """By guarantee; `broken` above also has those that nothing tested."""

    @property
    def word(self) -> str:
        return "error" if self.error else "held" if self.held else "broken"


def play(name: str, root: Path = ROOT, limit_sec: float = LIMIT_SEC) -> Played:
    """One scenario, with the code of `root`; interrupted if it does not end in `limit_sec`."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "outlast.cli.app", "rehearse", "--scenario", name, "--json"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    hung = False
    try:
        stdout, stderr = process.communicate(timeout=limit_sec)
    except subprocess.TimeoutExpired:
        hung = True
        process.terminate()  # not Ctrl-C, which whatever runs in the background ignores
        stdout, stderr = process.communicate(timeout=CLEAR_SEC)
    seconds = time.monotonic() - started
    said = stderr.strip().splitlines()
    if hung:
        last = " | ".join(said[-LAST_LINES:])
        return Played(False, (), seconds, f"no end in {limit_sec:.0f} s; it last said: {last}")
    try:
        report = json.loads(stdout)
    except ValueError:
        error = said[-1] if said else f"exit code {process.returncode}"
        return Played(False, (), seconds, error)
    broken = tuple(g["name"] for g in report["guarantees"] if not g["held"])
    verdicts = {g["name"]: g["verdict"] for g in report["guarantees"]}
    return Played(report["held"], broken, seconds, verdicts=verdicts)


def play_mutant(name: str, mutant: Mutant) -> Played:
    """The same in a copy of the checkout that has the mutant planted."""
    with tempfile.TemporaryDirectory(prefix="outlast-mutant-") as folder:
        root = copy_of_checkout(Path(folder) / "checkout")
        for edit in mutant.edits:
            edit.apply(root)
        return play(name, root)


def print_row(cells: Sequence[str], notes: Sequence[str]) -> None:
    """One line of the table, with what else is to say."""
    print(ROW.format(*cells), *filter(None, notes), sep="  ", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.play", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all if none is named")
    parser.add_argument("--without-mutants", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts here, too")
    args = parser.parse_args(argv)
    names = args.names or scenario.names()
    for name in names:
        scenario.find(name)
    found: dict[str, dict[str, Any]] = {}
    good = True
    print(ROW.format("scenario", "verdict", "seconds", "its mutant breaks", "verdict", "seconds"))
    for name in names:
        own = play(name)
        good = good and own.held
        found[name] = {"scenario": asdict(own), "mutants": []}
        cells = [name, own.word, f"{own.seconds:.0f}"]
        notes = [own.error or ", ".join(own.broken)]
        for mutant in () if args.without_mutants else MUTANTS[name]:
            planted = play_mutant(name, mutant)
            caught = mutant.breaks in planted.broken
            good = good and caught
            word = planted.word if caught or not planted.broken else "other"
            cells += [mutant.breaks, word, f"{planted.seconds:.0f}"]
            notes.append(
                planted.error or ("" if caught else f"mutant: {', '.join(planted.broken)}")
            )
            found[name]["mutants"].append(asdict(planted))
            print_row(cells, notes)
            cells, notes = ["", "", ""], []
        if args.without_mutants:
            print_row([*cells, "", "", ""], notes)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
