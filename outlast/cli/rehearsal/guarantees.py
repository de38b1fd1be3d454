"""The guarantees that a rehearsal checks: each is a function of what was seen.

`GUARANTEES` is the closed list of names that a scenario may ask for. Two more are checked in every
scenario: the run ended as expected, and every planned fault happened; and one where the stack asks
for a trainer without rights. A guarantee that nothing tested is "not exercised": neither held nor
broken.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from outlast.base import numbers
from outlast.base.exits import (
    FINAL_USER_REASONS,
    MAX_NO_PROGRESS,
    RETRIED_USER_REASONS,
    Reason,
    State,
)
from outlast.cli.rehearsal import compare, record
from outlast.cli.rehearsal.seen import Fault, Seen


class Verdict(StrEnum):
    """The outcome of one guarantee."""

    HELD = "held"
    BROKEN = "broken"
    NOT_EXERCISED = "not exercised"
    """Nothing happened that could have broken it."""


Finding = tuple[Verdict, str]
"""A verdict, and what was seen."""


@dataclass(frozen=True)
class Guarantee:
    """One promise, its verdict, and what the rehearsal saw."""

    name: str
    """Its key in `GUARANTEES`, or the name of one that is checked in every scenario."""
    promise: str
    verdict: Verdict
    detail: str

    @property
    def held(self) -> bool:
        return self.verdict is Verdict.HELD


def check(seen: Seen, names: Iterable[str]) -> list[Guarantee]:
    """Check the two guarantees of every scenario, then `names` in their order, then the one of a
    trainer's own user where the stack asks for it."""
    asked = [("ends-as-expected", ends_as_expected), ("all-happened", all_happened)]
    asked += [(name, GUARANTEES[name]) for name in names]
    if any(attempt.own_user is not None for attempt in seen.run.attempts):
        asked.append(("own-user", own_user))
    found = []
    for name, guarantee in asked:
        verdict, detail = guarantee(seen)
        promise = " ".join((guarantee.__doc__ or "").split())
        found.append(Guarantee(name, promise, verdict, detail))
    return found


def _if(held: bool, detail: str) -> Finding:
    return (Verdict.HELD if held else Verdict.BROKEN), detail


def _unexercised(detail: str) -> Finding:
    return Verdict.NOT_EXERCISED, detail


# A guarantee's docstring is its promise, as it is printed.


def ends_as_expected(seen: Seen) -> Finding:
    """the run ends as expected"""
    found, expected = seen.run.ending, seen.expected
    held = found.state == expected.state and expected.reason in (None, found.reason)
    late = f" after {seen.within_sec:.0f} s" if found.state == State.OPEN else ""
    detail = f"{found}" if held else f"{found}{late}, must be {expected}"
    if seen.baseline is not None:
        held = held and seen.baseline.ending.state == State.DONE
        detail += f"; baseline {seen.baseline.ending}"
    return _if(held, detail)


def all_happened(seen: Seen) -> Finding:
    """every planned fault happened"""
    found = [str(fault) for fault in seen.faults]
    if seen.disturbed_requests:
        found.append(f"{seen.disturbed_requests} requests were disturbed")
    missed = [fault for fault in seen.faults if fault.missed]
    if not (seen.pending or missed):
        return _if(True, "; ".join(found) or "none was planned")
    if seen.pending:
        found.append(_before_events(seen))
    return _unexercised("; ".join(found))


def _before_events(seen: Seen) -> str:
    """Say which events never came, and what the user can do about it."""
    book, events = seen.run.history, ", ".join(seen.pending)
    if book is None:
        return f"the run never reached {events}"
    found = f"the run ended at step {book.step} before {events}"
    if seen.run.ending.state != State.DONE:
        return found
    if book.total is None and "share" in events:
        return f"{found}; the trainer gives no total, so there is no share: name commits instead"
    return f"{found}; train longer, or name earlier moments"


