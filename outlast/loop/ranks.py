"""Several processes of one training on one machine, as ``torchrun --nproc-per-node N`` starts them.

Every process, a *rank*, makes the same steps. Only rank 0, the *leader*, speaks with the
supervisor. At each step boundary the others, its *members*, wait for its message, so that all write
their part of the same snapshot and all stop after the same step. They use a Unix socket in a folder
that only this user can enter. A boundary costs one small message per member.

The end of one rank ends all: each rank watches its connections and the launcher's process, and
exits by force if its own main thread hangs in a collective that will never finish.

A message has a kind, a step and JSON. The leader sends ``BEGIN`` (where to begin), ``GO`` (make the
next step), ``PART`` (write your part of a snapshot), ``OVER`` (the loop ends here) and ``END``
(exit with this code). A member sends ``HELLO``, ``READY`` (restored), ``WRITTEN`` (its part, or a
full disk's error) and ``FINISHED`` (its loop is over). Both send ``FAILED``, with the reason why a
rank gives up.

Standard library only, without torch.
"""

import contextlib
import hashlib
import json
import os
import select
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.base import exits
from outlast.base.scratch_space import NotPrivate, private_folder
from outlast.base.visible import visible
from outlast.loop import notes, snapshot, state, unchanged, verify
from outlast.loop.errors import DoesNotFit, LoopError, RankLost, StateError
from outlast.protocol import Channel, Closed, ProtocolError, ServerSocket

GATHER_SEC = 600.0
"""Seconds to wait for all ranks, which import and load at their own pace before outlast.train."""
NOTICE_SEC = 3.0
"""Seconds after another rank's end until a rank whose main thread has not noticed it exits."""
LEAVE_SEC = 15.0
"""Seconds for a rank that has noticed it to end by itself."""
END_SEC = 10.0
"""Seconds that the leader waits for members to receive the end."""
LAUNCHER_POLL_SEC = 0.5
STOP_POLL_SEC = 0.5
FAILED_EXIT = 1

_HEADER = struct.Struct("!cxxxIQ")  # kind, bytes of JSON that follow, step
_BODY_BYTES_MAX = 1 << 20

BEGIN, GO, PART, OVER, END = b"b", b"g", b"p", b"o", b"x"
HELLO, READY, WRITTEN, FINISHED = b"h", b"r", b"w", b"f"
FAILED = b"e"


@dataclass(frozen=True)
class World:
    """This process among the ranks, from the launcher's environment variables."""

    rank: int
    size: int
    key: str
    """Equal in all ranks of one launch and in no other launch on this machine."""
    launcher: int | None
    """Process id of the launcher if it is torchrun, our parent, whose end ends this rank."""


def world(environment: Mapping[str, str] = os.environ) -> World | None:
    """The world of ranks to which this process belongs; None if it trains alone.

    Raises LoopError if the variables are invalid, or name ranks on other machines.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if size == 1 and rank == 0:
        return None
    if rank >= size:
        raise LoopError(f"RANK {rank}: must be below WORLD_SIZE, which is {size}")
    here = _number(environment, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environment else size
    if here != size:
        raise LoopError(
            f"LOCAL_WORLD_SIZE {here} of WORLD_SIZE {size}: all ranks of a run are processes of "
            "one machine; start torchrun with --nnodes 1, on a larger machine if need be"
        )
    if not environment.get("MASTER_PORT"):
        raise LoopError(
            "MASTER_PORT: is not set though RANK is; start the ranks with torchrun, or unset RANK "
            "and WORLD_SIZE to train in one process"
        )
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    launch = "\0".join([str(size), *(environment.get(name, "") for name in names)])
    return World(
        rank,
        size,
        hashlib.sha256(launch.encode()).hexdigest()[:16],
        os.getppid() if environment.get("TORCHELASTIC_RUN_ID") else None,
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isascii() or not text.isdigit():
        raise LoopError(f"{name} {text!r}: must be a whole number, as torchrun sets it")
    return int(text)


def socket_path(key: str) -> Path:
    """The socket of a launch's leader, in a folder that only this user can enter."""
    try:
        folder = private_folder(Path(tempfile.gettempdir()) / f"outlast-ranks-{os.getuid()}")
    except NotPrivate as error:
        raise LoopError(str(error)) from None
    return folder / f"{key}.sock"


