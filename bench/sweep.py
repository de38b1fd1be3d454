"""What a sweep of many trials costs its operator's machine: seconds, processor time and memory.

    python -m bench.sweep [--trials 100] [--parallel N]

The engine and the local cloud are the real ones; its VMs have no processes. First one `outlast up`
of the base is measured, warm: its processor seconds are what one trial should cost. The target:
at most 1.3 times trials x those seconds / cores, and at most 1.5 GB.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from outlast.base.folders import PACKAGE
from outlast.cli import cloud as clouds
from outlast.cli import engine

TARGET = 1.3
TARGET_GB = 1.5
ROOT = PACKAGE.parent
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Measured:
    """One command."""

    seconds: float
    cpu_sec: float
    peak_gb: float
    """Of all its processes together, the local cloud's aside."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        print(json.dumps(measure(Path(folder), flags.trials, flags.parallel), indent=2))


def measure(folder: Path, trials: int, jobs: int) -> dict[str, object]:
    """Brings a base up, then a sweep of it."""
    with project(folder) as (checkout, env):
        run(["up", "dev"], checkout, env)
        run(["destroy", "dev"], checkout, env)
        warm = run(["up", "dev"], checkout, env)
        sweep = {
            "base": "dev",
            "parameters": {"learning-rate": {"min": 1e-4, "max": 1, "log": True}},
            "search": "random",
            "trials": trials,
            "parallel": trials,
        }
        (checkout / "lr.yaml").write_text(yaml.safe_dump(sweep))
        first = run(["sweep", "up", "lr.yaml", "--jobs", str(jobs)], checkout, env)
        again = run(["sweep", "up", "lr.yaml", "--jobs", str(jobs)], checkout, env)
        board = run(["sweep", "status", "lr"], checkout, env)
        down = run(["sweep", "destroy", "lr", "--jobs", str(jobs)], checkout, env)
    cores = min(jobs, os.cpu_count() or 1)
    limit = trials * warm.cpu_sec / cores
    return {
        "trials": trials,
        "jobs": jobs,
        "warm_up": vars(warm),
        "sweep_up": vars(first),
        "sweep_up_again": vars(again),
        "sweep_status": vars(board),
        "sweep_destroy": vars(down),
        "times_the_ideal": round(first.seconds / limit, 3),
        "target": {"times_the_ideal": TARGET, "peak_gb": TARGET_GB},
        "met": first.seconds <= TARGET * limit and first.peak_gb <= TARGET_GB,
    }


@contextmanager
def project(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A copy of the checkout with its stack dev, on a local cloud whose VMs have no processes."""
    parts = engine.find_parts()
    cloud = clouds.start(folder / "cloud", parts, guests=False, dies_with_us=True)
    try:
        checkout = folder / "checkout"
        checkout.mkdir()
        for part in ("outlast", "trainers", "components", "policy", "requirements", "startup"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, checkout / part, ignore=ignored, symlinks=True)
        for file in ("__main__.py", "Pulumi.dev.yaml"):
            shutil.copy2(ROOT / file, checkout / file)
        definition = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
        definition["runtime"]["options"]["virtualenv"] = sys.prefix
        (checkout / "Pulumi.yaml").write_text(yaml.safe_dump(definition))
        settings = yaml.safe_load((ROOT / "Pulumi.dev.yaml").read_text())
        settings["config"] |= {"outlast:trainer": "dummy"}
        (checkout / "Pulumi.dev.yaml").write_text(yaml.safe_dump(settings))
        env = {
            **engine.scrubbed(),
            **cloud.variables(parts, folder / "pulumi", os.environ["PATH"]),
        }
        subprocess.run(
            ["pulumi", "stack", "init", "dev", "--no-select"], cwd=checkout, env=env, check=True
        )
        yield checkout, env
    finally:
        cloud.stop()


def run(words: list[str], checkout: Path, env: dict[str, str]) -> Measured:
    """Runs one `outlast` command to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    with (checkout / "bench.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "outlast.cli", *words],
            cwd=checkout, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        peak = Peak(process.pid)
        peak.start()
        code = process.wait()
    seconds = time.monotonic() - start
    peak.stop()
    if code:
        raise SystemExit(f"outlast {' '.join(words)}: exit code {code}\n"
                         f"{(checkout / 'bench.log').read_text()[-3000:]}")  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(round(seconds, 2), round(cpu, 2), round(peak.gb, 3))


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
    main()
