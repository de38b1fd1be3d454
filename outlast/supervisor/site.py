"""The site of attempts: everything that differs between a VM and a folder."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from outlast.base.clock import Clock
from outlast.base.exits import Reason
from outlast.bucket.data import Cache, user_cache
from outlast.supervisor.group import Membership
from outlast.supervisor.kept_wheels import Recorded
from outlast.supervisor.listener import Listener
from outlast.supervisor.metadata import Machine, machine_age_sec
from outlast.supervisor.notice import Notices
from outlast.supervisor.process import Trainer
from outlast.supervisor.secrets import Mask
from outlast.supervisor.trainer_log import TrainerLog
from outlast.supervisor.trainer_user import TrainerUser
from outlast.supervisor.webhook import Webhook

SLEEP_SIGN_SEC = 10.0
"""A longer sleep on purpose gives a sign of life in between."""


class Next(Enum):
    """What follows an attempt."""

    LEAVE = "leave"
    """The run has ended."""
    STOP = "stop"
    """The machine ends, or should, so that another takes its place."""
    AGAIN = "again"
    """Go through the table at boot."""
    WATCH = "watch"
    """Fenced: a higher term holds the run."""
    IDLE = "idle"
    """This machine may not leave its group, so it must not train: wait for the permission."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    next: Next
    reason: Reason
    message: str
    repeats: bool = False
    """Whether the next machine must be expected to meet the same."""


class MachineClock:
    """Time of this machine. While nothing is worth finishing, a sleep ends with SIGTERM."""

    def __init__(self, notices: Notices, sign: Callable[[], None] = lambda: None) -> None:
        """``sign`` is called while it sleeps: who waits on purpose is not stuck."""
        self._notices = notices
        self._sign = sign
        self.training = False
        """Whether an attempt would lose something, so that it watches for notices itself."""

    @property
    def unsigned(self) -> Clock:
        """The same clock for who waits for something that may never come: it gives no signs."""
        return _Unsigned(self)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, *, sign: bool = True) -> None:
        """Raises Interrupted where SIGTERM came and nothing is worth finishing."""
        until = time.monotonic() + seconds
        sleep = time.sleep if self.training else self._notices.sleep
        while True:
            if sign:
                self._sign()
            sleep(max(0.0, min(until - time.monotonic(), SLEEP_SIGN_SEC)))
            if time.monotonic() >= until:
                return


class _Unsigned:
    """A machine's clock whose sleeps are no signs of progress."""

    def __init__(self, clock: MachineClock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds, sign=False)


@dataclass(frozen=True)
class Site:
    """Where attempts happen: all that differs between a VM and a folder."""

    machine: Machine
    group: Membership
    notices: Notices
    listener: Listener
    work: Path
    """A folder for snapshots, this supervisor's alone."""
    make_trainer: Callable[[int], Trainer]
    """The trainer of a term; asked once its code is ready."""
    log_of: Callable[[int], TrainerLog | None]
    """The log of a term's trainer, the same at each call; None if none is kept."""
    clock: MachineClock
    webhook: Webhook
    log_dir_of: Callable[[int], Path] | None = None
    """Where a term's trainer leaves files to be kept with the attempt; None for in ``work``."""
    run_id: str = ""
    """Name of the run, where the spec has none because it is in a folder."""
    restarts: bool = True
    """Whether an attempt that ended for a reason of the user's own ends the run; in a folder
    starting the command again is the retry."""
    data: Cache = field(default_factory=lambda: Cache(user_cache()))
    """Where data of buckets is fetched to."""
    scratch: tuple[Path, ...] = ()
    """Other folders for snapshots, this supervisor's alone, in order, where ``work`` has no room
    for two."""
    sign: Callable[[], None] = lambda: None
    """Called for each sign of progress; the health check reads it."""
    prepare_code: Callable[[Recorded], None] = lambda recorded: None
    """Makes ready what the trainer is started from; raises CodeRefused and CodeUnavailable."""
    machine_age_sec: Callable[[], float] = machine_age_sec
    """Since the machine was started."""
    wanted: Callable[[], bool] = lambda: True
    """Whether a term is still wanted: in a folder, whether the trainer that waits for it lives."""
    trainer_user: TrainerUser | None = None
    """Whom the trainer runs as; None: as this process does."""
    mask: Mask = field(default_factory=Mask)
    """Laid over all that is recorded for people: it holds the trainer's secrets."""
