"""The events of a VM, counted by name, and the blow that falls at one of them.

An event is an operation of the store (`put HEAD`, `delete s/arrays.bin`), a call of the group
(`call leave`) or a moment of the training loop (`loop step`). Names leave out what differs between
attempts: terms, nonces, digests. So "the 3rd `put HEAD`, after it has taken effect" is the same
moment in each run, whatever its threads do in between.
"""

import contextlib
import functools
import json
import mmap
import os
import pickle
import re
import signal
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from outlast.bucket.store import FolderStore, StoreError, Throttled, Unavailable
from outlast.bucket.store.contract import opened

READS = frozenset({"get", "stream", "read_range", "stat", "list", "folders"})


class Kind(StrEnum):
    """What happens at an event."""

    KILL = "kill"
    KILL_LATE = "kill, request late"
    """Killed; the request that was under way arrives after the successor has taken over."""
    NOTICE = "notice"
    """Preempted with enough time left."""
    NOTICE_CUT = "notice, killed"
    """Preempted, and killed a few events later."""
    ZOMBIE = "frozen, woken"
    """Frozen; woken while a successor works, or after its end."""
    REFUSED = "request fails"
    """503: not applied."""
    THROTTLED = "429"
    LATE = "times out"
    """No answer; applied later, before the next request."""
    LOST = "answer lost"
    """Applied; the caller gets no answer."""


FAILING = frozenset({Kind.REFUSED, Kind.THROTTLED, Kind.LATE, Kind.LOST})


@dataclass(frozen=True)
class Blow:
    """One event of a VM and what happens there."""

    event: str
    nth: int
    after: bool
    kind: Kind
    times: int = 1
    """How many such events in a row fail, or how many events after a notice the kill falls."""


class Board:
    """Memory that the processes of one VM share with their parent."""

    _FORM = struct.Struct("<QQQQQQ")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._FORM.size)

    def _get(self, index: int) -> int:
        return struct.unpack_from("<Q", self._memory, 8 * index)[0]

    def _set(self, index: int, value: int) -> None:
        struct.pack_into("<Q", self._memory, 8 * index, value)

    steps = property(lambda self: self._get(0), lambda self, value: self._set(0, value))
    """The last step that the training made."""
    hit = property(lambda self: self._get(1), lambda self, value: self._set(1, value))
    """Whether the blow fell."""
    noticed = property(lambda self: self._get(2), lambda self, value: self._set(2, value))
    """Whether the supervisor knows of the notice."""
    countdown = property(lambda self: self._get(3), lambda self, value: self._set(3, value))
    """Events left until the kill, plus 1; 0 if none is due."""
    code = property(lambda self: self._get(4), lambda self, value: self._set(4, value))
    """The supervisor's exit code, plus 1; 0 before its end."""
    asked = property(lambda self: self._get(5), lambda self, value: self._set(5, value))
    """The signal that the trainer's process wants the VM to get; 0 once it has got it."""


class Probe:
    """Counts the events of one process and lets the blow fall. Safe to share between threads."""

    def __init__(
        self,
        board: Board,
        blow: Blow | None,
        note: Callable[[str], None],
        give_notice: Callable[[], None],
        end: Callable[[signal.Signals], None],
    ) -> None:
        """`note` is called with the name of each event; `give_notice` announces a preemption;
        `end` sends a signal to all processes of the VM and, after a stop, returns once woken."""
        self.board = board
        self.blow = blow
        self._note = note
        self._give_notice = give_notice
        self._end = end
        self._seen: Counter[str] = Counter()
        self.lock = threading.RLock()
        """Held during an operation: no process is killed or frozen in the middle of another."""

    def due(self, event: str) -> Blow | None:
        """Counts the event; the blow if it falls here."""
        self._note(event)
        self._seen[event] += 1
        if self.board.countdown:
            self.board.countdown -= 1
            if self.board.countdown == 0:
                self._end(signal.SIGKILL)
        blow = self.blow
        if blow is None or blow.event != event:
            return None
        last = blow.nth + (blow.times - 1 if blow.kind in FAILING else 0)
        return blow if blow.nth <= self._seen[event] <= last else None

    def inject(self, blow: Blow) -> None:
        """Kills, freezes or gives notice."""
        self.board.hit = 1
        match blow.kind:
            case Kind.KILL | Kind.KILL_LATE:
                self._end(signal.SIGKILL)
            case Kind.ZOMBIE:
                self._end(signal.SIGSTOP)
            case Kind.NOTICE | Kind.NOTICE_CUT:
                self._give_notice()
                if blow.kind is Kind.NOTICE_CUT:
                    self.board.countdown = blow.times + 1
            case _:
                raise AssertionError(blow.kind)

    @contextlib.contextmanager
    def moment(self, name: str) -> Iterator[None]:
        """An event of the loop: the body is its effect."""
        with self.lock:
            blow = self.due(name)
            if blow is not None and not blow.after:
                self.inject(blow)
        yield
        if blow is not None and blow.after:
            with self.lock:
                self.inject(blow)


def signal_all(number: signal.Signals) -> None:
    """Ends all processes of this VM at once, or stops this one, before the next line. The
    parent, which waits for the stop, then stops the others."""
    if number == signal.SIGKILL:
        os.killpg(os.getpgrp(), number)
    # Sent to a process, another thread may take it and this one go a little further.
    signal.pthread_kill(threading.get_ident(), number)


