"""One performance: the stacks up, the scenario played, the end, all that was seen."""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from outlast.bucket import ledger
from outlast.bucket.head import Head
from outlast.bucket.layout import Layout
from outlast.bucket.ledger import Ledger
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.errors import RehearsalError, reading
from outlast.cli.rehearsal.cleanup import end_strays, uninterrupted
from outlast.cli.rehearsal.report import Report
from outlast.cli.rehearsal.scenario import Scenario
from outlast.cli.rehearsal.seen import Run, Seen, Stall, Strike, read_result
from outlast.cli.rehearsal.settings import Delivery, calm_of, place_of

LIMIT_SEC = 600
"""An engine that takes longer than this has hung."""
POLL_SEC = 0.2
QUIET_SEC = 15.0
"""Where nothing was said for so long, it is said what is waited for."""


class Watcher:
    """Gets told what happens; the command line draws it. All calls come from one thread."""

    def say(self, message: str) -> None:
        """One thing that happened."""

    def progress(self, name: str, step: int, total: int, rows: tuple[dict[str, Any], ...]) -> None:
        """Where a run is."""


class Side:
    """One of the stacks, with what is known of its run."""

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        self.name = name
        self.stack = engine.Stack(name, config, folder=folder / name)
        self.place = place_of(config)
        self.raised: Future[dict[str, Any]] | None = None
        """The `up` under way."""
        self.outputs: dict[str, Any] = {}
        """The stack's outputs; empty until it is up."""
        self.up_at = 0.0
        self.ledger: Ledger | None = None
        self.heads: list[Head] = []
        """HEAD as it was seen, each once."""

    @property
    def layout(self) -> Layout:
        return Layout(self.outputs["prefix"], self.outputs["run"])

    @property
    def group(self) -> str:
        return self.outputs["group"]

    def where(self) -> str:
        """What it is at, in words."""
        book = self.ledger
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

    def note(self, book: Ledger | None) -> None:
        """What was read of the run just now."""
        self.ledger = book
        if book and (not self.heads or self.heads[-1].nonce != book.head.nonce):
            self.heads.append(book.head)


