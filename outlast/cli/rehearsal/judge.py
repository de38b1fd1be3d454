"""What a rehearsal must have shown: each guarantee a function of what was seen, held or broken.

`GUARANTEES` is the closed list of those that a scenario may ask for, by name. Two are judged in
every scenario and have no name there: that the run came to the end that was expected, and that all
that was to happen did happen; a misfortune that never struck proves nothing.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from outlast.base.exits import (
    FINAL_USER_REASONS,
    MAX_BARREN,
    RETRIED_USER_REASONS,
    Reason,
    State,
)
from outlast.bucket import metrics
from outlast.bucket.head import Head
from outlast.bucket.layout import METRICS_FILE, AttemptEnd, Last
from outlast.bucket.ledger import Attempt, Boot, Ledger
from outlast.bucket.results import fetch_result
from outlast.bucket.store import Damaged, NotFound, Store

NEVER_STARTED = "never-started"
"""State of a run that no boot has got to: there is no HEAD that could say so."""
WAITING = "waiting"
"""State of a run that no VM has booted for yet."""


@dataclass(frozen=True)
class Guarantee:
    """One promise, and whether the rehearsal saw it held."""

    name: str
    """Its key in `GUARANTEES`, or of those that are always judged."""
    promise: str
    held: bool
    detail: str


@dataclass(frozen=True)
class Ending:
    """How a run is to end: HEAD's state, or `never-started` or `waiting` where there is no HEAD."""

    state: str
    reason: str | None = None
    """None: any."""

    def __str__(self) -> str:
        return f"{self.state} ({self.reason})" if self.reason else self.state


@dataclass(frozen=True)
class Strike:
    """One thing that the local cloud did to the run."""

    do: str
    """Name of the action, such as `kill`."""
    boot: int | None = None
    """Which boot of the run it struck."""
    attempt: int | None = None
    """The term that the VM held; None where it held none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    missed: str = ""
    """Why it had no effect; empty where it had."""

    def __str__(self) -> str:
        what = self.do
        if self.attempt is not None:
            what += f": attempt {self.attempt}"
        elif self.boot is not None:
            what += f": boot {self.boot}"
        return f"{what} (missed: {self.missed})" if self.missed else what


@dataclass(frozen=True)
class Stall:
    """A request that the local cloud left hanging."""

    target: str
    """An object's name, or the path of a call."""
    waited_sec: float | None
    """How long its sender waited before it gave up; None: for good."""
    again: bool
    """Whether the sender then asked again."""

    def __str__(self) -> str:
        waited = "never" if self.waited_sec is None else f"after {self.waited_sec:g} s"
        end = "asked again" if self.again else "and not asked again"
        return f"{self.target.rpartition('/')[2]} given up {waited}, {end}"


@dataclass(frozen=True)
class ResultRead:
    """A result as its bytes are; `digest` is None where they are not what the records say."""

    digest: str | None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def last_metrics(self) -> dict[str, Last]:
        """The last value of each column of metrics.json; empty where there is none, or one of
        another form."""
        try:
            return metrics.last_values(metrics.read_table(self.files.get(METRICS_FILE, b"")))
        except ValueError:
            return {}


Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Run:
    """What one stack's run left in the bucket."""

    ledger: Ledger | None = None
    """None: no VM has ever taken a term."""
    rows: Rows = ()
    result: ResultRead = ResultRead(None)  # noqa: RUF009 - frozen
    boots: tuple[Boot, ...] = ()
    ends: Mapping[int, AttemptEnd] = field(default_factory=dict)
    """Records of ends, by attempt."""
    ended: datetime | None = None
    """When the copy of the run's end was written."""
    heads: tuple[Head, ...] = ()
    """HEAD as it was seen from time to time, oldest first."""

    @property
    def head(self) -> Head | None:
        return self.ledger.head if self.ledger else None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.ledger.attempts if self.ledger else ()

    @property
    def ending(self) -> Ending:
        """How it stands."""
        if self.head is None:
            return Ending(NEVER_STARTED if self.boots else WAITING)
        end = self.head.end
        return Ending(self.head.state, end.reason if end else None)