class WatchedStore(FolderStore):
    """A bucket whose requests are events of a VM."""

    def __init__(self, folder: Path, root: str, probe: Probe, vm: str, journal: Path) -> None:
        super().__init__(folder)
        self._root = root
        self._probe = probe
        self._vm = vm
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._late_file = journal.with_name("late")
        self._waiting: Callable[[], Any] | None = None

    def get(self, path: str, *, generation: int | None = None) -> Any:
        parent = super().get
        return self._perform("get", path, lambda: parent(path, generation=generation))

    def stream(self, path: str, sink: Any, *, generation: int | None = None) -> Any:
        parent = super().stream
        return self._perform("stream", path, lambda: parent(path, sink, generation=generation))

    def read_range(self, path: str, start: int, size: int, *, generation: int) -> bytes:
        parent = super().read_range
        do = functools.partial(parent, path, start, size, generation=generation)
        return self._perform("read_range", path, do)

    def stat(self, path: str) -> Any:
        parent = super().stat
        return self._perform("stat", path, lambda: parent(path))

    def list(self, prefix: str, *, glob: str = "") -> Any:
        parent = super().list
        return self._perform("list", prefix, lambda: parent(prefix, glob=glob))

    def folders(self, prefix: str) -> Any:
        parent = super().folders
        return self._perform("folders", prefix, lambda: parent(prefix))

    def put(self, path: str, data: Any, *, if_generation_match: int | None = None) -> Any:
        return self._write("put", path, (data,), {"if_generation_match": if_generation_match})

    def copy(
        self,
        source: str,
        to: str,
        *,
        source_generation: int,
        if_generation_match: int | None = None,
    ) -> Any:
        named = {"source_generation": source_generation, "if_generation_match": if_generation_match}
        return self._write("copy", to, (source,), named)

    def delete(self, path: str, *, generation: int) -> None:
        self._write("delete", path, (), {"generation": generation})

    def _write(self, verb: str, path: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if verb == "put" and not isinstance(args[0], bytes) and self._may_be_late():
            args = (_bytes_of(args[0]),)  # its file may be gone when it arrives
        request = (self._vm, verb, path, args, named)
        return self._perform(verb, path, lambda: self._apply(request), request)

    def _may_be_late(self) -> bool:
        blow = self._probe.blow
        return blow is not None and blow.kind in (Kind.KILL_LATE, Kind.LATE)

    def _apply(self, request: "Request") -> Any:
        """Carries a write out and notes it in the journal."""
        vm, verb, path, args, named = request
        if verb == "copy":
            done = super().copy(args[0], path, **named)
        else:
            done = getattr(super(), verb)(path, *args, **named)
        line = {"vm": vm, "verb": verb, "path": path}
        if verb == "put" and path == f"{self._root}HEAD":
            line["head"] = _bytes_of(args[0]).decode()
        os.write(self._journal, json.dumps(line).encode() + b"\n")
        return done

    def apply_late(self) -> str:
        """Carries out the request that a killed VM had under way; what came of it."""
        request: Request = pickle.loads(self._late_file.read_bytes())  # noqa: S301 - of a fork of this process
        try:
            self._apply(request)
        except StoreError as error:
            return f"refused: {error}"
        return "applied"

    def _perform(
        self, verb: str, path: str, do: Callable[[], Any], request: "Request | None" = None
    ) -> Any:
        with self._probe.lock:
            if self._waiting is not None:
                waiting, self._waiting = self._waiting, None
                with contextlib.suppress(StoreError):
                    waiting()
            blow = self._probe.due(f"{verb} {short(path.removeprefix(self._root))}")
            if blow is None:
                return do()
            if blow.kind in FAILING:
                self._probe.board.hit = 1
                return self._fail(blow.kind, do)
            if not blow.after:
                if blow.kind is Kind.KILL_LATE:
                    self._late_file.write_bytes(pickle.dumps(request))
                self._probe.inject(blow)
            answer = do()
            if blow.after:
                self._probe.inject(blow)
            return answer

    def _fail(self, kind: Kind, do: Callable[[], Any]) -> Any:
        if kind is Kind.THROTTLED:
            raise Throttled("429: too many requests")
        if kind is Kind.LATE:
            self._waiting = do
        if kind is Kind.LOST:
            do()
        raise Unavailable("503: no answer")


Request = tuple[str, str, str, tuple[Any, ...], dict[str, Any]]
"""VM, verb, path, and the arguments of a write."""


def _bytes_of(data: Any) -> bytes:
    with opened(data) as file:
        return file.read()


_SHORTER = (
    (re.compile(r"^t\d{6,9}/s\d{12,15}-[0-9a-z]+/"), "s/"),
    (re.compile(r"^t\d{6,9}/result/"), "result/"),
    (re.compile(r"^(attempts|metrics|pages)/t?\d{6,9}/"), r"\1/"),
    (re.compile(r"^pages/[0-9a-f]{32}"), "pages/*"),
    (re.compile(r"^metrics/\d{6}.*"), "metrics/*"),
    (re.compile(r"^records/\d{6}"), "records/*"),
    (re.compile(r"^boots/.*"), "boots/*"),
    (re.compile(r"-[0-9a-f]{16,}"), "-*"),
)


def short(path: str) -> str:
    """A path below the run's, without what differs between attempts."""
    for pattern, text in _SHORTER:
        path = pattern.sub(text, path)
    return path or "."
