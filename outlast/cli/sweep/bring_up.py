"""Brings the trials of a sweep up, and destroys them.

Everything that decides is in the bucket and in the stacks' states, so that an interrupted `up` is
continued by the next one, which starts only what is missing: a trial that is up, or has ended, is
left alone. One trial that fails does not keep the others from starting.
"""

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from outlast.base.codec import canonical_json
from outlast.bucket.head import HeadError
from outlast.bucket.headfile import HeadFile
from outlast.bucket.standing import end_if_expired
from outlast.bucket.store import NotFound, StoreError
from outlast.bucket.sweeps import SweepObjects, SweepRecord, TrialRecord, UpRecord
from outlast.cli.errors import OperateError, UsageError, reading
from outlast.cli.polling import Pauses
from outlast.cli.sweep import states, trials
from outlast.cli.sweep.file import Sweep
from outlast.cli.sweep.lock import SweepLock
from outlast.cli.sweep.plan import planned, worst_of
from outlast.cli.sweep.stacks import Stacks
from outlast.cli.sweep.states import SweepState
from outlast.cli.sweep.trials import Base, Trial
from outlast.spec import sweeps

_log = logging.getLogger(__name__)

REFUSED_MAX = 10
"""After so many trials in a row that fail to start, the reason is not theirs."""


@dataclass(frozen=True)
class Prepared:
    """A sweep with everything that can be known before the cloud is asked."""

    sweep: Sweep
    where: str
    """The file, or the option, that errors name."""
    base: Base
    trials: tuple[Trial, ...]
    rules: Mapping[str, Any]
    """The setting `outlast:sweep` of the trials; empty if none stops early."""

    @property
    def bucket(self) -> str:
        return self.any_settings.bucket

    @property
    def any_settings(self) -> Any:
        """The settings of some trial; those of the base if there is none yet."""
        if self.trials:
            return self.trials[0].settings
        return trials.settings_of(self.base, self.sweep.name, {}, self.where)

    def with_asked(self, state: SweepState) -> "tuple[list[Trial], dict[str, str]]":
        """The file's trials and those that an optimiser asked for; and, by run, why one of the
        latter cannot start any more.
        """
        found = list(self.trials)
        stale: dict[str, str] = {}
        named = {trial.run for trial in found}
        for one in state.trials.values():
            if not one.record.asked or one.record.run in named:
                continue
            if one.has_ended or one.is_open:
                continue
            record = one.record
            try:
                trial = trials.trial_of(
                    *(self.base, self.sweep.name, record.number, record.parameters),
                    self.where,
                    asked=True,
                )
            except UsageError as error:
                stale[record.run] = str(error)
                continue
            if trial.run == record.run:
                found.append(trial)
            else:
                stale[record.run] = "its code or base has changed since it was asked for; ask again"
        return found, stale


def prepare(sweep: Sweep, where: str) -> Prepared:
    """Reads the base and names the trials. Raises UsageError."""
    base = trials.read_base(sweep.asked.base, where)
    rules = trials.rules_of(sweep, where)
    return Prepared(sweep, where, base, tuple(trials.trials_of(sweep, base, where)), rules)


@dataclass
class Outcome:
    """What an `up` or a `destroy` has done."""

    done: list[str] = field(default_factory=list)
    """Stacks."""
    failed: dict[str, str] = field(default_factory=dict)
    """By stack, why."""
    waiting: dict[str, str] = field(default_factory=dict)
    """By stack, why it waits: `parallel` or `budget`."""

    def as_json(self) -> dict[str, Any]:
        return {"done": self.done, "failed": self.failed, "waiting": self.waiting}


