"""The lock of a sweep: one object in the bucket, with its holder and a heartbeat.

Two `outlast sweep up` of one sweep, on any machines, would start trials twice and count the budget
wrongly. The heartbeat lets another machine take over after a crash; on the same machine a dead
holder is seen at once.
"""

import getpass
import logging
import os
import secrets
import socket
import threading
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import Self

from outlast.base.codec import Record
from outlast.base.process_tree import is_alive
from outlast.bucket.store import (
    NotFound,
    Object,
    PreconditionFailed,
    StoreError,
    delete_quietly,
    put_new,
)
from outlast.bucket.sweeps import SweepObjects
from outlast.cli.errors import OperateError

_log = logging.getLogger(__name__)

HEARTBEAT_SEC = 15.0
STALE_SEC = 90.0
"""After so long without a heartbeat the holder counts as dead."""


class Busy(OperateError):
    """Another process works on the sweep."""


@dataclass(frozen=True)
class LockRecord(Record):
    """`LOCK`: the process that works on the sweep."""

    user: str
    host: str
    pid: int
    nonce: str
    time: datetime


class SweepLock:
    """The lock, held from `take` to the end of its block."""

    def __init__(self, objects: SweepObjects) -> None:
        self._store = store = objects.store
        self._path = objects.lock
        self._sweep = objects.name
        self._record = LockRecord(
            _user(), socket.gethostname(), os.getpid(), secrets.token_hex(8), store.now()
        )
        self._held: Object | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self.lost = threading.Event()
        """Set if another process has taken the lock."""

    def take(self) -> None:
        """Raises Busy, and NotFound if there is no bucket yet."""
        try:
            data, found = self._store.get(self._path)
        except NotFound:
            replaces = 0
        else:
            self._check_free(data, found)
            replaces = found.generation
        try:
            self._held = put_new(self._store, self._path, self._record.to_json(), replaces=replaces)
        except PreconditionFailed:
            raise Busy(
                f"sweep {self._sweep}: another outlast sweep has just begun to work on it; {_WAIT}"
            ) from None
        self._thread.start()

    def check(self) -> None:
        """Raises Busy if another process has taken the lock."""
        if self.lost.is_set():
            raise Busy(
                f"sweep {self._sweep}: another outlast sweep has taken over, so not everything was"
                f" done here; {_WAIT}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._held is not None and not self.lost.is_set():
            delete_quietly(self._store, self._path, self._held.generation)

    def _check_free(self, data: bytes, found: Object) -> None:
        """Raises Busy if the holder may live."""
        age = (self._store.now() - found.updated).total_seconds()
        try:
            holder = LockRecord.from_json(data)
        except ValueError as error:
            if age > STALE_SEC:
                return
            raise Busy(f"{self._path}: {error}") from None
        if age > STALE_SEC or (holder.host == socket.gethostname() and not is_alive(holder.pid)):
            _log.info(
                f"sweep {self._sweep}: {holder.user}@{holder.host} (pid {holder.pid}) ended without"
                " releasing its lock, which is taken over"
            )
            return
        raise Busy(
            f"sweep {self._sweep}: {_WORKS} it: {holder.user}@{holder.host}, pid {holder.pid}, last"
            f" heartbeat {max(age, 0):.0f} s ago; {_WAIT}"
        )

    def _keep(self) -> None:
        while not self._over.wait(HEARTBEAT_SEC):
            held = self._held
            assert held is not None
            try:
                fresh = replace(self._record, time=self._store.now())
                self._held = put_new(
                    self._store, self._path, fresh.to_json(), replaces=held.generation
                )
            except (PreconditionFailed, NotFound):
                _log.warning(
                    f"sweep {self._sweep}: another process has taken over; nothing more is started"
                )
                self.lost.set()
                return
            except StoreError as error:
                _log.warning(f"sweep {self._sweep}: its lock cannot be written ({error})")


_WORKS = "another outlast sweep works on"
_WAIT = "wait until it has ended, and run this again."


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
