"""The rehearsal: the checkout's own stack on a local cloud, in a scenario's world, and judged.

The local cloud plays the scenario: it knows each moment by what the VM asks of it. Where the
scenario asks for equal bytes, a second stack of the same spec, `<name>-calm`, runs beside the
first and is left alone. The judge reads what the runs left in the bucket, as a stranger would:
HEAD, records, rows and the result's bytes. Nothing here tells the stacks that they are being
rehearsed.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast.bucket import ledger
from outlast.bucket.head import Head
from outlast.bucket.layout import Last, Layout
from outlast.bucket.ledger import Attempt, Ledger
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.errors import RehearsalError, UsageError, reading
from outlast.cli.rehearsal import judge, scenario, secrets
from outlast.cli.rehearsal.judge import Guarantee, Verdict
from outlast.cli.rehearsal.scenario import Scenario
from outlast.cli.rehearsal.seen import Run, Seen, Stall, Strike, read_result

LIMIT_SEC = 600
"""An engine that takes longer than this has hung."""
POLL_SEC = 0.2
QUIET_SEC = 15.0
"""Where nothing was said for so long, it is said what is waited for."""
STACK = "dev"
"""The stack whose settings are rehearsed where none is named."""

CALM = "-calm"
LONGEST_BEFORE = 40 - len(CALM)
"""Characters that an experiment's name has left for it; `layout.EXPERIMENT_PATTERN` is the rule."""

LOCAL_SETTINGS = (
    "outlast:image",
    "outlast:checkpointEvery",
    "outlast:noticeSec",
    "outlast:stopSec",
    "outlast:waitBeatSec",
    "outlast:waitVerdictSec",
    "outlast:waitBackoffSec",
    "outlast:waitDriverSec",
)
"""What a stack of one's own takes over from the example's: the local cloud's image and pace."""
TRAINING_SETTINGS = frozenset({"outlast:trainer", "outlast:args", "outlast:command"})
"""What a scenario says of what trains; a stack of one's own keeps its own."""


@dataclass(frozen=True)
class Delivery:
    """Files that the local cloud's bucket has before the run."""

    bucket: str
    path: str
    """Without slashes at its ends; may be empty."""
    folder: Path

    @classmethod
    def parse(cls, text: str) -> "Delivery":
        """`gs://BUCKET/PATH=FOLDER`. UsageError: it is none, or there is no such folder."""
        where, separator, name = text.partition("=")
        bucket, _, path = where.removeprefix("gs://").partition("/")
        if not (where.startswith("gs://") and bucket and separator and name):
            raise UsageError(f"--data {text}: must be gs://BUCKET/PATH=FOLDER.")
        folder = Path(name)
        if not folder.is_dir():
            raise UsageError(f"--data {text}: {name} is no folder; give one with the data's files.")
        delivery = cls(bucket, path.strip("/"), folder)
        if not delivery.files():
            raise UsageError(f"--data {text}: {name} holds no file; put the data's files into it.")
        return delivery

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def object(self, file: Path) -> str:
        """The name of a file's object."""
        name = file.relative_to(self.folder).as_posix()
        return f"{self.path}/{name}" if self.path else name


