"""Plays one run of a campaign, or one sweep, on the campaign's local cloud.

    python -m tests.campaign.member ORDER.json

What its process leaves is found by the environment, and its end frees everything. It is a rehearsal
without a baseline beside it: the guarantees are those of `outlast rehearse`, and what they compare
with is the job's undisturbed run, which was played once.
"""

import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from outlast.base.exits import CTRL_C, Reason
from outlast.bucket.store import StoreError
from outlast.cli import cloud as clouds
from outlast.cli import engine, recover
from outlast.cli.errors import NoStack, OperateError, RehearsalError
from outlast.cli.rehearsal import guarantees, scenario
from outlast.cli.rehearsal.cleanup import end_strays, terminable, uninterrupted
from outlast.cli.rehearsal.guarantees import Verdict
from outlast.cli.rehearsal.rehearsal import Rehearsal, StackRun, Watcher
from outlast.cli.rehearsal.seen import RunRecord, Seen
from outlast.cli.rehearsal.settings import STACK, compose, read_config
from outlast.localcloud.scenarios import scenario as cloud_side
from outlast.spec import sweeps
from tests.campaign.sampling import SWEEP, SWEEP_RATES, Member

READY_SEC = 60.0
COMMAND_SEC = 300.0
CTRL_C_SEC = 60.0
"""An interrupted `sweep up` ends the engines that have begun in order."""


@dataclass(frozen=True)
class Order:
    """What a member's process is asked for; JSON in its file."""

    member: Member
    state: Path
    """The local cloud's folder."""
    home: Path
    """The engine's."""
    work: Path
    """For this member alone. `result.json` in it is the answer."""
    baseline: Path
    """Records of the job's undisturbed run, by trial; written by the member that is it."""

    def write(self, to: Path) -> None:
        document = {key: str(value) for key, value in vars(self).items()}
        to.write_text(json.dumps({**document, "member": self.member.as_json()}))

    @classmethod
    def read(cls, path: Path) -> "Order":
        found = json.loads(path.read_text())
        places = {key: Path(found[key]) for key in ("state", "home", "work", "baseline")}
        return cls(Member.of(found["member"]), **places)


@dataclass
class Result:
    """What came of it; JSON in `result.json`."""

    broken: dict[str, str] = field(default_factory=dict)
    """By guarantee, what was seen."""
    at: int = 0
    """Which of its scenarios broke something."""
    error: str = ""
    """Why it could not be carried out; empty if it was."""
    runs: int = 0
    preemptions: int = 0
    """Deaths that the run survived."""
    faults: int = 0
    commits: int = 0
    fenced: int = 0
    fallbacks: int = 0
    lost: int = 0
    """Steps."""
    cuts: int = 0
    """Engines killed in `up`."""
    interrupts: int = 0
    """Ctrl-Cs."""

    def add(self, seen: Seen, at: int, found: Sequence[guarantees.Guarantee], commits: int) -> None:
        """Take note of one run."""
        broken = {one.name: one.detail for one in found if one.verdict is Verdict.BROKEN}
        if broken and not self.broken:
            self.broken, self.at = broken, at
        attempts = seen.run.attempts
        self.runs += 1
        self.preemptions += sum(fault.do in DEATHS for fault in seen.effective)
        acted = sum(fault.do != "thaw" for fault in seen.effective)  # which ends a fault
        self.faults += acted + seen.disturbed_requests + len(seen.refusals)
        self.commits += commits
        self.fenced += sum(one.reason is Reason.FENCED for one in attempts)
        self.fallbacks += len(fallbacks(seen.run))
        self.lost += sum(one.lost for one in attempts)


DEATHS = frozenset({"kill", "preempt", "stop", "delete", "lost"})


