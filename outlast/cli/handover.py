"""Gives a run to another stack: one that was renamed, or moved to another backend or project.

HEAD names the run's owner, and a VM of any other owner refuses the run. The owner is changed only
while no VM works on the run, by a swap of the HEAD that was read before that check.
"""

import re
from dataclasses import dataclass, replace

from outlast.base.retry import BRIEF
from outlast.bucket.head import Head, new_nonce
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.store import PreconditionFailed, Store
from outlast.cli.errors import OperateError, UsageError
from outlast.cli.repair import living_attempt
from outlast.spec.run_spec import Timeouts

_OWNER = re.compile(r"[^/\s]+/[^/\s]+/[^/\s]+")


@dataclass(frozen=True)
class HandedOver:
    """The result of a handover."""

    head: Head
    before: str
    """The owner until now."""


def hand_over(
    store: Store,
    layout: Layout,
    owner: str,
    *,
    silent_sec: float = Timeouts().successor_silence,
) -> HandedOver:
    """Makes `owner` (organization/project/stack) the run's owner.

    Raises UsageError for another form of owner, OperateError while an attempt that has not ended
    gave a sign of life within `silent_sec`, HeadError and StoreError if HEAD cannot be read or
    written. A repeated call changes nothing.
    """
    if not _OWNER.fullmatch(owner):
        raise UsageError(f"owner {owner!r}: must be organization/project/stack.")
    found = HeadFile(store, layout, patience=BRIEF).read()
    before = found.head.owner
    if before == owner:
        return HandedOver(found.head, before)
    if living := living_attempt(store, layout, silent_sec):
        term, silent = living
        raise OperateError(
            f"run {layout.run}: attempt {term} gave a sign of life {silent:.0f} s ago and has not"
            " ended; end its VM first (pulumi destroy of the stack that has it, or delete the VM's"
            f" group), and hand the run over when it has been silent for {silent_sec:.0f} s."
        )
    mine = replace(found.head, owner=owner, nonce=new_nonce())
    try:
        store.put(layout.head, mine.to_json(), if_generation_match=found.object.generation)
    except PreconditionFailed:
        raise OperateError(
            f"run {layout.run}: HEAD has changed meanwhile, so a VM works on the run; end it first,"
            " then hand the run over."
        ) from None
    return HandedOver(mine, before)
