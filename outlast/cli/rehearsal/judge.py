"""What a rehearsal must have shown: each guarantee a function of what was seen.

`GUARANTEES` is the closed list of those that a scenario may ask for, by name. Two are judged in
every scenario and have no name there: that the run came to the end that was expected, and that all
that was to happen did happen. A guarantee that nothing put to the test is neither held nor broken.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from outlast.base.exits import (
    FINAL_USER_REASONS,
    MAX_BARREN,
    RETRIED_USER_REASONS,
    Reason,
    State,
)
from outlast.cli.rehearsal import compare, record
from outlast.cli.rehearsal.seen import Seen, Strike


class Verdict(StrEnum):
    """What became of a guarantee."""

    HELD = "held"
    BROKEN = "BROKEN"
    NOT_EXERCISED = "not exercised"
    """Nothing happened that could have broken it."""


Finding = tuple[Verdict, str]
"""A verdict, and what was seen."""


@dataclass(frozen=True)
class Guarantee:
    """One promise, and what the rehearsal saw of it."""

    name: str
    """Its key in `GUARANTEES`, or of those that are always judged."""
    promise: str
    verdict: Verdict
    detail: str

    @property
    def held(self) -> bool:
        return self.verdict is Verdict.HELD


def judge(seen: Seen, names: Iterable[str]) -> list[Guarantee]:
    """The verdict on what is always judged, then on `names` in their order."""
    asked = [("ends-as-expected", ends_as_expected), ("all-happened", all_happened)]
    asked += [(name, GUARANTEES[name]) for name in names]
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
    """the run ends as it must"""
    found, expected = seen.run.ending, seen.expected
    held = found.state == expected.state and expected.reason in (None, found.reason)
    late = f" after {seen.within_sec:.0f} s" if found.state == State.OPEN else ""
    detail = f"{found}" if held else f"{found}{late}, must be {expected}"
    if seen.calm is not None:
        held = held and seen.calm.ending.state == State.DONE
        detail += f"; undisturbed {seen.calm.ending}"
    return _if(held, detail)


def all_happened(seen: Seen) -> Finding:
    """every misfortune happened"""
    told = [str(strike) for strike in seen.strikes]
    if seen.faulted:
        told.append(f"{seen.faulted} requests were disturbed")
    missed = [strike for strike in seen.strikes if strike.missed]
    if not (seen.pending or missed):
        return _if(True, "; ".join(told) or "none was planned")
    if seen.pending:
        told.append(_before_events(seen))
    return _unexercised("; ".join(told))


def _before_events(seen: Seen) -> str:
    """That events never came, and what to do about it where it is for the user to do."""
    book, events = seen.run.ledger, ", ".join(seen.pending)
    if book is None:
        return f"the run never came to {events}"
    told = f"the run ended at step {book.step} before {events}"
    if seen.run.ending.state != State.DONE:
        return told
    if book.total is None and "share" in events:
        return f"{told}; the trainer gives no total, so there is no share: name commits instead"
    return f"{told}; train longer, or name earlier moments"


def same_bytes(seen: Seen) -> Finding:
    """the result is byte for byte the undisturbed run's"""
    if seen.calm is None or seen.calm.ending.state != State.DONE:
        how = "no undisturbed run" if seen.calm is None else f"it is {seen.calm.ending}"
        return _unexercised(f"there is no undisturbed result to compare with: {how}")
    if seen.run.ending.state != State.DONE:
        return _unexercised(f"the run has no result: it is {seen.run.ending}")
    digest, calm = seen.run.result.digest, seen.calm.result.digest
    if digest is not None and digest == calm:
        return _if(True, f"sha256 {digest}")
    if digest is None or calm is None:
        which = "the result" if digest is None else "the undisturbed result"
        return _if(False, f"the bytes of {which} are not those that its record names")
    detail = compare.difference(seen.run.result.files, seen.calm.result.files)
    if sooner := record.differs_before_interruption(seen.run, seen.calm):
        detail += f"; {sooner}"
    return _if(False, detail or f"sha256 {digest} disturbed, {calm} undisturbed")


