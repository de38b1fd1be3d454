"""The life of a machine in a run: the boot table, attempts, watching a successor, leaving."""

import contextlib
import functools
import logging
from dataclasses import dataclass

from outlast import protocol
from outlast.base import exits
from outlast.base.exits import Reason, State
from outlast.base.numbers import duration
from outlast.bucket.boot import Act, Claim, Decision, silent_seconds
from outlast.bucket.fetch import deliver
from outlast.bucket.head import Fenced, Head, HeadError, HeadForbidden, Reading
from outlast.bucket.head import NotMember as TermRefused
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import AttemptEnd, BootEnd, Layout
from outlast.bucket.records import read_record
from outlast.bucket.store import (
    Store,
    StoreError,
    Throttled,
    Unavailable,
    put_new,
)
from outlast.spec import permissions
from outlast.spec.identity import COMMAND
from outlast.spec.run_spec import RunSpec, Timeouts
from outlast.supervisor.announcements import Announcements
from outlast.supervisor.attempt import Attempt
from outlast.supervisor.ending import END_RECORD_SEC, ended_head
from outlast.supervisor.group import (
    Member,
    NoGroup,
    NotMember,
    Stranded,
    Unknown,
    asking,
    leave_until_deleted,
)
from outlast.supervisor.listener import Listener
from outlast.supervisor.site import Next, Outcome, Site

_log = logging.getLogger(__name__)

FAILED = 1
WATCH_SEC_MIN = 0.2
KEEP_RESULT_SEC = 3600.0
"""Seconds that a machine stays if its command's result is too large to keep."""
KEEP_MARGIN_SEC = 120.0
"""A kept machine leaves this many seconds before the run's limit."""


@dataclass(frozen=True)
class Boot:
    """This boot of a machine, and the run that it is for."""

    spec: RunSpec
    head_file: HeadFile
    site: Site
    records: bool
    """Whether this machine has boot records."""
    run_dir: str = ""
    """The run's folder or `gs://` path, if there is no VM."""

    @property
    def announcements(self) -> Announcements:
        """Those of this machine."""
        return Announcements(self.spec, self.head_file.layout, self.site)


def supervise(boot: Boot) -> int:
    """Follows the boot table until this machine's work ends; returns the exit code."""
    try:
        return _follow_table(boot)
    except Stranded as error:
        _log.info(
            f"without a token this VM cannot leave its group, which will recreate it: {error}"
        )
        return exits.INTERRUPTED


def _follow_table(boot: Boot) -> int:
    spec, site, timeouts = boot.spec, boot.site, boot.spec.timeouts
    claim = Claim(spec.owner, spec.resume, spec.placement, spec.deadline)
    took = False
    while True:
        # A fresh one for each term: a commit of the previous term may still be running in its
        # thread.
        head_file = boot.head_file.fresh()
        try:
            decision = head_file.take_term(
                claim,
                still_member=lambda: _still_member(site, timeouts),
                orphaned=lambda: _orphaned(site, timeouts),
                wanted=site.wanted,
                forbidden_seconds=timeouts.iam_propagation,
            )
        except TermRefused as error:
            _log.info(str(error))
            if not took:
                record_boot_end(boot, Reason.FENCED, exits.FENCED, str(error))
            return exits.FENCED
        except (Throttled, Unavailable):
            if not (boot.records and _is_silent(head_file)):
                raise
            return _leave_silence(boot)
        if decision.act is not Act.TAKE:
            return _go_away(boot, decision, took)
        if boot.records:  # in a folder terms are not shown, and the attempt logs its start
            _log.info(decision.message)
        took = True
        outcome = Attempt(spec, head_file, site).run()
        match outcome.next:
            case Next.LEAVE:
                return _end_of_run(boot, outcome)
            case Next.STOP if boot.records:
                return exits.INTERRUPTED
            case Next.STOP | Next.AGAIN if not boot.records:
                return _end_in_folder(site, outcome)
            case Next.SILENT:
                return _leave_silence(boot)
            case Next.AGAIN:
                code = None
            case Next.IDLE:
                code = _wait_for_permission(boot, head_file)
            case Next.WATCH:
                code = _watch_successor(boot)
        if code is not None:
            return code


