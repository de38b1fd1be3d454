"""What a command found: printed as it comes, and written as JSON, with a header that says how.

A bench makes a Result before it measures, adds tables and sentences, and returns `end`:

    result = Result("bench.ageing", argv)
    …
    result.table("An old run beside a young one", rows)
    return result.end(args.json, FAILED if missed else DONE)
"""

import argparse
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import table

ROOT = Path(__file__).resolve().parents[1]
OUTCOMES = {0: "holds", 1: "does not hold"}
IN_PART = "not measured in full"
"""The outcome for all other exit codes."""
FILES_OF_ONE_RUN = ("--json", "--keep")
"""Flags that say where the figures go, and not what is measured."""
ABSOLUTE = re.compile(r"(?:^|(?<=[\s=,]))/[^\s,]+")
KEPT = ("bench/results/*.json", "bench/results/*.md", "docs/results.md")
"""What keeping a result changes; no command reads these."""


def command_line(program: str, doc: str | None) -> argparse.ArgumentParser:
    """What every bench's command line has: its text as the help, and `--json`."""
    made = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="file for the figures")
    return made


class Result:
    """The header, and the tables and sentences in their order."""

    def __init__(self, program: str, argv: Sequence[str]) -> None:
        """`program` is the module that `python -m` runs."""
        self.header = header(program, argv)
        self.parts: list[Any] = []
        self._begun = time.monotonic()

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Prints a table of rows of equal keys."""
        self._add({"title": title, "rows": [dict(row) for row in rows]})

    def say(self, sentence: str) -> None:
        """Prints a sentence."""
        self._add(sentence)

    def end(self, path: Path | None, code: int, **figures: Any) -> int:
        """The exit code, after the result is in `path`, with more figures than were printed."""
        body = {
            "header": self.header,
            "seconds": round(time.monotonic() - self._begun),
            "outcome": OUTCOMES.get(code, IN_PART),
            "parts": self.parts,
        }
        table.write_json(path, {**body, **figures})
        return code

    def _add(self, part: Any) -> None:
        if not self.parts:
            print(f"{self.header['command']}\n{where_and_when(self.header)}\n")
        self.parts.append(part)
        print(text([part]), flush=True)


def header(program: str, argv: Sequence[str]) -> dict[str, Any]:
    """Command, date, commit, machine and load, so that a reader can compare and repeat it."""
    return {
        "command": shlex.join(["python", "-m", program, *_what_is_measured(argv)]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "machine": table.machine(),
        "load": round(os.getloadavg()[0], 1),
    }


def where_and_when(header: Mapping[str, Any]) -> str:
    """The header in one line, the command aside."""
    load = f"load {header['load']} at the start"
    return f"{header['date']}, commit {header['commit']}; {header['machine']}; {load}"


def text(parts: Sequence[Any]) -> str:
    """Tables and sentences as they are printed."""
    lines = [
        one if isinstance(one, str) else table.show(one["title"], one["rows"]) for one in parts
    ]
    return "\n".join(lines)


def commit() -> str:
    """The checkout's commit, with `+changes` if files differ from it; `unknown` without git."""
    others = [f":(exclude){pattern}" for pattern in KEPT]
    try:
        found = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--", ".", *others)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{found}+changes" if changed else found


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _what_is_measured(argv: Sequence[str]) -> list[str]:
    """The words without files of this run; paths as seen from the checkout, or their names."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag not in FILES_OF_ONE_RUN:
            kept.append(ABSOLUTE.sub(_shorter, word))
        elif not equals:
            next(words, None)
    return kept


def _shorter(found: re.Match[str]) -> str:
    path = Path(found.group())
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
