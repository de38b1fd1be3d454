"""A small world that is stepped operation by operation: machines, an operator, faults.

Every machine runs the real supervisor (`supervise`, `Attempt`, `Committer`, `HeadFile`, `Group`)
in a separate thread, over one memory store. It stops before each operation that leaves the
machine, of the store or of the group, until the world releases it: at most one thread runs at any
moment, and the same plan gives the same operations. A machine that is not released is frozen.

The world watches each operation when it is applied, from any sender and however late, against
what must hold in every state (`Watch`). `play` follows a plan, then lets the run come to its end.
"""

import contextlib
import json
import logging
import random
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from blake3 import blake3

from outlast.base import retry as retry_module
from outlast.base.exits import Reason, State
from outlast.base.http_client import RequestFailed
from outlast.base.retry import Patience
from outlast.bucket import headfile as headfile_module
from outlast.bucket import pages
from outlast.bucket import upload as upload_module
from outlast.bucket.boot import stop_asked
from outlast.bucket.head import Checkpoint, Head, HeadError, HeadForbidden, end_copy, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Heartbeat, Layout, Manifest
from outlast.bucket.part_results import put_manifest
from outlast.bucket.parts import DONE_TAG
from outlast.bucket.records import write_record
from outlast.bucket.results import fetch_result
from outlast.bucket.retention import Retention
from outlast.bucket.rows import read_rows
from outlast.bucket.store import (
    Damaged,
    MemoryStore,
    NotFound,
    Object,
    Operation,
    PreconditionFailed,
    StoreError,
    Throttled,
    Unavailable,
)
from outlast.cli import repair as repair_module
from outlast.cli.errors import OperateError
from outlast.cli.repair import repair
from outlast.protocol import Hello, row_part
from outlast.spec import permissions
from outlast.spec.result import ResultManifest
from outlast.spec.run_spec import RunSpec, Timeouts
from outlast.supervisor import attempt as attempt_module
from outlast.supervisor import life
from outlast.supervisor import preparation as preparation_module
from outlast.supervisor.attempt import Attempt
from outlast.supervisor.group import Group
from outlast.supervisor.metadata import Machine
from outlast.supervisor.notice import Interrupted, Notices
from outlast.supervisor.site import Next, Outcome, Site
from outlast.supervisor.webhook import Webhook
from tests.stores import START, FakeClock
from tests.supervisor.scripted import (
    PART_BYTES,
    WORK,
    Crash,
    advanced,
    unfolded,
)

LAYOUT = Layout("experiments/demo", "0123456789")
STEPS = 10
COMMIT_EVERY = 2
KEPT_EVERY = 4
"""Steps of which one checkpoint is kept forever, where old entries of HEAD move to pages."""
RETRIES = 2
PARTS = (("a", 4), ("b", STEPS))
"""Of a run with parts: each one's name and last step, counted through both."""
TRUTH = [""]
"""The state after each step, undisturbed."""
for _step in range(1, STEPS + 1):
    TRUTH.append(advanced(TRUTH[-1], _step))
SPEC = RunSpec(
    prefix=LAYOUT.prefix,
    run=LAYOUT.run,
    resume=0,
    placement=0,
    owner="org/demo/dev",
    trainer="scripted",
    deadline=START + timedelta(days=36_500),
    timeouts=Timeouts(iam_propagation=0.0, failure_grace=0.0),
    retries_failures=RETRIES,
)
LIFE_OPERATIONS = 3000
"""More than any machine needs that is no longer disturbed."""


class Fault(StrEnum):
    """What happens at one operation."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    CRASH_LATE = "crash, applied late"
    LOST = "503, applied"
    REFUSED = "503, not applied"
    THROTTLED = "429"
    AGAIN = "412 to a second try of the client, applied"
    LATE = "503, applied late"
    TWICE = "applied, and once more late"


class Instruction(StrEnum):
    """What happens to a machine or its trainer."""

    NOTICE = "is preempted"
    FAILS = "trainer fails"
    UNHEARD = "its group gives no answer to its next question"


class Wish(StrEnum):
    """What the operator does."""

    STOP = "stops the run"
    ASK = "asks for a last checkpoint and the end"
    RESUME = "raises resume"
    MOVE = "changes the zone"
    READ = "reads"
    REPAIR = "repairs"


class Harm(StrEnum):
    """Forbidden acts that happen all the same."""

    HEAD_LOST = "HEAD is deleted"
    HEAD_GARBAGE = "HEAD is overwritten with garbage"
    BIT_FLIP = "a bit of the newest checkpoint flips"


OPERATOR = 3
"""The slot of the operator; 0, 1 and 2 are machines."""


@dataclass(frozen=True)
class Go:
    """A slot does a number of operations; the last of them fails."""

    slot: int
    operations: int
    then: Fault | None = None


@dataclass(frozen=True)
class Boot:
    """The group puts a new machine, in this slot, in the place of its member.

    The old member continues, but is no longer a member, unless it had this slot.
    """

    slot: int


@dataclass(frozen=True)
class Tell:
    slot: int
    said: Instruction


@dataclass(frozen=True)
class Deliver:
    """A late request arrives."""

    index: int


Event = Go | Boot | Tell | Deliver | Wish | Harm


class Broken(AssertionError):
    """A guarantee does not hold; the message has the operations that led there."""


CURRENT = threading.local()


class _Notes(logging.Handler):
    """The log's lines stand in the notes, too."""

    def emit(self, record: logging.LogRecord) -> None:
        if actor := getattr(CURRENT, "actor", None):
            actor.world.note(f"  {actor.name} says: {record.getMessage()}")


