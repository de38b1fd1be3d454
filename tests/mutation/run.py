"""Mutation testing of what decides, HEAD first.

For developers, before a release and after a change of these modules: `make mutants`. mutmut changes
one expression of a module at a time and runs the tests that reach it. A change that no test notices
survives, and has to be explained in `survivors.yaml`. The run fails for one that is not, and for an
explanation of a change that a test has noticed by now.

Sentences for people and log lines are not changed: their words are no behaviour.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
EXPLAINED = Path(__file__).parent / "survivors.yaml"
WORK = ROOT / "build" / "mutants"
"""Git and the walls of tests/test_house.py leave this folder out."""

NOT_CHANGED = (
    r'^\s*f?"[^"]* [^"]*"[,)]*$',  # a line that is a sentence, or a part of one
    r"^\s*_log\.",
)
TIMEOUT_CONSTANT_SEC = 4.0
"""With mutmut's factor of 15, tests get a minute beyond what they need without a change."""


@dataclass(frozen=True)
class Group:
    """Modules, and the fast tests that concern them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS = {
    "head": Group(
        ("outlast/bucket/boot.py", "outlast/bucket/head.py", "outlast/bucket/headfile.py"),
        ("tests/bucket/test_boot.py", "tests/bucket/test_head.py"),
    ),
}


@dataclass(frozen=True, order=True)
class Change:
    """One change of a function; its number would move with each edit, its lines do not."""

    function: str
    """As `module.function` or `module.Class.function`."""
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.function}\n    - {self.old}\n    + {self.new}"


@dataclass
class Outcome:
    """What came of the changes of some modules."""

    counts: Counter[str] = field(default_factory=Counter)
    unnoticed: set[Change] = field(default_factory=set)
    noticed: set[Change] = field(default_factory=set)
    endless: set[Change] = field(default_factory=set)
    """Changes whose tests did not end in time: they are noticed, or the machine was too busy."""
    seconds: float = 0.0


def explained(file: Path = EXPLAINED) -> dict[Change, str]:
    """The changes that may survive, each with the reason. Raises ValueError for one without."""
    found: dict[Change, str] = {}
    for function, rows in (yaml.safe_load(file.read_text()) or {}).items():
        for row in rows:
            change = Change(function, str(row["old"]), str(row["new"]))
            if not row.get("why"):
                raise ValueError(f"{file.name}: {change}\n  has no `why`; say why no test sees it")
            found[change] = row["why"]
    return found


def faults(outcome: Outcome, reasons: Iterable[Change], modules: Iterable[str]) -> Iterator[str]:
    """A sentence for each change that survived without a reason, and for each reason without a
    survivor among these modules.
    """
    known = set(reasons)
    for change in sorted(outcome.unnoticed - known):
        yield f"no test notices this change: {change}"
    ours = tuple(f"{_dotted(module)}." for module in modules)
    for change in sorted(known - outcome.unnoticed - outcome.endless):
        if change.function.startswith(ours):
            said = (
                "is noticed by a test" if change in outcome.noticed else "does not occur any more"
            )
            yield f"{EXPLAINED.name} explains a change that {said}, delete it: {change}"


def _dotted(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".")


def prepare(folder: Path, group: Group) -> None:
    """A folder as mutmut wants it: the modules, and a whole checkout in which it changes them."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    places = [(name, folder / "mutants" / name) for name in names.split("\0") if name]
    places += [(name, folder / name) for name in group.modules]
    for name, place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # Git lists what was deleted just now.
            shutil.copy2(ROOT / name, place, follow_symlinks=False)
    settings = {
        "source_paths": group.modules,
        "pytest_add_cli_args_test_selection": group.tests,
        "do_not_mutate_patterns": NOT_CHANGED,
        "timeout_constant": TIMEOUT_CONSTANT_SEC,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    ours = (ROOT / "pyproject.toml").read_text()
    text = "\n".join((ours, "[tool.mutmut]", "use_git_change_detection = false", *lines, ""))
    (folder / "pyproject.toml").write_text(text)


def change_all(folder: Path, workers: int) -> Outcome:
    """Runs mutmut in the folder; its output is in `mutmut.log`. Raises CalledProcessError if it did
    not come to its end.
    """
    begun = time.monotonic()
    mutmut = Path(sys.executable).parent / "mutmut"
    with (folder / "mutmut.log").open("w") as log:
        argv = [mutmut, "run", "--max-children", str(workers)]
        subprocess.run(argv, cwd=folder, stdout=log, stderr=subprocess.STDOUT, check=True)
    outcome = read(folder)
    outcome.seconds = time.monotonic() - begun
    return outcome


def read(folder: Path) -> Outcome:
    """What mutmut has found in the folder. Only it can tell what a number of its changes is."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    outcome = Outcome()
    with contextlib.chdir(folder):
        for file in sorted(Path("mutants").rglob("*.py.meta")):
            module = file.relative_to("mutants").with_suffix("")
            for name, code in json.loads(file.read_text())["exit_code_by_key"].items():
                status = status_by_exit_code[code]
                outcome.counts[status] += 1
                change = change_of(name, get_diff_for_mutant(name, path=module))
                if status == "killed":
                    outcome.noticed.add(change)
                elif status == "timeout":
                    outcome.endless.add(change)
                else:
                    outcome.unnoticed.add(change)
    return outcome


def change_of(name: str, diff: str) -> Change:
    """The change that mutmut calls `name`, from its diff."""
    module, _, mangled = name.rpartition("__mutmut_")[0].rpartition(".")
    function = mangled.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    old, new = (
        " ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
    )
    return Change(f"{module}.{function}", old, new)


def table(outcomes: dict[str, Outcome]) -> Iterator[str]:
    """A line for each group."""
    yield f"{'group':<12} {'killed':>7} {'timeout':>8} {'survived':>9} {'other':>6} {'minutes':>8}"
    for name, outcome in outcomes.items():
        counts = outcome.counts
        named = [counts[status] for status in ("killed", "timeout", "survived")]
        other = counts.total() - sum(named)
        row = (f"{name:<12}", f"{named[0]:>7}", f"{named[1]:>8}", f"{named[2]:>9}", f"{other:>6}")
        yield " ".join((*row, f"{outcome.seconds / 60:>8.1f}"))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.mutation.run")
    parser.add_argument("--only", choices=GROUPS, help="one group of modules")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(argv)
    reasons = explained()
    outcomes: dict[str, Outcome] = {}
    said: list[str] = []
    for name in [given.only] if given.only else GROUPS:
        folder = WORK / name
        prepare(folder, GROUPS[name])
        print(f"{name}: {', '.join(GROUPS[name].modules)}", flush=True)
        try:
            outcomes[name] = change_all(folder, given.workers)
        except subprocess.CalledProcessError as error:
            print(f"{name}: mutmut ended with code {error.returncode}; see {folder}/mutmut.log")
            return 2
        said += faults(outcomes[name], reasons, GROUPS[name].modules)
    print(*said, *table(outcomes), sep="\n")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