class Stage:
    """One performance: the stacks up, the scenario played, the end, all that was seen."""

    def __init__(
        self,
        cloud: clouds.LocalCloud,
        played: Scenario,
        config: Mapping[str, Any],
        folder: Path,
        watcher: Watcher,
    ) -> None:
        from outlast.bucket.store import open_store

        self.cloud = cloud
        self.scenario = played
        self.watcher = watcher
        self.config = config
        self.folder = folder
        self.bucket = str(config.get("outlast:bucket") or f"{config['gcp:project']}-outlast")
        self.store = open_store(f"gs://{self.bucket}")
        self.sides: list[Side] = []
        """The one that is disturbed, and the calm one where there is one."""
        self._deadline = time.monotonic() + LIMIT_SEC
        self._told: dict[str, int] = {}
        self._strikes_told = 0
        self._said_at = time.monotonic()

    def say(self, message: str) -> None:
        """Tells one thing that happened."""
        self.watcher.say(message)
        self._said_at = time.monotonic()

    def say_where(self, what: str = "") -> None:
        """After a silence, tells `what` goes on; by default where each of the runs is."""
        if time.monotonic() - self._said_at >= QUIET_SEC:
            sides = "; ".join(f"{side.name}: {side.where()}" for side in self.sides)
            self.say(f"still {what}" if what else sides)

    def play(self, stack: str, deliveries: Sequence[Delivery]) -> tuple[Report, Seen]:
        """Everything but the verdict, which is passed when nothing of it runs any more."""
        name = str(self.config.get("outlast:experiment") or stack)
        names = [name, calm_of(name)] if self.scenario.needs_calm else [name]
        self.sides = [
            Side(side, {**self.config, "outlast:experiment": side}, self.folder) for side in names
        ]
        for delivery in deliveries:
            self._deliver(delivery)
        self.cloud.play(self.scenario.document, target=name)
        with ThreadPoolExecutor(len(self.sides)) as pool:
            try:
                self._raise_stacks(pool)
                self._watch_to_the_end()
                seen = self._look()
                report = self._report(seen)
                self.say(f"destroying {' and '.join(names)}")
                going = [pool.submit(side.stack.destroy) for side in self.sides]
                self._wait(going, "destroying")
                seen.audit = self.cloud.audit()
                return report, seen
            except BaseException:
                # Threads that wait for an engine end with it.
                with uninterrupted():
                    end_strays(os.environ[clouds.TOKEN_VARIABLE], only="pulumi")
                raise

    def _deliver(self, delivery: Delivery) -> None:
        from outlast.bucket.store import open_store

        if not self._bucket_exists(delivery.bucket):
            region = self.config.get("gcp:region")
            self.cloud.make_bucket(delivery.bucket, str(region))
        store = open_store(f"gs://{delivery.bucket}")
        files = delivery.files()
        for file in files:
            store.put(delivery.object(file), file)
        self.say(f"gs://{delivery.bucket}/{delivery.path}: {len(files)} files")

    def _raise_stacks(self, pool: ThreadPoolExecutor) -> None:
        """Begins to raise them; returns as soon as the one to be disturbed is up."""
        storm = self.sides[0]
        beside = "".join(f", beside it {side.name}" for side in self.sides[1:])
        self.say(f"scenario {self.scenario.name}: {self.scenario.about}")
        self.say(f"must end as {self.scenario.end}, with {', '.join(self.scenario.guarantees)}")
        self.say(f"pulumi up: {storm.name}{beside}")
        storm.raised = pool.submit(storm.stack.up)
        # They share the bucket; the second adopts it once the first has made it.
        while not storm.raised.done() and not self._bucket_exists(self.bucket):
            time.sleep(POLL_SEC)
        for side in self.sides[1:]:
            side.raised = pool.submit(side.stack.up)
        self._wait([storm.raised])

    def _is_up(self, side: Side) -> bool:
        """Whether the stack is up; takes up its outputs when it has just become so."""
        if side.outputs:
            return True
        if side.raised is None or not side.raised.done():
            return False
        side.outputs = side.raised.result()
        side.up_at = time.monotonic()
        self.say(f"{side.name}: run {side.outputs['run']} in {side.group}")
        runs = {other.outputs["run"] for other in self.sides if other.outputs}
        if len(runs) > 1:
            raise RehearsalError(
                f"run {side.outputs['run']}: the other stack named the same spec "
                f"{(runs - {side.outputs['run']}).pop()}; the run's identity is not reproducible."
            )
        return True

    def _wait(self, futures: list[Future[Any]], what: str = "") -> None:
        """Waits in slices, so that Ctrl-C is heard; raises what a thread raised. A long wait is
        said to be for `what`."""
        while not all(future.done() for future in futures):
            if time.monotonic() > self._deadline:
                raise RehearsalError(f"rehearsal: the engine did not end in {LIMIT_SEC} s.")
            self.say_where(what)
            time.sleep(POLL_SEC / 2)
        for future in futures:
            future.result()

    def _bucket_exists(self, bucket: str) -> bool:
        return bucket in [found["name"] for found in self.cloud.audit()["buckets"]]

    def _watch_to_the_end(self) -> None:
        """Until each run is at its end, or its time is up: then the judge finds it where it is."""
        while True:
            for side in self.sides:
                if self._is_up(side):
                    side.note(self._read(side))
                    self._tell(side)
            self._tell_strikes()
            self.say_where()
            if all(self._over(side) for side in self.sides):
                break
            time.sleep(POLL_SEC)
        # An engine that destroys has its own time.
        self._deadline = time.monotonic() + LIMIT_SEC

    def _over(self, side: Side) -> bool:
        if not side.outputs:
            if time.monotonic() > self._deadline:
                raise RehearsalError(f"rehearsal: {side.name} did not come up in {LIMIT_SEC} s.")
            return False
        if time.monotonic() > side.up_at + self.scenario.within_sec:
            return True
        return self._size(side) == 0 and not self._vms(side)

    def _read(self, side: Side) -> Ledger | None:
        from outlast.bucket.head import HeadError
        from outlast.bucket.store import StoreError

        try:
            return ledger.read(self.store, side.layout)
        except (StoreError, HeadError):
            return side.ledger  # asked again in a moment

    def _tell(self, side: Side) -> None:
        book = side.ledger
        if book is None:
            return
        total = book.total or max(book.step, 1)  # all steps, once the trainer has said so
        self.watcher.progress(side.name, min(book.step, total), total, book.rows)
        for attempt in book.attempts:
            if attempt.term > self._told.get(side.name, 0):
                self._told[side.name] = attempt.term
                origin = f"goes on from step {attempt.from_step}"
                self.say(
                    f"{side.name}: attempt {attempt.term} on {attempt.instance} "
                    + (origin if attempt.from_step else "starts fresh")
                )

    def _tell_strikes(self) -> None:
        log = self.cloud.played()["log"]
        for entry in log[self._strikes_told :]:
            self.say(f"{entry.get('vm') or self.sides[0].name}: {_strike(entry)}")
        self._strikes_told = len(log)

    def _size(self, side: Side) -> int | None:
        return self.cloud.group_size(side.group, side.place)

    def _vms(self, side: Side) -> list[str]:
        """Its VMs, also one that the group has given up and that lives on."""
        of_group = (side.group, None)
        return [
            vm["name"]
            for vm in self.cloud.vms()
            if vm["group"] in of_group and vm["name"].startswith(side.group)
        ]

    # ------------------------------------------------------------------------------ what was seen

    def _look(self) -> Seen:
        runs = [self._run(side) for side in self.sides]
        played = self.cloud.played()
        faults = self.cloud.faults()
        fired = [rule["fired"] for rule in faults]
        storm = self.sides[0]
        return Seen(
            expected=self.scenario.end,
            run=runs[0],
            within_sec=self.scenario.within_sec,
            calm=runs[1] if len(runs) > 1 else None,
            strikes=[_strike(entry) for entry in played["log"]],
            faulted=sum(fired),
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
            sizes={side.name: self._size(side) for side in self.sides},
            vms=[vm["name"] for vm in self.cloud.vms()],
            bucket=self.bucket,
        )

    def _run(self, side: Side) -> Run:
        from outlast.base.retry import BRIEF
        from outlast.bucket import pages
        from outlast.bucket.parts import table
        from outlast.bucket.rows import iter_rows
        from outlast.bucket.store import NotFound, StoreError

        with reading(side.name):
            # What was read before the VM had left may lack the record of its end.
            side.note(BRIEF(lambda: ledger.read(self.store, side.layout)))
            book = side.ledger
            boots = ledger.read_boots(self.store, side.layout)
            if book is None:
                return Run(boots=boots)
            ends = {
                attempt.term: end
                for attempt in book.attempts
                if (end := ledger.read_end(self.store, side.layout, attempt.term))
            }
            try:
                path = side.layout.end(int(side.outputs["resume"]))
                ended = self.store.stat(path).updated
            except NotFound:
                ended = None
            result = read_result(self.store, book.head)
        try:
            rows = list(iter_rows(self.store, side.layout, book.head))
            parts = table(pages.parts(self.store, side.layout, book.head))
        except (StoreError, ValueError):  # what cannot be read is not there
            rows, parts = [], []
        return Run(book, rows, result, boots, ends, ended, tuple(side.heads), parts)

    def _report(self, seen: Seen) -> Report:
        calm = seen.calm.ledger if seen.calm else None
        return Report(
            scenario=self.scenario.name,
            experiment=self.sides[0].name,
            run=self.sides[0].outputs["run"],
            ending=str(seen.run.ending),
            digest=seen.run.result.digest,
            metrics=seen.run.result.last_metrics(),
            goodput=seen.run.ledger.goodput() if seen.run.ledger else None,
            goodput_calm=calm.goodput() if calm else None,
            attempts=seen.run.attempts,
            calm_attempts=seen.calm.attempts if seen.calm else (),
            strikes=tuple(seen.strikes),
            parts=seen.run.parts,
        )


def _event(entry: Mapping[str, Any]) -> str:
    """An event that has not come, in words, such as `event 2 (kill at attempt 2, share 0.4)`."""
    moment = ", ".join(f"{name} {value}" for name, value in entry["when"].items() if value)
    left = f", {entry['left']} times more" if entry["left"] > 1 else ""
    return f"event {entry['event'] + 1} ({entry['do']} at {moment}{left})"


def _rule(rule: Mapping[str, Any]) -> str:
    """What requests a fault is for."""
    return " ".join(f"{name} {value}" for name, value in rule["match"].items() if value)


def _strike(entry: Mapping[str, Any]) -> Strike:
    """An entry of the local cloud's log of what it played."""
    return Strike(
        do=entry["do"],
        boot=entry.get("boot"),
        attempt=entry.get("attempt"),
        options=entry,
        missed=str(entry.get("missed") or ""),
    )
