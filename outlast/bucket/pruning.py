"""Deletes ended runs, or only their checkpoints, for `outlast prune`.

As with checkpoints (docs/decisions/0018), what names the objects goes first. A mark says that the
run is being deleted; then HEAD goes, by the generation that was read, then everything else, by
generation, the records of attempts last, and the mark after them. Until then a VM that boots finds
attempts without a HEAD, and leaves. Whatever is interrupted can be repeated.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from outlast.base.codec import canonical_json
from outlast.base.retry import BRIEF
from outlast.bucket.head import Head, new_nonce, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import NotFound, Object, PreconditionFailed, Store, put_new
from outlast.bucket.transfer import in_parallel, small_writes


class Changed(Exception):
    """HEAD is not the one that was looked at: the run stays."""


def delete_run(store: Store, layout: Layout, head: Head | None, generation: int) -> None:
    """Deletes the run; `head`: as it was read in that generation, None for a run whose deletion was
    interrupted. Raises Changed and StoreError.
    """
    if head is not None:
        _mark(store, layout, head.owner)
        _delete_head(store, layout, generation)
    found = [one for one in store.list(layout.root) if one.path != layout.pruning]
    if any(one.path == layout.head for one in found):
        raise Changed(f"{layout.root}: has a new HEAD")
    of_attempts = [one for one in found if one.path.startswith(layout.attempts)]
    last = {one.path for one in of_attempts}
    delete_all(store, [one for one in found if one.path not in last])
    delete_all(store, of_attempts)
    delete_all(store, list(store.list(layout.pruning)))


def owner_of(store: Store, mark: Object) -> str:
    """The owner of a run whose deletion was interrupted; empty if the mark does not say it, or is
    gone. Raises StoreError."""
    try:
        found = json.loads(store.get(mark.path)[0])
        return str(found.get("owner", ""))
    except (NotFound, ValueError, AttributeError, RecursionError):
        return ""


def drop_checkpoints(store: Store, layout: Layout) -> None:
    """Deletes the checkpoints of a run that is done, after HEAD has dropped them. Raises Changed,
    HeadError and StoreError.
    """
    found = read_head(store, layout)
    head = found.head
    if head.chain or head.older_chain:
        mine = replace(head, chain=(), older_chain=None, nonce=new_nonce())

        def swap() -> None:
            try:
                store.put(layout.head, mine.to_json(), if_generation_match=found.object.generation)
            except PreconditionFailed:
                if read_head(store, layout).head.nonce != mine.nonce:
                    raise Changed(f"{layout.root}: has a new HEAD") from None

        BRIEF(swap)
    delete_all(store, [one for one in store.list(layout.terms) if layout.is_of_snapshot(one.path)])


def delete_all(store: Store, objects: Iterable[Object]) -> None:
    """Deletes each in the generation that was listed; one that is gone or newer is left. Raises
    StoreError."""

    def delete(one: Object) -> None:
        try:
            BRIEF(lambda: store.delete(one.path, generation=one.generation))
        except (NotFound, PreconditionFailed):
            return

    in_parallel([partial(delete, one) for one in objects], small_writes(store))


def _mark(store: Store, layout: Layout, owner: str) -> None:
    # An interrupted deletion may have left it, under an earlier owner.
    with contextlib.suppress(PreconditionFailed):
        put_new(store, layout.pruning, canonical_json({"owner": owner}))


def _delete_head(store: Store, layout: Layout, generation: int) -> None:
    try:
        BRIEF(lambda: store.delete(layout.head, generation=generation))
    except NotFound:
        return
    except PreconditionFailed:
        delete_all(store, list(store.list(layout.pruning)))
        raise Changed(f"{layout.root}: has a new HEAD") from None
