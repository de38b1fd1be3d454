"""Real trainers, in real time, on machines that are lost: processes that get SIGTERM or SIGKILL."""

import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.lifetimes import watched
from bench.lifetimes.policies import Policy
from bench.lifetimes.trace import Costs, Life, Score
from bench.sites import ROOT, BenchError, Job, one_thread
from outlast.base.exits import INTERRUPTED
from outlast.bucket.head import HeadError, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import StoreError, open_store

NOTICE_SEC = 30.0
"""From a notice to the end: Google's best effort for Spot VMs."""
GONE_SEC = 120.0
COMMITS = 4
"""Seen of each machine before the policies are played."""


@dataclass
class Measured:
    """Seconds that attempts showed, one number each time."""

    steps: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def costs(self) -> Costs:
        """The medians. BenchError: something was never seen."""
        for name, values in asdict(self).items():
            if not values:
                raise BenchError(
                    f"{name}: none was seen; a longer window or longer lives are needed"
                )
        return Costs(*(statistics.median(found) for found in asdict(self).values()))

    def add(self, other: "Measured") -> None:
        self.steps += other.steps
        self.blocked += other.blocked
        self.commits += other.commits
        self.recoveries += other.recoveries


@dataclass(frozen=True)
class Played:
    """What a policy made of a trace."""

    score: Score
    recoveries: list[float]
    """Of each machine; its whole life if it was lost before its first step."""
    seen: Measured


def play(job: Job, lives: Sequence[Life], policy: Policy, work: Path, save_sec: float) -> Played:
    """One run on a trace of machines, each after the other. ``save_sec`` is how long before the
    loss an oracle saves."""
    score, recoveries, seen, kept = Score(), [], Measured(), 0
    shutil.rmtree(work, ignore_errors=True)
    for number, life in enumerate(lives):
        folder = work / f"{number:04d}"
        folder.mkdir(parents=True)
        born, ended = live(job, life, policy, work / "run", folder, save_sec)
        before, kept = kept, _kept(work / "run")
        found, recovery = score_of(list(watched.read(folder)), born, ended, before, kept, seen)
        score, recoveries = score + found, [*recoveries, recovery]
    shutil.rmtree(work)
    return Played(score, recoveries, seen)


def calibrate(job: Job, policy: Policy, work: Path) -> Measured:
    """What two machines show, each of which lives for some commits; the second one resumes."""
    seen, kept, run = Measured(), 0, work / "run"
    shutil.rmtree(work, ignore_errors=True)
    for number in range(2):
        folder, commits = work / f"{number:04d}", set()
        folder.mkdir(parents=True)

        def is_enough(found: watched.Boundary, commits: set[float] = commits) -> bool:
            if not math.isnan(found.commit_sec):
                commits.add(found.commit_sec)
            return len(commits) >= COMMITS

        born = live_until(job, policy, run, folder, is_enough)
        before, kept = kept, _kept(run)
        score_of(list(watched.read(folder)), born, time.monotonic(), before, kept, seen)
    shutil.rmtree(work)
    return seen


def live(
    job: Job, life: Life, policy: Policy, run: Path, folder: Path, save_sec: float = 0.0
) -> tuple[float, float]:
    """Let a machine live; when it began and ended. Its records are in ``folder``."""
    end_sec = None if life.noticed else life.seconds - save_sec
    with _trainer(job, policy, run, folder, end_sec) as (process, born):
        _wait(process, born + life.seconds, job, folder)
        if life.noticed and policy.answers_notice:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(NOTICE_SEC)
    ended = time.monotonic()
    if process.returncode not in (INTERRUPTED, -signal.SIGKILL, -signal.SIGTERM):
        raise _ended(job, process.returncode, folder)
    return born, ended


def live_until(
    job: Job, policy: Policy, run: Path, folder: Path, when: Callable[[watched.Boundary], bool]
) -> float:
    """Let a machine live until one of its boundaries is as wanted; when it began."""
    with _trainer(job, policy, run, folder, None) as (process, born):
        while not any(map(when, watched.read(folder))):
            if time.monotonic() > born + GONE_SEC:
                raise BenchError(f"{job.trainer}: was not so far after {GONE_SEC:g} s")
            _wait(process, time.monotonic() + 0.05, job, folder)
    return born


@contextlib.contextmanager
def _trainer(
    job: Job, policy: Policy, run: Path, folder: Path, save_at_age_sec: float | None
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A running trainer, and when it was started; afterwards it and its supervisor are killed."""
    born = time.monotonic()
    plan = {
        "folder": str(folder),
        "policy": asdict(policy),
        "born_sec": born,
        "save_at_sec": None if save_at_age_sec is None else born + save_at_age_sec,
    }
    command = [job.python, "-m", "bench.lifetimes.watched", job.trainer, *job.flags]
    variables = {**one_thread(), "PYTHONPATH": str(ROOT), watched.VARIABLE: json.dumps(plan)}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, f"--run-dir={run}"],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process, born
    finally:
        _cut_off(process, folder / watched.SUPERVISOR)


def _wait(process: subprocess.Popen[bytes], until: float, job: Job, folder: Path) -> None:
    """Until then; BenchError if it ends before."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        raise _ended(job, process.wait(max(0.0, until - time.monotonic())), folder)


def _ended(job: Job, code: int, folder: Path) -> BenchError:
    last = ((folder / "log").read_text().strip().splitlines() or ["it said nothing"])[-1]
    return BenchError(f"{job.trainer}: ended with {code}: {last}")


def _cut_off(process: subprocess.Popen[bytes], supervisor: Path) -> None:
    """SIGKILL of the trainer and its supervisor at once, as when a machine is lost."""
    pid = int(supervisor.read_text() or 0) if supervisor.exists() else 0
    if process.poll() is None:
        process.kill()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + GONE_SEC
    while pid and _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.002)


def _runs(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return words[0] != "Z"


def _kept(run: Path) -> int:
    """The step of the newest checkpoint."""
    try:
        return read_head(open_store(str(run)), Layout("", "")).head.step
    except (HeadError, StoreError):
        return 0


def score_of(
    record: Sequence[watched.Boundary],
    born: float,
    ended: float,
    before: int,
    kept: int,
    seen: Measured,
) -> tuple[Score, float]:
    """The score of one machine, and its recovery; adds what it showed to ``seen``."""
    if len(record) > 1 and kept == record[-1].step:
        # Stopped by a notice; all that follows the last commit is the process's own end.
        ended = record[-1].left_sec
    wall = ended - born
    if not record:
        return Score(wall=wall, recovery=wall), wall
    if record[0].step != before:
        raise BenchError(f"resumed at step {record[0].step}; the newest checkpoint is of {before}")
    recovery = record[0].left_sec - born
    seen.recoveries.append(recovery)
    useful = blocked = 0.0
    saves, commit_sec = 0, record[0].commit_sec
    for earlier, this in zip(record, record[1:], strict=False):
        body = this.entered_sec - earlier.left_sec
        useful += body if this.step <= kept else 0.0
        blocked += this.seconds
        saves += this.saved
        seen.steps.append(body)
        if this.saved and this is not record[-1]:  # the last may have waited for its commit
            seen.blocked.append(this.seconds)
        if not math.isnan(this.commit_sec) and this.commit_sec != commit_sec:
            commit_sec = this.commit_sec
            seen.commits.append(commit_sec)
    return Score(wall, useful, recovery, blocked, saves), recovery