@dataclass
class Seen:
    """All that a rehearsal saw."""

    expected: Ending
    run: Run
    calm: Run | None = None
    """The undisturbed run's; None where none was made."""
    strikes: Sequence[Strike] = ()
    faulted: int = 0
    stalls: Sequence[Stall] = ()
    """Requests that a fault of the scenario has hit."""
    pending: int = 0
    """What was to happen and did not."""
    retries: int = 0
    """Failures of the user's own that the stack retries."""
    refusals: Collection[str] = ()
    """Codes with which the platform refused to create a VM."""
    sizes: Mapping[str, int | None] = field(default_factory=dict)
    vms: Sequence[str] = ()
    audit: Mapping[str, Any] = field(default_factory=dict)
    """What exists after destroy."""
    bucket: str = ""
    strays: Sequence[str] = ()
    """Processes that had to be killed."""

    def attempt_of(self, strike: Strike) -> Attempt | None:
        return next((a for a in self.run.attempts if a.term == strike.attempt), None)


def read_result(store: Store, head: Head) -> ResultRead:
    """Downloads a finished run's result and hashes every byte of it here, trusting no record."""
    end = head.end
    if end is None or end.result is None:
        return ResultRead(None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            manifest = fetch_result(store, end.result, folder)
        except (Damaged, NotFound):
            return ResultRead(None)
        files = {file.name: (folder / file.name).read_bytes() for file in manifest.files}
    return ResultRead(manifest.digest, files)


def judge(seen: Seen, names: Iterable[str]) -> list[Guarantee]:
    """The verdict on what is always judged, then on `names` in their order."""
    asked = [("ends-as-expected", ends_as_expected), ("all-happened", all_happened)]
    asked += [(name, GUARANTEES[name]) for name in names]
    found = []
    for name, guarantee in asked:
        held, detail = guarantee(seen)
        found.append(Guarantee(name, " ".join((guarantee.__doc__ or "").split()), held, detail))
    return found


Verdict = tuple[bool, str]
"""Held or broken, and what was seen."""


# A guarantee's docstring is its promise, as it is printed.


def ends_as_expected(seen: Seen) -> Verdict:
    """the run ends as it must"""
    found, expected = seen.run.ending, seen.expected
    held = found.state == expected.state and expected.reason in (None, found.reason)
    detail = f"{found}" if held else f"{found}, must be {expected}"
    if seen.calm is not None:
        held = held and seen.calm.ending.state == State.DONE
        detail += f"; undisturbed {seen.calm.ending}"
    return held, detail


def all_happened(seen: Seen) -> Verdict:
    """every misfortune happened"""
    told = [str(strike) for strike in seen.strikes]
    if seen.faulted:
        told.append(f"{seen.faulted} requests were disturbed")
    if seen.pending:
        told.append(f"{seen.pending} never came")
    missed = any(strike.missed for strike in seen.strikes)
    return not (seen.pending or missed), "; ".join(told) or "none was planned"


def same_bytes(seen: Seen) -> Verdict:
    """the result is byte for byte the undisturbed run's"""
    digest = seen.run.result.digest
    calm = seen.calm.result.digest if seen.calm else None
    held = digest is not None and digest == calm
    return held, f"sha256 {digest}" + ("" if held else f" disturbed, {calm} undisturbed")


def told_truly(seen: Seen) -> Verdict:
    """every misfortune is told as what it was"""
    told, held = [], True
    for strike in seen.strikes:
        expected = _told_as(strike)
        if strike.attempt is None or not expected:
            continue
        attempt = seen.attempt_of(strike)
        reason = attempt.reason if attempt else None
        held = held and reason in expected
        told.append(f"{strike} ended as {reason or 'nothing yet'}")
    return held and bool(told), "; ".join(told) or "no attempt was struck"


def always_resumed(seen: Seen) -> Verdict:
    """every later attempt resumed, none began anew"""
    later = seen.run.attempts[1:]
    held = bool(later) and all(attempt.from_step > 0 for attempt in later)
    steps = ", ".join(str(attempt.from_step) for attempt in later)
    return held, f"from steps {steps}" if later else "no later attempt"


def notice_loses_nothing(seen: Seen) -> Verdict:
    """a notice that is heard loses no step"""
    warned = [seen.attempt_of(strike) for strike in seen.strikes if _warned(strike)]
    lost = [attempt.lost for attempt in warned if attempt]
    return bool(lost) and not any(lost), f"{sum(lost)} steps lost" if lost else "no notice"


def committed_stays(seen: Seen) -> Verdict:
    """no attempt lost a step that was committed"""
    known = [(a.committed or a.from_step, b.from_step) for a, b in pairwise(seen.run.attempts)]
    held = bool(known) and all(committed <= went_on for committed, went_on in known)
    steps = ", ".join(f"step {committed} -> {went_on}" for committed, went_on in known)
    return held, steps or "no later attempt"


def each_step_once(seen: Seen) -> Verdict:
    """each step is in the record exactly once"""
    rows = seen.run.rows
    total = seen.run.ledger.total if seen.run.ledger else None
    steps = [row["step"] for row in rows]
    whole = bool(steps) and steps == list(range(1, len(steps) + 1)) and total in (None, len(steps))
    same = seen.calm is None or list(rows) == list(seen.calm.rows)
    detail = f"{len(steps)} rows of {total} steps"
    if not (whole and same):
        detail += f", each once: {whole}"
        if seen.calm is not None:
            detail += f", as undisturbed ({len(seen.calm.rows)} rows): {same}"
    return whole and same, detail


def one_line(seen: Seen) -> Verdict:
    """one line of attempts, no stale write in it"""
    entries = seen.run.head.lineage if seen.run.head else ()
    terms = [entry.term for entry in entries]
    froms = [entry.from_step for entry in entries]
    held = bool(terms) and terms == sorted(set(terms)) and froms == sorted(froms)
    detail = ", ".join(f"attempt {e.term} from step {e.from_step}" for e in entries)
    return held, detail or "no attempt"


def head_never_goes_back(seen: Seen) -> Verdict:
    """nothing that a superseded VM does changes the run"""
    heads = [*seen.run.heads, *([seen.run.head] if seen.run.head else [])]
    last_terms = [head.chain[-1].term if head.chain else 0 for head in heads]
    for before, after in pairwise(heads):
        if after.term < before.term:
            return False, f"HEAD went from term {before.term} back to {after.term}"
        if before.state.ended and not after.state.ended:
            return False, f"HEAD was {before.state} and then {after.state}"
    for before, after in pairwise(last_terms):
        if after < before:
            return False, f"a checkpoint of attempt {after} came after one of attempt {before}"
    held = len({head.term for head in heads}) > 1
    terms = ", ".join(dict.fromkeys(str(head.term) for head in heads))
    return held, f"terms {terms}" if held else "no second term was seen"


def only_the_struck_end(seen: Seen) -> Verdict:
    """no attempt ended that nothing had struck"""
    struck = {strike.attempt for strike in seen.strikes if strike.do in _ENDING_ATTEMPTS}
    others = [a for a in seen.run.attempts[:-1] if a.term not in struck]
    detail = f"{len(seen.run.attempts)} attempts, {len(struck - {None})} struck"
    if others:
        detail += ": " + ", ".join(f"attempt {a.term} ended as {a.reason}" for a in others)
    return bool(seen.run.attempts) and not others, detail


def costs_the_user_nothing(seen: Seen) -> Verdict:
    """what the platform did counts against nobody"""
    head = seen.run.head
    if head is None:
        return False, "no attempt"
    return head.failures == 0, f"{head.failures} failures counted"


def stalls_are_given_up(seen: Seen) -> Verdict:
    """a connection that hangs is given up, and what it was for is asked for again"""
    held = bool(seen.stalls) and all(
        stall.again and stall.waited_sec is not None for stall in seen.stalls
    )
    return held, "; ".join(map(str, seen.stalls)) or "no connection hung"


def waits_for_room(seen: Seen) -> Verdict:
    """a VM that cannot be created is asked for again until it is there"""
    refused = [code for code in seen.refusals if any(word in code for word in _NO_ROOM)]
    return bool(refused) and bool(seen.run.attempts), (
        f"refused with {', '.join(sorted(set(refused)))}; {len(seen.run.attempts)} attempts"
        if refused
        else "nothing was refused"
    )


def changes_zone(seen: Seen) -> Verdict:
    """a VM whose zone has no room is made anew in another"""
    zones = [attempt.zone for attempt in seen.run.attempts]
    moved = [one for one, other in pairwise(zones) if one != other]
    return len(zones) > 1 and len(moved) == len(zones) - 1, f"in {', '.join(zones)}"


def retries_as_set(seen: Seen) -> Verdict:
    """a failure of the trainer's own is retried as often as it was asked for"""
    own = [
        attempt
        for attempt in seen.run.attempts
        if attempt.reason in RETRIED_USER_REASONS | FINAL_USER_REASONS
    ]
    reasons = ", ".join(str(attempt.reason) for attempt in own) or "none"
    head = seen.run.head
    if head is not None and head.state is State.DONE:
        held = 0 < len(own) <= seen.retries
    else:
        final = bool(own) and own[-1].reason in FINAL_USER_REASONS
        held = len(own) == (1 if final else 1 + seen.retries)
    return held, f"attempts that failed: {reasons}; retries: {seen.retries}"


def failure_is_told(seen: Seen) -> Verdict:
    """the record of a failure says why"""
    head = seen.run.head
    end = seen.run.ends.get(head.term) if head else None
    if head is None or head.end is None or end is None:
        return False, "no record of an end"
    why = end.stderr[-1] if end.stderr else end.message
    # A trainer that says why itself is heard.
    said = bool(end.stderr) or end.reason is not Reason.USER_FAILED
    held = bool(end.message) and said and end.reason is head.end.reason
    return held, f"{end.reason}, exit {end.exit}: {why}"


def nothing_after_the_end(seen: Seen) -> Verdict:
    """no VM boots for a run that has ended"""
    if seen.run.ended is None:
        return False, "no end was recorded"
    late = [boot for boot in seen.run.boots if boot.start > seen.run.ended]
    return not late, f"{len(seen.run.boots)} boots, {len(late)} after the end"


def gives_up(seen: Seen) -> Verdict:
    """ten boots in a row that come to nothing leave the group"""
    boots, sizes = len(seen.run.boots), list(seen.sizes.values())
    held = not seen.run.attempts and boots == MAX_BARREN and sizes == [0]
    return held, f"{boots} boots, {len(seen.run.attempts)} attempts, group size {sizes}"


def done_means_done(seen: Seen) -> Verdict:
    """a stop that the trainer was told of is no completion"""
    told = [seen.attempt_of(strike) for strike in seen.strikes if _warned(strike)]
    stopped = [attempt for attempt in told if attempt]
    held = bool(stopped) and all(attempt.reason is not Reason.DONE for attempt in stopped)
    detail = ", ".join(f"attempt {a.term} ended as {a.reason}" for a in stopped)
    return held, detail or "no attempt was told to stop"


def warning_is_heeded(seen: Seen) -> Verdict:
    """a warning of maintenance is answered with a checkpoint at once; only the machine's own stop
    ends the attempt"""
    held, told = True, []
    for strike in seen.strikes:
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
    return held and bool(told), "; ".join(told) or "no attempt was warned"


def nothing_runs(seen: Seen) -> Verdict:
    """an ended run has group size 0 and no VM"""
    held = bool(seen.sizes) and all(size == 0 for size in seen.sizes.values()) and not seen.vms
    groups = ", ".join(f"{name} {size}" for name, size in seen.sizes.items())
    return held, f"sizes: {groups}; VMs: {', '.join(seen.vms) or 'none'}"


def bucket_alone_is_left(seen: Seen) -> Verdict:
    """destroy leaves the bucket and nothing else"""
    left = {kind: found for kind, found in seen.audit.items() if found and kind not in _KEPT}
    kept = seen.bucket in [found["name"] for found in seen.audit.get("buckets", [])]
    detail = f"gs://{seen.bucket} is {'kept' if kept else 'gone'}"
    return kept and not left, f"{detail}, left: {left}" if left else detail


def no_process(seen: Seen) -> Verdict:
    """no process of it lives on the machine"""
    return not seen.strays, f"had to be killed: {', '.join(seen.strays)}" if seen.strays else "none"


GUARANTEES: Mapping[str, Callable[[Seen], Verdict]] = {
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