def _still_member(site: Site, timeouts: Timeouts) -> bool:
    """Whether this machine may take a term; waits while that is unknown."""
    if isinstance(site.group, NoGroup):
        return True
    for answer in asking(site.group.membership, backoff_sec=timeouts.backoff, clock=site.clock):
        if isinstance(answer, Member):
            return True
        if isinstance(answer, NotMember):
            _log.info(answer.why)
            break
        _log.info(f"not known whether still a member ({answer.why}); asking again")
    return False


def _orphaned(site: Site, timeouts: Timeouts) -> str:
    """Why this machine may not begin a term: its group was deleted, or has replaced it. Empty if it
    is a member, and also if the group cannot be asked: permissions may still be spreading.

    Asks twice before it says so, because the list may not have a VM that was just created yet."""
    if isinstance(site.group, NoGroup):
        return ""
    answer = site.group.membership()
    if isinstance(answer, NotMember):
        _log.info(f"{answer.why}; asking again")
        site.clock.sleep(timeouts.backoff)
        answer = site.group.membership()
    if isinstance(answer, NotMember):
        return answer.why
    if isinstance(answer, Unknown):
        _log.info(f"not known whether still a member ({answer.why}); continues as one")
    return ""


def _is_silent(head_file: HeadFile) -> bool:
    """Whether storage, which has been silent for long, still gives no answer."""
    patience = head_file.patience.fresh().within(END_RECORD_SEC)
    try:
        patience(lambda: head_file.store.stat(head_file.layout.head))
    except (Throttled, Unavailable):
        return True
    except StoreError:
        return False
    return False


def _leave_silence(boot: Boot) -> int:
    """Leaves the group because storage gives no answer, so that the next VM would fail too."""
    silence_sec = boot.spec.timeouts.silence
    message = (
        f"{boot.head_file.store.url}: no answer for {duration(silence_sec)}, so this VM "
        "leaves its group; once storage answers, `outlast resume` and `outlast up` continue the run"
    )
    _stuck(boot, Reason.HOST_ERROR, message)
    _leave(boot)
    return exits.DONE


def _deliver(boot: Boot) -> bool:
    """Copies the result to `model_output_path`; each boot of a finished run tries. Returns False if
    the copy is not complete."""
    output = boot.spec.model_output_path
    if not output:
        return True
    try:
        head = boot.head_file.read().head
    except (HeadError, StoreError) as error:
        _log.info(f"model-output-path {output}: not written ({error})")
        return False
    store = boot.head_file.store
    return deliver(store, head, output, boot.site.work, boot.head_file.patience)


def _go_away(boot: Boot, decision: Decision, took: bool) -> int:
    """Logs why this boot has no part in the run, and leaves the group."""
    done = decision.head is not None and decision.head.state is State.DONE
    delivered = not done or _deliver(boot)
    if not boot.records:
        return _turn_away(boot, decision, delivered=delivered)
    _log.info(decision.message)
    if not took:
        reason = decision.reason or Reason.ENDED
        record_boot_end(boot, reason, exits.DONE, decision.message)
    if decision.act is Act.END and decision.head is not None:
        boot.announcements.ended_at_boot(decision.head, decision.message)
    elif decision.act is Act.REFUSE and decision.reason is not None:
        boot.announcements.stuck(decision.reason, decision.message)
    _leave(boot)
    return exits.DONE


def _turn_away(boot: Boot, decision: Decision, *, delivered: bool) -> int:
    """Tells the waiting trainer of a folder why it must not train; returns the exit code."""
    site, head = boot.site, decision.head
    if decision.reason is Reason.OTHER_OWNER:
        return refuse(site.listener, _others_folder(boot, decision))
    # Without a stack nothing counts resumes and placements, so a HEAD that does is damaged too.
    if decision.reason in (Reason.LOST, Reason.UNREADABLE, Reason.SUPERSEDED):
        return refuse(site.listener, _damaged_folder(boot, decision))
    if decision.act is Act.REFUSE or head is None or not head.state.ended:
        site.listener.turn_away(protocol.Error(decision.message, "supervisor"))
        return FAILED
    code = exits.DONE if head.state is State.DONE and delivered else FAILED
    message = ended_head(head)
    if head.state is State.DONE:
        message = f"{message}; {_result_location(boot, head)}"
    site.listener.turn_away(protocol.Ended(head.state.value, code, message))
    return code


