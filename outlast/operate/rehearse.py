"""The rehearsal: the checkout's own stack on a local cloud, preempted, and judged.

Two stacks of one spec run side by side. One is preempted three times: with a notice, by a cut in
mid-step, by a cut while a checkpoint's objects are being uploaded. The other, `<name>-calm`, is
left alone. The judge reads what both left in the bucket, as a stranger would: HEAD, records,
rows and the result's bytes. Nothing here tells the stacks that they are being rehearsed.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast.exits import Reason
from outlast.layout import Layout
from outlast.operate import cloud as clouds
from outlast.operate import engine, judge, ledger
from outlast.operate.errors import RehearsalError
from outlast.operate.judge import Guarantee, Misfortune
from outlast.operate.ledger import Attempt, Ledger

LIMIT_SEC = 600
"""A rehearsal that takes longer than this has hung."""
POLL_SEC = 0.2
STACK = "dev"
"""The stack whose settings are rehearsed."""


@dataclass
class Report:
    """What a rehearsal gives; `as_json` is what `--json` prints."""

    experiment: str
    run: str
    seconds: float = 0.0
    accuracy: float | None = None
    digest: str | None = None
    goodput: float | None = None
    goodput_calm: float | None = None
    attempts: tuple[Attempt, ...] = ()
    guarantees: list[Guarantee] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether every guarantee was seen held."""
        return bool(self.guarantees) and all(g.held for g in self.guarantees)

    def as_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "run": self.run,
            "held": self.held,
            "seconds": round(self.seconds, 1),
            "accuracy": self.accuracy,
            "result": self.digest,
            "goodput": self.goodput,
            "goodput_calm": self.goodput_calm,
            "attempts": [attempt.as_json() for attempt in self.attempts],
            "guarantees": [
                {"name": g.name, "held": g.held, "detail": g.detail} for g in self.guarantees
            ],
        }


class Watcher:
    """Gets told what happens; the command line draws it. All calls come from one thread."""

    def say(self, message: str) -> None:
        """One thing that happened."""

    def progress(self, name: str, step: int, total: int, rows: tuple[dict[str, Any], ...]) -> None:
        """Where a run is."""


class Side:
    """One of the two stacks, with what is known of its run."""

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        self.name = name
        self.stack = engine.Stack(name, config, folder=folder / name)
        self.zone = str(config["gcp:zone"])
        self.raised: Future[dict[str, Any]] | None = None
        """The `up` under way."""
        self.outputs: dict[str, Any] = {}
        """The stack's outputs; empty until it is up."""
        self.ledger: Ledger | None = None

    @property
    def layout(self) -> Layout:
        return Layout(self.outputs["prefix"], self.outputs["run"])


def rehearse(
    *,
    watcher: Watcher,
    limit_rows: int | None = None,
    args: Mapping[str, Any] | None = None,
) -> Report:
    """Runs the whole rehearsal in a folder of its own and leaves nothing behind.

    `args` are put over the stack's own hyperparameters. OperateError: it could not be carried
    out. KeyboardInterrupt passes through, after everything that was started has ended.
    """
    parts = engine.find_parts()
    config = read_config(STACK)
    config["outlast:args"] = {**config.get("outlast:args", {}), **(args or {})}
    if limit_rows is not None:
        config["outlast:args"]["limit-rows"] = limit_rows
    started = time.monotonic()
    with _terminable(), _scratch() as scratch:
        os.environ[clouds.TOKEN_VARIABLE] = str(scratch)
        try:
            cloud = clouds.start(
                scratch / "c",
                parts,
                guest_env={clouds.TOKEN_VARIABLE: str(scratch)},
                dies_with_us=True,
                pace=pace_of(config),
            )
            try:
                variables = cloud.variables(
                    parts, scratch / "pulumi", os.environ.get("PATH", os.defpath)
                )
                engine.enter({**variables, clouds.TOKEN_VARIABLE: str(scratch)})
                stage = Stage(cloud, config, scratch / "stacks", watcher)
                report = stage.play()
            finally:
                cloud.stop()
        finally:
            with _uninterrupted():
                strays = end_strays(str(scratch))
        report.guarantees.append(judge.no_process(strays))
        report.seconds = time.monotonic() - started
        return report


def read_config(stack: str) -> dict[str, Any]:
    """The settings of `Pulumi.<stack>.yaml` of the checkout, by full key."""
    import yaml

    path = engine.ROOT / f"Pulumi.{stack}.yaml"
    try:
        loaded = yaml.safe_load(path.read_text())
        return dict(loaded["config"])
    except FileNotFoundError:
        raise RehearsalError(
            f"stack {stack}: {path.name} does not exist; restore it from git."
        ) from None
    except (yaml.YAMLError, TypeError, KeyError) as error:
        raise RehearsalError(
            f"{path.name}: is no stack's settings ({type(error).__name__}); restore it from git."
        ) from None