def own_user(seen: Seen) -> Finding:
    """the trainer runs as its own user, without rights on its VM"""
    asked = [attempt for attempt in seen.run.attempts if attempt.own_user is not None]
    if not any(attempt.own_user for attempt in asked):
        return _unexercised(
            "the local cloud does not run as root, so the trainer ran as you; start it as root"
        )
    others = [str(attempt.term) for attempt in asked if not attempt.own_user]
    detail = f"attempt {', '.join(others)} ran as the supervisor's user" if others else ""
    return _if(not others, detail or f"{len(asked)} attempts")


def same_bytes(seen: Seen) -> Finding:
    """the result equals the baseline's, byte for byte"""
    if seen.baseline is None or seen.baseline.ending.state != State.DONE:
        how = "there is no baseline" if seen.baseline is None else f"it is {seen.baseline.ending}"
        return _unexercised(f"there is no baseline result to compare with: {how}")
    if seen.run.ending.state != State.DONE:
        return _unexercised(f"the run has no result: it is {seen.run.ending}")
    digest, baseline = seen.run.result.digest, seen.baseline.result.digest
    if digest is not None and digest == baseline:
        return _if(True, f"sha256 {digest}")
    if digest is None or baseline is None:
        which = "the result" if digest is None else "the baseline's result"
        return _if(False, f"the bytes of {which} do not match its record")
    detail = compare.difference(seen.run.result.files, seen.baseline.result.files)
    if sooner := record.differs_before_interruption(seen.run, seen.baseline):
        detail += f"; {sooner}"
    return _if(False, detail or f"sha256 {digest} of the run, {baseline} of the baseline")


def reason_recorded(seen: Seen) -> Finding:
    """every fault is recorded with its real cause"""
    found, held, exercised = [], True, False
    for fault in seen.effective:
        expected = _recorded_as(fault)
        if fault.attempt is None or not expected:
            continue
        attempt = seen.attempt_of(fault)
        reason = attempt.reason if attempt else None
        found.append(f"{fault} ended as {reason or 'nothing yet'}")
        if reason is Reason.DONE and reason not in expected:
            found[-1] += ", because it was complete before it was stopped"
            continue
        exercised = True
        held = held and reason in expected
    if not exercised:
        return _unexercised("; ".join(found) or "no fault hit an attempt")
    return _if(held, "; ".join(found))


def resumed(seen: Seen) -> Finding:
    """every later attempt resumed; none started from scratch"""
    pairs = list(pairwise(seen.run.attempts))
    if not pairs:
        return _unexercised("no later attempt")
    steps = ", ".join(str(later.from_step) for _, later in pairs)
    fresh = [(before, later) for before, later in pairs if not later.from_step]
    if not fresh:
        return _if(True, f"from steps {steps}")
    early = [before for before, _ in fresh if before.committed is None and not before.from_step]
    if len(early) == len(fresh):
        terms = ", ".join(str(attempt.term) for attempt in early)
        return _unexercised(
            f"from steps {steps}; attempt {terms} had no checkpoint yet when it ended: make "
            "checkpoints more often, or name later moments"
        )
    return _if(False, f"from steps {steps}")


def notice_loses_nothing(seen: Seen) -> Finding:
    """an attempt that gets a notice loses no step"""
    warned = [seen.attempt_of(fault) for fault in seen.effective if _warned(fault)]
    attempts = [attempt for attempt in warned if attempt]
    if not attempts:
        return _unexercised("no notice")
    detail = f"{numbers.count(sum(attempt.lost for attempt in attempts), 'step')} lost"
    losing = [attempt.term for attempt in attempts if attempt.lost]
    ends = [(term, seen.run.ends[term].message) for term in losing if term in seen.run.ends]
    why = "".join(f"; attempt {term}: {message}" for term, message in ends)
    return _if(not losing, detail + why)


def committed_kept(seen: Seen) -> Finding:
    """no committed step is lost"""
    known = [(a.committed or a.from_step, b.from_step) for a, b in pairwise(seen.run.attempts)]
    if not known:
        return _unexercised("no later attempt")
    steps = ", ".join(f"step {committed} -> {resumed}" for committed, resumed in known)
    return _if(all(committed <= resumed for committed, resumed in known), steps)