@dataclass
class Report:
    """What a rehearsal gives; `as_json` is what `--json` prints."""

    scenario: str
    experiment: str
    run: str
    ending: str = ""
    """How the run stood at the end, with its reason."""
    seconds: float = 0.0
    metrics: Mapping[str, Last] = field(default_factory=dict)
    """The last value of each metric of the result."""
    digest: str | None = None
    goodput: float | None = None
    goodput_calm: float | None = None
    attempts: tuple[Attempt, ...] = ()
    calm_attempts: tuple[Attempt, ...] = ()
    """The undisturbed run's."""
    strikes: tuple[Strike, ...] = ()
    guarantees: list[Guarantee] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether every guarantee was seen held."""
        return bool(self.guarantees) and all(g.held for g in self.guarantees)

    def count(self, verdict: Verdict) -> int:
        """How many guarantees have it."""
        return sum(guarantee.verdict is verdict for guarantee in self.guarantees)

    def as_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "experiment": self.experiment,
            "run": self.run,
            "end": self.ending,
            "held": self.held,
            "seconds": round(self.seconds, 1),
            "metrics": {name: last.value for name, last in self.metrics.items()},
            "result": self.digest,
            "goodput": self.goodput,
            "goodput_calm": self.goodput_calm,
            "misfortunes": [
                {"do": s.do, "boot": s.boot, "attempt": s.attempt} for s in self.strikes
            ],
            "attempts": [attempt.as_json() for attempt in self.attempts],
            "attempts_undisturbed": [attempt.as_json() for attempt in self.calm_attempts],
            "guarantees": [
                {
                    "name": g.name,
                    "promise": g.promise,
                    "verdict": g.verdict.lower(),
                    "held": g.held,
                    "detail": g.detail,
                }
                for g in self.guarantees
            ],
        }


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
        step = f"step {book.step}" + (f" of {book.total}" if book.total else "")
        return f"attempt {attempt.term}, phase {book.phase or 'setup'}, {step}"

    def note(self, book: Ledger | None) -> None:
        """What was read of the run just now."""
        self.ledger = book
        if book and (not self.heads or self.heads[-1].nonce != book.head.nonce):
            self.heads.append(book.head)


def rehearse(
    *,
    watcher: Watcher,
    name: str | None = None,
    stack: str | None = None,
    data: Sequence[str] = (),
    limit_rows: int | None = None,
    args: Mapping[str, Any] | None = None,
) -> Report:
    """Runs the whole rehearsal in a folder of its own and leaves nothing behind.

    `name`: a scenario's name or file; where None, the default for what trains. `stack`: whose
    settings are rehearsed; the example's where None. `data`: what is in the local cloud's buckets
    before, each `gs://BUCKET/PATH=FOLDER`. `args` are put over the stack's own hyperparameters.
    OperateError: it could not be carried out. KeyboardInterrupt passes through, after everything
    that was started has ended.
    """
    deliveries = [Delivery.parse(text) for text in data]
    settings = read_config(STACK) if stack is None else read_own(stack)
    path = scenario.find(name or scenario.default_of(settings))
    parts = engine.find_parts()
    played = scenario.read(path, parts)
    args = {**(args or {}), **({} if limit_rows is None else {"limit-rows": limit_rows})}
    config = compose(settings, played, args, own=stack is not None)
    played.check_moments(command=bool(config.get("outlast:command")))
    if stack is not None:
        played = played.moved(str(read_config(STACK)["gcp:zone"]), zone_of(config))
    config, held = secrets.take_over(config, os.environ)
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
                held.create(cloud)
                for note in held.notes:
                    watcher.say(note)
                stage = Stage(cloud, played, config, scratch / "stacks", watcher)
                report, seen = stage.play(stack or STACK, deliveries)
            finally:
                cloud.stop()
        finally:
            with _uninterrupted():
                strays = end_strays(str(scratch))
        seen.strays = strays
        seen.audit = held.without(seen.audit)
        report.guarantees = judge.judge(seen, played.guarantees)
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


def read_own(stack: str) -> dict[str, Any]:
    """The settings of a stack of one's own, as the local cloud can run it: its project, image and
    pace instead of the stack's. UsageError: there is no such stack, or it cannot be rehearsed."""
    files = engine.ROOT.glob("Pulumi.*.yaml")
    known = sorted(file.stem.removeprefix("Pulumi.") for file in files)
    if stack not in known:
        raise UsageError(
            f"--stack {stack}: there is no Pulumi.{stack}.yaml in {engine.ROOT}; "
            f"the stacks there are {', '.join(known)}."
        )
    config, example = read_config(stack), read_config(STACK)
    # A rehearsal reaches nobody outside.
    config.pop("outlast:webhook", None)
    for key, value in config.items():
        if isinstance(value, Mapping) and "secure" in value:
            raise UsageError(
                f"--stack {stack}: {key} is a secret, which a rehearsal cannot read; "
                "rehearse a stack without it."
            )
    project = config.get("gcp:project") or stack
    config.setdefault("outlast:bucket", f"{project}-outlast")  # as its own paths name it
    config.setdefault("outlast:experiment", stack)
    config["gcp:project"] = example["gcp:project"]
    for key in ("gcp:region", "gcp:zone"):
        config.setdefault(key, example[key])
    config |= {key: example[key] for key in LOCAL_SETTINGS}
    return config


def compose(
    settings: Mapping[str, Any], played: Scenario, args: Mapping[str, Any], *, own: bool
) -> dict[str, Any]:
    """The settings that are rehearsed: the stack's, the scenario's over them, then `args`.

    `own`: the stack is the user's, who wants the own trainer rehearsed. UsageError: the scenario is
    about a command of its own, or `args` are for a trainer where a command runs.
    """
    added = dict(played.stack)
    if own and added.get("outlast:command") and not settings.get("outlast:command"):
        raise UsageError(
            f"scenario {played.name}: brings a command of its own, and --stack's trainer has no "
            "part in it; rehearse it without --stack."
        )
    if own:
        added = {key: value for key, value in added.items() if key not in TRAINING_SETTINGS}
    config = {**settings, **added}
    if args and config.get("outlast:command"):
        raise UsageError(
            f"--{next(iter(args))}: is a trainer's flag, and here outlast:command runs; "
            "leave it out."
        )
    config["outlast:args"] = {**(config.get("outlast:args") or {}), **args}
    return config


def calm_of(experiment: str) -> str:
    """The name of the experiment that runs undisturbed beside one."""
    names = (experiment[:end].rstrip("-") + CALM for end in (LONGEST_BEFORE, LONGEST_BEFORE - 1))
    return next(name for name in names if name != experiment)


def zone_of(config: Mapping[str, Any]) -> str:
    """Where the stack's VM is, or is tried first."""
    zones = config.get("outlast:zones") or []
    region = config.get("outlast:region")
    first = zones[0] if zones else f"{region}-a" if region else ""
    return str(config.get("outlast:zone") or first or config["gcp:zone"])


def place_of(config: Mapping[str, Any]) -> str:
    """Where the stack's group is: a zone, or a region."""
    if config.get("outlast:zones") or config.get("outlast:region"):
        return zone_of(config).rpartition("-")[0]
    return zone_of(config)


def pace_of(config: Mapping[str, Any]) -> clouds.Pace:
    """The local cloud's pace that the stack's own waits expect."""
    return clouds.Pace(
        notice_sec=float(config.get("outlast:noticeSec", clouds.Pace.notice_sec)),
        grace_sec=float(config.get("outlast:stopSec", clouds.Pace.grace_sec)),
    )


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
                with _uninterrupted():
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
        except (StoreError, ValueError):  # what cannot be read is not there
            rows = []
        return Run(book, rows, result, boots, ends, ended, tuple(side.heads))

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


SHORT_NAME = 24
"""Bytes of a folder's name below which a VM's sockets still have room."""


def _short_temporary() -> str | None:
    """The user's own folder for temporary files where its name is short enough, else /tmp."""
    if len(os.fsencode(tempfile.gettempdir())) <= SHORT_NAME:
        return None
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
