"""What a rehearsal must have shown: each guarantee a function of what was seen, held or broken."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast.exits import Reason, State
from outlast.layout import METRICS_FILE, check_metrics
from outlast.operate.ledger import Ledger
from outlast.run.commit import fetch_result
from outlast.run.head import Head
from outlast.run.store import Damaged, NotFound, Store


@dataclass(frozen=True)
class Guarantee:
    """One promise, and whether the rehearsal saw it held."""

    name: str
    held: bool
    detail: str


@dataclass
class Misfortune:
    """One way to lose the VM, and when: the share of all steps that must be behind the run."""

    kind: str
    share: float
    expected: Reason
    """What the attempt's record must say afterwards."""
    term: int | None = None
    """The attempt that it struck; None before."""


@dataclass(frozen=True)
class ResultRead:
    """A result as its bytes are; `digest` is None where they are not what the records say."""

    digest: str | None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def last_metrics(self) -> dict[str, float]:
        """The last row of metrics.json; empty where there is none."""
        raw = self.files.get(METRICS_FILE)
        table = check_metrics(raw) if raw else {}
        return {name: values[-1] for name, values in table.items() if values}


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


def both_done(storm: Ledger, calm: Ledger) -> Guarantee:
    states = [storm.head.state, calm.head.state]
    held = all(state is State.DONE for state in states)
    return Guarantee("both runs are done", held, f"HEAD says {', '.join(states)}")


def same_bytes(storm: ResultRead, calm: ResultRead) -> Guarantee:
    held = storm.digest is not None and storm.digest == calm.digest
    detail = f"sha256 {storm.digest}"
    if not held:
        detail += f" after preemptions, {calm.digest} undisturbed"
    return Guarantee("the result is byte for byte the undisturbed run's", held, detail)


def told_as_planned(storm: Ledger, misfortunes: Sequence[Misfortune]) -> Guarantee:
    reasons = {attempt.term: attempt.reason for attempt in storm.attempts}
    seen = [(m, reasons.get(m.term) if m.term else None) for m in misfortunes]
    held = bool(seen) and all(reason is m.expected for m, reason in seen)
    told = "; ".join(f"{m.kind}: attempt {m.term} ended as {reason}" for m, reason in seen)
    return Guarantee("every preemption happened and is told as such", held, told)


def always_resumed(storm: Ledger) -> Guarantee:
    later = storm.attempts[1:]
    held = bool(later) and all(attempt.from_step > 0 for attempt in later)
    detail = f"from steps {', '.join(str(a.from_step) for a in later)}" if later else "no attempt"
    return Guarantee("every later attempt resumed, none began anew", held, detail)


def notice_lost_nothing(storm: Ledger, misfortunes: Sequence[Misfortune]) -> Guarantee:
    warned = {m.term for m in misfortunes if m.expected is Reason.PREEMPTED and m.term}
    lost = [attempt.lost for attempt in storm.attempts if attempt.term in warned]
    detail = f"{sum(lost)} steps lost" if lost else "no notice was given"
    return Guarantee("a notice that is heard loses no step", bool(lost) and not any(lost), detail)


def cuts_lost_the_uncommitted_only(storm: Ledger) -> Guarantee:
    """Each attempt goes on from at least what the one before is known to have committed."""
    pairs = list(zip(storm.attempts, storm.attempts[1:], strict=False))
    known = [(a.committed or a.from_step, b.from_step) for a, b in pairs]
    held = all(committed <= went_on for committed, went_on in known)
    detail = ", ".join(f"step {committed} -> {went_on}" for committed, went_on in known)
    name = "no attempt lost a step that was committed"
    return Guarantee(name, bool(known) and held, detail or "no later attempt")


Rows = Sequence[Mapping[str, Any]]


def each_step_once(rows: Rows, calm: Rows, total: int | None) -> Guarantee:
    """Rows of the final lineage: every step from 1 to the last, once, the same as undisturbed."""
    steps = [row["step"] for row in rows]
    whole = bool(steps) and steps == list(range(1, len(steps) + 1)) and total in (None, len(steps))
    same = list(rows) == list(calm)
    detail = f"{len(steps)} rows of {total} steps"
    if not (whole and same):
        detail += f", each once: {whole}, as undisturbed ({len(calm)} rows): {same}"
    return Guarantee("each step is in the record exactly once", whole and same, detail)


def one_line(storm: Ledger) -> Guarantee:
    entries = storm.head.lineage
    terms = [entry.term for entry in entries]
    froms = [entry.from_step for entry in entries]
    held = bool(terms) and terms == sorted(set(terms)) and froms == sorted(froms)
    detail = ", ".join(f"attempt {e.term} from step {e.from_step}" for e in entries)
    return Guarantee("one line of attempts, no stale write in it", held, detail or "no attempt")


def nothing_runs(sizes: Mapping[str, int | None], vms: Sequence[str]) -> Guarantee:
    held = bool(sizes) and all(size == 0 for size in sizes.values()) and not vms
    groups = ", ".join(f"{name} {size}" for name, size in sizes.items())
    detail = f"sizes: {groups}; VMs: {', '.join(vms) or 'none'}"
    return Guarantee("a finished run has group size 0 and no VM", held, detail)


def bucket_alone_is_left(audit: Mapping[str, Any], bucket: str) -> Guarantee:
    """The bucket and what it holds are kept at destroy; nothing else is."""
    left = {kind: found for kind, found in audit.items() if found and kind not in _KEPT}
    kept = bucket in [found["name"] for found in audit["buckets"]]
    detail = f"gs://{bucket} is {'kept' if kept else 'gone'}"
    if left:
        detail += f", left: {left}"
    return Guarantee("destroy leaves the bucket and nothing else", kept and not left, detail)


_KEPT = {"buckets", "deleted_roles"}
"""The platform itself keeps a deleted role's id for weeks."""


def no_process(strays: Sequence[str]) -> Guarantee:
    detail = f"had to be killed: {', '.join(strays)}" if strays else "none"
    return Guarantee("no process of it lives on the machine", not strays, detail)