def refuse(listener: Listener, message: str) -> int:
    """Refuses the waiting trainer of a folder for a mistake of its user; returns the exit code."""
    listener.turn_away(protocol.Ended("refused", exits.USAGE, message))
    return exits.USAGE


def _others_folder(boot: Boot, decision: Decision) -> str:
    """A sentence for the user: why the folder is not this run's."""
    own = boot.spec.trainer
    before = decision.head.owner.split("/") if decision.head is not None else []
    folder = f"run folder {boot.run_dir}"
    if len(before) == 3 and before[1] != own:
        return f"{folder}: belongs to a run of {before[1]}; give another --run-dir"
    if own == COMMAND:
        what, mine = "another command, or other data", "command and the data"
    else:
        what, mine = f"other flags, or another version of {own}", "flags"
    return (
        f"{folder}: belongs to another run ({what}); give another --run-dir, or the {mine} that "
        "it was started with; if you do not need anything in it, remove it"
    )


def _damaged_folder(boot: Boot, decision: Decision) -> str:
    """A sentence for the user: why a run without a stack cannot continue, and how to repair it."""
    what = decision.message.partition(";")[0].removeprefix("HEAD ")
    if decision.reason is Reason.SUPERSEDED:
        what = "counts resumes or placements, which only a stack has"
    return (
        f"run folder {boot.run_dir}: its HEAD {what}; repair it: outlast repair {boot.run_dir}, or "
        "give another --run-dir to start from scratch"
    )


def _result_location(boot: Boot, head: Head) -> str:
    end = head.end
    assert end is not None and end.result is not None
    remote = boot.run_dir.startswith("gs://")
    base = boot.head_file.store.url if remote else boot.run_dir.rstrip("/")
    return f"its result is in {base}/{end.result.path}"


def _end_of_run(boot: Boot, outcome: Outcome) -> int:
    site, timeouts = boot.site, boot.spec.timeouts
    done = outcome.reason is Reason.DONE
    delivered = not done or _deliver(boot)
    if not boot.records:
        if done:
            with contextlib.suppress(HeadError, StoreError):  # reported elsewhere if it matters
                head = boot.head_file.read().head
                _log.info(f"the run is done; {_result_location(boot, head)}")
        return exits.DONE if done and delivered else FAILED
    keep_sec = 0.0 if outcome.reason is Reason.BUDGET else timeouts.keep
    if outcome.reason is Reason.RESULT_TOO_LARGE:  # only this machine has the files
        keep_sec = max(keep_sec, KEEP_RESULT_SEC)
    if keep_sec > 0:
        keep_sec = min(keep_sec, _limit_in_sec(boot))
        _log.info(f"the machine stays for {keep_sec:.0f} s")
        site.clock.sleep(keep_sec)
    _leave(boot)
    return exits.DONE


def _limit_in_sec(boot: Boot) -> float:
    """Seconds that a machine may stay idle: it leaves before the run's limit ends it."""
    try:
        left = boot.spec.deadline - boot.head_file.store.now()
    except StoreError:
        return 0.0
    return max(0.0, left.total_seconds() - KEEP_MARGIN_SEC)


def _end_in_folder(site: Site, outcome: Outcome) -> int:
    """The exit code of a run that stays open: the same command continues it."""
    # In these cases the trainer still waits for its welcome.
    if outcome.reason in (Reason.RESTORE_ERROR, Reason.HOST_ERROR, Reason.USAGE):
        site.listener.turn_away(protocol.Error(outcome.message, "supervisor"), timeout_sec=1.0)
        return FAILED
    infrastructure = outcome.reason in exits.INFRASTRUCTURE_REASONS
    return exits.INTERRUPTED if infrastructure else FAILED


