"""`outlast dev sync`: keeps code on the VM of an experiment up to date, and restarts a development
run with it, until Ctrl-C.
"""

import codecs
import logging
import secrets
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from outlast.base import numbers
from outlast.base.exits import State
from outlast.base.visible import visible
from outlast.bucket.head import HeadError
from outlast.bucket.store import StoreError
from outlast.cli.dev.channel import Channel, Lost
from outlast.cli.dev.source import Sign, Source, digest_of
from outlast.cli.dev.vms import Way
from outlast.cli.endpoint import check_local_cloud
from outlast.cli.errors import OperateError, UsageError
from outlast.cli.stack import Deployed

LOOK_SEC = 0.5
"""Seconds between two looks at the folder."""
QUIET_SEC = 0.3
"""Seconds without a change after which a series of writes is over."""
BUSY_SEC = 5.0
"""Seconds after which a folder that keeps changing is synced anyway."""
AGAIN_SEC = 2.0
PLANNED = 500
"""Names in one message."""
TRIES = 3
"""Failed connections in a row that end a command which had none yet."""

_log = logging.getLogger(__name__)


@dataclass
class Sync:
    """One command."""

    deployed: Deployed
    way: Way
    source: Source
    destination: str
    share_gpu: bool

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._session = secrets.token_hex(8)
        self._said = ""
        self._connected = False

    def run(self) -> NoReturn:
        """Runs until Ctrl-C. Raises UsageError for a folder that cannot be synced, OperateError if
        there is no way to the VM."""
        self.source.kinds(self.source.look())
        failures = 0
        while True:
            where = "the group"
            try:
                vm = self.way.vm()
                if vm is None:
                    self.say_once("the group has no VM now; waiting for one")
                else:
                    where = f"VM {vm.name}"
                    with self.way.connect(vm) as channel:
                        found = channel.begin(destination=self.destination, session=self._session)
                        files = found.get("files")
                        if not isinstance(files, dict):
                            raise Lost(
                                "answers with something other than the agent's list of files"
                            )
                        failures, self._connected = 0, True
                        self.say_once(f"{where}: code goes to {found.get('path')}")
                        _Follower(self, channel, files).follow()
            except Lost as error:
                failures += 1
                if failures >= TRIES and not self._connected:
                    way = "on Google, set outlast:ssh to iap, and check that outlast ssh can log in"
                    raise OperateError(f"{where}: {error}; {way}") from None
                check_local_cloud()
                self.say_once(f"{where}: {error}; looking for a VM again")
            time.sleep(AGAIN_SEC)

    def show(self, data: bytes) -> None:
        """Shows what the development run printed."""
        sys.stdout.write(visible(self._decoder.decode(data)))
        sys.stdout.flush()

    def may_share(self) -> bool:
        """Whether the development run may use GPUs that the VM's own run may use, too."""
        if self.share_gpu:
            return True
        try:
            head = self.deployed.head_file().read().head
        except (HeadError, StoreError, OperateError):
            return False
        return head.state is not State.OPEN

    def say_once(self, sentence: str) -> None:
        """Logs a sentence unless it was the last one."""
        if sentence != self._said:
            self._said = sentence
            _log.info(sentence)


class _Follower:
    """Follows the folder over one connection. Raises Lost and UsageError."""

    def __init__(self, sync: Sync, channel: Channel, there: dict[str, str]) -> None:
        self._sync = sync
        self._source = sync.source
        self._channel = channel
        self._there = dict(there)
        """What the VM has, as far as it was sent."""
        self._running = ""
        """The digest of the code that was started."""
        self._start_at = 0.0
        """When to try to start again; 0 if there is no need."""
        self._refusals = 0

    def follow(self) -> None:
        seen: dict[str, Sign] | None = None
        look_at = 0.0
        while True:
            if time.monotonic() >= look_at:
                now = self._look()
                if now is not None and now != seen:
                    now = self._settled(now)
                    seen = now if self._send(now) else None
                look_at = time.monotonic() + (LOOK_SEC if seen is not None else AGAIN_SEC)
            if self._start_at and time.monotonic() >= self._start_at:
                self._start()
            self._hear(LOOK_SEC)

    def _look(self) -> dict[str, Sign] | None:
        """The folder as it is; None if what is there now must not leave this machine."""
        try:
            return self._source.look()
        except UsageError as error:
            self._sync.say_once(f"{error}; nothing is synced until then")
            return None

    def _settled(self, now: dict[str, Sign]) -> dict[str, Sign]:
        """The folder once it has been quiet for a moment: editors and git write several files."""
        until = time.monotonic() + BUSY_SEC
        while time.monotonic() < until:
            self._hear(QUIET_SEC)
            later = self._look()
            if later is None or later == now:
                break
            now = later
        return now

    def _send(self, seen: dict[str, Sign]) -> bool:
        """Sends what differs, then starts the development run if the code has changed. False if it
        did not all arrive."""
        try:
            kinds = self._source.kinds(seen)
            changed = [name for name, kind in kinds.items() if self._there.get(name) != kind]
            gone = [name for name in self._there if name not in kinds]
            for name in sorted(gone, reverse=True):
                self._channel.send("delete", path=name)
                del self._there[name]
            for at in range(0, len(changed), PLANNED):
                self._channel.send("plan", paths=changed[at : at + PLANNED])
            for name in sorted(changed):
                self._send_one(name, kinds)
        except UsageError as error:
            self._sync.say_once(f"{error}; nothing is synced until then")
            return True  # Another look at the same files would find the same.
        self._refusals = 0
        self._channel.send("synced")
        while self._hear(AGAIN_SEC) != "synced":
            pass
        if self._refusals:
            return False
        if changed or gone:
            _log.info(_count(changed, gone))
        # A file that was written while it was read has another sign at the next look.
        code = digest_of(kinds)
        if code != self._running:
            self._running = code
            self._start()
        return True

    def _send_one(self, name: str, kinds: dict[str, str]) -> None:
        file = self._source.read(name)
        if file is None:
            kinds.pop(name)
            return
        kinds[name] = file.kind
        self._there[name] = file.kind
        if file.target is not None:
            self._channel.send("link", path=name, target=file.target)
            return
        sha256 = file.kind.removesuffix("x")
        self._channel.send(
            "file",
            file.data,
            path=name,
            size=len(file.data),
            sha256=sha256,
            executable=file.kind.endswith("x"),
        )

    def _start(self) -> None:
        self._start_at = 0.0
        self._channel.send("start", code=self._running, share=self._sync.may_share())

    def _hear(self, timeout_sec: float) -> str:
        """Handles one message, or none within the time; returns its kind."""
        message, payload = self._channel.receive(timeout_sec)
        kind = str(message.get("kind", ""))
        if kind == "output":
            self._sync.show(payload)
        elif kind == "ended":
            _log.info(f"the dev run ended with exit code {message.get('code')}")
        elif kind == "refused":
            self._refused(message)
        return kind

    def _refused(self, message: dict[str, Any]) -> None:
        why = str(message.get("why"))
        if message.get("again"):
            self._start_at = time.monotonic() + AGAIN_SEC
        if path := message.get("path"):
            self._there.pop(str(path), None)
            self._refusals += 1
        self._sync.say_once(f"VM: {why}")


def _count(changed: list[str], gone: list[str]) -> str:
    sent = f"{numbers.count(len(changed), 'file')} sent"
    return f"{sent}, {len(gone)} deleted" if gone else sent
