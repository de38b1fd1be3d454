"""One VM: a fork with the real supervisor, and a fork of it with the real training loop."""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from bench.forks.probe import Blow, Board, Probe, WatchedStore, signal_all
from bench.forks.programs import Program
from outlast.base import retry
from outlast.base.exits import INTERRUPTED
from outlast.base.log import log_to
from outlast.base.retry import Patience
from outlast.bucket import pages
from outlast.bucket.data import Cache
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.loop.leading import Leading
from outlast.loop.progress import Progress
from outlast.loop.resuming import Resuming
from outlast.loop.saving import Saver
from outlast.loop.session import Session
from outlast.loop.writing import Writer
from outlast.protocol import SOCKET_VARIABLE
from outlast.spec.run_spec import RunSpec, Timeouts, parse_checkpoint_every
from outlast.supervisor import notice as notice_module
from outlast.supervisor.group import Left, Member, NotMember
from outlast.supervisor.life import Boot, supervise
from outlast.supervisor.listener import Listener
from outlast.supervisor.metadata import Machine, Metadata
from outlast.supervisor.notice import Interrupted, Notices
from outlast.supervisor.process import Exited
from outlast.supervisor.site import MachineClock, Site
from outlast.supervisor.webhook import Webhook

LAYOUT = Layout("experiments/kills", "0123456789")
TIMEOUTS = Timeouts(
    heartbeat=5.0,
    failure_grace=0.0,
    backoff=0.005,
    iam_propagation=0.0,
    successor_silence=30.0,
    notice=60.0,
    stop=60.0,
)
PAUSE_SEC = 0.005
"""What each wait for storage or for the group is cut to."""
POLL_SEC = 0.002
FEW = 2
"""Entries of HEAD before old ones move to pages, so that short runs have some."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Place:
    """The folder of one point: its bucket, its group and what its VMs leave."""

    folder: Path
    bucket: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def member(self) -> Path:
        """Names the VM that the group counts; absent if the group's size is 0."""
        return self.folder / "member"


def spec_of(program: Program) -> RunSpec:
    """The run of a program."""
    return RunSpec(
        prefix=LAYOUT.prefix,
        run=LAYOUT.run,
        resume=0,
        placement=0,
        owner="organization/outlast/kills",
        trainer=program.name,
        deadline=datetime.now(UTC).replace(microsecond=0) + timedelta(days=1),
        checkpoint_every=parse_checkpoint_every(program.checkpoint_every),
        keep_every_steps=program.keep_every_steps,
        timeouts=TIMEOUTS,
        bucket="kills",
    )


