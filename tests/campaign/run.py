"""Many runs of all trainers, of commands and of sweeps, under sampled faults, on one local cloud.

    python -m tests.campaign.run [--seconds 1200] [--seed 1] [--only NAME] [--out DIR]

First each job runs undisturbed. Then runs are drawn (`sampling.py`) and played (`member.py`), some
at a time, until no other would end in time. Each must hold the guarantees of `outlast rehearse` and
have the undisturbed run's bytes; at the end nothing is left over. A run that breaks one is reduced
(`reduce.py`) to a scenario file for `outlast rehearse --scenario`.

Exit codes: 0 all held, 1 something broke, 64 bad usage, 69 the campaign could not run.
"""

import argparse
import contextlib
import json
import os
import pickle
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from bench import census_rows
from bench import result as bench_result
from outlast.base.exits import CTRL_C, DONE, USAGE
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.errors import OperateError
from outlast.cli.rehearsal.cleanup import end_strays, scratch, terminable, uninterrupted
from outlast.cli.rehearsal.guarantees import GUARANTEES, Verdict
from outlast.cli.rehearsal.seen import Ending, RunRecord, Seen
from outlast.cli.rehearsal.settings import LOCAL_PLACE, Delivery
from tests.campaign import reduce, sampling
from tests.campaign.member import Order, Result
from tests.campaign.sampling import SWEEP, Job, Member
from tests.scenarios.play import play as rehearse

ROOT = Path(__file__).parents[2]
FAILED, CANNOT = 1, 69
SECONDS = 1200.0
MEMBER_SEC = 900.0
"""A member that takes longer has hung."""
SAMPLE_SEC = 2.0
WARM_SHARE = 0.25
"""Of a campaign, before its memory counts."""
GROWS_SHARE, GROWS_MB = 0.1, 8.0
"""More than both together is not flat."""
CENSUS_ROWS = 1200
LOG_LINES = 12
REDUCED_MOST = 3
"""Failures that are reduced, each of another kind."""
BUCKET = f"{LOCAL_PLACE['gcp:project']}-outlast"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = bench_result.command_line("tests.campaign.run", __doc__)
    made.add_argument("--seconds", type=float, default=SECONDS)
    made.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    made.add_argument("--only", metavar="NAME", help="a run such as m12-digits, to see it again")
    made.add_argument("--job", action="append", choices=[job.name for job in sampling.JOBS])
    made.add_argument("--parallel", type=int, default=len(os.sched_getaffinity(0)) + 1)
    made.add_argument(
        "--python", help="interpreter of the VMs; default: that of .venv-frameworks if it is there"
    )
    made.add_argument("--out", type=Path, default=ROOT / ".outlast" / "campaign", metavar="DIR")
    made.add_argument(
        "--reduce-seconds", type=float, default=600.0, help="for the plays of a reduction"
    )
    return made


@dataclass
class Failure:
    """A run that broke something."""

    member: Member
    result: Result
    log: str

    def __str__(self) -> str:
        found = [f"{name}: {detail}" for name, detail in self.result.broken.items()]
        return "; ".join([*found, *([self.result.error] if self.result.error else [])])