def fallbacks(run: RunRecord) -> list[int]:
    """Terms that resumed from an older checkpoint than the one before had committed, by its records
    or by a HEAD that was seen: the last heartbeat of a killed VM may be older than its last commit.
    """
    last = {one.term: one.committed or one.from_step for one in run.attempts}
    for head in run.heads:
        for checkpoint in head.chain:
            last[checkpoint.term] = max(checkpoint.step, last.get(checkpoint.term, 0))
    return [b.term for a, b in pairwise(run.attempts) if last[a.term] > b.from_step]


class Share:
    """The part of a local cloud that belongs to one experiment, or to one sweep's trials: what a
    rehearsal asks of its cloud (`outlast.cli.rehearsal.rehearsal.Cloud`)."""

    def __init__(self, cloud: clouds.LocalCloud, name: str, *, of: str = "") -> None:
        """`of`: the sweep whose trial it is."""
        self._cloud = cloud
        self._name = name
        self._own = re.compile(rf"(?<![-a-z0-9]){re.escape(of or name)}(?![a-z0-9])")
        self.group_size = cloud.group_size
        self.group_errors = cloud.group_errors
        self.has_bucket = cloud.has_bucket
        self.make_bucket = cloud.make_bucket
        self.watch = cloud.watch
        self.poll_sec = 2 * cloud.poll_sec

    def play(self, scenario: Mapping[str, Any], *, target: str) -> None:
        self._cloud.play(scenario, target=target)

    def played(self) -> dict[str, Any]:
        return self._cloud.call("GET", f"/_local/scenario?target={self._name}")

    def end(self) -> None:
        """Ends the scenario."""
        self._cloud.call("DELETE", f"/_local/scenario?target={self._name}")

    def notes(self) -> list[str]:
        return []

    def faults(self) -> list[dict[str, Any]]:
        ids = self.played()["rules"]
        return [rule for rule in self._cloud.faults() if rule["id"] in ids]

    def vms(self) -> list[dict[str, Any]]:
        return [vm for vm in self._cloud.vms() if vm["name"].startswith(f"{self._name}-")]

    def audit(self) -> dict[str, Any]:
        """What exists of it; the bucket is everyone's."""
        found = self._cloud.audit()
        found.pop("pids")  # their VMs are listed
        return {
            kind: [one for one in listed if kind == "buckets" or self._own.search(json.dumps(one))]
            for kind, listed in found.items()
        }


class Provider:
    """The engine's provider of this member alone, which is killed with its engine."""

    def __init__(self, cloud: clouds.LocalCloud, folder: Path) -> None:
        self._cloud = cloud
        self._ready = folder / "provider.json"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and makes the engine use it."""
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "outlast.localcloud.provider"]
        self._process = subprocess.Popen(
            [*command, "--endpoint", self._cloud.url, "--ready-file", str(self._ready)],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + READY_SEC
        while not self._ready.exists():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RehearsalError("provider: does not serve.")
            time.sleep(0.05)
        port = json.loads(self._ready.read_text())["port"]
        os.environ["PULUMI_DEBUG_PROVIDERS"] = f"gcp:{port}"

    def reap(self) -> None:
        """Waits for its end, after it was killed or to end it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


class CutOff:
    """A stack whose `up` is cut off as by a power cut: the engine, its plugins and the provider get
    SIGKILL. Then the operator recovers it and brings it up again."""

    def __init__(self, stack: engine.Stack, folder: Path, provider: Provider) -> None:
        self._stack, self._folder, self._provider = stack, folder, provider
        self.cuts: Sequence[float] = ()
        """Seconds after which each `up` is cut off."""
        self.done = 0
        self.destroy = stack.destroy

    def up(self) -> dict[str, Any]:
        """Raises EngineError as `engine.Stack.up`."""
        for cut_sec in self.cuts:
            with ThreadPoolExecutor(1) as pool:
                going = pool.submit(self._stack.up)
                with contextlib.suppress(TimeoutError):
                    return going.result(cut_sec)  # it was faster
                end_strays(os.environ[clouds.TOKEN_VARIABLE])
                self.done += 1
                with contextlib.suppress(OperateError):
                    going.result()
            self._provider.reap()
            self._provider.start()
            with contextlib.suppress(NoStack):  # it was cut off before the stack existed
                recover.recover(self._stack.name, cwd=self._folder)
        return self._stack.up()


