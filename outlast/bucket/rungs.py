"""The rungs of a sweep in its bucket: what each trial had reached there, and what it decided.

Every object is created once and never changes, so that a decision holds however often its trial is
interrupted. A decision depends only on the values that arrived before the trial's own, by the
store's time: a trial that was interrupted between its value and its decision decides as it would
have decided at once.
"""

import logging
from functools import partial
from typing import TypeVar

from outlast.base.codec import Record
from outlast.base.names import number_of
from outlast.base.retry import BRIEF, ONCE, Patience
from outlast.bucket.layout import Choice, RungDecision, RungValue, SweepLayout
from outlast.bucket.records import read_record
from outlast.bucket.store import (
    Damaged,
    Object,
    PreconditionFailed,
    Store,
    put_new,
)
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.spec.sweep_rules import SweepRules

_log = logging.getLogger(__name__)

AnyRecord = TypeVar("AnyRecord", bound=Record)

_STEP_DIGITS = (12, 15)


def record_value(
    store: Store, layout: SweepLayout, value: RungValue, *, patience: Patience = BRIEF
) -> RungValue:
    """Records what a trial has reached at a rung; returns the value that counts, which is an
    earlier one if there is one. Raises StoreError.
    """
    return _record_once(store, layout.value(value.rung, value.run), value, patience)


def decide(
    store: Store,
    layout: SweepLayout,
    value: RungValue,
    rules: SweepRules,
    *,
    resume: int = 0,
    patience: Patience = BRIEF,
) -> RungDecision:
    """Decides at a rung where the trial's value is recorded; returns the decision that counts,
    which is an earlier one if there is one. Raises StoreError.
    """
    path = layout.decision(value.rung, value.run)
    found = patience(lambda: read_record(store, path, RungDecision))
    if found is not None:
        return found
    others = values_before(store, layout, value, patience=patience)
    verdict = rules.decide(value.measured, [other.measured for other in others])
    decision = RungDecision(
        run=value.run,
        rung=value.rung,
        choice=Choice.STOP if verdict.stop else Choice.CONTINUE,
        resume=resume,
        rules=rules.as_setting(),
        own=verdict.own,
        bar=verdict.bar,
        others=tuple(others),
        why=f"rung {value.rung} of sweep {layout.name}: {verdict.why}",
    )
    return _record_once(store, path, decision, patience)


def values_before(
    store: Store, layout: SweepLayout, value: RungValue, *, patience: Patience = BRIEF
) -> list[RungValue]:
    """The values that arrived at the rung before the trial's own, in that order. One that cannot be
    read does not count, which is logged. Raises StoreError.
    """
    listed = patience(lambda: list(store.list(layout.values_at(value.rung))))
    mine = layout.value(value.rung, value.run)
    arrived = sorted(listed, key=_arrival)
    places = [place for place, found in enumerate(arrived) if found.path == mine]
    if not places:
        raise Damaged(f"{mine}: is not listed, although it was recorded")
    jobs = [partial(_value, store, layout, found, patience) for found in arrived[: places[0]]]
    return [found for found in in_parallel(jobs, small_reads(store)) if found is not None]


def decisions_of(
    store: Store, layout: SweepLayout, run: str, *, patience: Patience = BRIEF
) -> list[RungDecision]:
    """What a trial has decided so far, by rung. Raises StoreError."""
    rungs = patience(lambda: list(store.folders(layout.decisions)))
    found = []
    for name in rungs:
        rung = number_of(name, *_STEP_DIGITS)
        if rung is None:
            continue
        path = layout.decision(rung, run)
        decision = patience(lambda path=path: read_record(store, path, RungDecision))
        if decision is not None:
            found.append(decision)
    return found


def _record_once(store: Store, path: str, record: AnyRecord, patience: Patience) -> AnyRecord:
    kind = type(record)

    def once() -> AnyRecord:
        # Read first: a trial may not replace objects, and whether a write over one answers 403 or
        # 412 then is not documented.
        found = read_record(store, path, kind)
        if found is not None:
            return found
        try:
            put_new(store, path, record.to_json(), patience=ONCE)
        except PreconditionFailed:
            found = read_record(store, path, kind)
            if found is None:
                raise
            return found
        return record

    return patience(once)


def _arrival(found: Object) -> tuple[object, str]:
    return found.updated, found.path


def _value(
    store: Store, layout: SweepLayout, found: Object, patience: Patience
) -> RungValue | None:
    """None, which is logged, for an object that is not the value that its name says."""
    try:
        value = patience(lambda: read_record(store, found.path, RungValue))
    except Damaged as error:
        _log.info(f"sweep {layout.name}: {error}; it does not count")
        return None
    if value is None or layout.value(value.rung, value.run) != found.path:
        _log.info(
            f"sweep {layout.name}: {found.path}: is not what its name says; it does not count"
        )
        return None
    return value