@dataclass(frozen=True)
class RankMessage:
    """A message from another rank."""

    kind: bytes
    step: int
    body: Any


class _Link:
    """A connection to another rank. Only one thread receives, and only one at a time sends."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        connection.settimeout(None)
        self.socket = connection
        self.name = name

    def send(self, kind: bytes, step: int = 0, body: Any = None) -> None:
        """Send a message. RankLost if the other rank has ended, with its reason if it sent one."""
        text = b"" if body is None else json.dumps(body).encode()
        try:
            self.socket.sendall(_HEADER.pack(kind, len(text), step) + text)
            return
        except OSError:
            pass  # this error is not the cause of the next one
        while True:  # read its last messages; ends with RankLost
            self.receive(END_SEC)

    def receive(self, timeout_sec: float | None = None) -> RankMessage:
        """The next message; RankLost if the other rank has failed or ended, or sends nothing in
        time."""
        self.socket.settimeout(timeout_sec)
        try:
            kind, size, step = _HEADER.unpack(self._exactly(_HEADER.size))
            if size > _BODY_BYTES_MAX:
                raise RankLost(f"{self.name}: a message of {size} bytes makes no sense")
            body = json.loads(self._exactly(size)) if size else None
        except TimeoutError:
            raise RankLost(f"{self.name} said nothing for {timeout_sec:.0f} s") from None
        except (OSError, ValueError, struct.error) as error:
            raise RankLost(f"{self.name} has ended ({error})") from None
        if kind == FAILED:
            raise RankLost(f"{self.name} has failed: {body}")
        return RankMessage(kind, step, body)

    def expect(self, kind: bytes, step: int, what: str) -> RankMessage:
        """The next message, which must be ``kind`` at ``step``; else RankLost."""
        said = self.receive()
        if (said.kind, said.step) != (kind, step):
            raise self.apart(said, step, what)
        return said

    def apart(self, said: RankMessage, step: int, what: str) -> RankLost:
        """The error for another rank that is not at ``step``, where ``what`` is expected."""
        return RankLost(
            f"{self.name} is at step {said.step}, but this rank, which waits for {what}, is "
            f"at step {step}: all ranks must make the same steps"
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        data = self.socket.recv(size)
        while data and len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                break
            data += more
        if len(data) < size:
            raise OSError("its process or its training has ended")
        return data


class _Watch:
    """A thread that ends this process if another rank or the launcher has ended."""

    def __init__(
        self, links: list[_Link], launcher: int | None, before_exit: Callable[[str], None]
    ) -> None:
        self._links = links
        self._launcher = launcher
        self._before_exit = before_exit
        self.noticed = threading.Event()
        """Set once the main thread knows and is about to exit."""
        self._over = threading.Event()
        self._wakes, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching, so that this rank may continue alone."""
        if not self._over.is_set():
            self._over.set()
            self._wake.close()
            self._thread.join()
            self._wakes.close()

    def _run(self) -> None:
        names = {link.socket.fileno(): link.name for link in self._links}
        poll = select.poll()
        for number in names:
            poll.register(number, 0)  # for hang-ups only; the main thread reads data
        poll.register(self._wakes, select.POLLIN)
        timeout_ms = None if self._launcher is None else LAUNCHER_POLL_SEC * 1000
        gone = None
        while gone is None and not self._over.is_set():
            for number, event in poll.poll(timeout_ms):
                if number in names and event & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                    gone = names[number]
            if self._launcher is not None and os.getppid() != self._launcher:
                self._leave("the process that started the ranks (torchrun) has ended")
        if gone is None or self._over.wait(NOTICE_SEC if not self.noticed.is_set() else 0.0):
            return
        if self.noticed.is_set() and self._over.wait(LEAVE_SEC):
            return
        self._leave(f"{gone} has ended, and this rank hangs in a call that waits for it")

    def _leave(self, why: str) -> None:
        if self._over.is_set():
            return
        with contextlib.suppress(Exception):
            self._before_exit(why)
        with contextlib.suppress(Exception):
            sys.stderr.write(visible(f"outlast: {why}; this rank ends too\n"))
            sys.stderr.flush()
        os._exit(FAILED_EXIT)