def told_truly(seen: Seen) -> Finding:
    """every misfortune is told as what it was"""
    told, held, exercised = [], True, False
    for strike in seen.struck:
        expected = _told_as(strike)
        if strike.attempt is None or not expected:
            continue
        attempt = seen.attempt_of(strike)
        reason = attempt.reason if attempt else None
        told.append(f"{strike} ended as {reason or 'nothing yet'}")
        if reason is Reason.DONE and reason not in expected:
            told[-1] += ", for it was complete before it was stopped"
            continue
        exercised = True
        held = held and reason in expected
    if not exercised:
        return _unexercised("; ".join(told) or "no attempt was struck")
    return _if(held, "; ".join(told))


def always_resumed(seen: Seen) -> Finding:
    """every later attempt resumed, none began anew"""
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
    """a notice that is heard loses no step"""
    warned = [seen.attempt_of(strike) for strike in seen.struck if _warned(strike)]
    lost = [attempt.lost for attempt in warned if attempt]
    if not lost:
        return _unexercised("no notice")
    return _if(not any(lost), f"{sum(lost)} steps lost")


def committed_stays(seen: Seen) -> Finding:
    """no attempt lost a step that was committed"""
    known = [(a.committed or a.from_step, b.from_step) for a, b in pairwise(seen.run.attempts)]
    if not known:
        return _unexercised("no later attempt")
    steps = ", ".join(f"step {committed} -> {resumed}" for committed, resumed in known)
    return _if(all(committed <= resumed for committed, resumed in known), steps)


def each_step_once(seen: Seen) -> Finding:
    """each step that the trainer logs is in the record exactly once"""
    run, calm = seen.run, seen.calm
    count = f"{len(run.rows)} rows of {run.ledger.step if run.ledger else 0} steps"
    if problem := record.disorder(run):
        return _if(False, f"{count}; {problem}")
    if calm is None or calm.ending.state != State.DONE:
        if not run.rows:
            return _unexercised("the trainer logs no rows")
        if gap := record.gap(run):
            return _if(False, f"{count}; {gap}")
        return _if(True, count)
    if run.ending.state != State.DONE:
        return _unexercised(f"{count}; the run is {run.ending}, the undisturbed one done")
    if problem := record.difference(run, calm):
        return _if(False, f"{count}; {problem}")
    if not run.rows:
        return _unexercised("the trainer logs no rows")
    varying = record.varying(run, calm)
    names = f"; not compared, for they vary in each run: {', '.join(varying)}" if varying else ""
    return _if(True, f"{count}{names}")


def one_line(seen: Seen) -> Finding:
    """one line of attempts, no stale write in it"""
    entries = seen.run.head.lineage if seen.run.head else ()
    terms = [entry.term for entry in entries]
    froms = [entry.from_step for entry in entries]
    held = bool(terms) and terms == sorted(set(terms)) and froms == sorted(froms)
    detail = ", ".join(f"attempt {e.term} from step {e.from_step}" for e in entries)
    return _if(held, detail) if entries or seen.run.head else _unexercised("no attempt")


def head_never_goes_back(seen: Seen) -> Finding:
    """nothing that a superseded VM does changes the run"""
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


def only_the_struck_end(seen: Seen) -> Finding:
    """no attempt ended that nothing had struck"""
    if not seen.run.attempts:
        return _unexercised("no attempt")
    struck = {strike.attempt for strike in seen.struck if strike.do in _ENDING_ATTEMPTS}
    others = [a for a in seen.run.attempts[:-1] if a.term not in struck]
    detail = f"{len(seen.run.attempts)} attempts, {len(struck - {None})} struck"
    if others:
        detail += ": " + ", ".join(f"attempt {a.term} ended as {a.reason}" for a in others)
    return _if(not others, detail)


def costs_the_user_nothing(seen: Seen) -> Finding:
    """what the platform did counts against nobody"""
    head = seen.run.head
    if head is None:
        return _unexercised("no attempt")
    struck = {strike.attempt for strike in seen.struck}
    own = [a for a in seen.run.attempts if a.reason in _USER_REASONS and a.term not in struck]
    detail = f"{head.failures} failure{'' if head.failures == 1 else 's'} counted"
    if own:
        detail += f", {len(own)} of the trainer's own"
    return _if(head.failures <= len(own), detail)


