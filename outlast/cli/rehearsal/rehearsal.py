"""Runs one rehearsal: brings stacks up, plays the scenario, waits for the end, collects what it
sees.
"""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from outlast.bucket import goodput, history
from outlast.bucket.head import Head
from outlast.bucket.history import History
from outlast.bucket.layout import Layout
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.errors import RehearsalError, reading
from outlast.cli.rehearsal.cleanup import end_strays, uninterrupted
from outlast.cli.rehearsal.report import Report
from outlast.cli.rehearsal.scenario import Scenario
from outlast.cli.rehearsal.seen import Fault, RunRecord, Seen, Stall, read_result
from outlast.cli.rehearsal.settings import Delivery, baseline_of, place_of

LIMIT_SEC = 600
"""An engine that takes longer than this has hung."""
POLL_SEC = 0.1
QUIET_SEC = 15.0
"""Seconds without a message after which the rehearsal says what it waits for."""


class Watcher:
    """Receives events for the command line to render. All calls come from one thread."""

    def say(self, message: str) -> None:
        """One thing that happened."""

    def progress(self, name: str, step: int, total: int, rows: tuple[dict[str, Any], ...]) -> None:
        """The state of a run."""


class StackRun:
    """One of the stacks, and what is known about its run."""

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        self.name = name
        self.stack = engine.Stack(name, config, folder=folder / name)
        self.place = place_of(config)
        self.raised: Future[dict[str, Any]] | None = None
        """The running `up`."""
        self.outputs: dict[str, Any] = {}
        """The stack's outputs; empty until it is up."""
        self.up_at = 0.0
        self.history: History | None = None
        self.heads: list[Head] = []
        """Every HEAD seen, each once."""

    @property
    def layout(self) -> Layout:
        return Layout(self.outputs["prefix"], self.outputs["run"])

    @property
    def group(self) -> str:
        return self.outputs["group"]

    def where(self) -> str:
        """The state of the run, in words."""
        book = self.history
        if not self.outputs:
            return "pulumi up"
        if book is None or not book.attempts:
            return "no attempt yet"
        if book.head.state.ended:
            return f"{book.head.state}, leaving"
        attempt = book.attempts[-1]
        step = f"step {book.step - book.before}"
        step += f" of {book.total - book.before}" if book.total else ""
        step += f" of part {book.part}" if book.part else ""
        return f"attempt {attempt.term}, phase {book.phase or 'setup'}, {step}"

    def note(self, book: History | None) -> None:
        """What was just read of the run."""
        self.history = book
        if book and (not self.heads or self.heads[-1].nonce != book.head.nonce):
            self.heads.append(book.head)


class Cloud(Protocol):
    """What a rehearsal asks of the cloud that it plays on: a local one, or Google."""

    @property
    def poll_sec(self) -> float:
        """Seconds between two looks at the runs."""
        ...

    def play(self, scenario: Mapping[str, Any], *, target: str) -> None:
        """Starts a scenario for the experiment `target` only."""
        ...

    def watch(self, history: History | None) -> None:
        """Takes note of what was just read of the target's run."""
        ...

    def played(self) -> dict[str, Any]:
        """The scenario: `log` is what has happened, `waiting` is what is still to come."""
        ...

    def notes(self) -> list[str]:
        """Lines for the person who rehearses, from the beginning."""
        ...

    def faults(self) -> list[dict[str, Any]]:
        """The rules by which requests are disturbed, with `fired` and `stalls`."""
        ...

    def group_size(self, group: str, place: str) -> int | None:
        """The target size of a group; None if there is no such group."""
        ...

    def group_errors(self, group: str, place: str) -> list[str]:
        """Codes of what kept the group from creating VMs."""
        ...

    def vms(self) -> list[dict[str, Any]]:
        """The VMs that exist, each with `name` and `group`."""
        ...

    def has_bucket(self, bucket: str) -> bool:
        """Whether the bucket exists."""
        ...

    def make_bucket(self, name: str, region: str) -> None:
        """Creates a bucket that a stack adopts."""
        ...

    def audit(self) -> dict[str, Any]:
        """Everything that exists, by kind."""
        ...