def pace_of(config: Mapping[str, Any]) -> clouds.Pace:
    """The local cloud's pace that the stack's own waits expect."""
    return clouds.Pace(
        notice_sec=float(config.get("outlast:noticeSec", clouds.Pace.notice_sec)),
        grace_sec=float(config.get("outlast:stopSec", clouds.Pace.grace_sec)),
    )


class Stage:
    """One performance: both stacks up, three misfortunes, the end, the judgement."""

    def __init__(
        self,
        cloud: clouds.LocalCloud,
        config: Mapping[str, Any],
        folder: Path,
        watcher: Watcher,
    ) -> None:
        from outlast.run.store import open_store

        self.cloud = cloud
        self.watcher = watcher
        name = str(config.get("outlast:experiment") or STACK)
        calm = {**config, "outlast:experiment": f"{name}-calm"}
        self.storm = Side(name, {**config, "outlast:experiment": name}, folder)
        self.calm = Side(f"{name}-calm", calm, folder)
        self.bucket = str(config.get("outlast:bucket") or f"{config['gcp:project']}-outlast")
        self.store = open_store(f"gs://{self.bucket}")
        self.misfortunes = [
            Misfortune("notice", 0.15, Reason.PREEMPTED),
            Misfortune("cut in mid-step", 0.40, Reason.CUT),
            Misfortune("cut in mid-upload", 0.65, Reason.CUT),
        ]
        self._fault: str | None = None
        self._deadline = time.monotonic() + LIMIT_SEC

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.storm, self.calm

    def play(self) -> Report:
        with ThreadPoolExecutor(2) as pool:
            try:
                self._raise_stacks(pool)
                self._watch_to_the_end()
                report = self._judge()
                sizes = {side.name: self._size(side) for side in self.sides}
                vms = [vm["name"] for vm in self.cloud.vms()]
                self.watcher.say("destroying both stacks")
                self._wait([pool.submit(side.stack.destroy) for side in self.sides])
                self._judge_remains(report, sizes, vms)
                return report
            except BaseException:
                # Threads that wait for an engine end with it.
                with _uninterrupted():
                    end_strays(os.environ[clouds.TOKEN_VARIABLE], only="pulumi")
                raise

    def _raise_stacks(self, pool: ThreadPoolExecutor) -> None:
        """Begins to raise both; returns as soon as the one to be disturbed is up."""
        self.watcher.say(f"pulumi up: {self.storm.name}, beside it {self.calm.name}")
        self.storm.raised = pool.submit(self.storm.stack.up)
        # Both share the bucket; the second adopts it once the first has made it.
        while not self.storm.raised.done() and not self._bucket_exists():
            time.sleep(POLL_SEC)
        self.calm.raised = pool.submit(self.calm.stack.up)
        self._wait([self.storm.raised])

    def _is_up(self, side: Side) -> bool:
        """Whether the stack is up; takes up its outputs when it has just become so."""
        if side.outputs:
            return True
        if side.raised is None or not side.raised.done():
            return False
        side.outputs = side.raised.result()
        self.watcher.say(f"{side.name}: run {side.outputs['run']} in {side.outputs['group']}")
        runs = {other.outputs["run"] for other in self.sides if other.outputs}
        if len(runs) > 1:
            raise RehearsalError(
                f"run {side.outputs['run']}: the other stack named the same spec "
                f"{(runs - {side.outputs['run']}).pop()}; the run's identity is not reproducible."
            )
        return True

    def _wait(self, futures: list[Future[Any]]) -> None:
        """Waits in slices, so that Ctrl-C is heard; raises what a thread raised."""
        while not all(future.done() for future in futures):
            self._check_time("the engine")
            time.sleep(POLL_SEC / 2)
        for future in futures:
            future.result()

    def _bucket_exists(self) -> bool:
        return self.bucket in [found["name"] for found in self.cloud.audit()["buckets"]]

    def _check_time(self, what: str) -> None:
        if time.monotonic() > self._deadline:
            raise RehearsalError(f"rehearsal: {what} did not end in {LIMIT_SEC} s; it hangs.")

    def _watch_to_the_end(self) -> None:
        told: dict[str, int] = {}
        while True:
            self._check_time("the run")
            for side in self.sides:
                if self._is_up(side):
                    side.ledger = self._read(side)
                    self._tell(side, told)
            self._strike()
            if all(self._ended(side) for side in self.sides):
                break
            time.sleep(POLL_SEC)
        from outlast.run.store import patiently

        for side in self.sides:
            # What was read before the VM had left may lack the record of its end.
            side.ledger = patiently(lambda side=side: ledger.read(self.store, side.layout))

    def _read(self, side: Side) -> Ledger | None:
        from outlast.run.store import StoreError

        try:
            return ledger.read(self.store, side.layout)
        except StoreError:
            return side.ledger  # asked again in a moment

    def _tell(self, side: Side, told: dict[str, int]) -> None:
        book = side.ledger
        if book is None:
            return
        total = self._total(side)
        self.watcher.progress(side.name, min(book.step, total), total, book.rows)
        for attempt in book.attempts:
            if attempt.term > told.get(side.name, 0):
                told[side.name] = attempt.term
                origin = f"goes on from step {attempt.from_step}"
                self.watcher.say(
                    f"{side.name}: attempt {attempt.term} on {attempt.instance} "
                    + (origin if attempt.from_step else "starts fresh")
                )

    def _total(self, side: Side) -> int:
        """All steps of the run, as its trainer told the supervisor."""
        book = side.ledger
        assert book is not None
        return book.total or max(book.step, 1)

    def _strike(self) -> None:
        """Lets the next misfortune happen when its moment has come."""
        book = self.storm.ledger
        pending = next((m for m in self.misfortunes if m.term is None), None)
        if pending is None or book is None or not book.attempts:
            return
        live = book.attempts[-1]
        struck = {m.term for m in self.misfortunes if m.term}
        if live.reason is not None or live.term in struck or not book.total:
            return
        committed = any(c.term == live.term for c in book.head.chain)
        if not committed or book.step < pending.share * book.total:
            return
        vm = live.instance
        if pending.kind == "notice":
            self.watcher.say(f"{vm}: preemption notice, then SIGTERM, then SIGKILL")
            self.cloud.act(vm, "preempt")
        elif pending.kind == "cut in mid-step":
            self.watcher.say(f"{vm}: killed without a notice in mid-step {book.step}")
            self.cloud.act(vm, "kill")
        else:
            if self._fault is None:
                snapshots = f"{self.storm.layout.term(live.term)}s"
                rule = {
                    "match": {"method": "POST", "object": f"^{snapshots}"},
                    "when": "mid-body",
                    "do": {"kill_vm": vm},
                }
                self._fault = self.cloud.call("POST", "/_local/faults", rule)["id"]
            faults = self.cloud.call("GET", "/_local/faults")
            fired = {rule["id"]: rule["fired"] for rule in faults}
            if not fired.get(self._fault):
                return
            self.watcher.say(f"{vm}: killed while a checkpoint's objects were being uploaded")
        pending.term = live.term

    def _ended(self, side: Side) -> bool:
        book = side.ledger
        if book is None or not book.head.state.ended:
            return False
        return self._size(side) == 0 and not self._vms(side)

    def _size(self, side: Side) -> int | None:
        return self.cloud.group_size(side.outputs["group"], side.zone)

    def _vms(self, side: Side) -> list[str]:
        group = side.outputs["group"]
        return [vm["name"] for vm in self.cloud.vms() if vm["group"] == group]

    # ---------------------------------------------------------------------------- the judgement

    def _judge(self) -> Report:
        from outlast.run.commit import read_rows

        storm, calm = self.storm.ledger, self.calm.ledger
        assert storm is not None and calm is not None
        result = judge.read_result(self.store, storm.head)
        undisturbed = judge.read_result(self.store, calm.head)
        report = Report(
            experiment=self.storm.name,
            run=self.storm.outputs["run"],
            digest=result.digest,
            accuracy=result.last_metrics().get("test_accuracy"),
            goodput=storm.goodput(),
            goodput_calm=calm.goodput(),
            attempts=storm.attempts,
        )
        rows, undisturbed_rows = (
            list(read_rows(self.store, side.layout, book.head))
            for side, book in ((self.storm, storm), (self.calm, calm))
        )
        report.guarantees += [
            judge.both_done(storm, calm),
            judge.same_bytes(result, undisturbed),
            judge.told_as_planned(storm, self.misfortunes),
            judge.always_resumed(storm),
            judge.notice_lost_nothing(storm, self.misfortunes),
            judge.cuts_lost_the_uncommitted_only(storm),
            judge.each_step_once(rows, undisturbed_rows, storm.total),
            judge.one_line(storm),
        ]
        return report

    def _judge_remains(
        self, report: Report, sizes: Mapping[str, int | None], vms: list[str]
    ) -> None:
        report.guarantees += [
            judge.nothing_runs(sizes, vms),
            judge.bucket_alone_is_left(self.cloud.audit(), self.bucket),
        ]


# --------------------------------------------------------------------------------- nothing is left


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A short folder (Unix sockets have short names) that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="outlast-re-", dir=_short_temporary()))
    try:
        yield folder
    finally:
        with _uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)


def _short_temporary() -> str | None:
    return "/tmp" if os.path.isdir("/tmp") and os.access("/tmp", os.W_OK) else None


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end it as Ctrl-C does, with everything put away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING[1:]}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Clean-up is short and goes on through further Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_strays(token: str, *, only: str = "") -> list[str]:
    """Kills every other process whose environment holds the token; tells which there were.

    `only`: those whose executable's name begins so.
    """
    mark = f"{clouds.TOKEN_VARIABLE}={token}".encode()
    killed = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            name = (folder / "comm").read_text().strip()
            if name.startswith(only):
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(f"{name} ({folder.name})")
    return killed
