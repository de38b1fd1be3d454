"""What a sweep of many trials costs the machine that brings it up: time, processor time, memory.

    python -m bench.sweep --trials 100

The engine and the local cloud are real; its VMs have no processes. First one warm `outlast up` of
the base is measured: each trial should take as much. **ideal s**: trials x the processor seconds of
that `up` / cores. **cpu s**: of the command and all that it started, the local cloud's apart.
**peak GB**: the same processes together, shared pages counted once. Exit codes: 0 the targets are
met (1.3 times the ideal seconds, 1.5 GB), 1 one is not, 69 the bench could not run.
"""

import argparse
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.result import Result, command_line
from bench.sites import scratch
from outlast.base.exits import DONE
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.errors import OperateError

FAILED, CANNOT = 1, 69
TARGET = 1.3
TARGET_GB = 1.5


@dataclass(frozen=True)
class Measured:
    """One command."""

    what: str
    seconds: float
    cpu_sec: float
    peak_gb: float

    def row(self, ideal_sec: float | None = None) -> dict[str, Any]:
        return {
            "what": self.what,
            "s": round(self.seconds, 1),
            "ideal s": None if ideal_sec is None else round(ideal_sec, 1),
            "ratio": None if ideal_sec is None else round(self.seconds / ideal_sec, 2),
            "cpu s": round(self.cpu_sec, 1),
            "peak GB": round(self.peak_gb, 2),
        }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.sweep", __doc__)
    made.add_argument("--trials", type=int, default=100)
    made.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    made.add_argument("--keep", type=Path, metavar="DIR", help="folder to leave the project in")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    flags, result = parser().parse_args(argv), Result("bench.sweep", argv)
    try:
        with scratch(flags.keep) as folder:
            warm, *commands = measure(folder, flags.trials, flags.jobs)
    except OperateError as error:
        print(f"bench.sweep: {error}", file=sys.stderr)
        return CANNOT
    ideal = flags.trials * warm.cpu_sec / min(flags.jobs, len(os.sched_getaffinity(0)))
    up = commands[0]
    rows = [warm.row(), up.row(ideal), *(one.row() for one in commands[1:])]
    result.table(f"{flags.trials} trials, {flags.jobs} at a time", rows)
    met = up.seconds <= TARGET * ideal and up.peak_gb <= TARGET_GB
    return result.end(flags.json, DONE if met else FAILED)


def measure(folder: Path, trials: int, jobs: int) -> list[Measured]:
    """A warm `up` of the base, then the commands of a sweep of it."""
    sweep = {
        "base": "dev",
        "parameters": {"learning-rate": {"min": 1e-4, "max": 1, "log": True}},
        "search": "random",
        "trials": trials,
        "parallel": trials,
    }
    side_by_side = ["--jobs", str(jobs)]
    with project(folder) as (home, env):
        (home / "lr.yaml").write_text(yaml.safe_dump(sweep))
        run("", ["up", "dev"], home, env)
        run("", ["destroy", "dev"], home, env)
        return [
            run("up of the base", ["up", "dev"], home, env),
            run("sweep up", ["sweep", "up", "lr.yaml", *side_by_side], home, env),
            run("sweep up again", ["sweep", "up", "lr.yaml", *side_by_side], home, env),
            run("sweep status", ["sweep", "status", "lr"], home, env),
            run("sweep destroy", ["sweep", "destroy", "lr", *side_by_side], home, env),
        ]


@contextmanager
def project(
    folder: Path, *, guests: bool = False, config: Mapping[str, Any] | None = None
) -> Iterator[tuple[Path, dict[str, str]]]:
    """A project that runs the checkout's program, with a stack dev, on a local cloud in `cloud`.

    `guests`: its VMs have processes. `config`: settings beside the checkout's own; None takes one
    away.
    """
    parts = engine.find_parts()
    cloud = clouds.start(folder / "cloud", parts, guests=guests, dies_with_us=True)
    try:
        home, root = folder / "project", engine.project()
        home.mkdir()
        (home / "checkout").symlink_to(root, target_is_directory=True)
        definition = yaml.safe_load((root / "Pulumi.yaml").read_text())
        definition["main"] = "checkout"
        definition["runtime"]["options"]["virtualenv"] = sys.prefix
        (home / "Pulumi.yaml").write_text(yaml.safe_dump(definition, sort_keys=False))
        settings = yaml.safe_load((root / "Pulumi.dev.yaml").read_text())
        given = {**settings["config"], "outlast:trainer": "dummy", **(config or {})}
        settings["config"] = {key: value for key, value in given.items() if value is not None}
        (home / "Pulumi.dev.yaml").write_text(yaml.safe_dump(settings))
        variables = cloud.variables(parts, folder / "pulumi", os.environ["PATH"])
        env = {**engine.scrubbed(), **variables}
        engine.run_engine(["stack", "init", "dev", "--no-select"], env=env, cwd=home)
        yield home, env
    finally:
        cloud.stop()


def run(what: str, words: Sequence[str], home: Path, env: dict[str, str]) -> Measured:
    """Runs one `outlast` command to its end. Raises OperateError if it fails."""
    before = _cpu()
    start = time.monotonic()
    with (home / "bench.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "outlast.cli", *words],
            cwd=home, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        peak = Peak(process.pid)
        peak.start()
        code = process.wait()
    seconds = time.monotonic() - start
    peak.stop()
    if code:
        said = (home / "bench.log").read_text(errors="replace").splitlines()
        raise OperateError(f"outlast {' '.join(words)}: exit code {code}: {said[-1:]}")
    return Measured(what, seconds, _cpu() - before, peak.gb)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Peak(threading.Thread):
    """The most memory that the processes of a session have at the same time, by their share of
    each page (Pss)."""

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._over = threading.Event()
        self.gb = 0.0

    def run(self) -> None:
        while not self._over.wait(0.5):
            self.gb = max(self.gb, sum(map(pss, self._members())) / 1e9)

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _members(self) -> Iterator[int]:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self._session:
                yield int(entry.name)


def pss(pid: int) -> int:
    """Bytes of a process, shared pages divided among those that have them; 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
