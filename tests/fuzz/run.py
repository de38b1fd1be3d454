"""Changes of valid files, read again and again, in some processes at once.

Change number i of a seed is the same on every machine, and `--only i` repeats it. Each process
watches itself; the one that started them sees what a process cannot say any more: that it was
killed by what it read.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast.base.codec import OtherFormat
from outlast.bucket.data import CACHE_VARIABLE
from tests.fuzz import mutate, targets, watch
from tests.fuzz.targets import Target

MEMORY_BYTES = 3 << 30
READ_SEC = 20.0
"""Longer than that no change of these small files may take to read, on whatever machine."""
LOOK_EVERY = 200
"""Changes after which the files around are looked at."""
CHANGES = (1, 1, 1, 2, 2, 3, 5)
"""How many changes are made at once."""
TRIES = 400
"""Attempts to make a failing text smaller."""


_MEMORY = next((place for place in ("/dev/shm",) if os.access(place, os.W_OK)), None)
"""Where the files are, so that the disk is not what is measured."""
_PLACE = re.compile(r"\S: |\[")
"""How a sentence that names a place looks."""


class Slow(BaseException):
    """A read did not end in time."""


@dataclass
class Report:
    """What came of the changes."""

    changes: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        self.changes += other.changes
        self.outcomes += other.outcomes
        self.failures += other.failures

    def text(self, sec: float) -> str:
        kinds: dict[str, Counter[str]] = {}
        for name, count in self.outcomes.items():
            kind, _, outcome = name.partition("|")
            kinds.setdefault(kind, Counter())[outcome] += count
        lines = [f"{self.changes} changes in {sec:.0f} s, {len(self.failures)} failures"]
        for kind, found in sorted(kinds.items()):
            said = ", ".join(f"{count} {name}" for name, count in found.most_common())
            lines.append(f"  {kind}: {sum(found.values())}: {said}")
        for failure in self.failures[:20]:
            lines += ["", *(f"  {name}: {value}" for name, value in failure.items())]
        return "\n".join(lines)


class Worker:
    """Makes changes and reads them, in its own folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._around = folder / "around"
        self._work = self._around / "work"
        self._work.mkdir(parents=True)
        os.environ[CACHE_VARIABLE] = str(self._work / "cache")
        watch.canaries(self._around)
        self._targets = list(targets.targets(folder / "valid"))
        # Of a file that is opened below an open folder, only the end of its path is known.
        os.chdir(self._work)
        self._watch = watch.Watch(self._work)
        self._digest = watch.digest(self._around, self._work)
        for target in self._targets:  # what is valid is read, and everything is imported
            said = self._outcome(target, "", b"", watched=False)
            assert said == "value", f"{target.name}: what is valid is not read: {said}"

    def run(self, number: int, report: Report) -> None:
        target, name, seeds = self._chosen(number)
        said = self._outcome(target, name, mutate.mutated(target.files[name], seeds))
        report.changes += 1
        kind = said if said in ("value", "refused") else "FAILED"
        report.outcomes[f"{target.name}|{kind}"] += 1
        if kind == "FAILED":
            report.failures.append(self._described(number, target, name, seeds, said))
        elif number % LOOK_EVERY == 0:
            self._look(number, target, report)

    def _look(self, number: int, target: Target, report: Report) -> None:
        found = watch.digest(self._around, self._work)
        if found != self._digest:
            self._digest = found
            where = f"one of the {LOOK_EVERY} changes up to it"
            report.failures.append({"change": number, "of": where, "failure": "files around it"})

    def _chosen(self, number: int) -> tuple[Target, str, list[int]]:
        draw = random.Random(f"{self._seed}:{number}")
        target = draw.choice(self._targets)
        name = draw.choice(target.changed or tuple(target.files))
        return target, name, [draw.getrandbits(48) for _ in range(draw.choice(CHANGES))]

    def _outcome(self, target: Target, name: str, content: bytes, *, watched: bool = True) -> str:
        """`value`, `refused`, or what must not be."""
        target.write(self._work / "t", name, content)
        self._watch.found.clear()
        self._watch.is_on = watched
        signal.setitimer(signal.ITIMER_REAL, READ_SEC)
        try:
            found = target.read(self._work / "t")
            said = "value" if found is not None else "None"
        except target.errors as error:
            said = _judged(error, target.errors)
        except (Exception, Slow) as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._watch.is_on = False
        return f"outside: {self._watch.found[0]}" if self._watch.found else said

    # A failure is made smaller.

    def _described(
        self, number: int, target: Target, name: str, seeds: list[int], said: str
    ) -> dict[str, Any]:
        kind = said[:20]

        def fails(content: bytes) -> bool:
            return self._outcome(target, name, content)[:20] == kind

        for seed in list(seeds):
            fewer = [each for each in seeds if each != seed]
            if fewer and fails(mutate.mutated(target.files[name], fewer)):
                seeds = fewer
        content = mutate.mutated(target.files[name], seeds)
        with contextlib.suppress(ValueError, RecursionError):
            content = _smaller(content, fails)
        return {
            "change": f"--seed {self._seed} --only {number}",
            "of": f"{target.name}, {name}",
            "failure": said[:400],
            "input": content[:600].decode("utf-8", "backslashreplace"),
        }