def stalls_are_given_up(seen: Seen) -> Finding:
    """a connection that hangs is given up, and what it was for is asked for again"""
    if not seen.stalls:
        return _unexercised("no connection hung")
    held = all(stall.again and stall.waited_sec is not None for stall in seen.stalls)
    return _if(held, "; ".join(map(str, seen.stalls)))


def waits_for_room(seen: Seen) -> Finding:
    """a VM that cannot be created is asked for again until it is there"""
    refused = [code for code in seen.refusals if any(word in code for word in _NO_ROOM)]
    if not refused:
        return _unexercised("nothing was refused")
    codes = ", ".join(sorted(set(refused)))
    return _if(bool(seen.run.attempts), f"refused with {codes}; {len(seen.run.attempts)} attempts")


def changes_zone(seen: Seen) -> Finding:
    """a VM whose zone has no room is made anew in another"""
    zones = [attempt.zone for attempt in seen.run.attempts]
    if len(zones) < 2:
        return _unexercised("no later attempt")
    return _if(all(one != other for one, other in pairwise(zones)), f"in {', '.join(zones)}")


def retries_as_set(seen: Seen) -> Finding:
    """a failure of the trainer's own is retried as often as it was asked for"""
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


def failure_is_told(seen: Seen) -> Finding:
    """the record of a failure says why"""
    head = seen.run.head
    if head is None or head.end is None or head.state is State.DONE:
        return _unexercised("the run did not fail")
    end = seen.run.ends.get(head.term)
    if end is None:
        return _if(False, f"attempt {head.term} has no record of its end")
    why = end.stderr[-1] if end.stderr else end.message
    # A trainer that says why itself is heard.
    said = bool(end.stderr) or end.reason is not Reason.USER_FAILED
    held = bool(end.message) and said and end.reason is head.end.reason
    return _if(held, f"{end.reason}, exit {end.exit}: {why}")


def nothing_after_the_end(seen: Seen) -> Finding:
    """no VM boots for a run that has ended"""
    if seen.run.ended is None:
        return _unexercised("no end was recorded")
    late = [boot for boot in seen.run.boots if boot.start > seen.run.ended]
    return _if(not late, f"{len(seen.run.boots)} boots, {len(late)} after the end")


def gives_up(seen: Seen) -> Finding:
    """ten boots in a row that come to nothing leave the group"""
    boots, sizes = len(seen.run.boots), list(seen.sizes.values())
    detail = f"{boots} boots, {len(seen.run.attempts)} attempts, group size {sizes}"
    if seen.run.attempts:
        return _unexercised(detail)
    return _if(boots == MAX_BARREN and sizes == [0], detail)


def done_means_done(seen: Seen) -> Finding:
    """a stop that the trainer was told of is no completion"""
    told = [seen.attempt_of(strike) for strike in seen.struck if _warned(strike)]
    stopped = [attempt for attempt in told if attempt]
    if not stopped:
        return _unexercised("no attempt was told to stop")
    detail = ", ".join(f"attempt {a.term} ended as {a.reason}" for a in stopped)
    return _if(all(attempt.reason is not Reason.DONE for attempt in stopped), detail)


def warning_is_heeded(seen: Seen) -> Finding:
    """a warning of maintenance is answered with a checkpoint at once; only the machine's own stop
    ends the attempt"""
    held, told = True, []
    for strike in seen.struck:
        attempt = seen.attempt_of(strike)
        if strike.do != "maintenance" or attempt is None:
            continue
        # One at the very end would have been made without a warning, too.
        steps = [
            checkpoint.step
            for head in seen.run.heads
            for checkpoint in head.chain
            if checkpoint.term == attempt.term
            and strike.options.get("step", 0) <= checkpoint.step < attempt.step
        ]
        held = held and bool(steps) and attempt.reason in (Reason.DONE, Reason.MAINTENANCE)
        answer = f"a checkpoint of step {min(steps)}" if steps else "no checkpoint"
        told.append(f"attempt {attempt.term} answered with {answer}, ended as {attempt.reason}")
    return _if(held, "; ".join(told)) if told else _unexercised("no attempt was warned")


