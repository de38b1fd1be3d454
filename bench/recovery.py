"""How long a trainer takes from its process's start to its first new step after a loss.

    python -m bench.recovery
    python -m bench.recovery --trainer digits torch_cnn --python .venv-bench/bin/python

A trainer trains, is killed with its supervisor, and is started again `--rounds` times, each time
from the newest checkpoint. **fetch**: its supervisor starts and verifies the checkpoint's files;
**restore**: from these into the program's objects; **warm-up**: all else, which is the interpreter,
imports, data and model. **bare** is a process that imports the same modules of the
framework and reads the same files of the checkpoint, and does nothing else. The two take turns;
figures are medians. Target: at most 1.2 times bare. Exit codes: 0 the target is met, 1 it is not,
69 the bench could not run.
"""

import argparse
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lifetimes import policies, real, watched
from bench.result import Result, command_line
from bench.sites import ROOT, BenchError, Job, one_thread, scratch
from outlast.base.exits import DONE
from outlast.bucket.head import read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import open_store

FAILED, CANNOT = 1, 69
TARGET = 1.2
ENDLESS = ("--epochs=1000000",)
PROCESS_SEC = 120.0

LIST = """
import sys
before = set(sys.modules)
import outlast, outlast.trainers.__main__
ours = set(sys.modules) - before
from outlast import trainers
trainer = trainers.load(sys.argv[1])
trainer.build(trainer.Config.of(trainer.parser().parse_args(sys.argv[2:])))
found = [name for name, module in list(sys.modules.items()) if "site-packages" in
         (getattr(module, "__file__", "") or "") and name not in ours | before
         and not name.startswith("outlast")]
print("\\n".join(found))
"""
"""Prints the modules that a trainer imports from installed packages, and Outlast does not."""
BARE = """
import contextlib, importlib, sys
modules, files = (open(path).read().splitlines() for path in sys.argv[1:])
for name in modules:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for path in files:
    with open(path, "rb") as file:
        file.read()
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.recovery", __doc__)
    made.add_argument("--trainer", nargs="+", default=["dummy", "digits"])
    made.add_argument("--python", default=sys.executable, help="interpreter of the trainers")
    made.add_argument("--rounds", type=int, default=9)
    made.add_argument("--keep", type=Path, help="folder for the runs")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    args, result = parser().parse_args(argv), Result("bench.recovery", argv)
    try:
        with scratch(args.keep) as work:
            lines = [_measure(args, trainer, work / trainer) for trainer in args.trainer]
    except BenchError as error:
        print(f"recovery: {error}", file=sys.stderr)
        return CANNOT
    result.table(f"A recovery, medians of {args.rounds}", lines)
    return result.end(args.json, DONE if all(line["met"] for line in lines) else FAILED)


def _measure(args: argparse.Namespace, trainer: str, work: Path) -> dict[str, Any]:
    job = Job(trainer, ENDLESS, "auto", args.python)
    run, every = work / "run", policies.fixed(1 / 60)
    first = work / "first"
    first.mkdir(parents=True)
    real.live_until(job, every, run, first, lambda found: not math.isnan(found.commit_sec))
    modules, files = work / "modules", work / "files"
    modules.write_text(_run([args.python, "-c", LIST, trainer, *job.flags])[0])
    found: dict[str, list[float]] = {"ours": [], "fetch": [], "restore": [], "bare": []}
    never = policies.notice_only()  # so that each round resumes from the same checkpoint
    for number in range(args.rounds):
        folder = work / f"{number:04d}"
        folder.mkdir()
        born = real.live_until(job, never, run, folder, lambda found: True)
        begun = next(watched.read(folder))
        if not begun.step:
            raise BenchError(f"{trainer}: started from scratch instead of a checkpoint")
        found["ours"].append(begun.left_sec - born)
        for part, seconds in watched.parts(folder).items():
            found[part].append(seconds)
        checkpoint = run / read_head(open_store(str(run)), Layout("", "")).head.chain[-1].path
        files.write_text("\n".join(str(path) for path in checkpoint.rglob("*") if path.is_file()))
        found["bare"].append(_run([args.python, "-c", BARE, str(modules), str(files)])[1])
    ours, fetch, restore, bare = (statistics.median(values) for values in found.values())
    size = sum(Path(path).stat().st_size for path in files.read_text().splitlines())
    return {
        "trainer": trainer,
        "MB": round(size / 1e6, 2),
        "recovery ms": round(ours * 1e3),
        "fetch": round(fetch * 1e3),
        "restore": round(restore * 1e3),
        "warm-up": round((ours - fetch - restore) * 1e3),
        "bare ms": round(bare * 1e3),
        "ratio": round(ours / bare, 2),
        "target": TARGET,
        "met": ours <= TARGET * bare,
    }


def _run(command: Sequence[str]) -> tuple[str, float]:
    """What a process printed, and the seconds that it took."""
    begun = time.monotonic()
    done = subprocess.run(
        command,
        env={**one_thread(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_SEC,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BenchError(f"{' '.join(command[:2])}: {last}")
    return done.stdout, time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