logging.getLogger("outlast").addHandler(_Notes())
logging.getLogger("outlast").setLevel(logging.INFO)
"""`actor`: whose thread this is."""


class Actor:
    """A thread that stops before each operation until it is released."""

    def __init__(self, world: "World", name: str, live: Callable[[Any], object]) -> None:
        self.name = name
        self.world = world
        self.ended = False
        self.dead = False
        self.seen: set[int] = set()
        """Generations of HEAD that it was answered; 0 if there was none."""
        self.saw_none = False
        """Its last look found no HEAD, so that it may create one."""
        self.superseded = False
        """It has seen a HEAD that another writer wrote after its own last one."""
        self._live = live
        self._fault: Fault | None = None
        self._one = threading.RLock()
        """Whatever threads a machine has, its operations come one at a time."""
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """On to its first operation."""
        self._thread.start()
        self._stopped.acquire()

    def step(self, fault: Fault | None = None) -> bool:
        """Runs its waiting operation up to the next one; False if it has ended."""
        if self.ended:
            return False
        self._fault = fault
        self._go.release()
        self._stopped.acquire()
        return not self.ended

    def kill(self) -> None:
        """The machine is lost: no handler does anything."""
        self.dead = True
        while self.step():
            pass
        self._thread.join()

    def around(self, operation: Operation, apply: Callable[[], Any]) -> Any:
        with self._one:
            self._wait()
            fault, self._fault = self._fault, None
            return self.world.perform(self, operation, apply, fault)

    def _wait(self) -> None:
        if self.dead:
            raise Crash
        self._stopped.release()
        self._go.acquire()
        if self.dead:
            raise Crash

    def _run(self) -> None:
        CURRENT.actor = self
        try:
            self._live(self)
        except (Crash, Interrupted):
            pass
        except StoreError as error:
            # The entry says it and the machine is replaced.
            self.world.note(f"{self.name} gives up: {error}")
        except Exception:
            self.world.broken.append(f"{self.name} raised {traceback.format_exc()}")
        finally:
            self.ended = True
            self._stopped.release()


class Vm(Actor):
    """One boot of one machine of a group."""

    def __init__(self, world: "World", identifier: str, pair: tuple[int, int]) -> None:
        self.identifier = identifier
        self.pair = pair
        self.said: set[Instruction] = set()
        self.work = world.folder / identifier
        super().__init__(world, f"vm{identifier}", Vm._supervise)

    def _supervise(self) -> None:
        world, store = self.world, self.world.bucket.view(self.around)
        site = Site(
            machine=Machine("vm", self.identifier, "boot", "zone", "type", "image"),
            group=ModelledGroup(self),
            notices=Notices(SPEC.timeouts),
            listener=_NoListener(),  # type: ignore[arg-type]
            work=self.work,
            make_trainer=_no_trainer,
            log_of=lambda term: None,
            clock=world.clock,  # type: ignore[arg-type]
            webhook=Webhook(""),
        )
        every = KEPT_EVERY if world.paged else 0
        spec = replace(SPEC, resume=self.pair[0], placement=self.pair[1], keep_every_steps=every)
        boot = life.Boot(spec, HeadFile(store, LAYOUT, world.clock), site, records=True)
        code = life.supervise(boot)
        world.note(f"{self.name} exits {code}")


class _NoListener:
    """There are no connections: the trainer is a loop in the attempt."""

    def listen(self, post: object) -> None:
        pass


def _no_trainer(term: int) -> Any:
    raise AssertionError("the trainer is a loop in the attempt")


