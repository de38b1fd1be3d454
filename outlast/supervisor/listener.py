"""Accepts trainers' connections, and passes their messages to the attempt that listens."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlast.base.clock import Clock
from outlast.protocol import (
    Channel,
    Closed,
    Error,
    Fetch,
    Hello,
    Message,
    ProtocolError,
    ServerSocket,
    Tick,
    Warn,
    greet,
)
from outlast.supervisor.secrets import Mask
from outlast.supervisor.trainer_user import TrainerUser

HELLO_SEC = 60.0
CALL_POLL_SEC = 0.2

Post = Callable[[Any], None]
"""Puts an event into the inbox of the attempt."""


@dataclass(frozen=True)
class Connected:
    channel: Channel
    hello: Hello


@dataclass(frozen=True)
class Asked:
    """A request for data on a separate connection, which is closed after the answer."""

    channel: Channel
    request: Fetch


@dataclass(frozen=True)
class MessageReceived:
    channel: Channel
    message: Message


@dataclass(frozen=True)
class Disconnected:
    channel: Channel


class Listener:
    """Accepts trainers as long as the supervisor runs, for the attempt that listens."""

    def __init__(
        self, socket_path: Path, *, mask: Mask | None = None, user: TrainerUser | None = None
    ) -> None:
        """`mask` is applied to all text that a trainer sends for people. Only `user` and root may
        connect."""
        self._mask = mask
        socket_path.parent.mkdir(parents=True, exist_ok=True)
        self.socket_path = socket_path
        self._listener = ServerSocket(socket_path)
        if user is not None:
            user.give(socket_path)
        self._post: Post | None = None
        self._open = threading.Event()
        self._called = threading.Event()
        threading.Thread(target=self._accept, name="listener", daemon=True).start()

    def listen(self, post: Post | None) -> None:
        """Passes connections and their messages to ``post``. With None, new connections wait."""
        self._post = post
        if post is None:
            self._open.clear()
        else:
            self._open.set()

    def wait_for_caller(self, clock: Clock) -> None:
        """Waits until the first connection; raises what a sleep of ``clock`` raises."""
        while not self._called.wait(CALL_POLL_SEC):
            clock.sleep(0)

    def turn_away(self, answer: Message, *, timeout_sec: float = HELLO_SEC) -> bool:
        """Answers the next trainer's hello with ``answer`` and waits until it disconnects. Returns
        whether there was one."""
        answered = False
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.listen(inbox.put)
        end = time.monotonic() + timeout_sec
        with contextlib.suppress(queue.Empty, Closed):
            while True:
                match inbox.get(timeout=max(0.0, end - time.monotonic())):
                    case Connected(channel) | Asked(channel):
                        channel.send(answer)
                        answered = True
                    case Disconnected():
                        return answered
        return answered

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                channel = self._listener.accept()
            except Closed:
                return
            self._called.set()
            if channel is not None:
                threading.Thread(target=self._read, args=(channel,), daemon=True).start()

    def _masked(self, message: Message) -> Message:
        if self._mask is None:
            return message
        match message:
            case Error(text):
                return replace(message, message=self._mask.text(text))
            case Warn(text):
                return replace(message, message=self._mask.text(text))
            case Tick(phase=phase):
                return replace(message, phase=self._mask.text(phase))
        return message

    def _read(self, channel: Channel) -> None:
        self._open.wait()
        post = self._post
        if post is None:
            channel.close()
            return
        try:
            first = greet(channel, timeout_sec=HELLO_SEC)
            if first is None:
                return
            asks = isinstance(first, Fetch)
            post(Asked(channel, first) if asks else Connected(channel, first))
            for message in channel:
                post(MessageReceived(channel, self._masked(message)))
        except ProtocolError as error:
            with contextlib.suppress(Closed):
                channel.send(Error(str(error), "protocol"))
        finally:
            channel.close()
            post(Disconnected(channel))