class Vm:
    """A VM that boots at once. `wait` for its end, or until it is frozen."""

    def __init__(
        self,
        place: Place,
        name: str,
        program: Program,
        blow: Blow | None = None,
        events: Path | None = None,
    ) -> None:
        """`events`: a file for the name of each event."""
        self.name = name
        self.board = Board()
        place.member.write_text(name)
        self.pid = os.fork()
        if self.pid == 0:
            _guarded(lambda: _boot(place, name, program, blow, self.board, events))
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)

    def wait(self, limit_sec: float) -> bool:
        """Whether it has ended; False if it is frozen. TimeoutError if it is neither."""
        until = time.monotonic() + limit_sec
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                os.killpg(self.pid, signal.SIGSTOP)
                return False
            if pid:
                self._reap()
                return True
            if time.monotonic() > until:
                raise TimeoutError(f"VM {self.name} has not ended in {limit_sec:.0f} s")
            time.sleep(POLL_SEC)

    def wake(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def destroy(self) -> None:
        """Ends what is left of it."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._reap()

    def _reap(self) -> None:
        """Its trainer, too, which is a child of this process once the supervisor is dead."""
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-self.pid, 0)

    @property
    def code(self) -> int | None:
        """The supervisor's exit code; None if it was killed."""
        return self.board.code - 1 if self.board.code else None


def _guarded(live: Callable[[], object]) -> NoReturn:
    """The life of a forked process, which never returns into the code of its parent."""
    try:
        live()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(99)


def _boot(
    place: Place,
    name: str,
    program: Program,
    blow: Blow | None,
    board: Board,
    events: Path | None,
) -> None:
    os.setpgid(0, 0)
    die_with_parent()
    atexit._clear()
    root = place.folder / name
    root.mkdir()
    log = os.open(root / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    log_to(lambda line: os.write(2, f"{line}\n".encode()))
    os.environ[SOCKET_VARIABLE] = str(root / "socket")
    metadata = _Metadata(board)
    notices = Notices(TIMEOUTS, metadata)
    note = _noting(events, "vm")
    notice = functools.partial(_give_notice, os.getpid(), board)
    probe = Probe(board, blow, note, notice, signal_all)
    asked = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: metadata.preempted.set())
    signal.signal(signal.SIGUSR2, lambda *_: asked.set())
    host = _TrainerHost(program, board, blow, events)  # before there are threads
    threading.Thread(target=metadata.acknowledge, args=(notices,), daemon=True).start()
    threading.Thread(target=_obey_trainer, args=(asked, probe, board), daemon=True).start()
    notices.start()
    _quicken()
    clock = _QuickClock(notices)
    site = Site(
        machine=Machine(name, name, f"boot-{name}", "zone", "n2-standard-2", "image"),
        group=_Group(place, name, probe),
        notices=notices,
        listener=Listener(root / "socket"),
        work=root / "work",
        make_trainer=lambda term: _HostedTrainer(host),
        log_of=lambda term: None,
        clock=clock,
        webhook=Webhook(""),
        data=Cache(root / "cache"),
    )
    site.work.mkdir()
    store = WatchedStore(place.bucket, LAYOUT.root, probe, name, place.journal)
    head_file = HeadFile(store, LAYOUT, patience=Patience(clock.unsigned))
    boot = Boot(spec_of(program), head_file, site, records=True)
    try:
        code = supervise(boot)
    except Interrupted:
        code = INTERRUPTED
    board.code = code + 1
    os.killpg(0, signal.SIGKILL)  # power-off


def die_with_parent() -> None:
    """Ends this process with the one that forked it; its signals have their usual effect again."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _quicken() -> None:
    """Cuts waits that are for real services, and makes pages of HEAD small."""
    retry.BRIEF._pause_sec = PAUSE_SEC
    notice_module.is_system_stopping = lambda: False  # would ask this machine's systemd
    pages.CHAIN_PAGE = pages.LINEAGE_PAGE = FEW


class _QuickClock(MachineClock):
    def sleep(self, seconds: float, *, sign: bool = True) -> None:
        super().sleep(min(seconds, PAUSE_SEC), sign=sign)


class _Metadata(Metadata):
    """The metadata server of a VM: it knows only of the preemption."""

    def __init__(self, board: Board) -> None:
        super().__init__("http://metadata.invalid")
        self.preempted = threading.Event()
        self._board = board

    def get(self, path: str, **_: Any) -> str:
        preempted = path == "instance/preempted" and self.preempted.is_set()
        return "TRUE" if preempted else "FALSE" if path == "instance/preempted" else "NONE"

    def wait_for_change(self, path: str, *, last_etag: str, **_: Any) -> tuple[str, str]:
        if last_etag != "0":
            (self.preempted if path == "instance/preempted" else threading.Event()).wait()
        return self.get(path), "1"

    def acknowledge(self, notices: Notices) -> None:
        """Says on the board when the supervisor knows of the preemption."""
        self.preempted.wait()
        while notices.stopping is None:
            time.sleep(0.0005)
        self._board.noticed = 1


def _give_notice(vm: int, board: Board) -> None:
    os.kill(vm, signal.SIGUSR1)
    while not board.noticed:
        time.sleep(0.0005)


def _ask_for(vm: int, board: Board, number: signal.Signals) -> None:
    """In the trainer's process: the VM gets the signal between two requests of its store, so that
    the journal has each request that took effect, and no lock stays behind."""
    board.asked = number
    os.kill(vm, signal.SIGUSR2)
    while board.asked:
        time.sleep(0.0005)


def _obey_trainer(asked: threading.Event, probe: Probe, board: Board) -> None:
    while True:
        asked.wait()
        asked.clear()
        with probe.lock:
            signal_all(signal.Signals(board.asked))
        board.asked = 0


class _Group:
    """A managed instance group of one VM: a file that names its member."""

    def __init__(self, place: Place, name: str, probe: Probe) -> None:
        self._member = place.member
        self._name = name
        self._probe = probe

    def membership(self) -> Member | NotMember:
        with self._probe.moment("call membership"):
            return self._membership()

    def leave(self) -> Left:
        with self._probe.moment("call leave"):
            if isinstance(self._membership(), Member):
                self._member.unlink()
            return Left("deleted")

    def may_leave(self) -> bool:
        with self._probe.moment("call may-leave"):
            return True

    def _membership(self) -> Member | NotMember:
        with contextlib.suppress(FileNotFoundError):
            if self._member.read_text() == self._name:
                return Member(self._name, "zone")
        return NotMember("another VM is the member")


# ---------------------------------------------------------------------------------------------
# The trainer


class _TrainerHost:
    """Forks trainers. A separate process with one thread, forked before the supervisor has
    more, so that a fork never copies a lock that another thread holds."""

    def __init__(
        self, program: Program, board: Board, blow: Blow | None, events: Path | None
    ) -> None:
        self._ours, theirs = socket.socketpair()
        supervisor = os.getpid()
        if os.fork() == 0:
            self._ours.close()
            _guarded(lambda: _serve(theirs, program, board, blow, events, supervisor))
        theirs.close()
        self._answers = self._ours.makefile()

    def start(self) -> int:
        """The process of a new trainer."""
        self._ours.sendall(b"s")
        return int(self._answers.readline())

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return int(self._answers.readline())


def _serve(
    asked: socket.socket,
    program: Program,
    board: Board,
    blow: Blow | None,
    events: Path | None,
    supervisor: int,
) -> None:
    die_with_parent()
    while asked.recv(1):
        pid = os.fork()
        if pid == 0:
            _guarded(lambda: _train(program, board, blow, events, supervisor))
        asked.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        asked.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


class _HostedTrainer:
    ends_with_connection = False
    restarts = True

    def __init__(self, host: _TrainerHost) -> None:
        self._host = host
        self._pid: int | None = None

    def start(self, post: Callable[[Exited], None]) -> None:
        self._pid = self._host.start()

        def wait() -> None:
            code = self._host.wait()
            self._pid = None
            post(Exited(code))

        threading.Thread(target=wait, name="trainer", daemon=True).start()

    def kill(self) -> None:
        if (pid := self._pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def dump_stacks(self) -> None:
        pass

    def last_lines(self) -> tuple[str, ...]:
        return ()


def _train(
    program: Program, board: Board, blow: Blow | None, events: Path | None, supervisor: int
) -> None:
    die_with_parent()
    _forget_bench()
    notice = functools.partial(_give_notice, supervisor, board)
    end = functools.partial(_ask_for, supervisor, board)
    watch(Probe(board, blow, _noting(events, "trainer"), notice, end), board, waits=program.waits)
    code: Any = 1
    try:
        code = program.run()
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    if events is not None:
        events.with_suffix(".modules").write_text("\n".join(sys.modules))
    os._exit(code if isinstance(code, int) else 1)


def _forget_bench() -> None:
    """Makes the program's modules the only ones that the loop takes for the program's: it looks
    into their variables for what a checkpoint lacks, and the bench's own hold thousands."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("bench", "tests")]:
        if name != Program.__module__:
            del sys.modules[name]
    main = types.ModuleType("__main__")
    main.__file__ = os.__file__  # installed, so not the program's
    sys.modules["__main__"] = main


def watch(probe: Probe, board: Board, *, waits: bool) -> None:
    """Makes moments of the loop events; with `waits`, each commit is waited for."""

    def event(owner: Any, method: str, name: str) -> None:
        before = getattr(owner, method)

        @functools.wraps(before)
        def seen(*args: Any, **named: Any) -> Any:
            with probe.moment(name):
                return before(*args, **named)

        setattr(owner, method, seen)

    event(Progress, "draw", "loop step begins")
    event(Progress, "count", "loop step")
    event(Resuming, "take", "loop restore")
    event(Writer, "write_once", "loop snapshot")
    event(Session, "hand_over", "loop save")
    event(Leading, "complete", "loop complete")
    counted, save_due = Progress.count, Saver.save_due

    def count(self: Progress) -> None:
        counted(self)
        board.steps = max(board.steps, self.step)

    def save_and_wait(self: Saver, step: int) -> None:
        save_due(self, step)
        self.hear_answer(wait=True)
        while not self._session.look_for_stop() and not self._session.wait_committed(0.05):
            pass

    Progress.count = count
    if waits:
        Saver.save_due = save_and_wait


def _noting(events: Path | None, who: str) -> Callable[[str], None]:
    if events is None:
        return lambda name: None
    file = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return lambda name: (os.write(file, json.dumps([who, name]).encode() + b"\n"), None)[1]


def iter_events(file: Path) -> Iterator[tuple[str, str]]:
    """(process, name) of each event."""
    for line in file.read_text().splitlines():
        who, name = json.loads(line)
        yield who, name