class SteppedAttempt(Attempt):
    """An attempt whose trainer is a loop in the same thread; all else is the real one."""

    def run(self) -> Outcome:
        self._committer._uploader.part_bytes = PART_BYTES
        outcome = super().run()
        world = CURRENT.actor.world
        if outcome.next is Next.AGAIN and outcome.reason is not Reason.USER_FAILED:
            # HEAD changed in a way that the protocol does not know.
            world.watch.hold(world.head_was_harmed, outcome.message)
        return outcome

    def _set_up(self) -> Outcome | None:
        """No code to fetch; and the heartbeats are stepped, too."""
        return None

    def _train(self) -> Outcome:
        world = CURRENT.actor.world
        self._rows = b""
        if world.parts:
            return self._train_parts(world)
        state = ""
        restored = self._trainings._restored
        if restored is not None:
            state = (restored.path / "state").read_text()
        stopped, state = self._make_steps(state, STEPS)
        if stopped is not None:
            return stopped
        self._again(lambda: self._committer.flush_rows(self._new_rows))
        result = self._folder("result", {"model": state})
        self._again(
            lambda: self._committer.finish(
                State.DONE, Reason.DONE, exit=0, step=self.progress.step, result=result
            )
        )
        return Outcome(Next.LEAVE, Reason.DONE, "done")

    def _train_parts(self, world: "World") -> Outcome:
        """As a program that begins one part after the other; each builds on the one before."""
        parts, state = self._trainings.parts, ""
        for name, last in world.parts:
            hello = Hello(1, 0, part=name)
            refusal = parts.refusal(hello)
            world.watch.hold(refusal is None, f"part {name} is refused: {refusal}")
            begin = parts.begin(hello)
            if begin.state is not None:
                state = self._read_file(begin.state, "state")
            if begin.end is not None:
                same = self._read_file(begin.end, "result/model") == state == TRUTH[last]
                world.watch.hold(same, f"part {name} ended with another result")
                continue
            self.progress.step = begin.before + begin.step
            stopped, state = self._make_steps(state, last)
            if stopped is not None:
                return stopped
            folder = self._folder(f"end-{name}", {"part.json": "{}", "result/model": state})
            put_manifest(folder)
            self._commit_folder(folder, (DONE_TAG,))
        self._again(
            lambda: self._committer.finish(State.DONE, Reason.DONE, exit=0, parts=parts.known)
        )
        return Outcome(Next.LEAVE, Reason.DONE, "done")

    def _make_steps(self, state: str, last: int) -> tuple[Outcome | None, str]:
        """The steps until `last`; an outcome where the trainer fails or is stopped before."""
        machine: Vm = CURRENT.actor
        begin = self._trainings.parts.now
        while self.progress.step < last:
            if Instruction.FAILS in machine.said:
                machine.said.discard(Instruction.FAILS)
                outcome = self._again(
                    lambda: self._jobs.count_failure(Reason.USER_FAILED, "the trainer failed", None)
                )
                if outcome.next is Next.AGAIN:
                    machine.world.watch.granted(self.spec.resume)
                return outcome, state
            if Instruction.NOTICE in machine.said:
                if self._rows:
                    self._commit_now(state)
                return Outcome(Next.STOP, Reason.PREEMPTED, "the machine stops"), state
            self.progress.step += 1
            state = advanced(state, self.progress.step)
            row: dict[str, Any] = {"step": self.progress.step, "state": state}
            row |= {"part": row_part(begin.part, begin.before)} if begin.part else {}
            self._rows += json.dumps(row).encode() + b"\n"
            if self.progress.step % COMMIT_EVERY == 0:
                self._commit_now(state)
                asked = False
                with contextlib.suppress(HeadForbidden, StoreError):
                    self.head_file.check(term=self.term)
                    self._send_now()
                    asked = stop_asked(self.head_file.store, LAYOUT, self.spec.resume)
                if asked:
                    end = lambda: self._jobs.finish_stopped("asked at work")  # noqa: E731
                    return self._again(end), state
        return None, state

    @property
    def _new_rows(self) -> bytes:
        return self._rows[self._committer.rows_flushed :]

    def _read_file(self, entry: Checkpoint, name: str) -> str:
        """A file of a checkpoint that the training begins with."""
        into = self.site.work / f"{self.term}-read-{entry.generation}"
        return (self._again(lambda: self._committer.read(entry, into)) / name).read_text()

    def _commit_now(self, state: str) -> None:
        folder = self._folder(f"snap-{self.progress.step}", {"state": state, "deep/er": "the same"})
        self._commit_folder(folder)

    def _commit_folder(self, folder: Path, tags: Sequence[str] = ()) -> None:
        begin = self._trainings.parts.now
        made = self._again(
            lambda: self._committer.commit(
                folder,
                step=self.progress.step,
                tags=tags,
                rows=self._new_rows,
                part=begin.part,
                before=begin.before,
                whole=bool(tags),
            )
        )
        self._trainings.parts.committed(made)
        self.progress.committed = self.progress.step

    def _again(self, action: Callable[[], Any]) -> Any:
        """As the committing thread does: what the store did is tried again, whole."""
        for _ in range(3):
            with contextlib.suppress(Throttled, Unavailable):
                return action()
            self.site.clock.sleep(2.0)
        return action()

    def _send_now(self) -> None:
        heartbeat = Heartbeat(
            term=self.term,
            step=self.progress.step,
            total=STEPS,
            phase="train",
            rate=None,
            committed=self.progress.committed,
            seconds_to_commit=None,
            rows=(),
            time=self.head_file.store.now(),
        )
        write_record(
            self.head_file.store,
            LAYOUT.heartbeat(self.term),
            heartbeat,
            patience=self.head_file.patience,
        )

    def _folder(self, name: str, files: Mapping[str, str]) -> Path:
        folder = self.site.work / f"{self.term}-{name}"
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder


class _GroupMetadata:
    """What a group's client asks the metadata server once."""

    def __init__(self, identifier: str) -> None:
        self._identifier = identifier

    def get(self, path: str) -> str:
        return {
            "project/project-id": "p",
            "instance/id": self._identifier,
            "instance/name": "demo-0001",
            "instance/zone": "projects/1/zones/z",
        }[path]


class ModelledGroup(Group):
    """The real client; its calls are operations of the machine and are answered by the world."""

    def __init__(self, vm: Vm) -> None:
        name = group_name(vm.pair[0])
        super().__init__(
            _GroupMetadata(vm.identifier),  # type: ignore[arg-type]
            f"projects/1/zones/z/instanceGroupManagers/{name}",
        )
        self._vm = vm

    def _call(self, url: str, body: Mapping[str, object]) -> Mapping[str, object]:
        verb = url.replace(":", "/").rpartition("/")[2]
        operation = Operation("call", verb, verb.startswith(("delete", "resize")))
        try:
            return self._vm.around(operation, lambda: self._vm.world.answer(self._vm, verb))
        except Throttled as error:
            raise RequestFailed(429, str(error)) from None
        except (Unavailable, PreconditionFailed) as error:
            raise RequestFailed(503, str(error)) from None
        except NotFound as error:
            raise RequestFailed(404, str(error)) from None


