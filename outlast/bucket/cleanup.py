"""Deletes the checkpoints that HEAD does not name any more. docs/decisions/0018 says when."""

import logging
from collections.abc import Iterable

from outlast.base.retry import ONCE, Patience
from outlast.bucket import pages
from outlast.bucket.head import Checkpoint, HeadForbidden
from outlast.bucket.headfile import HeadFile
from outlast.bucket.store import StoreError, delete_quietly
from outlast.bucket.transfer import in_parallel, small_writes

_log = logging.getLogger(__name__)

LAST_SEC = 30.0
"""Seconds for which the last clean-up of a run repeats requests that fail: no later one follows."""


class Cleanup:
    """What the holder of a term deletes. For one thread at a time."""

    def __init__(self, head_file: HeadFile) -> None:
        self._head_file = head_file
        self._term = head_file.term
        self._store = head_file.store
        self._layout = head_file.layout
        self._dropped: list[Checkpoint] = []
        self._repeats_until = 0.0
        self.swept = False
        """Whether what lower terms left is deleted."""

    def note_dropped(self, checkpoints: set[Checkpoint]) -> None:
        """Remembers what a swap that certainly succeeded removed from HEAD."""
        self._dropped += sorted(checkpoints, key=lambda entry: entry.path)

    def delete_dropped(self) -> None:
        """Deletes dropped checkpoints; what cannot be deleted now is left to the sweep."""
        left = []
        for checkpoint in self._dropped:
            try:
                gone = self._delete_folder(checkpoint.path)
            except StoreError as error:
                gone = False
                _log.info(f"checkpoint {checkpoint.path}: was dropped but not deleted ({error})")
            if not gone:
                left.append(checkpoint)
        self._dropped = left

    def _delete_folder(self, folder: str) -> bool:
        """Deletes the folder's objects by generation; True if all are deleted."""
        found = self._patience(lambda: [*self._store.list(folder)])
        gone = in_parallel(
            [
                lambda one=one: delete_quietly(
                    self._store, one.path, one.generation, patience=self._patience
                )
                for one in found
            ],
            small_writes(self._store),
        )
        return all(gone)

    @property
    def _patience(self) -> Patience:
        """One try; before the run's end, as many as the rest of its time allows."""
        left_sec = self._repeats_until - self._head_file.clock.monotonic()
        if left_sec <= 0.0:
            return ONCE
        return self._head_file.patience.within(left_sec).permitting(0.0)

    def sweep(self, unreadable: Iterable[Checkpoint], *, last: bool = False) -> None:
        """Deletes what lower terms left: snapshots and results that HEAD does not name, and that
        are not among the ``unreadable`` checkpoints. ``last``: the run ends, so that no later sweep
        finds what this one could not delete.

        Runs only after this term's first successful swap, so that no lower term can name them any
        more. Reads HEAD before each folder: a fenced attempt deletes nothing. What fails is left
        for later.
        """
        if last:
            self._repeats_until = self._head_file.clock.monotonic() + LAST_SEC
        self.delete_dropped()
        try:
            leftovers = {
                place[1]
                for found in self._patience(lambda: [*self._store.list(self._layout.terms)])
                if (place := self._layout.folder_of(found.path)) and place[0] < self._term
            }
            self._sweep(leftovers - {entry.path for entry in unreadable})
        except (HeadForbidden, StoreError) as error:
            _log.info(f"sweep: was not finished ({error}); the next one continues")
            return
        self.swept = True

    def _sweep(self, folders: set[str]) -> None:
        """Deletes the folders that neither HEAD nor its pages name."""
        head = self._head_file.held(self._term)
        folders = folders - {entry.path for entry in head.chain}
        if not folders:
            return
        kept = pages.kept(self._store, self._layout, head, patience=self._head_file.patience)
        if kept.lost:
            # A page that cannot be read may name any of them.
            _log.info(f"sweep: nothing is deleted, since {'; '.join(kept.lost)}")
            return
        for folder in sorted(folders - {entry.path for entry in kept.chain}):
            now = self._patience(lambda: self._head_file.check(term=self._term))
            if all(entry.path != folder for entry in now.chain):
                self._delete_folder(folder)