def _smaller(content: bytes, fails: Any) -> bytes:
    """The JSON without what is not needed for it to fail."""
    value = json.loads(content)
    left = TRIES
    tried = True
    while tried and left > 0:
        tried = False
        for held, key in mutate.places(value):
            left -= 1
            if (
                left <= 0
                or (isinstance(held, list) and key >= len(held))
                or (isinstance(held, dict) and key not in held)
            ):
                continue
            before = held.copy()
            del held[key]
            if fails(json.dumps(value).encode()):
                tried = True
                break
            if isinstance(held, dict):
                held.clear()
                held.update(before)
            else:
                held[:] = before
    return json.dumps(value).encode()


def _judged(error: Exception, promised: tuple[type[Exception], ...]) -> str:
    """`refused` for an error of ours with a sentence, else what it is."""
    text = str(error)
    ours = (ValueError, OtherFormat, *promised)
    if isinstance(error, ValueError) and type(error) not in ours:
        return f"{type(error).__name__}: {text}"
    if not _PLACE.search(text):
        return f"an error without a place: {type(error).__name__}: {text}"
    if isinstance(error, MemoryError | RecursionError):
        return type(error).__name__
    return "refused"


# Processes


def work(seed: int, numbers: Iterator[int], note: Path, until: float) -> Report:
    """What a process does: the changes of these numbers, each noted before it is made."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _slow)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_MEMORY) as folder:
        worker = Worker(Path(folder).resolve(), seed)
        with note.open("wb", buffering=0) as noted:
            for number in numbers:
                if time.monotonic() >= until:
                    break
                os.pwrite(noted.fileno(), b"%020d" % number, 0)
                worker.run(number, report)
    return report


def _slow(number: int, frame: object) -> None:
    raise Slow(f"not read in {READ_SEC:g} s")


def fuzz(*, seed: int, changes: int, sec: float, processes: int) -> Report:
    """Changes 0 to ``changes``, or as many as there is time for, over some processes."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="fuzz-parent-") as folder:
        started = []
        for share in range(processes):
            note = Path(folder) / f"{share}"
            argv = [sys.executable, "-m", "tests.fuzz.run", "--seed", str(seed)]
            argv += ["--share", f"{share}/{processes}", "--note", str(note)]
            argv += ["--changes", str(changes), "--seconds", str(sec)]
            output = (Path(folder) / f"{share}.out").open("wb")
            started.append((note, output, subprocess.Popen(argv, stdout=output)))
        for note, output, process in started:
            code = process.wait()
            output.close()
            said = Path(output.name).read_bytes()
            if code not in (0, 1) or not said.endswith(b"\n"):
                at = int(note.read_bytes() or b"0") if note.exists() else -1
                change = f"--seed {seed} --only {at}"
                report.failures.append(
                    {"change": change, "failure": f"the process ended with {code}"}
                )
                continue
            found = json.loads(said.splitlines()[-1])
            report.add(Report(found["changes"], Counter(found["outcomes"]), found["failures"]))
    return report


def main(argv: Sequence[str]) -> int:
    """0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of all changes; default 1")
    parser.add_argument("--changes", type=int, default=20_000, help="how many; default 20000")
    parser.add_argument("--seconds", type=float, default=0.0, help="run for so long instead")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, help="make one change again, in this process")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    parser.add_argument("--note", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    begun = time.monotonic()
    changes = sys.maxsize if asked.seconds else asked.changes
    until = begun + asked.seconds if asked.seconds else float("inf")
    if asked.only is not None:
        report = work(asked.seed, iter([asked.only]), Path(os.devnull), until)
    elif asked.share:
        share, _, of = asked.share.partition("/")
        report = work(asked.seed, iter(range(int(share), changes, int(of))), asked.note, until)
        found = {
            "changes": report.changes,
            "outcomes": report.outcomes,
            "failures": report.failures,
        }
        print(json.dumps(found))
        return 1 if report.failures else 0
    else:
        report = fuzz(
            seed=asked.seed, changes=changes, sec=asked.seconds, processes=asked.processes
        )
    print(report.text(time.monotonic() - begun))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