def group_name(resume: int) -> str:
    """As the stack names it: a change of zone keeps the name."""
    return f"demo-{LAYOUT.run}" + (f"-r{resume}" if resume else "")


class StepClock(FakeClock):
    """The clock of all machines; passes while one of them sleeps."""

    training = False


@dataclass(frozen=True)
class Late:
    """A request in flight."""

    sender: Actor
    operation: Operation
    apply: Callable[[], Any]


class World:
    """Machines, a group, an operator, a bucket, and what must hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = StepClock()
        self.bucket = MemoryStore(clock=self.clock.now)
        self.watch = Watch(self)
        self.trace: list[str] = []
        self.broken: list[str] = []
        self.late: list[Late] = []
        self.slots: list[Actor | None] = [None] * 4
        self.machines: dict[str, Vm] = {}
        self.pair = (0, 0)
        self.member: str | None = None
        self.size = 1
        self.paged = False
        self.parts: tuple[tuple[str, int], ...] = ()
        """Each part's name and the last step that is its own, counted through all parts."""
        self.head_harmed = False
        """Someone deleted or overwrote HEAD; until a repair."""
        self.head_was_harmed = False

    # -- events -------------------------------------------------------------------------------

    def happen(self, event: Event) -> None:
        """One event of a plan; an impossible one does nothing. Raises Broken."""
        self.note(f"{event!r}:")
        match event:
            case Go(slot, operations, then):
                self._go(self.slots[slot], operations, then)
            case Boot(slot):
                self.boot(slot)
            case Tell(slot, said):
                actor = self.slots[slot]
                if isinstance(actor, Vm) and not actor.ended:
                    actor.said.add(said)
            case Deliver(index):
                if self.late:
                    self.deliver(index % len(self.late))
            case Wish():
                self.wish(event)
            case Harm():
                self.harm(event)
        self.check()

    def check(self) -> None:
        if self.broken:
            story = "\n".join(self.trace)
            raise Broken(f"{self.broken[0]}\n\nwhat happened:\n{story}")

    def _go(self, actor: Actor | None, operations: int, then: Fault | None) -> None:
        if actor is None:
            return
        for left in reversed(range(operations)):
            if not actor.step(then if left == 0 else None):
                break
            self.check()

    def boot(self, slot: int) -> None:
        """The group creates a machine, if it wants one."""
        if self.size == 0:
            return
        old = self.slots[slot]
        if old is not None and not old.ended:
            self.note(f"{old.name} is cut")
            old.kill()
        identifier = str(len(self.machines) + 1)
        self.member = identifier
        self.note(f"vm{identifier} boots in slot {slot}, resume and placement {self.pair}")
        vm = Vm(self, identifier, self.pair)
        self.slots[slot] = self.machines[identifier] = vm
        vm.start()

    def wish(self, wish: Wish) -> None:
        """What the operator does next; changes of the stack at once, the rest step by step."""
        head = self.watch.head
        if wish is Wish.RESUME:
            self._new_group((self.pair[0] + 1, 0))
        elif wish is Wish.MOVE:
            # The pin is recreated and reads HEAD: see RunPin.
            open_here = head is not None and not head.state.ended and head.resume == self.pair[0]
            placement = head.placement + 1 if head is not None and open_here else 0
            self._new_group((self.pair[0], placement))
        else:
            operator = self.slots[OPERATOR]
            if operator is None or operator.ended:
                self.note(f"the operator {wish}")
                operator = Actor(self, "operator", lambda actor: self._operate(actor, wish))
                self.slots[OPERATOR] = operator
                operator.start()

    def _new_group(self, pair: tuple[int, int]) -> None:
        self.note(f"a new group: resume and placement {pair}")
        self.pair, self.size, self.member = pair, 1, None

    def _operate(self, operator: Actor, wish: Wish) -> None:
        store = self.bucket.view(operator.around)
        with contextlib.suppress(HeadError, OperateError, Damaged):
            if wish is Wish.STOP:
                head_file = HeadFile(store, LAYOUT, self.clock)
                head_file.end_from_outside(State.STOPPED, Reason.STOPPED)
            elif wish is Wish.ASK:
                resume = read_head(store, LAYOUT).head.resume
                with contextlib.suppress(PreconditionFailed):
                    store.put(LAYOUT.stop_request(resume), b"{}", if_generation_match=0)
            elif wish is Wish.REPAIR:
                # Also beside one that lives, which the command would wait for.
                repair(store, LAYOUT, SPEC.owner, silent_sec=0)
            else:
                self._read(store)

    def _read(self, store: MemoryStore) -> None:
        """A reader that meets 404 reads HEAD again."""
        while True:
            head = read_head(store, LAYOUT).head
            try:
                rows = read_rows(store, LAYOUT, head)
                self.watch.rows_are_right(head, rows, "a reader sees")
                if head.end is not None and head.end.result is not None:
                    into = self.folder / "read"
                    shutil.rmtree(into, ignore_errors=True)
                    fetch_result(store, head.end.result, into, patience=Patience(self.clock))
                    if (into / self.model).read_text() != TRUTH[STEPS]:
                        self.broken.append("a reader gets another model")
                return
            except NotFound:
                if read_head(store, LAYOUT).head == head:
                    self.broken.append("a reader meets 404 and HEAD is the same")
                    return

    @property
    def model(self) -> str:
        """The last file of the result."""
        return f"{self.parts[-1][0]}/model" if self.parts else "model"

    def own(self, step: int) -> tuple[str | None, int]:
        """The part and the own step of a step that counts through all parts."""
        before = 0
        for name, last in self.parts:
            if step <= last:
                return name, step - before
            before = last
        return None, step

    def harm(self, harm: Harm) -> None:
        head = self.watch.head
        if head is None or not head.chain or head.state is State.DONE:
            return
        entries = self.bucket._objects
        if self.watch.damaged:
            return  # one harm is survived, two need not be
        if harm is Harm.BIT_FLIP:
            if self.head_was_harmed or len(head.chain) < 2:
                return
            if self.parts and (head.chain[-1].part, DONE_TAG in head.chain[-1].tags) != (
                self.parts[-1][0],
                False,
            ):
                return  # the parts after it stand on it, and a person has to decide
            # Equal in each snapshot: the next one must not become a copy of what is bad.
            path = head.chain[-1].path + "deep/er"
            data, found = entries[path]
            entries[path] = (bytes([data[0] ^ 1]) + data[1:], found)
            self.watch.damaged.add(head.chain[-1])
        elif harm is Harm.HEAD_LOST:
            # Who is about to create HEAD would find its place free, and nothing can tell it.
            if LAYOUT.head not in entries or any(
                actor.saw_none for actor in self.slots if actor is not None and not actor.ended
            ):
                return
            current = entries[LAYOUT.head][1].generation
            self.bucket.delete(LAYOUT.head, generation=current)
            self.head_harmed = self.head_was_harmed = True
            # A request that creates HEAD and is still on its way would find its place free.
            self.late = [late for late in self.late if late.operation.path != LAYOUT.head]
        else:
            self.bucket.put(LAYOUT.head, b"garbage")
            self.head_harmed = self.head_was_harmed = True
        self.note(f"{harm}")

    def deliver(self, index: int) -> None:
        late = self.late.pop(index)
        self.note(f"late, of {late.sender.name}:")
        with contextlib.suppress(StoreError):
            self._apply(late.sender, late.operation, late.apply)

    # -- operations ---------------------------------------------------------------------------

    def perform(
        self, sender: Actor, operation: Operation, apply: Callable[[], Any], fault: Fault | None
    ) -> Any:
        if operation.verb == "delete" and sender.superseded:
            self.broken.append(f"{sender.name} is fenced, knows it and deletes {operation.path}")
        if fault is Fault.AGAIN and not _conditional(operation):
            fault = Fault.LOST
        if fault is not None:
            self.note(f"{sender.name}: {fault}")
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_LATE):
            if fault is Fault.CRASH_LATE and operation.writes:
                self.late.append(Late(sender, operation, apply))
            self._show(sender, operation, "not applied")
            sender.dead = True
            raise Crash
        if fault in (Fault.REFUSED, Fault.THROTTLED, Fault.LATE):
            if fault is Fault.LATE and operation.writes:
                self.late.append(Late(sender, operation, apply))
            self._show(sender, operation, "not applied")
            raise Throttled("429") if fault is Fault.THROTTLED else Unavailable("503")
        try:
            answer = self._apply(sender, operation, apply)
        except StoreError:
            if fault is Fault.LOST:
                raise Unavailable("503") from None
            if fault is None or fault is Fault.TWICE:
                self._answered(sender, operation, None)
            if fault is not Fault.CRASH_AFTER:
                raise
        if fault is Fault.CRASH_AFTER:
            sender.dead = True
            raise Crash
        if fault is Fault.LOST:
            raise Unavailable("503")
        if fault is Fault.AGAIN:
            raise PreconditionFailed("412")
        if fault is Fault.TWICE and operation.writes:
            self.late.append(Late(sender, operation, apply))
        self._answered(sender, operation, answer)
        return answer

    def _apply(self, sender: Actor, operation: Operation, apply: Callable[[], Any]) -> Any:
        before = self.bucket._objects.get(operation.path)
        try:
            answer = apply()
        except StoreError as error:
            self._show(sender, operation, type(error).__name__)
            raise
        after = self.bucket._objects.get(operation.path)
        creates = operation.writes and operation.verb not in ("delete", "call")
        self._show(sender, operation, "", after if creates else None)
        if operation.writes and operation.verb != "call":
            self.watch.written(sender, operation, before and before[1], after)
        return answer

    def _answered(self, sender: Actor, operation: Operation, answer: Any) -> None:
        """What the sender knows about HEAD now."""
        if operation.path != LAYOUT.head:
            return
        if answer is None:
            if LAYOUT.head not in self.bucket._objects:
                sender.seen.add(0)
                sender.saw_none = True
            return
        found = answer[1] if isinstance(answer, tuple) else answer
        sender.saw_none = False
        sender.seen.add(found.generation)
        sender.superseded = self.watch.writers.get(found.generation) is not sender

    def answer(self, vm: Vm, verb: str) -> Mapping[str, object]:
        """The group's answer to a call of a machine."""
        if Instruction.UNHEARD in vm.said:
            vm.said.discard(Instruction.UNHEARD)
            raise Unavailable(f"{verb}: no answer")
        if verb == "testIamPermissions":
            return {"permissions": list(permissions.LEAVE_GROUP)}
        if group_name(vm.pair[0]) != group_name(self.pair[0]):
            raise NotFound("there is no such group")
        if verb == "listManagedInstances":
            found = [{"id": self.member, "name": "demo-0001"}] if self.member else []
            return {"managedInstances": found}
        self.watch.leaves(vm, self.machines.get(self.member or ""))
        self.member, self.size = None, 0
        return {}

    # -- the trace ----------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.trace.append(text)

    def _show(
        self,
        sender: Actor,
        operation: Operation,
        outcome: str,
        written: tuple[bytes, Object] | None = None,
    ) -> None:
        line = f"  {sender.name} {operation.verb} {operation.path.removeprefix(LAYOUT.root)}"
        if written is not None:
            line += f" #{written[1].generation}"
            if operation.path == LAYOUT.head:
                line += f" {_summary(written[0])}"
        self.trace.append(f"{line} {outcome}".rstrip())

    # -- the end ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Without further faults, the run ends and stays ended."""
        self._finish(self.slots[OPERATOR])
        for _ in range(12):
            head = self.watch.head
            if self.head_harmed:
                self.wish(Wish.REPAIR)
                self._finish(self.slots[OPERATOR])
                if self.head_harmed:
                    return  # nothing to rebuild it from
                continue
            if head is not None and head.state is State.DONE:
                break
            if self.size == 0 or (head is not None and head.state.ended):
                self.wish(Wish.RESUME)
            self.slots.append(None)
            self.boot(len(self.slots) - 1)
            self._finish(self.slots[-1])
        else:
            self.broken.append("the run does not come to its end")
        self.check()
        assert self.watch.head is not None
        ended = self.watch.generation
        for actor in self.slots:
            self._finish(actor)
        while self.late:
            self.deliver(0)
        if self.size:
            self.boot(0)
            self._finish(self.slots[0])
        if self.watch.generation != ended:
            self.broken.append("a finished run is written again")
        if self.size:
            self.broken.append("the run is done and its group still has a machine")
        if LAYOUT.end(self.watch.head.resume) not in self.bucket._objects:
            self.broken.append("the end has no copy")
        self.watch.chain_is_whole(self.watch.head)
        self.check()

    def _finish(self, actor: Actor | None) -> None:
        if actor is None:
            return
        for _ in range(LIFE_OPERATIONS):
            if not actor.step():
                return
            self.check()
        self.broken.append(f"{actor.name} does not come to an end")
        self.check()

    def close(self) -> None:
        for actor in self.slots:
            if actor is not None and not actor.ended:
                actor.kill()


