"""What a run's records in the bucket say: its state, its attempts, its goodput."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outlast.exits import Reason, State
from outlast.layout import AttemptEnd, AttemptStart, Beat, Layout, format_time
from outlast.run.head import Head, HeadLost, read_head
from outlast.run.store import NotFound, Store


@dataclass(frozen=True)
class Attempt:
    """One life of one VM working on the run; times are server times."""

    term: int
    start: datetime
    end: datetime | None
    """End of an attempt that ended; the last beat of one that was cut; None while it lives."""
    reason: Reason | None
    """None while it lives."""
    instance: str
    zone: str
    from_step: int
    """Step of the checkpoint that it went on from; 0 for a fresh start."""
    step: int
    """Last step that its records tell of."""
    lost: int
    """Steps it did that the final lineage does not own: the next attempt did them again."""

    @property
    def steps(self) -> int:
        """Steps it did, lost ones included."""
        return self.step - self.from_step

    def as_json(self) -> dict[str, Any]:
        return {
            "attempt": self.term,
            "start": format_time(self.start),
            "end": format_time(self.end) if self.end else None,
            "reason": self.reason,
            "instance": self.instance,
            "zone": self.zone,
            "from_step": self.from_step,
            "step": self.step,
            "steps": self.steps,
            "steps_lost": self.lost,
        }


@dataclass(frozen=True)
class Ledger:
    """All that is recorded of one run."""

    head: Head
    attempts: tuple[Attempt, ...]
    boots: int
    """VM boots, those that never held a term included."""
    first_boot: datetime | None
    total: int | None
    """All steps of the run, as its trainer said; None until it did."""
    rows: tuple[dict[str, Any], ...]
    """The last rows that the newest attempt's beat tells of, newest last."""

    @property
    def step(self) -> int:
        """Last step that the records tell of."""
        return self.attempts[-1].step if self.attempts else 0

    @property
    def steps_lost(self) -> int:
        return sum(attempt.lost for attempt in self.attempts)

    def goodput(self) -> float | None:
        """Kept step-seconds over wall seconds, from the first boot to the end; None while open.

        An attempt's step-seconds are its seconds from start record to end (or last beat), kept in
        the share of its steps that the final lineage owns (facts: ml-goodput's words).
        """
        ends = [attempt.end for attempt in self.attempts if attempt.end]
        if self.head.state is State.OPEN or not ends or self.first_boot is None:
            return None
        kept = 0.0
        for attempt in self.attempts:
            if attempt.end and attempt.steps:
                share = (attempt.steps - attempt.lost) / attempt.steps
                kept += (attempt.end - attempt.start).total_seconds() * share
        wall = (max(ends) - self.first_boot).total_seconds()
        return kept / wall if wall > 0 else None


def read(store: Store, layout: Layout) -> Ledger | None:
    """The ledger of a run; None where the run has no HEAD yet.

    Raises HeadError and StoreError as `read_head` does, ValueError where a record is damaged.
    """
    try:
        head = read_head(store, layout).head
    except HeadLost:
        return None
    starts: list[AttemptStart] = []
    ends: dict[int, AttemptEnd] = {}
    beats: dict[int, Beat] = {}
    for item in store.list(layout.attempts):
        name = item.path.removeprefix(layout.attempts)
        try:
            if name.endswith("/start.json"):
                starts.append(AttemptStart.from_json(store.get(item.path)[0]))
            elif name.endswith("/end.json"):
                end = AttemptEnd.from_json(store.get(item.path)[0])
                ends[end.term] = end
            elif name.endswith("/beat.json"):
                beat = Beat.from_json(store.get(item.path)[0])
                beats[beat.term] = beat
        except NotFound:  # rewritten or removed between list and get
            continue
    starts.sort(key=lambda start: start.term)
    attempts = tuple(_attempts(head, starts, ends, beats))
    boots: set[str] = set()
    first: datetime | None = None
    for item in store.list(layout.boots):
        if item.path.endswith(".end.json"):
            continue
        boots.add(item.path)
        first = item.updated if first is None else min(first, item.updated)
    newest = beats.get(starts[-1].term) if starts else None
    totals = [beat.total for beat in beats.values() if beat.total]
    return Ledger(
        head,
        attempts,
        len(boots),
        first,
        totals[-1] if totals else None,
        newest.rows if newest else (),
    )


def _attempts(
    head: Head,
    starts: Sequence[AttemptStart],
    ends: dict[int, AttemptEnd],
    beats: dict[int, Beat],
) -> list[Attempt]:
    made = []
    for index, start in enumerate(starts):
        end = ends.get(start.term)
        beat = beats.get(start.term)
        after = starts[index + 1] if index + 1 < len(starts) else None
        step = max(start.step, beat.step if beat else 0, end.step if end else 0)
        moment = end.time if end else beat.time if beat else start.time
        reason = end.reason if end else None
        if end is None and (after is not None or head.state is not State.OPEN):
            reason = Reason.CUT  # nobody writes another attempt's end
        if reason is None:
            moment = None
        kept = after.step if after else step
        made.append(
            Attempt(
                term=start.term,
                start=start.time,
                end=moment,
                reason=reason,
                instance=start.instance,
                zone=start.zone,
                from_step=start.step,
                step=max(step, kept),
                lost=max(0, step - kept),
            )
        )
    return made