def each_step_once(seen: Seen) -> Finding:
    """each step that the trainer logs is recorded exactly once"""
    run, baseline = seen.run, seen.baseline
    count = f"{len(run.rows)} rows of {run.history.step if run.history else 0} steps"
    if problem := record.disorder(run):
        return _if(False, f"{count}; {problem}")
    if baseline is None or baseline.ending.state != State.DONE:
        if not run.rows:
            return _unexercised("the trainer logs no rows")
        if gap := record.gap(run):
            return _if(False, f"{count}; {gap}")
        return _if(True, count)
    if run.ending.state != State.DONE:
        return _unexercised(f"{count}; the run is {run.ending}, the baseline is done")
    if problem := record.difference(run, baseline):
        return _if(False, f"{count}; {problem}")
    if not run.rows:
        return _unexercised("the trainer logs no rows")
    varying = record.varying(run, baseline)
    names = (
        f"; not compared, because they vary in each run: {', '.join(varying)}" if varying else ""
    )
    return _if(True, f"{count}{names}")


def single_lineage(seen: Seen) -> Finding:
    """the attempts form a single lineage, without a stale write"""
    entries = seen.run.head.lineage if seen.run.head else ()
    terms = [entry.term for entry in entries]
    froms = [entry.from_step for entry in entries]
    held = bool(terms) and terms == sorted(set(terms)) and froms == sorted(froms)
    detail = ", ".join(f"attempt {e.term} from step {e.from_step}" for e in entries)
    return _if(held, detail) if entries or seen.run.head else _unexercised("no attempt")


def head_never_goes_back(seen: Seen) -> Finding:
    """a superseded VM changes nothing of the run"""
    heads = [*seen.run.heads, *([seen.run.head] if seen.run.head else [])]
    last_terms = [head.chain[-1].term if head.chain else 0 for head in heads]
    for before, after in pairwise(heads):
        if after.term < before.term:
            return _if(False, f"HEAD went from term {before.term} back to {after.term}")
        if before.state.ended and not after.state.ended:
            return _if(False, f"HEAD was {before.state} and then {after.state}")
    for before, after in pairwise(last_terms):
        if after < before:
            return _if(False, f"a checkpoint of attempt {after} came after one of attempt {before}")
    if len({head.term for head in heads}) < 2:
        return _unexercised("no second term was seen")
    return _if(True, f"terms {', '.join(dict.fromkeys(str(head.term) for head in heads))}")


def only_faults_end_attempts(seen: Seen) -> Finding:
    """only faults end attempts"""
    if not seen.run.attempts:
        return _unexercised("no attempt")
    hit = {fault.attempt for fault in seen.effective if fault.do in _ENDING_ATTEMPTS}
    others = [a for a in seen.run.attempts[:-1] if a.term not in hit]
    detail = f"{len(seen.run.attempts)} attempts, {len(hit - {None})} hit"
    if others:
        detail += ": " + ", ".join(f"attempt {a.term} ended as {a.reason}" for a in others)
    return _if(not others, detail)


def no_failure_counted(seen: Seen) -> Finding:
    """the platform's faults do not count as failures of the trainer"""
    head = seen.run.head
    if head is None:
        return _unexercised("no attempt")
    hit = {fault.attempt for fault in seen.effective}
    own = [a for a in seen.run.attempts if a.reason in _USER_REASONS and a.term not in hit]
    detail = f"{numbers.count(head.failures, 'failure')} counted"
    if own:
        detail += f", {len(own)} of the trainer's own"
    return _if(head.failures <= len(own), detail)


def stalls_retried(seen: Seen) -> Finding:
    """a request that hangs is given up and sent again"""
    if not seen.stalls:
        return _unexercised("no connection hung")
    held = all(stall.again and stall.waited_sec is not None for stall in seen.stalls)
    return _if(held, "; ".join(map(str, seen.stalls)))


def waits_for_capacity(seen: Seen) -> Finding:
    """the group keeps asking for a VM until there is capacity"""
    refused = [code for code in seen.refusals if any(word in code for word in _NO_ROOM)]
    if not refused:
        return _unexercised("nothing was refused")
    codes = ", ".join(sorted(set(refused)))
    return _if(bool(seen.run.attempts), f"refused with {codes}; {len(seen.run.attempts)} attempts")