def _conditional(operation: Operation) -> bool:
    """Whether the operation names a generation, so that a second try of it can be refused."""
    decides_nothing = operation.path.startswith((LAYOUT.attempts, f"{LAYOUT.root}boots/"))
    return operation.verb in ("copy", "delete") or (operation.verb == "put" and not decides_nothing)


def _summary(data: bytes) -> str:
    try:
        head = Head.from_json(data)
    except ValueError:
        return "garbage"
    chain = ",".join(f"t{entry.term}s{entry.step}" for entry in head.chain)
    return (
        f"term {head.term} {head.state} resume {head.resume} place {head.placement} "
        f"chain [{chain}] failures {head.failures}"
    )


class Watch:
    """The rules that hold after every operation, checked only by the applied operations."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.head: Head | None = None
        """The last HEAD that was written."""
        self.generation = 0
        self.writers: dict[int, Actor] = {}
        """Who wrote which generation of HEAD."""
        self.damaged: set[Checkpoint] = set()
        self._named: dict[str, int] = {}
        """Path and generation of all that HEAD names."""
        self._ever: set[tuple[str, int]] = set()
        """Path and generation of all that was ever written."""
        self._manifests: dict[Checkpoint, dict[str, int]] = {}
        self._takers: dict[int, Actor] = {}
        self._ends: dict[int, Head] = {}
        self._granted: dict[int, int] = {}

    def hold(self, condition: bool, guarantee: str) -> None:
        if not condition:
            self._world.broken.append(guarantee)

    # -- after a write ------------------------------------------------------------------------

    def written(
        self,
        sender: Actor,
        operation: Operation,
        before: Object | None,
        after: tuple[bytes, Object] | None,
    ) -> None:
        path = operation.path
        named = self._named.get(path)
        if named is not None and before is not None and before.generation == named:
            what = "deleted" if operation.verb == "delete" else "overwritten"
            self.hold(False, f"{path}: is {what} while HEAD names it")
        if operation.verb == "delete" or after is None:
            return
        data, found = after
        self._ever.add((path, found.generation))
        if path == LAYOUT.head:
            self._head_written(sender, before.generation if before else 0, data, found.generation)
        elif path.endswith("/MANIFEST.json"):
            self._manifest_written(path, data)
        elif path.startswith(f"{LAYOUT.root}END-r"):
            self._end_copied(path, before, data)
        elif path.startswith(f"{LAYOUT.root}metrics/") and self.head is not None:
            self.rows_are_right(self.head, self._rows(self.head), "with a new piece")

    def _head_written(self, sender: Actor, over: int, data: bytes, generation: int) -> None:
        written = Head.from_json(data)
        try:
            head = unfolded(self._world.bucket, LAYOUT, written)
        except StoreError as error:
            self.hold(False, f"HEAD names a page that is not there: {error}")
            head = written
        if written.older_chain is not None or written.older_lineage is not None:
            self._world.note("HEAD names pages")
        before = self.head
        harmed, self._world.head_harmed = self._world.head_harmed, False
        self.hold(over in sender.seen, f"{sender.name} writes HEAD over one it did not read")
        if harmed:
            assert before is not None
            self._repaired(before, head, sender)
        elif before is not None:
            for guarantee in self._illegal(before, head, sender):
                self.hold(False, f"{guarantee}: {_summary(before.to_json())} -> {_summary(data)}")
        else:
            self.hold(head.term == 1 and head.state is State.OPEN, "the first term is 1")
        self._takers.setdefault(head.term, sender)
        if head.state.ended:
            self._ends[head.resume] = head
        self.head, self.generation, self.writers[generation] = head, generation, sender
        self.chain_is_whole(head)
        self.rows_are_right(head, self._rows(head), "HEAD has")
        granted = self._granted.get(head.resume, 0)
        self.hold(head.failures >= granted, f"{granted} failures were retried")

    def _illegal(self, before: Head, after: Head, sender: Actor) -> Iterator[str]:
        """The errors of a HEAD that replaces another."""
        same_term = after.term == before.term
        if (after.resume, after.placement) < (before.resume, before.placement):
            yield "(resume, placement) falls"
        if not same_term and after.term != before.term + 1:
            yield "the term falls or leaps"
        if (after.owner, after.started) != (before.owner, before.started):
            yield "owner or start change"
        if before.state is State.DONE:
            yield "a finished run is written again"
        elif before.state.ended:
            if after.state.ended or after.resume <= before.resume:
                yield "an end is overwritten"
            elif same_term:
                yield "a run is reopened in its old term"
        if same_term:
            ends = after.state.ended and after.chain == before.chain
            # Who looks at an open HEAD past its time, and the operator, end it in its own term.
            if self._takers.get(after.term) is not sender and not ends:
                yield f"two writers in term {after.term}"
            if after.resume != before.resume:
                yield "a resume without a term"
            if not 0 <= after.failures - before.failures <= 1:
                yield "failures are miscounted"
            yield from self._illegal_chain(before, after)
        else:
            if (after.chain, after.lineage) != (before.chain, before.lineage):
                yield "taking a term changes the lineage"
            kept = before.failures if after.resume == before.resume else 0
            if after.failures != kept or after.state.ended:
                yield "taking a term changes more than it may"

    def _illegal_chain(self, before: Head, after: Head) -> Iterator[str]:
        new = [entry for entry in after.chain if entry not in before.chain]
        old = [entry for entry in after.chain if entry in before.chain]
        if old != [entry for entry in before.chain if entry in old]:
            yield "the chain's order changes"
        if new and (len(new) > 1 or after.chain[-1] != new[0] or new[0].term != after.term):
            yield "the chain grows by what is not this term's"
        whole = [entry for entry in before.chain if entry not in self.damaged]
        if not new and whole and whole[-1] not in after.chain:
            yield "the newest checkpoint is dropped"
        if not after.chain and before.chain:
            yield "the chain is emptied"

    def _repaired(self, before: Head, after: Head, sender: Actor) -> None:
        self.hold(
            not isinstance(sender, Vm), f"{sender.name} starts from scratch a run that lost HEAD"
        )
        self.hold(after.state is State.STOPPED, "a repaired run is stopped")
        self.hold(after.term > before.term, "a repaired run falls behind its term")
        if LAYOUT.attempt_start(before.term) in self._world.bucket._objects:
            pair = (after.resume, after.placement)
            self.hold(
                pair >= (before.resume, before.placement), "a repair lets (resume, placement) fall"
            )
        # The resume that must follow sets again what it forgets.
        self._ends.pop(after.resume, None)
        self._granted.pop(after.resume, None)

    def chain_is_whole(self, head: Head) -> None:
        """All that HEAD names is there, in its generation, with its bytes."""
        named: dict[str, int] = {}
        for entry in head.chain:
            named.update(self._objects_of(entry))
        if head.end is not None and head.end.result is not None:
            named.update(self._result_is_right(head))
        self._named = named
        for path, generation in named.items():
            found = self._world.bucket._objects.get(path)
            there = found is not None and found[1].generation == generation
            self.hold(there, f"{path}: is named by HEAD and is not there")

    def _objects_of(self, entry: Checkpoint) -> dict[str, int]:
        if entry in self._manifests:
            return self._manifests[entry]
        data = self._bytes(entry.manifest, entry.generation)
        self.hold(blake3(data).hexdigest() == entry.blake3, f"{entry.manifest}: is another one")
        found = {entry.manifest: entry.generation}
        if data:
            manifest = Manifest.from_json(data)
            self.hold(
                (manifest.term, manifest.step) == (entry.term, entry.step),
                f"{entry.manifest}: tells of another checkpoint",
            )
            for item in manifest.objects:
                content = self._bytes(entry.path + item.name, item.generation)
                same = entry in self.damaged or blake3(content).hexdigest() == item.blake3
                self.hold(same, f"{entry.path}{item.name}: has other bytes than committed")
                found[entry.path + item.name] = item.generation
        self._manifests[entry] = found
        return found

    def _result_is_right(self, head: Head) -> dict[str, int]:
        assert head.end is not None and head.end.result is not None
        result = head.end.result
        path = f"{result.path}RESULT.json"
        data = self._bytes(path, result.generation)
        named = {path: result.generation}
        if data:
            manifest = ResultManifest.from_json(data)
            self.hold(manifest.digest == result.digest, "HEAD names another result")
        path = f"{result.path}{self._world.model}"
        model = self._world.bucket._objects.get(path)
        right = model is not None and model[0].decode() == TRUTH[STEPS]
        self.hold(right, "the model is not that of the undisturbed run")
        if model is not None:
            named[path] = model[1].generation
        return named

    def _bytes(self, path: str, generation: int) -> bytes:
        found = self._world.bucket._objects.get(path)
        there = found is not None and found[1].generation == generation
        self.hold(there, f"{path}: is named by HEAD and is not there")
        return found[0] if found is not None and there else b""

    def _manifest_written(self, path: str, data: bytes) -> None:
        folder = path.removesuffix("MANIFEST.json")
        for item in Manifest.from_json(data).objects:
            # A successor may have swept it since: this writer is fenced then.
            was_there = (folder + item.name, item.generation) in self._ever
            self.hold(was_there, f"{path}: is written before {item.name}")

    def _end_copied(self, path: str, before: Object | None, data: bytes) -> None:
        self.hold(before is None, f"{path}: is overwritten")
        ended = [end_copy(LAYOUT, head).to_json() for head in self._ends.values()]
        self.hold(data in ended, f"{path}: copies no end of HEAD")

    # -- rows ---------------------------------------------------------------------------------

    def _rows(self, head: Head) -> list[dict[str, Any]]:
        return read_rows(self._world.bucket, LAYOUT, head)

    def rows_are_right(self, head: Head, rows: Sequence[Mapping[str, Any]], who: str) -> None:
        """Each step up to the last commit once, and as in the undisturbed run."""
        last = head.end.step if head.end is not None else head.step
        steps = [(row.get("part"), row["step"]) for row in rows]
        right = steps == [self._world.own(step) for step in range(1, last + 1)]
        self.hold(right, f"{who} the rows of {steps}, not of each step to {last} once")
        for step, row in enumerate(rows, 1):
            same = not right or row["state"] == TRUTH[step]
            self.hold(same, f"{who} another row for step {row['step']}")

    # -- machines -----------------------------------------------------------------------------

    def granted(self, resume: int) -> None:
        """A failed trainer is started again."""
        self._granted[resume] = self._granted.get(resume, 0) + 1
        granted = self._granted[resume]
        self.hold(granted <= RETRIES, f"{granted} retries, allowed are {RETRIES}")
        if self.head is not None and self.head.resume == resume:
            self.hold(self.head.failures >= granted, "a failure is retried before it is counted")

    def leaves(self, vm: Vm, member: Vm | None) -> None:
        """A machine takes the group's member out of it."""
        if member is None or self.head is None or self._world.head_harmed:
            return
        needed = not self.head.state.ended and member.pair >= (
            self.head.resume,
            self.head.placement,
        )
        self.hold(not needed, f"{vm.name} takes {member.name} out of the group of an open run")