def nothing_runs(seen: Seen) -> Finding:
    """an ended run has group size 0 and no VM"""
    held = bool(seen.sizes) and all(size == 0 for size in seen.sizes.values()) and not seen.vms
    groups = ", ".join(f"{name} {size}" for name, size in seen.sizes.items())
    return _if(held, f"sizes: {groups}; VMs: {', '.join(seen.vms) or 'none'}")


def bucket_alone_is_left(seen: Seen) -> Finding:
    """destroy leaves the bucket and nothing else"""
    left = {kind: found for kind, found in seen.audit.items() if found and kind not in _KEPT}
    kept = seen.bucket in [found["name"] for found in seen.audit.get("buckets", [])]
    detail = f"gs://{seen.bucket} is {'kept' if kept else 'gone'}"
    return _if(kept and not left, f"{detail}, left: {left}" if left else detail)


def no_process(seen: Seen) -> Finding:
    """no process of it lives on the machine"""
    detail = f"had to be killed: {', '.join(seen.strays)}" if seen.strays else "none"
    return _if(not seen.strays, detail)


GUARANTEES: Mapping[str, Callable[[Seen], Finding]] = {
    "same-bytes": same_bytes,
    "told-truly": told_truly,
    "always-resumed": always_resumed,
    "notice-loses-nothing": notice_loses_nothing,
    "committed-stays": committed_stays,
    "each-step-once": each_step_once,
    "one-line": one_line,
    "head-never-goes-back": head_never_goes_back,
    "only-the-struck-end": only_the_struck_end,
    "costs-the-user-nothing": costs_the_user_nothing,
    "stalls-are-given-up": stalls_are_given_up,
    "waits-for-room": waits_for_room,
    "changes-zone": changes_zone,
    "retries-as-set": retries_as_set,
    "failure-is-told": failure_is_told,
    "nothing-after-the-end": nothing_after_the_end,
    "gives-up": gives_up,
    "done-means-done": done_means_done,
    "warning-is-heeded": warning_is_heeded,
    "nothing-runs": nothing_runs,
    "bucket-alone-is-left": bucket_alone_is_left,
    "no-process": no_process,
}
"""All that a scenario may ask for."""

NEEDS_CALM = frozenset({"same-bytes"})
"""Those that compare with an undisturbed run."""

_USER_REASONS = RETRIED_USER_REASONS | FINAL_USER_REASONS
"""Ends that the trainer itself brought about."""

_KEPT = {"buckets", "deleted_roles"}
"""The platform itself keeps a deleted role's id for weeks."""

_NO_ROOM = ("POOL_EXHAUSTED", "QUOTA")

_ENDING_ATTEMPTS = frozenset(
    {"kill", "preempt", "stop", "delete", "lost", "stays-stopping", "maintenance"}
)
"""Actions of the platform that end the attempt on the VM that they strike."""


def _warned(strike: Strike) -> bool:
    """Whether the VM was told that it would be stopped, with time to act on it."""
    if strike.do == "preempt":
        return strike.options.get("notice_sec") != 0
    return strike.do == "stop"


def _told_as(strike: Strike) -> frozenset[Reason]:
    """What the record of a struck attempt may say; empty for what ends no attempt."""
    if strike.do == "preempt":
        # Without a notice the flag goes up while the system already stops.
        late = frozenset({Reason.CUT, Reason.INTERRUPTED})
        return frozenset({Reason.PREEMPTED}) | (frozenset() if _warned(strike) else late)
    return _REASONS.get(strike.do, frozenset())


_REASONS = {
    "kill": frozenset({Reason.CUT}),
    "delete": frozenset({Reason.INTERRUPTED, Reason.CUT}),
    "stop": frozenset({Reason.INTERRUPTED}),
    "stays-stopping": frozenset({Reason.INTERRUPTED}),
    # A Spot VM is preempted, one that can be moved lives on.
    "maintenance": frozenset({Reason.MAINTENANCE, Reason.PREEMPTED, Reason.DONE}),
    # It lives on and may find out for itself that another has the run, or has ended it.
    "lost": frozenset({Reason.CUT, Reason.FENCED, Reason.ENDED}),
}
