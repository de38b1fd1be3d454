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
"""Seconds; a longer deliberate sleep gives signs of progress in between."""


class Next(Enum):
    """What follows an attempt."""

    LEAVE = "leave"
    """The run has ended."""
    STOP = "stop"
    """The machine ends, or should end, so that another one replaces it."""
    AGAIN = "again"
    """Use the boot table again."""
    WATCH = "watch"
    """Fenced: a higher term holds the run."""
    SILENT = "silent"
    """Storage has given no answer for too long, and still gives none: leave the group."""
    IDLE = "idle"
    """This machine may not leave its group, so it must not train: wait for the permission."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    next: Next
    reason: Reason
    message: str
    repeats: bool = False
    """Whether the next machine will probably fail in the same way."""


class MachineClock:
    """The clock of this machine. While nothing is worth finishing, SIGTERM ends a sleep."""

    def __init__(self, notices: Notices, sign: Callable[[], None] = lambda: None) -> None:
        """``sign`` is called during a sleep: a deliberate wait is not a stall."""
        self._notices = notices
        self._sign = sign
        self.training = False
        """Whether an attempt has something to lose, so that it watches for notices itself."""

    @property
    def unsigned(self) -> Clock:
        """The same clock without signs of progress, for waits that may never end."""
        return _Unsigned(self)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, *, sign: bool = True) -> None:
        """Sleeps. Raises Interrupted if SIGTERM comes while nothing is worth finishing."""
        until = time.monotonic() + seconds
        sleep = time.sleep if self.training else self._notices.sleep
        while True:
            if sign:
                self._sign()
            sleep(max(0.0, min(until - time.monotonic(), SLEEP_SIGN_SEC)))
            if time.monotonic() >= until:
                return


class _Unsigned:
    """A machine's clock whose sleeps give no signs of progress."""

    def __init__(self, clock: MachineClock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds, sign=False)


@dataclass(frozen=True)
class Site:
    """Everything that differs between a VM and a folder."""

    machine: Machine
    group: Membership
    notices: Notices
    listener: Listener
    work: Path
    """A folder for snapshots that only this supervisor uses."""
    make_trainer: Callable[[int], Trainer]
    """Creates the trainer of a term; called once its code is ready."""
    log_of: Callable[[int], TrainerLog | None]
    """Returns the log of a term's trainer, the same at each call; None if none is kept."""
    clock: MachineClock
    webhook: Webhook
    log_dir_of: Callable[[int], Path] | None = None
    """Returns the folder in which a term's trainer leaves files to keep with the attempt. None: a
    folder in ``work``."""
    run_id: str = ""
    """Name of the run, if the spec has none because the run is in a folder."""
    restarts: bool = True
    """Whether the supervisor can start the trainer again. In a folder the user retries with the
    same command, so a failure of the user's code does not end the run."""
    data: Cache = field(default_factory=lambda: Cache(user_cache()))
    """Cache for data from buckets."""
    scratch: tuple[Path, ...] = ()
    """More folders for snapshots that only this supervisor uses, in order, if ``work`` has no room
    for two."""
    sign: Callable[[], None] = lambda: None
    """Called for each sign of progress; the health check reads it."""
    prepare_code: Callable[[Recorded], None] = lambda recorded: None
    """Prepares the trainer's code; raises CodeRefused and CodeUnavailable."""
    machine_age_sec: Callable[[], float] = machine_age_sec
    """Returns the seconds since the machine was started."""
    console: Callable[[str], object] = lambda line: None
    """Writes a line as it is to the machine's serial port, if it has one."""
    wanted: Callable[[], bool] = lambda: True
    """Returns whether a term is still wanted: in a folder, whether the waiting trainer is alive."""
    trainer_user: TrainerUser | None = None
    """User that the trainer runs as; None: this process's own user."""
    mask: Mask = field(default_factory=Mask)
    """Applied to everything that is recorded for people; holds the trainer's secrets."""