# ---------------------------------------------------------------------------------------------
# Playing


@contextlib.contextmanager
def a_world() -> Iterator[World]:
    """A world whose names and waits are the same each time."""
    nonces = iter(range(1, 1 << 30))

    def nonce() -> str:
        return f"{next(nonces):016x}"

    chance = random.Random(0)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=WORK))
        for module in (headfile_module, upload_module):
            stack.enter_context(mock.patch.object(module, "new_nonce", nonce))
        stack.enter_context(mock.patch.object(retry_module, "_OWN", chance))
        stack.enter_context(mock.patch.object(life, "Attempt", SteppedAttempt))
        stack.enter_context(mock.patch.object(preparation_module, "_versions", dict))
        world = World(Path(folder))
        stack.callback(world.close)
        yield world


def play(
    plan: Sequence[Event], *, settle: bool = True, paged: bool = False, parts: bool = False
) -> World:
    """A run disturbed by a plan, then undisturbed to its end. Raises Broken, with the story.

    With `paged` some checkpoints are kept forever, and old entries of HEAD move to pages at once;
    with `parts` its steps are those of two parts.
    """
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(a_world())
        world.paged = paged
        world.parts = PARTS if parts else ()
        if paged:
            stack.enter_context(_small_pages())
        world.boot(0)
        for event in plan:
            world.happen(event)
        if settle:
            world.settle()
        return world


@contextlib.contextmanager
def _small_pages() -> Iterator[None]:
    with (
        mock.patch.object(attempt_module, "Retention", partial(Retention, keep_last=1)),
        mock.patch.object(repair_module, "KEEP_LAST", 1),
        mock.patch.object(pages, "CHAIN_PAGE", 1),
        mock.patch.object(pages, "LINEAGE_PAGE", 1),
        mock.patch.object(pages, "FAN", 2),
    ):
        yield