class Rehearsal:
    """Runs one rehearsal: brings stacks up, plays the scenario, waits for the end, collects what it
    sees.
    """

    def __init__(
        self,
        cloud: Cloud,
        played: Scenario,
        config: Mapping[str, Any],
        folder: Path,
        watcher: Watcher,
        *,
        patience: float = 1,
    ) -> None:
        """`patience`: how many times as long as a scenario says its runs may take, and as an engine
        may, which waits for the VM that bakes an image."""
        from outlast.bucket.store import open_store

        self.cloud = cloud
        self.scenario = played
        self.watcher = watcher
        self.config = config
        self.folder = folder
        self.bucket = str(config.get("outlast:bucket") or f"{config['gcp:project']}-outlast")
        self.store = open_store(f"gs://{self.bucket}")
        self.stack_runs: list[StackRun] = []
        """The disturbed run, then the baseline if there is one."""
        self._engine_sec = LIMIT_SEC * patience
        self._deadline = time.monotonic() + self._engine_sec
        self._reported: dict[str, int] = {}
        self._faults_reported = 0
        self._notes_reported = 0
        self._within_sec = played.within_sec * patience
        self._reported_at = time.monotonic()

    def say(self, message: str) -> None:
        """Report one thing that happened."""
        self.watcher.say(message)
        self._reported_at = time.monotonic()

    def say_where(self, what: str = "") -> None:
        """After a silence, report `what` is happening; by default, the state of each run."""
        if time.monotonic() - self._reported_at >= QUIET_SEC:
            stack_runs = "; ".join(f"{run.name}: {run.where()}" for run in self.stack_runs)
            self.say(f"still {what}" if what else stack_runs)

    def play(self, stack: str, deliveries: Sequence[Delivery]) -> tuple[Report, Seen]:
        """Do everything except check the guarantees, which comes when nothing is running any
        more.
        """
        name = str(self.config.get("outlast:experiment") or stack)
        names = [name, baseline_of(name)] if self.scenario.needs_baseline else [name]
        self.stack_runs = [
            StackRun(each, {**self.config, "outlast:experiment": each}, self.folder)
            for each in names
        ]
        for delivery in deliveries:
            self._deliver(delivery)
        self.cloud.play(self.scenario.document, target=name)
        with ThreadPoolExecutor(len(self.stack_runs)) as pool:
            try:
                self._raise_stacks(pool)
                self._watch_to_the_end()
                seen = self._look()
                report = self._report(seen)
                self.say(f"destroying {' and '.join(names)}")
                going = [pool.submit(stack_run.stack.destroy) for stack_run in self.stack_runs]
                self._wait(going, "destroying")
                seen.audit = self.cloud.audit()
                return report, seen
            except BaseException:
                # Threads that wait for an engine end when it does.
                with uninterrupted():
                    end_strays(os.environ[clouds.TOKEN_VARIABLE], only="pulumi")
                raise

    def _deliver(self, delivery: Delivery) -> None:
        from outlast.bucket.store import open_store

        if not self.cloud.has_bucket(delivery.bucket):
            region = self.config.get("gcp:region")
            self.cloud.make_bucket(delivery.bucket, str(region))
        store = open_store(f"gs://{delivery.bucket}")
        files = delivery.files()
        for file in files:
            store.put(delivery.object(file), file)
        self.say(f"gs://{delivery.bucket}/{delivery.path}: {len(files)} files")

    def _raise_stacks(self, pool: ThreadPoolExecutor) -> None:
        """Start every `up`; return as soon as the disturbed run's stack is up."""
        storm = self.stack_runs[0]
        beside = "".join(f", beside it {stack_run.name}" for stack_run in self.stack_runs[1:])
        self.say(f"scenario {self.scenario.name}: {self.scenario.about}")
        self.say(f"must end as {self.scenario.end}, with {', '.join(self.scenario.guarantees)}")
        self.say(f"pulumi up: {storm.name}{beside}")
        storm.raised = pool.submit(storm.stack.up)
        # They share the bucket; the second adopts it after the first has created it.
        while not storm.raised.done() and not self.cloud.has_bucket(self.bucket):
            time.sleep(self.cloud.poll_sec)
        for stack_run in self.stack_runs[1:]:
            stack_run.raised = pool.submit(stack_run.stack.up)
        self._wait([storm.raised])

    def _is_up(self, stack_run: StackRun) -> bool:
        """Whether the stack is up; reads its outputs as soon as it is."""
        if stack_run.outputs:
            return True
        if stack_run.raised is None or not stack_run.raised.done():
            return False
        stack_run.outputs = stack_run.raised.result()
        stack_run.up_at = time.monotonic()
        self.say(f"{stack_run.name}: run {stack_run.outputs['run']} in {stack_run.group}")
        runs = {other.outputs["run"] for other in self.stack_runs if other.outputs}
        if len(runs) > 1:
            one, other = sorted(runs)
            raise RehearsalError(
                f"run {one}: the other stack named the same spec {other}; the run's identity is "
                "not reproducible."
            )
        return True

    def _wait(self, futures: list[Future[Any]], what: str = "") -> None:
        """Wait in slices, so that Ctrl-C works; raise what a thread raised. A long wait reports
        `what` it is for."""
        while not all(future.done() for future in futures):
            if time.monotonic() > self._deadline:
                raise RehearsalError(
                    f"rehearsal: the engine did not end in {self._engine_sec:.0f} s."
                )
            self.say_where(what)
            time.sleep(POLL_SEC)
        for future in futures:
            future.result()

    def _watch_to_the_end(self) -> None:
        """Watch until each run has ended or its time is up."""
        while True:
            for stack_run in self.stack_runs:
                if self._is_up(stack_run):
                    stack_run.note(self._read(stack_run))
                    self._report_attempts(stack_run)
            self.cloud.watch(self.stack_runs[0].history)
            self._report_faults()
            self.say_where()
            if all(self._over(stack_run) for stack_run in self.stack_runs):
                break
            time.sleep(self.cloud.poll_sec)
        # The engine of a destroy has its own time limit.
        self._deadline = time.monotonic() + self._engine_sec

    def _over(self, stack_run: StackRun) -> bool:
        if not stack_run.outputs:
            if time.monotonic() > self._deadline:
                raise RehearsalError(
                    f"rehearsal: {stack_run.name} did not come up in {self._engine_sec:.0f} s."
                )
            return False
        if time.monotonic() > stack_run.up_at + self._within_sec:
            return True
        return self._size(stack_run) == 0 and not self._vms(stack_run)

    def _read(self, stack_run: StackRun) -> History | None:
        from outlast.bucket.head import HeadError
        from outlast.bucket.store import StoreError

        try:
            return history.read(self.store, stack_run.layout)
        except (StoreError, HeadError):
            return stack_run.history  # It is asked again in a moment.

    def _report_attempts(self, stack_run: StackRun) -> None:
        book = stack_run.history
        if book is None:
            return
        total = book.total or max(book.step, 1)  # All steps, once the trainer has reported them.
        self.watcher.progress(stack_run.name, min(book.step, total), total, book.rows)
        for attempt in book.attempts:
            if attempt.term > self._reported.get(stack_run.name, 0):
                self._reported[stack_run.name] = attempt.term
                origin = f"resumes from step {attempt.from_step}"
                self.say(
                    f"{stack_run.name}: attempt {attempt.term} on {attempt.instance} "
                    + (origin if attempt.from_step else "starts from scratch")
                )

    def _report_faults(self) -> None:
        notes = self.cloud.notes()
        for note in notes[self._notes_reported :]:
            self.say(note)
        self._notes_reported = len(notes)
        log = self.cloud.played()["log"]
        for entry in log[self._faults_reported :]:
            self.say(f"{entry.get('vm') or self.stack_runs[0].name}: {_fault(entry)}")
        self._faults_reported = len(log)

    def _size(self, stack_run: StackRun) -> int | None:
        return self.cloud.group_size(stack_run.group, stack_run.place)

    def _vms(self, stack_run: StackRun) -> list[str]:
        """Its VMs, including one that the group has given up and that keeps running."""
        of_group = (stack_run.group, None)
        return [
            vm["name"]
            for vm in self.cloud.vms()
            if vm["group"] in of_group and vm["name"].startswith(stack_run.group)
        ]

    # ------------------------------------------------------------------------------ what was seen

    def _look(self) -> Seen:
        runs = [self._run(stack_run) for stack_run in self.stack_runs]
        played = self.cloud.played()
        faults = self.cloud.faults()
        fired = [rule["fired"] for rule in faults]
        storm = self.stack_runs[0]
        return Seen(
            expected=self.scenario.end,
            run=runs[0],
            within_sec=self._within_sec,
            baseline=runs[1] if len(runs) > 1 else None,
            faults=[_fault(entry) for entry in played["log"]],
            disturbed_requests=sum(fired),
            stalls=[
                Stall(str(stall["target"]), stall["waited_sec"], stall["again"])
                for rule in faults
                for stall in rule["stalls"]
            ],
            pending=[
                *(_event(event) for event in played["waiting"]),
                *(f"a request for {_rule(rule)}" for rule in faults if not rule["fired"]),
            ],
            retries=int(self.config.get("outlast:retriesFailures") or 0),
            refusals=self.cloud.group_errors(storm.group, storm.place),
            sizes={stack_run.name: self._size(stack_run) for stack_run in self.stack_runs},
            vms=[vm["name"] for vm in self.cloud.vms()],
            bucket=self.bucket,
        )

    def _run(self, stack_run: StackRun) -> RunRecord:
        from outlast.base.retry import BRIEF
        from outlast.bucket import pages
        from outlast.bucket.parts import table
        from outlast.bucket.rows import iter_rows
        from outlast.bucket.store import NotFound, StoreError

        with reading(stack_run.name):
            # Records that were read before the VM left may lack its end.
            stack_run.note(BRIEF(lambda: history.read(self.store, stack_run.layout)))
            book = stack_run.history
            boots = history.read_boots(self.store, stack_run.layout)
            if book is None:
                return RunRecord(boots=boots)
            ends = {
                attempt.term: end
                for attempt in book.attempts
                if (end := history.read_end(self.store, stack_run.layout, attempt.term))
            }
            try:
                path = stack_run.layout.end(int(stack_run.outputs["resume"]))
                ended = self.store.stat(path).updated
            except NotFound:
                ended = None
            result = read_result(self.store, book.head)
        try:
            rows = list(iter_rows(self.store, stack_run.layout, book.head))
            parts = table(pages.parts(self.store, stack_run.layout, book.head))
        except (StoreError, ValueError):  # What cannot be read counts as missing.
            rows, parts = [], []
        return RunRecord(book, rows, result, boots, ends, ended, tuple(stack_run.heads), parts)

    def _report(self, seen: Seen) -> Report:
        baseline = seen.baseline.history if seen.baseline else None
        return Report(
            scenario=self.scenario.name,
            experiment=self.stack_runs[0].name,
            run=self.stack_runs[0].outputs["run"],
            ending=str(seen.run.ending),
            digest=seen.run.result.digest,
            metrics=seen.run.result.last_metrics(),
            goodput=_goodput(seen.run.history),
            goodput_baseline=_goodput(baseline),
            attempts=seen.run.attempts,
            baseline_attempts=seen.baseline.attempts if seen.baseline else (),
            faults=tuple(seen.faults),
            parts=seen.run.parts,
        )


def _goodput(book: History | None) -> float | None:
    found = goodput.of(book) if book else None
    return found.share if found else None


def _event(entry: Mapping[str, Any]) -> str:
    """An event that did not happen, in words, such as `event 2 (kill at attempt 2, share 0.4)`."""
    moment = ", ".join(f"{name} {value}" for name, value in entry["when"].items() if value)
    left = f", {entry['left']} times more" if entry["left"] > 1 else ""
    return f"event {entry['event'] + 1} ({entry['do']} at {moment}{left})"


def _rule(rule: Mapping[str, Any]) -> str:
    """The requests that a fault applies to."""
    return " ".join(f"{name} {value}" for name, value in rule["match"].items() if value)


def _fault(entry: Mapping[str, Any]) -> Fault:
    """An entry of the local cloud's log of played events, in words."""
    return Fault(
        do=entry["do"],
        boot=entry.get("boot"),
        attempt=entry.get("attempt"),
        options=entry,
        missed=str(entry.get("missed") or ""),
    )