class Log(Watcher):
    """What the member's own log says, for those who look into a failure."""

    def say(self, message: str) -> None:
        print(time.strftime("%H:%M:%S"), message, flush=True)


class Disturbed(Rehearsal):
    """A rehearsal of one run beside others, with what its operator does."""

    order: Order
    provider: Provider
    up_sec = 10.0
    """What an undisturbed `up` takes."""
    commits = 0
    cut: CutOff | None = None
    damaged = False
    _interrupted: "threading.Thread | None" = None
    interrupts = 0
    complaint = ""
    """What the operator's part found wrong."""

    def _raise_stacks(self, pool: ThreadPoolExecutor) -> None:
        operator = self.order.member.operator
        if operator.cuts:
            stack_run = self.stack_runs[0]
            folder = self.folder / stack_run.name
            self.cut = CutOff(stack_run.stack, folder, self.provider)
            self.cut.cuts = [share * self.up_sec for share in operator.cuts]
            stack_run.stack = self.cut  # type: ignore[assignment]
        super()._raise_stacks(pool)
        if operator.watch_sec is not None:
            self._interrupted = threading.Thread(target=self._watch_and_interrupt, daemon=True)
            self._interrupted.start()

    def _watch_and_interrupt(self) -> None:
        name, wait_sec = self.stack_runs[0].name, self.order.member.operator.watch_sec or 0
        where = f"gs://{self.bucket}/experiments/{name}"
        process = start(["watch", where], self.folder)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_sec)
            return  # before there was a run to watch, or after its end
        code = interrupt(process)
        self.interrupts += 1
        self.say(f"Ctrl-C of outlast watch: exit code {code}")
        if code not in (CTRL_C, 0):
            self.complaint = f"outlast watch: ended with {code} after Ctrl-C, must be {CTRL_C}"

    def _report_faults(self) -> None:
        before = self._faults_reported
        super()._report_faults()
        new = self.cloud.played()["log"][before:]
        if self.order.member.operator.damages and any(one["do"] == "kill" for one in new):
            self._damage()

    def _damage(self) -> None:
        """Changes the newest checkpoint's bytes, if there is an older one."""
        run = self.stack_runs[0]
        run.note(self._read(run))  # what was read before may lack the last commit
        book = run.history
        if self.damaged or book is None or book.head.kept < 2:
            return
        newest = book.head.chain[-1]
        try:
            largest = max(self.store.list(newest.path), key=lambda found: found.size)
            data, _ = self.store.get(largest.path)
            self.store.put(largest.path, bytes([data[0] ^ 1]) + data[1:])
        except (StoreError, ValueError) as error:
            self.say(f"the checkpoint of step {newest.step} is not damaged: {error}")
            return
        self.damaged = True
        self.say(f"the checkpoint of step {newest.step} is damaged")

    def _look(self) -> Seen:
        if self._interrupted is not None:
            self._interrupted.join(CTRL_C_SEC)
        seen = super()._look()
        self.commits = self.cloud.played()["commits"]
        return seen


