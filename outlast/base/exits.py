"""Exit codes, states of a run and reasons of an end: the closed lists that every part agrees on.

The shell reads the same words: `startup/` writes reasons into boot records, and a test holds the
two lists together. Standard library only.
"""

from enum import StrEnum

DONE = 0
"""The trainer declared completion and the supervisor accepted it."""
USAGE = 64
"""Bad flags or configuration; the same input fails again, so it is never retried."""
INTERRUPTED = 75
"""Stopped on request between two steps; the run goes on in its next attempt."""
FENCED = 76
"""A higher term holds the run; this process changed nothing after that."""
CTRL_C = 130
"""A command on somebody's own machine that Ctrl-C has ended, as shells have it."""
OUT_OF_MEMORY = 137
"""Killed by SIGKILL on a machine that lives on: the kernel's answer to too much memory."""

MAX_NO_PROGRESS = 10
"""Terms without progress, driver or restore errors, or boots without an attempt, in a row: the run
ends."""

BOOT_SEC = 1800
"""A VM that has come to no attempt by then is late: its health is asked for, and status says that
it never started."""


class State(StrEnum):
    """What HEAD says about a run."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    PRUNED = "pruned"

    @property
    def ended(self) -> bool:
        """Whether no attempt may work on the run any more."""
        return self is not State.OPEN


class Reason(StrEnum):
    """Why a run, an attempt or a boot ended."""

    DONE = "done"
    PREEMPTED = "preempted"
    HOST_ERROR = "host-error"
    VM_LOST = "vm-lost"
    INTERRUPTED = "interrupted"
    MAINTENANCE = "maintenance"
    NEVER_STARTED = "never-started"
    SETUP_FAILED = "setup-failed"
    DRIVER = "driver"
    NO_CAPACITY = "no-capacity"
    RESTORE_ERROR = "restore-error"
    USER_FAILED = "user-failed"
    USAGE = "usage"
    OUT_OF_MEMORY = "out-of-memory"
    DOES_NOT_FIT = "does-not-fit"
    LIMIT = "limit"
    EXPIRED = "expired"
    STALLED = "stalled"
    NO_PROGRESS = "no-progress"
    DATA_CHANGED = "data-changed"
    NO_OUTPUT = "no-output"
    RESULT_TOO_LARGE = "result-too-large"
    STOPPED = "stopped"
    FENCED = "fenced"
    REFUSED = "refused"
    SUPERSEDED = "superseded"
    ENDED = "ended"
    FORBIDDEN = "forbidden"
    UNREADABLE = "unreadable"
    LOST = "lost"
    OTHER_OWNER = "other-owner"
    STUCK_LEAVING = "stuck-leaving"


INFRASTRUCTURE_REASONS = frozenset(
    {
        Reason.PREEMPTED,
        Reason.HOST_ERROR,
        Reason.VM_LOST,
        Reason.INTERRUPTED,
        Reason.MAINTENANCE,
        Reason.NEVER_STARTED,
        Reason.SETUP_FAILED,
        Reason.DRIVER,
        Reason.NO_CAPACITY,
        Reason.RESTORE_ERROR,
    }
)
"""Ends that never count against the user."""

RETRIED_USER_REASONS = frozenset({Reason.USER_FAILED, Reason.OUT_OF_MEMORY, Reason.STALLED})
"""Ends that count against `retriesFailures` and are retried while it lasts."""

FINAL_USER_REASONS = frozenset(
    {
        Reason.USAGE,
        Reason.DOES_NOT_FIT,
        Reason.DATA_CHANGED,
        Reason.NO_OUTPUT,
        Reason.RESULT_TOO_LARGE,
    }
)
"""Ends of the user's own making that the same input meets again: they end the run at once."""

NO_PROGRESS_REASONS = frozenset({Reason.DRIVER, Reason.RESTORE_ERROR, Reason.SETUP_FAILED})
"""Ends that count as no progress however short the attempt lived."""

BOOT_REASONS = frozenset(
    {
        Reason.NEVER_STARTED,
        Reason.SETUP_FAILED,
        Reason.DRIVER,
        Reason.HOST_ERROR,
        Reason.FORBIDDEN,
        Reason.UNREADABLE,
        Reason.LOST,
        Reason.OTHER_OWNER,
        Reason.SUPERSEDED,
        Reason.ENDED,
        Reason.LIMIT,
        Reason.NO_PROGRESS,
        Reason.RESTORE_ERROR,
        Reason.FENCED,
        Reason.REFUSED,
        Reason.STUCK_LEAVING,
    }
)
"""Ends of a boot that never held the term, for `boots/….end.json`."""

SHELL_BOOT_REASONS = frozenset(
    {Reason.NEVER_STARTED, Reason.SETUP_FAILED, Reason.FORBIDDEN, Reason.STUCK_LEAVING}
)
"""The part of BOOT_REASONS that the startup scripts themselves may write."""

SUPERVISOR_EXITS = frozenset({DONE, USAGE, INTERRUPTED, FENCED})
"""Exit codes with which a supervisor ends on purpose; any other is its own crash."""


def reason_of_exit(code: int) -> Reason:
    """The reason that a trainer's exit code stands for on a machine that lives on.

    The caller decides what goes before: a declared completion, a forwarded signal, a stopping
    machine. A negative code is a signal, as `subprocess` reports it.
    """
    if code == USAGE:
        return Reason.USAGE
    if code == INTERRUPTED:
        return Reason.INTERRUPTED
    if code in (OUT_OF_MEMORY, -9):
        return Reason.OUT_OF_MEMORY
    return Reason.USER_FAILED