class BringUp:
    """One `outlast sweep up`."""

    def __init__(
        self,
        prepared: Prepared,
        objects: SweepObjects,
        stacks: Stacks,
        *,
        jobs: int,
    ) -> None:
        """`jobs`: how many engines work side by side."""
        self._prepared = prepared
        self._objects = objects
        self._stacks = stacks
        self._jobs = jobs

    def run(self, *, pauses: Pauses | None = None) -> Outcome:
        """Starts the trials that are missing, as far as `parallel` and the budget allow; with
        `pauses`, also those that wait, as others end. Raises Busy, and OperateError if nothing can
        be started, or another process has taken over.
        """
        name = self._prepared.sweep.name
        with reading(f"sweep {name}"):
            existing = self._stacks.names()
            shared = ""
            lock = SweepLock(self._objects)
            try:
                lock.take()
            except NotFound:  # The bucket comes with the shared stack, whose own lock protects it.
                shared = self._share(existing, "")
                lock.take()
            with lock:
                return self._held(lock, existing, shared, pauses)

    def _held(
        self, lock: SweepLock, existing: set[str], shared: str, pauses: Pauses | None
    ) -> Outcome:
        record = self._objects.record()
        self._record(self._share(existing, shared or (record.shared if record else "")))
        outcome = Outcome()
        refused = 0
        while True:
            state = states.read(self._objects)
            wanted, stale = self._prepared.with_asked(state)
            outcome.failed |= {self._stack(run): why for run, why in stale.items()}
            # One that has failed to start in this command keeps no place from the others.
            ready = [trial for trial in wanted if trial.stack not in outcome.failed]
            plan = planned(self._prepared.sweep, ready, state)
            before = len(outcome.done), len(outcome.failed)
            self._start(plan.start, state, existing, lock.lost, outcome)
            lock.check()
            outcome.waiting = {self._stack(run): why for run, why in plan.waiting.items()}
            started, failed = len(outcome.done) - before[0], len(outcome.failed) - before[1]
            refused = 0 if started else refused + failed
            if failed and refused < REFUSED_MAX:
                continue
            is_over = not plan.start and not any(
                one.is_open and not one.has_ended for one in state.trials.values()
            )
            if pauses is None or is_over:
                return outcome
            pauses.wait(changed=started > 0)

    def _stack(self, run: str) -> str:
        return sweeps.trial(self._prepared.sweep.name, run)

    def _share(self, existing: set[str], before: str) -> str:
        """Brings up what the trials share, unless it is up with these settings; returns their
        digest.
        """
        prepared = self._prepared
        stack = sweeps.shared(prepared.sweep.name)
        config = trials.shared_config_of(prepared.base, prepared.sweep.name)
        digest = hashlib.sha256(canonical_json(config)).hexdigest()
        if digest != before or stack not in existing:
            _log.info(f"{stack}: what the trials share")
            self._stacks.up(stack, config, prepared.base.document, exists=stack in existing)
            existing.add(stack)
        return digest

    def _record(self, digest: str) -> None:
        """Records the file and its trials."""
        prepared, objects = self._prepared, self._objects
        known = objects.trials()
        objects.add(
            [
                TrialRecord(trial.run, trial.number, dict(trial.parameters), False)
                for trial in prepared.trials
                if trial.run not in known
            ]
        )
        runs = tuple(trial.run for trial in prepared.trials)
        document = prepared.sweep.as_document()
        now = objects.store.now()
        objects.write(SweepRecord(prepared.sweep.name, document, runs, digest, now))

    def _start(
        self,
        start: Sequence[Trial],
        state: SweepState,
        existing: set[str],
        stop: threading.Event,
        outcome: Outcome,
    ) -> None:
        def up(trial: Trial) -> None:
            if stop.is_set():
                return
            try:
                known = state.trials.get(trial.run)
                self._up(trial, known.resume if known else 0, exists=trial.stack in existing)
            except (OperateError, StoreError) as error:
                outcome.failed[trial.stack] = str(error).removeprefix(f"stack {trial.stack}: ")
                _log.info(f"{trial.stack}: failed: {outcome.failed[trial.stack]}")
                return
            outcome.done.append(trial.stack)
            _log.info(f"{trial.stack}: up, {shown(trial.parameters)}")

        each([partial(up, trial) for trial in start], self._jobs, stop)
        existing.update(trial.stack for trial in start)

    def _up(self, trial: Trial, resume: int, *, exists: bool) -> None:
        prepared = self._prepared
        config = trials.config_of(
            prepared.base, trial, prepared.rules, prepared.where, resume=resume
        )
        worst = worst_of(trial.settings)
        now = self._objects.store.now()
        # Written first: an `up` that is cut off may have created a VM, which costs money.
        begun = UpRecord(trial.run, worst.dollars, worst.hours, now, done=False)
        self._objects.mark_up(begun)
        self._stacks.up(trial.stack, config, prepared.base.document, exists=exists)
        self._objects.mark_up(replace(begun, done=True))


def each(jobs: Sequence[Callable[[], None]], workers: int, stop: threading.Event) -> None:
    """Runs the jobs, some at a time. After Ctrl-C, which the engines get as well, those that have
    begun end in order and no other begins; then it raises KeyboardInterrupt.
    """
    with ThreadPoolExecutor(max(1, workers), "sweep") as pool:
        futures: list[Future[None]] = [pool.submit(job) for job in jobs]
        try:
            wait(futures)
        except KeyboardInterrupt:
            stop.set()
            for future in futures:
                future.cancel()
            wait(futures)
            raise
    for future in futures:
        future.result()


def shown(parameters: Mapping[str, Any]) -> str:
    """`batch-size=32 learning-rate=0.1`."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def jobs_by_default() -> int:
    """One engine for each core: it works on the processor most of the time."""
    return os.cpu_count() or 1


def destroy(objects: SweepObjects, stacks: Stacks, *, jobs: int) -> Outcome:
    """Destroys every stack of the sweep, the trials before what they share. The bucket stays, with
    all runs and the leaderboard. Raises Busy, also once another process has taken over, and
    OperateError if the backend does not answer.
    """
    outcome = Outcome()
    lock = SweepLock(objects)
    with reading(f"sweep {objects.name}"), contextlib.ExitStack() as held:
        with contextlib.suppress(NotFound):  # without a bucket there is only the shared stack
            lock.take()
            held.enter_context(lock)
        shared = sweeps.shared(objects.name)
        existing = stacks.names()

        def down(stack: str) -> None:
            if lock.lost.is_set():
                return
            try:
                stacks.destroy(stack)
                _forget(objects, sweeps.run_of(objects.name, stack))
            except (OperateError, StoreError) as error:
                outcome.failed[stack] = str(error).removeprefix(f"stack {stack}: ")
                _log.info(f"{stack}: failed: {outcome.failed[stack]}")
                return
            outcome.done.append(stack)
            _log.info(f"{stack}: destroyed")

        each([partial(down, one) for one in sorted(existing - {shared})], jobs, lock.lost)
        if shared in existing and not outcome.failed:
            down(shared)
        lock.check()
    return outcome


def _forget(objects: SweepObjects, run: str) -> None:
    """Records that a trial's stack is not up; ends its run if it has expired, as no VM will."""
    if not run:
        record = objects.record()
        if record:
            objects.write(
                SweepRecord(record.name, record.document, record.trials, "", objects.store.now())
            )
        return
    objects.mark_down(run)
    try:
        end_if_expired(HeadFile(objects.store, trials.layout_of(objects.name, run)))
    except (HeadError, StoreError, OperateError):
        return  # It has no HEAD, or one that status speaks of.