def changes_zone(seen: Seen) -> Finding:
    """a VM whose zone has no capacity is recreated in another zone"""
    zones = [attempt.zone for attempt in seen.run.attempts]
    if len(zones) < 2:
        return _unexercised("no later attempt")
    return _if(all(one != other for one, other in pairwise(zones)), f"in {', '.join(zones)}")


def retries_as_set(seen: Seen) -> Finding:
    """the trainer's own failures are retried as often as the settings say"""
    own = [attempt for attempt in seen.run.attempts if attempt.reason in _USER_REASONS]
    if not own:
        return _unexercised("the trainer never failed")
    reasons = ", ".join(str(attempt.reason) for attempt in own)
    head = seen.run.head
    if head is not None and head.state is State.DONE:
        held = 0 < len(own) <= seen.retries
    else:
        final = own[-1].reason in FINAL_USER_REASONS
        held = len(own) == (1 if final else 1 + seen.retries)
    return _if(held, f"attempts that failed: {reasons}; retries: {seen.retries}")


def failure_recorded(seen: Seen) -> Finding:
    """the record of a failure says why"""
    head = seen.run.head
    if head is None or head.end is None or head.state is State.DONE:
        return _unexercised("the run did not fail")
    end = seen.run.ends.get(head.term)
    if end is None:
        return _if(False, f"attempt {head.term} has no record of its end")
    why = end.stderr[-1] if end.stderr else end.message
    # The trainer's own last lines, if it failed itself.
    said = bool(end.stderr) or end.reason is not Reason.USER_FAILED
    held = bool(end.message) and said and end.reason is head.end.reason
    return _if(held, f"{end.reason}, exit {end.exit}: {why}")


def no_boot_after_end(seen: Seen) -> Finding:
    """no VM boots after the run has ended"""
    if seen.run.ended is None:
        return _unexercised("no end was recorded")
    late = [boot for boot in seen.run.boots if boot.start > seen.run.ended]
    return _if(not late, f"{len(seen.run.boots)} boots, {len(late)} after the end")


def gives_up(seen: Seen) -> Finding:
    """after ten boots in a row without progress, the VM leaves its group"""
    boots, sizes = len(seen.run.boots), list(seen.sizes.values())
    detail = f"{boots} boots, {len(seen.run.attempts)} attempts, group size {sizes}"
    if seen.run.attempts:
        return _unexercised(detail)
    return _if(boots == MAX_NO_PROGRESS and sizes == [0], detail)


def done_means_done(seen: Seen) -> Finding:
    """a stopped attempt is never recorded as done"""
    found = [seen.attempt_of(fault) for fault in seen.effective if _warned(fault)]
    stopped = [attempt for attempt in found if attempt]
    if not stopped:
        return _unexercised("no attempt was asked to stop")
    detail = ", ".join(f"attempt {a.term} ended as {a.reason}" for a in stopped)
    return _if(all(attempt.reason is not Reason.DONE for attempt in stopped), detail)


def warning_answered(seen: Seen) -> Finding:
    """a maintenance warning is answered with a checkpoint at once; only the machine's stop ends
    the attempt"""
    held, found = True, []
    for fault in seen.effective:
        attempt = seen.attempt_of(fault)
        if fault.do != "maintenance" or attempt is None:
            continue
        # A checkpoint at the very end would exist without a warning, too.
        steps = [
            checkpoint.step
            for head in seen.run.heads
            for checkpoint in head.chain
            if checkpoint.term == attempt.term
            and fault.options.get("step", 0) <= checkpoint.step < attempt.step
        ]
        held = held and bool(steps) and attempt.reason in (Reason.DONE, Reason.MAINTENANCE)
        answer = f"a checkpoint of step {min(steps)}" if steps else "no checkpoint"
        found.append(f"attempt {attempt.term} answered with {answer}, ended as {attempt.reason}")
    return _if(held, "; ".join(found)) if found else _unexercised("no attempt was warned")


