"""A supervisor in a thread for the loop's tests: the real protocol, a folder for a bucket."""

import contextlib
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from outlast import protocol
from outlast.loop.session import Session
from outlast.protocol import Accepted, Busy, Channel, Committed, Complete, Message, Snapshot, Stop

Reply = Callable[["FakeSupervisor", Snapshot], None]


class FakeSupervisor:
    """Commits every snapshot at once; a test puts another function in ``on_snapshot``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.socket = folder / "s"
        self.restore: Path | None = None
        self.step = 0
        self.every = "1"
        self.scratch: list[Path] = []
        self.instead_of_welcome: Message | None = None
        self.push_before_welcome: Message | None = None
        self.on_snapshot: Reply = FakeSupervisor.commit
        self.on_fetch: Callable[[protocol.Fetch], Message] = lambda asked: protocol.Fetched(
            asked.url
        )
        self.fetched: list[protocol.Fetch] = []
        self.received: list[Message] = []
        self.committed: list[tuple[Snapshot, Path]] = []
        self.result: Path | None = None
        self.rows = b""
        self.gone = threading.Event()
        self._kept = itertools.count()
        self._channel: Channel | None = None
        self._newest = threading.Lock()
        self._listener = protocol.ServerSocket(self.socket)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def channel(self) -> Channel:
        assert self._channel is not None
        return self._channel

    def of(self, kind: type) -> list:
        """The messages of one type, in order."""
        return [message for message in self.received if isinstance(message, kind)]

    def push(self, message: Message) -> None:
        # A trainer that has hung up is still heard out.
        with contextlib.suppress(protocol.Closed):
            self.channel.send(message)

    def commit(self, snapshot: Snapshot) -> None:
        self.push(Accepted(snapshot.id))
        self.keep(snapshot)
        self.push(Committed(snapshot.id, snapshot.step))

    def busy(self, snapshot: Snapshot) -> None:
        self.push(Busy(snapshot.id))

    def keep(self, snapshot: Snapshot) -> None:
        """Take the folder over, as the real one does."""
        kept = self.folder / f"kept-{next(self._kept)}"
        shutil.move(snapshot.path, kept)
        self.committed.append((snapshot, kept))

    def resume_from(self, index: int = -1) -> None:
        """The welcome for the next trainer."""
        snapshot, self.restore = self.committed[index]
        self.step = snapshot.step

    def hang_up(self) -> None:
        self.channel.close()

    def close(self) -> None:
        self._listener.close()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                channel = self._listener.accept()
            except protocol.Closed:
                return
            if channel is not None:
                threading.Thread(target=self._greet, args=(channel,), daemon=True).start()

    def _greet(self, channel: Channel) -> None:
        with channel, contextlib.suppress(protocol.ProtocolError):
            first = protocol.greet(channel)
            if isinstance(first, protocol.Fetch):
                self.fetched.append(first)
                channel.send(self.on_fetch(first))
            elif first is not None:
                self._talk(channel, first)
                with self._newest:
                    if self._channel is channel:  # the end of an older one may be noticed late
                        self.gone.set()

    def _talk(self, channel: Channel, hello: protocol.Hello) -> None:
        with self._newest:
            self._channel = channel
            self.gone.clear()
        rows = self.folder / "rows.jsonl"
        rows.write_bytes(b"")
        try:
            self.received = [hello]
            if self.push_before_welcome is not None:
                channel.send(self.push_before_welcome)
            channel.send(
                self.instead_of_welcome
                or protocol.Welcome(
                    restore=None if self.restore is None else str(self.restore),
                    step=self.step,
                    work=str(self.work),
                    rows=str(rows),
                    term=1,
                    checkpoint_every=self.every,
                    scratch=[str(place) for place in self.scratch],
                )
            )
            for message in channel:
                self.received.append(message)
                if isinstance(message, Snapshot):
                    self.on_snapshot(self, message)
                elif isinstance(message, Complete):
                    self.result = self.folder / "result"
                    shutil.rmtree(self.result, ignore_errors=True)
                    shutil.move(message.result, self.result)
                    self.rows = rows.read_bytes()[: message.rows_offset]
                    channel.send(Accepted(protocol.COMPLETE_ID))
        except protocol.ProtocolError:
            return


@contextlib.contextmanager
def stopping_early(supervisor: FakeSupervisor) -> Iterator[None]:
    """Every training of this process has to stop while it hands its first snapshot over, and so
    makes one step more: it does not wait for the answer, and could have made any number."""
    stop_sent = threading.Event()
    hand_over, on_snapshot = Session.hand_over, supervisor.on_snapshot

    def commit_and_stop(fake: FakeSupervisor, offered: Snapshot) -> None:
        fake.commit(offered)
        fake.push(Stop(20))
        stop_sent.set()

    def hand_over_and_await_answer(session: Session, offered: Snapshot) -> None:
        stop_sent.clear()
        hand_over(session, offered)
        assert stop_sent.wait(60)

    supervisor.on_snapshot = commit_and_stop
    setattr(Session, "hand_over", hand_over_and_await_answer)  # noqa: B010 - a type checker minds
    try:
        yield
    finally:
        setattr(Session, "hand_over", hand_over)  # noqa: B010
        supervisor.on_snapshot = on_snapshot


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[FakeSupervisor]:
    """A supervisor for the time of a test."""
    fake = FakeSupervisor(folder)
    try:
        yield fake
    finally:
        if fake._channel is not None:
            fake._channel.close()
        fake.close()
