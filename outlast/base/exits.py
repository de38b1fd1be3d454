"""Exit codes, states of a run and reasons of an end: closed lists that all parts share.

The shell uses the same words: `startup/` writes reasons into boot records, and a test compares the
two lists. Standard library only.
"""

from enum import StrEnum

DONE = 0
"""The trainer declared completion and the supervisor accepted it."""
USAGE = 64
"""Bad flags or configuration; the same input fails again, so it is never retried."""
INTERRUPTED = 75
"""Stopped on request between two steps; the next attempt continues the run."""
FENCED = 76
"""A higher term holds the run; this process changed nothing after that."""
CTRL_C = 130
"""A command that Ctrl-C ended, as shells report it."""
OUT_OF_MEMORY = 137
"""Killed by SIGKILL while the machine keeps running: the kernel ran out of memory."""

MAX_NO_PROGRESS = 10
"""The run ends after so many terms without progress, driver or restore errors, or boots without an
attempt, in a row.
"""

BOOT_SEC = 1800
"""Seconds after which a VM without an attempt is late: health checks begin, and status says that it
never started.
"""


class State(StrEnum):
    """The state of a run in HEAD."""

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
    RESTORE_ERROR = "restore-error"
    USER_FAILED = "user-failed"
    USAGE = "usage"
    OUT_OF_MEMORY = "out-of-memory"
    DOES_NOT_FIT = "does-not-fit"
    LIMIT = "limit"
    EXPIRED = "expired"
    BUDGET = "budget"
    STALLED = "stalled"
    NO_PROGRESS = "no-progress"
    DATA_CHANGED = "data-changed"
    NO_OUTPUT = "no-output"
    RESULT_TOO_LARGE = "result-too-large"
    STOPPED = "stopped"
    PRUNED = "pruned"
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
"""Ends that the user's input causes and would cause again: they end the run at once."""

NO_PROGRESS_REASONS = frozenset({Reason.DRIVER, Reason.RESTORE_ERROR, Reason.SETUP_FAILED})
"""Ends that count as no progress however short the attempt was."""

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
        Reason.STOPPED,
        Reason.STUCK_LEAVING,
    }
)
"""Ends of a boot that never held the term, for `boots/….end.json`."""


def reason_of_exit(code: int) -> Reason:
    """The reason for a trainer's exit code, if the machine keeps running.

    The caller checks first for a declared completion, a forwarded signal or a stopping machine. A
    negative code is a signal, as `subprocess` reports it.
    """
    if code == USAGE:
        return Reason.USAGE
    if code == INTERRUPTED:
        return Reason.INTERRUPTED
    if code in (OUT_OF_MEMORY, -9):
        return Reason.OUT_OF_MEMORY
    return Reason.USER_FAILED