class _Party:
    """The common part of leader and member: links and a watch, which forked children must not
    keep."""

    def __init__(self) -> None:
        self._links: list[_Link] = []
        self._watch: _Watch | None = None
        self._own = os.getpid()
        # A forked child, such as a data loader's, would keep the connections of an ended rank open.
        os.register_at_fork(after_in_child=self._forget)

    @property
    def links(self) -> list[_Link]:
        return self._links

    def _forget(self) -> None:
        for link in self._links:
            link.socket.close()
        self._links = []

    def _begin_watch(self, launcher: int | None, before_exit: Callable[[str], None]) -> None:
        self._watch = _Watch(list(self._links), launcher, before_exit)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except RankLost:
            if self._watch is not None:
                self._watch.noticed.set()
            raise

    def fail(self, message: str) -> None:
        """Tell the other ranks that are still connected why this rank gives up, and leave."""
        for link in self._links:
            with contextlib.suppress(RankLost, OSError):
                link.socket.settimeout(1.0)
                link.socket.sendall(_failed(message))
        self.close()

    def close(self) -> None:
        """Close all connections."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for link in self._links:
            link.close()
        self._links = []


class Leader(_Party):
    """Rank 0's side. All methods belong to the thread of the loop."""

    def __init__(self, world: World, before_exit: Callable[[str], None]) -> None:
        """Listen. The watch calls ``before_exit`` with the reason before it ends this process."""
        super().__init__()
        self._world = world
        self._before_exit = before_exit
        try:
            self._listener: ServerSocket | None = ServerSocket(socket_path(world.key))
        except (OSError, ProtocolError) as error:
            raise LoopError(f"the ranks' socket cannot be made: {error}") from None
        self._go = bytearray(_HEADER.size)
        self._over = False

    def gather(self, call: Mapping[str, Any], stops: Callable[[], bool]) -> None:
        """Wait for every other rank. LoopError if one is missing or was called differently from
        this one, which was called with ``call``. SystemExit once ``stops`` says that this process
        must exit, as torchrun requests if a rank has failed.
        """
        if self._listener is None:
            return
        missing = set(range(1, self._world.size))
        deadline = time.monotonic() + GATHER_SEC
        while missing:
            channel = self._listener.accept(STOP_POLL_SEC)
            if stops():
                raise SystemExit(exits.INTERRUPTED)
            if channel is None and time.monotonic() < deadline:
                continue
            if channel is None:
                names = ", ".join(map(str, sorted(missing)))
                raise LoopError(
                    f"rank {names} of {self._world.size}: did not reach outlast.train within "
                    f"{GATHER_SEC:.0f} s; every rank must call it"
                )
            self._welcome(_Link(channel.detach(), "a rank"), missing, call)
        self._links.sort(key=lambda link: link.name)
        self._listener.close()
        self._listener = None
        self._begin_watch(self._world.launcher, self._before_exit)

    def _welcome(self, link: _Link, missing: set[int], call: Mapping[str, Any]) -> None:
        try:
            said = link.receive(END_SEC)
        except RankLost:
            link.close()  # a rank that retries, or another program
            return
        rank, body = said.step, said.body or {}
        problem = None
        if said.kind != HELLO or rank not in missing:
            problem = f"rank {rank}: is not one that is missing here"
        else:
            missing.discard(rank)
            link.name = f"rank {rank}"
            self._links.append(link)
            for name, value in call.items():
                if body.get(name) != value:
                    raise LoopError(
                        f"{name}: is {body.get(name)} in rank {rank} and {value} in rank 0; all "
                        "ranks must call outlast.train in the same way"
                    )
        if problem is not None:
            with contextlib.suppress(OSError):
                link.socket.sendall(_failed(problem))
            link.close()

    def begin(self, where: Mapping[str, Any]) -> None:
        """Tell the members where to begin."""
        with self._noticing():
            for link in self._links:
                link.send(BEGIN, 0, dict(where))

    def wait_ready(self, step: int) -> None:
        """Wait until all members have restored the checkpoint that ``begin`` named."""
        with self._noticing():
            for link in self._links:
                link.expect(READY, step, "its restore")

    def go(self, step: int) -> None:
        """Let all members make the step after ``step``."""
        _HEADER.pack_into(self._go, 0, GO, 0, step)
        for link in self._links:
            try:
                link.socket.sendall(self._go)
                continue
            except OSError:
                pass
            with self._noticing():
                link.send(GO, step)  # fails too, with the reason

    def over(self, step: int) -> None:
        """End the loop after ``step`` in every rank; sent once."""
        if not self._over:
            self._over = True
            with self._noticing():
                for link in self._links:
                    link.send(OVER, step)

    def ask_parts(self, step: int, folder: Path) -> None:
        """Have every member write its part of the snapshot of ``step`` into ``folder``."""
        with self._noticing():
            for link in self._links:
                link.send(PART, step, str(folder))

    def wait_parts(self, step: int) -> None:
        """Wait until all requested parts are written; OSError if one has no room."""
        with self._noticing():
            said = [link.expect(WRITTEN, step, "its part of the snapshot") for link in self._links]
        for answer in said:
            if answer.body is not None:
                raise OSError(*answer.body)

    def wait_finished(self, step: int) -> None:
        """Wait until every member's loop is over too. This rank, which keeps the rows, decides
        whether the step in which the loop was left counts."""
        with self._noticing():
            for link in self._links:
                said = link.receive()
                drawn = said.body
                if said.kind != FINISHED or step not in (said.step, drawn, drawn and drawn - 1):
                    raise link.apart(said, step, "its end")

    def end(self, code: int, step: int = 0) -> None:
        """Make all members exit with ``code`` after training has ended at ``step``; wait up to
        END_SEC until they have."""
        if self._watch is not None:
            self._watch.close()
        deadline = time.monotonic() + END_SEC
        for link in self._links:
            with contextlib.suppress(RankLost):
                link.send(END, step, code)
        for link in self._links:
            with contextlib.suppress(RankLost):
                while (left := deadline - time.monotonic()) > 0:
                    link.receive(left)  # until it closes the connection
        self.close()

    def close(self) -> None:
        super().close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class Member(_Party):
    """Any other rank's side. All methods belong to the thread of the loop."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    @property
    def _leader(self) -> _Link:
        if not self._links:
            raise RankLost("rank 0 has gone")
        return self._links[0]

    def join(self, call: Mapping[str, Any], stops: Callable[[], bool]) -> RankMessage:
        """Greet the leader and wait for its ``BEGIN`` or ``END``; SystemExit as in ``gather``."""
        path = socket_path(self._world.key)
        deadline = time.monotonic() + GATHER_SEC
        while True:
            try:
                channel = Channel.connect(path, timeout_sec=STOP_POLL_SEC)
            except (Closed, OSError):
                if stops():
                    raise SystemExit(exits.INTERRUPTED) from None
                if time.monotonic() < deadline:
                    continue
                raise LoopError(
                    f"rank 0 did not reach outlast.train within {GATHER_SEC:.0f} s; every rank "
                    "must call it"
                ) from None
            link = _Link(channel.detach(), "rank 0")
            self._links = [link]
            self._begin_watch(self._world.launcher, lambda why: None)
            with self._noticing():
                link.send(HELLO, self._world.rank, dict(call))
                return link.receive()

    def say(self, kind: bytes, step: int, body: Any = None) -> None:
        with self._noticing():
            self._leader.send(kind, step, body)

    def word(self, step: int, *, left: bool = False) -> RankMessage:
        """The leader's next message at the boundary after ``step``, or after the loop was ``left``
        there. RankLost if the leader is at another step."""
        with self._noticing():
            said = self._leader.receive()
            if said.kind != END and said.step != step and not left:
                raise RankLost(
                    f"rank 0 is at step {said.step} and rank {self._world.rank} at {step}: all "
                    "ranks must make the same steps"
                )
            return said


def _failed(message: str) -> bytes:
    text = json.dumps(message[:10_000]).encode()
    return _HEADER.pack(FAILED, len(text), 0) + text


# State that differs between ranks.


def part_name(rank: int) -> str:
    """The folder of one rank's part inside a snapshot."""
    return f"rank-{rank:05d}"