def _leave(boot: Boot) -> None:
    site, timeouts = boot.site, boot.spec.timeouts
    boot.announcements.close()  # before the group deletes this machine
    leave_until_deleted(
        site.group,
        stuck=functools.partial(_stuck, boot, Reason.STUCK_LEAVING),
        backoff_sec=timeouts.backoff,
        clock=site.clock,
    )


def _stuck(boot: Boot, reason: Reason, message: str) -> None:
    _log.info(message)
    boot.announcements.stuck(reason, message)


def _wait_for_permission(boot: Boot, head_file: HeadFile) -> int | None:
    """Waits because this machine may neither train nor leave: a successor would have to train.

    Returns None if the permission has come or HEAD has changed, so that the boot table is used
    again; else an exit code."""
    site, timeouts = boot.site, boot.spec.timeouts
    needed = " and ".join(permissions.LEAVE_GROUP)
    for answer in asking(site.group.membership, backoff_sec=timeouts.backoff, clock=site.clock):
        if isinstance(answer, NotMember):
            _log.info(answer.why)
            break
        if site.group.may_leave() is True:
            _log.info("permission to leave the group has come")
            return None
        try:
            head_file.check(term=head_file.term)
        except Fenced:
            return _watch_successor(boot)
        except (HeadForbidden, StoreError) as error:
            _log.info(f"waiting for permission: {error}")
        except HeadError:
            return None  # the boot table handles it
        message = f"{Reason.STUCK_LEAVING}: may not leave, so trains not; grant {needed}"
        _stuck(boot, Reason.STUCK_LEAVING, message)
    return exits.FENCED


def _watch_successor(boot: Boot) -> int | None:
    """Watches the higher term of a fenced machine. Returns None if no attempt works at that term,
    so that the boot table is used again; else an exit code.

    The higher term's holder may be a VM that the group began to create and never counted. Then that
    VM disappears, and the group keeps this one."""
    site, timeouts, head_file = boot.site, boot.spec.timeouts, boot.head_file
    if not boot.records:
        return exits.FENCED
    look_sec = max(WATCH_SEC_MIN, min(timeouts.heartbeat, timeouts.successor_silence / 4))
    said = False
    while True:
        if isinstance(site.group, NoGroup) or not _still_member(site, timeouts):
            return exits.FENCED
        if not said:
            _log.info("fenced, and still a member of the group: watching the higher term")
            said = True
        try:
            reading = head_file.read()
            if reading.head.state.ended:
                return None  # the boot table handles it
            over = is_over(head_file.store, head_file.layout, reading, timeouts.successor_silence)
        except HeadError:
            return None
        except StoreError as error:
            _log.info(f"watching: {error}")
            over = ""
        if over:
            _log.info(f"the higher term {over}")
            return None
        site.clock.sleep(look_sec)


def is_over(store: Store, layout: Layout, reading: Reading, limit_sec: float) -> str:
    """The reason that no attempt works at HEAD's term any more; empty if one may. Raises
    StoreError."""
    term = reading.head.term
    if end := read_record(store, layout.attempt_end(term), AttemptEnd):
        return f"has ended ({end.reason})"
    silent_sec = silent_seconds(store, layout, term, reading.object.updated)
    return f"has given no sign for {silent_sec:.0f} s" if silent_sec >= limit_sec else ""


def record_boot_end(boot: Boot, reason: Reason, code: int, message: str) -> None:
    if reason not in exits.BOOT_REASONS:
        raise ValueError(f"reason {reason}: is none of a boot's end; see exits.BOOT_REASONS")
    if not boot.records:
        return
    store, layout = boot.head_file.store, boot.head_file.layout
    machine = boot.site.machine
    try:
        end = BootEnd(
            instance_id=machine.instance_id,
            boot_id=machine.boot_id,
            reason=reason,
            step="decide",
            exit=code,
            message=message,
            time=store.now(),
        )
        path = layout.boot_end(machine.instance_id, machine.boot_id)
        put_new(store, path, end.to_json(), patience=boot.head_file.patience.within(END_RECORD_SEC))
    except StoreError as error:
        _log.info(f"the end of this boot was not recorded: {error}")
