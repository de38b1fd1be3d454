"""The end of an attempt: the outcome of an error, and the end record."""

import contextlib
import logging
import os
import time
import traceback
from dataclasses import replace
from pathlib import Path

from outlast.base import scratch_space
from outlast.base.console import reason_of_crash
from outlast.base.exits import Reason, State
from outlast.base.retry import Patience
from outlast.bucket.commit import Committer
from outlast.bucket.errors import RestoreError
from outlast.bucket.head import (
    Fenced,
    Head,
    HeadEnded,
    HeadError,
    HeadForbidden,
    HeadLost,
    HeadMoved,
    HeadOtherFormat,
    HeadUnreadable,
)
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import AttemptEnd
from outlast.bucket.store import StoreError, Throttled, Unavailable, put_new
from outlast.spec.run_spec import RunSpec
from outlast.supervisor.announcements import Announcements
from outlast.supervisor.notice import Interrupted, Notices
from outlast.supervisor.site import Next, Outcome, Site

_log = logging.getLogger(__name__)

END_RECORD_SEC = 10.0
"""Seconds to retry the end record if a person waits, if the store already failed for too long, or
if a higher term holds the run."""

ENDING_ERRORS = (HeadError, RestoreError, StoreError, OSError, Interrupted)
"""Errors that have an outcome: those of HEAD, the store, the disk and a notice."""


class Ending:
    """How one attempt ends."""

    def __init__(
        self, spec: RunSpec, head_file: HeadFile, site: Site, committer: Committer
    ) -> None:
        self._spec = spec
        self._head_file = head_file
        self._site = site
        self._committer = committer
        self._gave_up = False
        """Whether the store did not answer within its time."""

    # -- what an error means ------------------------------------------------------------------

    def outcome_of(self, error: Exception, *, trained: bool) -> Outcome:
        """The outcome of an attempt that one of ENDING_ERRORS ended; ``trained``: whether its
        trainer had started.
        """
        match error:
            case Fenced():
                return Outcome(Next.WATCH, Reason.FENCED, str(error))
            case HeadEnded():
                end = error.head.end
                reason = end.reason if end is not None else Reason.ENDED
                return Outcome(Next.LEAVE, reason, str(error))
            case HeadError():
                return Outcome(Next.AGAIN, _reason_of(error), str(error))
            case RestoreError():
                return Outcome(Next.STOP, Reason.RESTORE_ERROR, str(error))
            case StoreError():
                silent = isinstance(error, Throttled | Unavailable)
                self._gave_up = silent
                what = "the store does not answer" if silent else "the store refuses"
                return self._host_error(f"{what}: {error}", repeats=not silent)
            case OSError():
                message = self._disk_message(error)
                if error.errno in scratch_space.FULL and not trained:
                    # No VM of this machine type has enough room; ten such ends in a row end the
                    # run.
                    return Outcome(Next.STOP, Reason.RESTORE_ERROR, message)
                return self._host_error(message, repeats=True)
            case Interrupted():
                reason = reason_of_notice(self._site.notices)
                return Outcome(Next.STOP, reason, "stopped before it trained")
        raise error

    def crashed(self, error: Exception) -> Outcome:
        """The outcome of an unexpected error: a fault of the supervisor."""
        _log.info(f"the supervisor crashed: {''.join(traceback.format_exception(error))}")
        message = f"the supervisor crashed: {reason_of_crash(error)}"
        return self._host_error(message, repeats=True)

    def _host_error(self, message: str, *, repeats: bool) -> Outcome:
        """This machine cannot continue; another one may. A stopping machine has its own reason."""
        stopping = self._site.notices.stopping
        reason = Reason.HOST_ERROR if stopping is None else stopping.reason
        return Outcome(Next.STOP, reason, message, repeats=repeats and stopping is None)

    def _disk_message(self, error: OSError) -> str:
        # A store in a folder names that folder; errors of files written here mostly name no file.
        work = self._site.work
        named = Path(os.fsdecode(error.filename)) if error.filename else None
        message = str(error) if named else f"files in {work}: {error}"
        if error.errno not in scratch_space.FULL:
            return message
        sizes = []
        if self._committer.restore_bytes is not None:
            sizes.append(f"the checkpoint needs {self._committer.restore_bytes} bytes")
        folders = [named] if named and named.is_dir() else [work, *self._site.scratch]
        with contextlib.suppress(OSError):
            sizes.append(scratch_space.describe(folders))
        return "; ".join([message, ", ".join(sizes), "make room or choose a larger machine"])

    # -- the record ---------------------------------------------------------------------------

    def state(self, outcome: Outcome) -> State:
        """The run's state after this attempt: as HEAD says after an end, if it can be read, else
        open."""
        if outcome.next is Next.LEAVE:
            with contextlib.suppress(HeadError, StoreError):
                return self._head_file.fresh().read().head.state
        return State.OPEN

    def record(self, end: AttemptEnd, outcome: Outcome) -> Outcome:
        """Writes the end record, with the store's time, and announces the end. No other attempt
        writes a record of this name, so it is harmless even when fenced.

        Returns the outcome; SILENT if the store had not answered for too long and takes no record
        either: then another machine would wait for it in vain.
        """
        store, layout = self._head_file.store, self._head_file.layout
        patience = self._patience(outcome)
        mask = self._site.mask.text
        end = replace(end, message=mask(end.message), stderr=tuple(map(mask, end.stderr)))
        try:
            now = patience(store.now)
            data = replace(end, time=now).to_json()
            put_new(store, layout.attempt_end(end.term), data, patience=patience)
        except (StoreError, OSError) as error:
            _log.info(f"the end of term {end.term} was not recorded: {error}")
            silent = self._gave_up and isinstance(error, Throttled | Unavailable)
            if silent and self._site.restarts and self._site.notices.stopping is None:
                outcome = replace(outcome, next=Next.SILENT)
        Announcements(self._spec, layout, self._site).ended(end)
        return outcome

    def _patience(self, outcome: Outcome) -> Patience:
        """The patience for the end record. A stopping machine has at most until its end."""
        patience, stopping = self._head_file.patience.fresh(), self._site.notices.stopping
        if stopping is not None:
            return patience.within(max(0.0, stopping.until - time.monotonic()))
        brief = self._gave_up or not self._site.restarts or outcome.next is Next.WATCH
        return patience.within(END_RECORD_SEC) if brief else patience


def reason_of_notice(notices: Notices) -> Reason:
    """The reason that the machine gives for its end; INTERRUPTED if it gives none, since SIGTERM
    alone names no reason."""
    stopping = notices.look()
    return stopping.reason if stopping is not None else Reason.INTERRUPTED


def _reason_of(error: HeadError) -> Reason:
    if isinstance(error, HeadLost):
        return Reason.LOST
    if isinstance(error, HeadUnreadable | HeadOtherFormat):
        return Reason.UNREADABLE
    if isinstance(error, HeadForbidden):
        return Reason.FORBIDDEN
    if isinstance(error, HeadMoved):
        return Reason.FENCED
    return Reason.INTERRUPTED


def ended_head(head: Head) -> str:
    """A clause that says how a run has ended."""
    end = head.end
    if end is None:
        return "the run is open"
    if head.state is State.DONE:
        why = f" ({end.why})" if end.why else ""
        return f"this run is done, at step {end.step}{why}"
    return f"this run has {head.state}: {end.reason} at step {end.step}"