class RankState:
    """The ``rank_state`` of one rank, such as random numbers and the position in its share of the
    data."""

    def __init__(
        self,
        values: Mapping[str, object],
        rank: int,
        size: int,
        constant: Collection[str] = (),
    ) -> None:
        with _named():
            state.check_top(values)
            self._begun = state.survey(values)
        self._watch = unchanged.Watch(values, constant, called="rank_state")
        self._values = values
        self._rank = rank
        self._size = size

    def write(self, folder: Path, step: int) -> list[str]:
        """Write this rank's part of a snapshot into ``folder``; return warnings to print."""
        said = self._watch.look(step)
        with _named():
            nodes, blobs = state.capture_all(self._values, self._begun)
        saved = snapshot.Saved(step, {"unchanged": self._watch.note()}, nodes, blobs)
        snapshot.write(folder / part_name(self._rank), saved)
        return said

    def first_step(self) -> None:
        """Note that the first step of this attempt begins."""
        self._watch.first_step()

    def leave_loop(self) -> None:
        """Note that the steps are over."""
        self._watch.leave_loop()

    def restore(self, folder: Path) -> None:
        """Restore from the snapshot in ``folder``."""
        saved = snapshot.read(folder / part_name(self._rank))
        with _named():
            notes.check(saved.loop, ("unchanged",), f"{part_name(self._rank)}/state.json")
            state.restore_all(self._values, saved.nodes, saved.blobs)
            verify.check(self._values, saved)
        step, note = saved.step, saved.loop["unchanged"]
        del saved  # it holds the objects of the state
        self._watch.begin(step, note)

    def prove(self, work: Path) -> None:
        """Save, restore and compare; StateError names an object that differs afterwards."""
        folder = work / f"tmp-proof-{part_name(self._rank)}"
        with _named():
            self._watch.look(1, snapshot=False)
            verify.prove(self._values, state.capture_all(self._values, self._begun), folder)
        shutil.rmtree(folder)
        self._watch.begin(0)


def check_parts(folder: Path, size: int, rank_state: bool) -> None:
    """Raise DoesNotFit unless the snapshot in ``folder`` has the states of ``size`` ranks."""
    found = len(list(folder.glob("rank-*")))
    if found and not rank_state:
        raise DoesNotFit(
            f"the checkpoint holds a rank_state of {found} ranks, and this program has none; "
            "a changed program is a new run"
        )
    if rank_state and not found:
        raise DoesNotFit("rank_state: the checkpoint holds none; a changed program is a new run")
    if found and found != size:
        raise DoesNotFit(
            f"rank_state: the checkpoint is of {found} ranks and this training has {size}; "
            f"continue with {found} processes, or start a new run"
        )


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """A context whose StateErrors name ``rank_state``."""
    try:
        yield
    except StateError as error:
        text = str(error)
        if text.startswith("state"):
            text = f"rank_{text}"
        raise type(error)(text) from None