def no_vm_left(seen: Seen) -> Finding:
    """an ended run has group size 0 and no VM"""
    held = bool(seen.sizes) and all(size == 0 for size in seen.sizes.values()) and not seen.vms
    groups = ", ".join(f"{name} {size}" for name, size in seen.sizes.items())
    return _if(held, f"sizes: {groups}; VMs: {', '.join(seen.vms) or 'none'}")


def only_bucket_left(seen: Seen) -> Finding:
    """destroy leaves only the bucket"""
    left = {kind: found for kind, found in seen.audit.items() if found and kind not in _KEPT}
    kept = seen.bucket in [found["name"] for found in seen.audit.get("buckets", [])]
    detail = f"gs://{seen.bucket} is {'kept' if kept else 'gone'}"
    return _if(kept and not left, f"{detail}, left: {left}" if left else detail)


def no_process_left(seen: Seen) -> Finding:
    """no process is left on this machine"""
    detail = f"had to be killed: {', '.join(seen.strays)}" if seen.strays else "none"
    return _if(not seen.strays, detail)


GUARANTEES: Mapping[str, Callable[[Seen], Finding]] = {
    "same-bytes": same_bytes,
    "reason-recorded": reason_recorded,
    "resumed": resumed,
    "notice-loses-nothing": notice_loses_nothing,
    "committed-kept": committed_kept,
    "each-step-once": each_step_once,
    "single-lineage": single_lineage,
    "head-never-goes-back": head_never_goes_back,
    "only-faults-end-attempts": only_faults_end_attempts,
    "no-failure-counted": no_failure_counted,
    "stalls-retried": stalls_retried,
    "waits-for-capacity": waits_for_capacity,
    "changes-zone": changes_zone,
    "retries-as-set": retries_as_set,
    "failure-recorded": failure_recorded,
    "no-boot-after-end": no_boot_after_end,
    "gives-up": gives_up,
    "done-means-done": done_means_done,
    "warning-answered": warning_answered,
    "no-vm-left": no_vm_left,
    "only-bucket-left": only_bucket_left,
    "no-process-left": no_process_left,
}
"""Every guarantee that a scenario may ask for."""

NEEDS_BASELINE = frozenset({"same-bytes"})
"""Guarantees that compare with a baseline run."""

_USER_REASONS = RETRIED_USER_REASONS | FINAL_USER_REASONS
"""Reasons for which the trainer itself is to blame."""

_KEPT = {"buckets", "deleted_roles"}
"""Google keeps the id of a deleted role for weeks."""

_NO_ROOM = ("POOL_EXHAUSTED", "QUOTA")

_ENDING_ATTEMPTS = frozenset(
    {"kill", "preempt", "stop", "delete", "lost", "stays-stopping", "maintenance"}
)
"""Faults that end the attempt on their VM."""


def _warned(fault: Fault) -> bool:
    """Whether the VM had a notice, and time to act on it."""
    if fault.do == "preempt":
        return fault.options.get("notice_sec") != 0
    return fault.do == "stop"


def _recorded_as(fault: Fault) -> frozenset[Reason]:
    """The reasons that may be recorded for a fault; empty if it ends no attempt."""
    if fault.do == "preempt":
        # Without a notice, the flag appears while the system already stops.
        late = frozenset({Reason.VM_LOST, Reason.INTERRUPTED})
        return frozenset({Reason.PREEMPTED}) | (frozenset() if _warned(fault) else late)
    return _REASONS.get(fault.do, frozenset())


_REASONS = {
    "kill": frozenset({Reason.VM_LOST}),
    "delete": frozenset({Reason.INTERRUPTED, Reason.VM_LOST}),
    "stop": frozenset({Reason.INTERRUPTED}),
    "stays-stopping": frozenset({Reason.INTERRUPTED}),
    # A Spot VM is preempted; a VM that can be moved keeps running.
    "maintenance": frozenset({Reason.MAINTENANCE, Reason.PREEMPTED, Reason.DONE}),
    # It keeps running, and may find out that another VM holds or has ended the run.
    "lost": frozenset({Reason.VM_LOST, Reason.FENCED, Reason.ENDED}),
}