@dataclass
class Campaign:
    """What is on the local cloud, and what came of it."""

    cloud: clouds.LocalCloud
    folder: Path
    totals: Counter[str] = field(default_factory=Counter)
    played: Counter[str] = field(default_factory=Counter)
    """Members, by job."""
    failures: list[Failure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """By job, what its longest member took so far."""
    _living: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _interrupted: bool = False

    def play(self, member: Member) -> Result:
        """Plays one in a separate process, and takes note of it."""
        began = time.monotonic()
        work = self.folder / member.name
        work.mkdir()
        order = Order(
            member,
            state=self.cloud.state,
            home=self.folder / "pulumi",
            work=work,
            baseline=self.folder / f"{member.job}.baseline",
        )
        order.write(work / "order.json")
        with (work / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.campaign.member", str(work / "order.json")],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._living.add(process)
            if hung := _wait(process, MEMBER_SEC):
                end_strays(str(work))
            self._living.discard(process)
        try:
            result = Result(**json.loads((work / "result.json").read_text()))
        except (OSError, ValueError):
            result = Result(error=f"its process ended with {process.returncode}")
        if hung:
            result.error = f"did not end in {MEMBER_SEC:.0f} s"
        if not self._interrupted:
            self._note(member, result, work, time.monotonic() - began)
        return result

    def interrupt(self) -> None:
        """Ends the members that are being played; each clears up, and counts no more."""
        self._interrupted = True
        for process in list(self._living):
            process.terminate()

    def _note(self, member: Member, result: Result, work: Path, seconds: float) -> None:
        self.seconds[member.job] = max(seconds, self.seconds.get(member.job, 0.0))
        self.played[member.job] += 1
        for one in fields(result):
            if isinstance(value := getattr(result, one.name), int) and one.name != "at":
                self.totals[one.name] += value
        word = "held"
        if result.broken or result.error:
            lines = (work / "log").read_text(errors="replace").splitlines()
            self.failures.append(Failure(member, result, "\n".join(lines[-LOG_LINES:])))
            word = f"BROKEN: {self.failures[-1]}"
        faults = f"{result.preemptions} preemptions, {result.faults} faults"
        say(f"{member.name}: {seconds:.0f} s, {faults}: {word}")
        if word == "held":
            shutil.rmtree(work, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits for a process, at most so long; returns whether it had to be killed."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


def say(text: str) -> None:
    print(text, flush=True)


class Memory(threading.Thread):
    """The local cloud's resident memory over time."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.mb: list[float] = []

    def run(self) -> None:
        while not self._over.wait(SAMPLE_SEC):
            with contextlib.suppress(OSError, IndexError):
                status = Path(f"/proc/{self._pid}/status").read_text()
                self.mb.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)

    def stop(self) -> None:
        self._over.set()
        self.join()


def grows(mb: Sequence[float]) -> bool:
    """Whether memory is not flat: in its last quarter it is clearly above its second quarter."""
    quarters = _quarters(mb)
    return quarters[3] > quarters[1] * (1 + GROWS_SHARE) + GROWS_MB


def _quarters(mb: Sequence[float]) -> list[float]:
    """The medians of four equal times."""
    cuts = [round(len(mb) * part / 4) for part in range(5)]
    parts = [mb[a:b] or [0.0] for a, b in zip(cuts, cuts[1:], strict=False)]
    return [statistics.median(part) for part in parts]


@contextlib.contextmanager
def campaign(folder: Path, image: str) -> Iterator[Campaign]:
    """A local cloud with the bucket and the data that the runs share."""
    os.environ[clouds.TOKEN_VARIABLE] = str(folder)
    parts = replace(engine.find_parts(), image=image)
    pace = clouds.Pace(notice_sec=10, grace_sec=5)
    token = {clouds.TOKEN_VARIABLE: str(folder)}
    cloud = clouds.start(folder / "c", parts, guest_env=token, pace=pace, dies_with_us=True)
    try:
        os.environ["STORAGE_EMULATOR_HOST"] = cloud.url
        cloud.make_bucket(BUCKET, LOCAL_PLACE["gcp:region"])
        census_rows.write(folder / "data" / "adult.data", CENSUS_ROWS)
        _deliver(Delivery.parse(f"{sampling.DATA.rpartition('/')[0]}={folder / 'data'}"))
        yield Campaign(cloud, folder)
    finally:
        cloud.stop()


def _deliver(delivery: Delivery) -> None:
    from outlast.bucket.store import open_store

    store = open_store(f"gs://{delivery.bucket}")
    for file in delivery.files():
        store.put(delivery.object(file), file)


def play_all(
    found: Campaign, jobs: Sequence[Job], seed: int, *, seconds: float, parallel: int
) -> None:
    """Plays each job undisturbed, and drawn runs of it in turn, until no other one would end in
    time; each job has one drawn run at least."""
    deadline = time.monotonic() + seconds
    open_: dict[Future[Result], Member] = {}
    ready: set[str] = set()
    # A sweep takes longest, so it begins first.
    waiting = [sampling.baseline(job) for job in sorted(jobs, key=lambda job: job.name != SWEEP)]
    number = 0
    with ThreadPoolExecutor(parallel) as pool:
        try:
            while True:
                while len(open_) < parallel:
                    if waiting:
                        member = waiting.pop(0)
                    else:
                        left_sec = deadline - time.monotonic()
                        turns = range(number, number + len(jobs))
                        turn = next((n for n in turns if _fits(found, jobs, n, left_sec)), None)
                        if turn is None or jobs[turn % len(jobs)].name not in ready:
                            break
                        member = sampling.draw(seed, turn, jobs[turn % len(jobs)])
                        number = turn + 1
                    open_[pool.submit(found.play, member)] = member
                if not open_:
                    return
                done, _ = wait(open_, return_when=FIRST_COMPLETED)
                for future in done:
                    member = open_.pop(future)
                    result = future.result()
                    if member.is_baseline:
                        if result.broken or result.error:
                            found.interrupt()  # there is nothing to compare with
                            return
                        ready.add(member.job)
        except BaseException:
            for future in open_:
                future.cancel()
            found.interrupt()
            raise


def _fits(found: Campaign, jobs: Sequence[Job], number: int, left_sec: float) -> bool:
    """Whether the run of that number would end in time; the first of each job is always played."""
    return number < len(jobs) or left_sec > found.seconds.get(jobs[number % len(jobs)].name, 0.0)


def left_over(found: Campaign) -> dict[str, str]:
    """What the whole campaign has left on the cloud; by guarantee."""
    sizes = {
        group["name"]: group["targetSize"]
        for place in (f"zones/{LOCAL_PLACE['gcp:zone']}", f"regions/{LOCAL_PLACE['gcp:region']}")
        for group in found.cloud.call(
            "GET", f"/compute/v1/projects/{clouds.PROJECT}/{place}/instanceGroupManagers"
        ).get("items", [])
    } or {"all": 0}
    seen = Seen(
        Ending("done"),
        RunRecord(),
        sizes=sizes,
        vms=[vm["name"] for vm in found.cloud.vms()],
        audit=found.cloud.audit(),
        bucket=BUCKET,
    )
    return _broken(seen, "no-vm-left", "only-bucket-left")


def _broken(seen: Seen, *names: str) -> dict[str, str]:
    checked = {name: GUARANTEES[name](seen) for name in names}
    return {
        name: detail for name, (verdict, detail) in checked.items() if verdict is Verdict.BROKEN
    }


def interpreter(python: str | None) -> str:
    """The interpreter that the VMs have."""
    frameworks = ROOT / ".venv-frameworks"
    if python is None and (frameworks / "installed").exists():
        return str(frameworks / "bin" / "python")
    return str(Path(python).absolute()) if python else engine.find_parts().python


def image_with(python: str, folder: Path) -> str:
    """The root folder of an image whose environment is that of the interpreter."""
    parts = engine.find_parts()
    if python == parts.python:
        return parts.image
    venv = folder / "opt" / "outlast" / "venv"
    venv.parent.mkdir(parents=True)
    venv.symlink_to(Path(python).parent.parent, target_is_directory=True)
    return str(folder)


def report(found: Campaign, memory: Memory, left: dict[str, str], seconds: float) -> list[str]:
    """The figures, in lines."""
    total = found.totals
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(found.played.items()))
    lines = [
        f"{total['runs']} runs in {seconds:.0f} s ({kinds}), undisturbed ones included",
        f"{total['preemptions']} preemptions survived, {total['faults']} faults injected,"
        f" {total['cuts']} engines killed in up, {total['interrupts']} Ctrl-Cs",
        f"{total['commits']} commits, {total['fenced']} fenced attempts, {total['fallbacks']}"
        f" fallbacks to an older checkpoint, {total['lost']} steps lost and repeated",
    ]
    quarters = ", ".join(f"{mb:.0f}" for mb in _quarters(memory.mb))
    word = "it GROWS" if grows(memory.mb) else "flat"
    lines.append(f"memory of the local cloud, MB by quarters of the time: {quarters}: {word}")
    lines += [f"LEFT OVER: {name}: {detail}" for name, detail in left.items()]
    return lines


def main(argv: Sequence[str]) -> int:
    """Plays a campaign; returns the exit code."""
    args = parser().parse_args(argv)
    printed = bench_result.Result("tests.campaign.run", argv)
    seed = int(time.time()) % 1_000_000 if args.seed is None else args.seed
    try:
        python = interpreter(args.python)
        known = sampling.available(python)
        engine.find_parts()
    except (OperateError, OSError, subprocess.SubprocessError) as error:
        say(f"campaign: {error}")
        return CANNOT
    jobs = [job for job in known if not args.job or job.name in args.job]
    absent = [job.name for job in sampling.JOBS if job not in known]
    try:
        member = sampling.named(seed, args.only) if args.only else None
    except ValueError as error:
        say(f"{error}.")
        return USAGE
    if not jobs:
        say(f"--job {', '.join(args.job)}: its packages are missing in {python}.")
        return CANNOT
    names = member.name if member else ", ".join(job.name for job in jobs)
    say(f"campaign: seed {seed}, {args.seconds:.0f} s, {names}")
    if absent:
        say(f"not played, for their packages are missing: {', '.join(absent)}")
    began = time.monotonic()
    with terminable(), scratch() as folder:
        image = image_with(python, folder / "image")
        try:
            with campaign(folder, image) as found:
                memory = Memory(found.cloud.pid)
                memory.start()
                try:
                    if member is None:
                        play_all(found, jobs, seed, seconds=args.seconds, parallel=args.parallel)
                    else:
                        base = found.play(sampling.baseline(sampling.job_of(member.job)))
                        if not _names(base):
                            found.play(member)
                finally:
                    memory.stop()
                left = left_over(found) if not found.failures else {}
            strays = end_strays(str(folder))
            left |= _broken(Seen(Ending("done"), RunRecord(), strays=strays), "no-process-left")
            lines = report(found, memory, left, time.monotonic() - began)
            printed.say(f"seed {seed}: {names}")
            for line in lines:
                printed.say(line)
            for failure in found.failures:
                printed.say(f"FAILED: {failure.member.name}: {failure}")
            code = FAILED if found.failures or left or grows(memory.mb) else DONE
            figures = {"seed": seed, "totals": found.totals, "memory_mb": memory.mb}
            if printed.end(args.json, code, **figures) == DONE:
                return DONE
            for failure in found.failures:
                say(f"\nseed {seed}: {failure.member.name}: {failure}\n{failure.log}")
                if failure.member.is_baseline:
                    path = reduce.write(failure.member.scenarios[failure.result.at], args.out)
                    say(f"{path}: without a fault, so that outlast rehearse --scenario shows it")
                    continue
                say(f"seed {seed}: again: make campaign SEED={seed} ONLY={failure.member.name}")
            drawn = [one for one in found.failures if not one.member.is_baseline]
            for failure in _different(drawn)[:REDUCED_MOST]:
                show_alone(failure, folder, image, args)
            return FAILED
        except OperateError as error:
            say(f"seed {seed}: {error}")
            return CANNOT
        except KeyboardInterrupt:
            say(f"seed {seed}: interrupted")
            return CTRL_C
        finally:
            with uninterrupted():
                end_strays(str(folder))


def _different(failures: Sequence[Failure]) -> list[Failure]:
    """The first of those that broke the same."""
    first: dict[tuple[str, ...], Failure] = {}
    for one in failures:
        first.setdefault(tuple(_names(one.result)), one)
    return list(first.values())


def _names(result: Result) -> list[str]:
    return [*result.broken, *(["error"] if result.error else [])]


def show_alone(failure: Failure, folder: Path, image: str, args: argparse.Namespace) -> None:
    """Reduces a failure on a separate local cloud, and plays what is left as a user does."""
    broken, at = _names(failure.result), failure.result.at
    job = failure.member.job
    member = reduce.playable(failure.member)
    say(f"\nreducing {failure.member.name}: {', '.join(broken)}")
    where = folder / f"r-{failure.member.name}"
    where.mkdir()
    base = pickle.loads((folder / f"{job}.baseline").read_bytes())
    key = str(sampling.SWEEP_RATES[at]) if job == SWEEP else ""
    base["records"] = {"": base["records"][key]}
    (where / f"{member.job}.baseline").write_bytes(pickle.dumps(base))
    try:
        with campaign(where, image) as alone:
            found = reduce.reduce(
                *(member, at, broken, lambda one: _names(alone.play(one))),
                seconds=args.reduce_seconds,
            )
    finally:
        end_strays(str(where))
    path = reduce.write(found.document, args.out)
    faults = len(reduce.pieces(found.document))
    if not found.alone:
        say(
            f"{path}: what was drawn; alone it did not fail again in {found.plays} plays, so that"
            " it needs what was beside it or what the operator did"
        )
        return
    say(f"{path}: fails alone, with {faults} faults, after {found.plays} plays")
    if sampling.job_of(job) not in sampling.available(engine.find_parts().python):
        say(f"the packages of {job} are not in .venv, so outlast rehearse cannot play it")
        return
    played = rehearse(str(path))
    bad = sorted(name for name, verdict in played.verdicts.items() if verdict == Verdict.BROKEN)
    said = ", ".join(bad) or played.error or "nothing"
    say(f"outlast rehearse --scenario {path}: broken: {said}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