def start(words: Sequence[str], cwd: Path) -> subprocess.Popen[bytes]:
    """Starts an `outlast` command in its own process group, as a shell does."""
    return subprocess.Popen(
        [sys.executable, "-m", "outlast.cli", *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=sys.stdout,
        stderr=sys.stdout,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def interrupt(process: subprocess.Popen[bytes]) -> int:
    """The exit code after Ctrl-C. RehearsalError: it does not end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        return process.wait(CTRL_C_SEC)
    except subprocess.TimeoutExpired:
        raise RehearsalError(
            f"{' '.join(map(str, process.args[3:]))}: did not end in {CTRL_C_SEC:.0f} s after"  # type: ignore[index]
            " Ctrl-C."
        ) from None


class Played:
    """The member that this process plays."""

    def __init__(self, order: Order, cloud: clouds.LocalCloud) -> None:
        self._order = order
        self._cloud = cloud
        self._provider = Provider(cloud, order.work)
        self._log = Log()
        self.result = Result()
        self._records: dict[str, RunRecord] = {}
        self._up_sec: float = 0.0
        self._base: dict[str, Any] = {}
        if not order.member.is_baseline:
            self._base = pickle.loads(order.baseline.read_bytes())

    def play(self) -> None:
        member = self._order.member
        if member.operator.cuts:
            self._provider.start()
        try:
            self._sweep() if member.job == SWEEP else self._run()
        finally:
            self._provider.reap()
        if self._order.member.is_baseline:
            kept = {"records": self._records, "up_sec": self._up_sec}
            self._order.baseline.write_bytes(pickle.dumps(kept))

    def _scenario(self, at: int) -> scenario.Scenario:
        document = cloud_side.check(json.loads(json.dumps(self._order.member.scenarios[at])))
        return scenario.of(document.document())

    def _rehearsal(self, name: str, played: scenario.Scenario, *, of: str = "") -> Disturbed:
        config = compose(read_config(STACK), played, {}, own=False)
        config["outlast:experiment"] = name
        alone = replace(played, guarantees=())  # with same-bytes a baseline would run beside it
        share = Share(self._cloud, name, of=of)
        made = Disturbed(share, alone, config, self._order.work / "stacks", self._log)
        made.order, made.provider = self._order, self._provider
        made.up_sec = self._base.get("up_sec", made.up_sec)
        return made

    def _check(self, at: int, key: str, seen: Seen, made: Disturbed) -> None:
        if not self._order.member.is_baseline:
            seen.baseline = self._base["records"][key]
        else:
            self._records[key] = seen.run
        asked = list(self._scenario(at).guarantees)
        if made.damaged and fallbacks(seen.run):  # what it had committed was damaged
            asked = [name for name in asked if name not in ("committed-kept", "single-lineage")]
        found = guarantees.check(seen, asked)
        for one in found:
            self._log.say(f"{one.verdict}: {one.name}: {one.detail}")
        self.result.add(seen, at, found, made.commits)

    def _run(self) -> None:
        name, played = self._order.member.name, self._scenario(0)
        made = self._rehearsal(name, played)
        began = time.monotonic()
        try:
            _, seen = made.play(name, [])
        finally:
            self._take(made)
        self._up_sec = made.stack_runs[0].up_at - began
        self._provider.reap()
        seen.strays = end_strays(os.environ[clouds.TOKEN_VARIABLE])
        self._check(0, "", seen, made)
        if made.complaint:
            self.result.broken.setdefault("ctrl-c", made.complaint)
        made.cloud.end()  # type: ignore[attr-defined]
        self._delete(made, name)

    def _take(self, made: Disturbed) -> None:
        self.result.cuts += made.cut.done if made.cut else 0
        self.result.interrupts += made.interrupts

    def _delete(self, made: Disturbed, name: str) -> None:
        """Deletes what a run that held everything has left in the bucket, so that the cloud's
        memory shows only what leaks."""
        if self.result.broken or self._order.member.is_baseline:
            return
        for found in list(made.store.list(f"experiments/{name}/")):
            with contextlib.suppress(StoreError):
                made.store.delete(found.path, generation=found.generation)

    # A sweep

    def _sweep(self) -> None:
        name, home = self._order.member.name, self._project()
        trials = {
            float(one["parameters"]["learning-rate"]): str(one["id"])
            for one in json.loads(self._outlast(home, "preview", "--json"))["trials"]
        }
        rehearsals = []
        for at, rate in enumerate(SWEEP_RATES):
            trial = sweeps.trial(name, trials[rate])
            made = self._rehearsal(trial, self._scenario(at), of=name)
            made.cloud.play(made.scenario.document, target=trial)
            rehearsals.append((at, rate, trial, made))
        if self._order.member.operator.watch_sec is not None:
            up = start(["sweep", "up", f"{name}.yaml"], home)
            with contextlib.suppress(subprocess.TimeoutExpired):
                up.wait(4 * self._order.member.operator.watch_sec)
            if up.poll() is None:
                code = interrupt(up)
                self.result.interrupts += 1
                self._log.say(f"Ctrl-C of outlast sweep up: exit code {code}")
        self._outlast(home, "up")
        found = []
        for at, rate, trial, made in rehearsals:
            folder = home / ".outlast" / "sweeps" / name / trial
            shown = ["stack", "output", "--json", "-s", trial]
            run = StackRun(trial, made.config, made.folder)
            run.outputs = json.loads(engine.run_engine(shown, env=os.environ, cwd=folder))
            run.up_at = time.monotonic()
            made.stack_runs = [run]
            made._watch_to_the_end()
            found.append((at, str(rate), made, made._look()))
        self._outlast(home, "destroy")
        strays = end_strays(os.environ[clouds.TOKEN_VARIABLE])
        for at, rate, made, seen in found:
            seen.audit, seen.strays = made.cloud.audit(), strays
            self._check(at, rate, seen, made)
            made.cloud.end()  # type: ignore[attr-defined]
        for _, _, trial, made in rehearsals:
            self._delete(made, trial)

    def _project(self) -> Path:
        """A project that runs the checkout's program, with the sweep's file and its base."""
        home, root, name = self._order.work / "project", engine.project(), self._order.member.name
        home.mkdir()
        (home / "checkout").symlink_to(root, target_is_directory=True)
        definition = yaml.safe_load((root / "Pulumi.yaml").read_text())
        definition["main"] = "checkout"
        definition["runtime"]["options"]["virtualenv"] = sys.prefix
        (home / "Pulumi.yaml").write_text(yaml.safe_dump(definition, sort_keys=False))
        base = f"{name}-base"
        config = compose(read_config(STACK), self._scenario(0), {}, own=False)
        config["outlast:experiment"] = base
        del config["outlast:args"]["learning-rate"]
        (home / f"Pulumi.{base}.yaml").write_text(yaml.safe_dump({"config": config}))
        sweep = {
            "base": base,
            "parameters": {"learning-rate": list(SWEEP_RATES)},
            "parallel": len(SWEEP_RATES),
        }
        (home / f"{name}.yaml").write_text(yaml.safe_dump(sweep))
        engine.run_engine(["stack", "init", base, "--no-select"], env=os.environ, cwd=home)
        return home

    def _outlast(self, home: Path, word: str, *flags: str) -> str:
        """What `outlast sweep WORD` printed. RehearsalError: it failed."""
        name = self._order.member.name
        what = name if word == "destroy" else f"{name}.yaml"
        done = subprocess.run(
            [sys.executable, "-m", "outlast.cli", "sweep", word, what, *flags],
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SEC,
        )
        self._log.say(f"outlast sweep {word}: exit code {done.returncode}\n{done.stderr}")
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
            raise RehearsalError(f"outlast sweep {word}: exit code {done.returncode}: {said[0]}")
        return done.stdout


def main(argv: Sequence[str]) -> int:
    """Plays the order in the file; the answer is in its work folder's `result.json`."""
    order = Order.read(Path(argv[0]))
    cloud = clouds.find(order.state)
    if cloud is None:
        print(f"{order.state}: no local cloud runs there", file=sys.stderr)
        return 1
    variables = cloud.variables(engine.find_parts(), order.home, os.environ.get("PATH", os.defpath))
    engine.enter({**variables, clouds.TOKEN_VARIABLE: str(order.work)})
    played = Played(order, cloud)
    with terminable():
        try:
            played.play()
        except (OperateError, StoreError) as error:
            played.result.error = str(error)
        finally:
            with uninterrupted():
                end_strays(str(order.work))
    answer = order.work / "result.json"
    answer.with_suffix(".new").write_text(json.dumps(vars(played.result)))
    answer.with_suffix(".new").replace(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
