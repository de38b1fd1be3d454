"""Writes the state as a snapshot's folder, and finds a place with room for it."""

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.base import scratch_space
from outlast.loop import ranks, snapshot, state, verify
from outlast.loop.call import Call
from outlast.loop.errors import DoesNotFit
from outlast.loop.recording import Recording
from outlast.loop.session import Session
from outlast.loop.watchers import Watchers
from outlast.loop.words import say
from outlast.protocol import Snapshot

FULL_RETRY_SEC = 60.0
"""Seconds to retry on a full disk, while the previous snapshot frees its room."""
BUSY_RETRY_SEC = 1.0
SPARE = "tmp-spare.bin"
EVALUATIONS = "tmp-evaluations"
"""Folder for full files of evaluations while the training runs."""
RESULT = "tmp-result"
"""Folder for the files of the result until they are complete."""


@dataclass
class Offer:
    """A written folder that the supervisor has not accepted yet."""

    folder: Path
    message: Snapshot
    cost_sec: float
    over: str | None = None
    """Why the loop is over, from its notes."""
    asked_at_sec: float | None = None
    """When it was handed over, while the answer has not come."""
    lacks_ranks: bool = False
    """Whether the ranks must still write their parts."""


class Writer:
    """Writes the state into folders, between two steps."""

    def __init__(
        self,
        session: Session,
        call: Call,
        recording: Recording,
        watchers: Watchers,
        folders: Sequence[Path],
        *,
        leader: ranks.Leader | None = None,
    ) -> None:
        """``folders`` are those for snapshots; the first one is the supervisor's choice."""
        self._session = session
        self._state = call.state
        self._begun = state.survey(call.state)
        self._rank_state = call.rank_state
        self._recording = recording
        self._watchers = watchers
        self._leader = leader
        self._work = folders[0]
        self._scratch = folders
        for place in folders:
            # From an earlier trainer, and perhaps still read under another name.
            (place / SPARE).unlink(missing_ok=True)
            shutil.rmtree(place / EVALUATIONS, ignore_errors=True)
        self._place, self._place_size = self._work, -1
        self._spare = snapshot.Spare(self._place / SPARE)
        self._count = 0

    def close(self) -> None:
        """Remove the files that are kept for the next snapshot."""
        self._spare.drop()
        shutil.rmtree(self._place / EVALUATIONS, ignore_errors=True)

    def write(
        self, step: int, tags: list[str], over: str | None, *, limit_sec: float | None = None
    ) -> Offer:
        """Write the state as a complete folder under its final name. DoesNotFit if there is still
        no room after ``limit_sec``."""
        limit_sec = FULL_RETRY_SEC if limit_sec is None else min(limit_sec, FULL_RETRY_SEC)
        deadline = time.monotonic() + limit_sec
        tries = 0
        while True:
            tries += 1
            try:
                offer = self.write_once(step, tags, over)
                if tries > 1:
                    say(f"room for the snapshot at try {tries}")
                return offer
            except OSError as error:
                if error.errno not in scratch_space.FULL:
                    raise
                size = self._place_size
                self.drop_unfinished()
                if time.monotonic() >= deadline:
                    raise self._no_room(size, f" for {limit_sec:.0f} s", error) from None
                if tries == 1:  # later tries would print the same
                    problem = f"no room for a snapshot ({error}); trying for {limit_sec:.0f} s"
                    say(problem)
            # The previous snapshot's commit may make room, or another process that has filled the
            # disk.
            self._session.tick(step, "snapshot")
            if not self._session.busy or not self._session.wait_committed(BUSY_RETRY_SEC):
                time.sleep(BUSY_RETRY_SEC / 2)

    def _no_room(self, size: int, how_long: str, error: OSError) -> DoesNotFit:
        return DoesNotFit(
            f"a snapshot of {size} bytes could not be written{how_long} ({error.strerror}); "
            f"{scratch_space.describe(self._scratch)}; choose a machine with more memory or a"
            " larger disk"
        )

    def drop_unfinished(self) -> None:
        """Remove unfinished files, and choose a place again the next time."""
        self._spare.drop()
        for place in self._scratch:
            for left in place.glob("tmp-*"):
                # A rank's proof is its own, and the rank may be using it now.
                if left.name != RESULT and not left.name.startswith("tmp-proof-"):
                    shutil.rmtree(left, ignore_errors=True)
        self._place_size = -1

    def _choose_place(self, size: int) -> None:
        """Choose a place in which two snapshots of ``size`` bytes fit; again whenever they have
        grown."""
        if size <= self._place_size:
            return
        self._place_size = size
        place = scratch_space.choose(self._scratch, size) if len(self._scratch) > 1 else self._work
        if place != self._place:
            say(
                f"snapshots of {size} bytes go to {place}: {scratch_space.describe([self._place])}",
            )
            self._spare.drop()
            shutil.rmtree(self._place / EVALUATIONS, ignore_errors=True)
            self._place, self._spare = place, snapshot.Spare(place / SPARE)

    def write_once(
        self, step: int, tags: list[str], over: str | None, *, with_ranks: bool = True
    ) -> Offer:
        """Like ``write``, but with one try; OSError if there is no room now."""
        begun_sec = time.monotonic()
        self._warn(self._watchers.look(step))
        self._count += 1
        identifier = f"{self._count:06d}"
        nodes, blobs = state.capture_all(self._state, self._begun)
        self._choose_place(sum(blob.nbytes for blob in blobs.items))
        temporary = self._place / f"tmp-{identifier}"
        loop = {**self._recording.history.summary(), **self._watchers.note()}
        if over is not None:
            loop["over"] = over
        saved = snapshot.Saved(step, loop, nodes, blobs)
        with self.rank_parts(step, temporary) if with_ranks else contextlib.nullcontext():
            snapshot.write(temporary, saved, spare=self._spare_file())
            self._recording.history.write(temporary, self._place / EVALUATIONS)
        rows_offset = (
            self._recording.flush()
        )  # before the final name, because this disk may be full too
        folder = snapshot.publish(temporary, self._place / f"snap-{identifier}")
        message = Snapshot(identifier, str(folder), step, tags, rows_offset)
        cost_sec = time.monotonic() - begun_sec
        return Offer(folder, message, cost_sec, over, lacks_ranks=not with_ranks)

    @contextlib.contextmanager
    def rank_parts(self, step: int, folder: Path) -> Iterator[None]:
        """A context in which every rank writes its part while the rest of the snapshot is written;
        moves the parts into ``folder`` afterwards."""
        if self._rank_state is None:
            yield
            return
        parts = folder.with_name(f"{folder.name}-ranks")
        parts.mkdir()
        asked = False
        try:
            if self._leader is not None:
                self._leader.ask_parts(step, parts)
                asked = True
            self._warn(self._rank_state.write(parts, step))
            yield
        finally:
            if asked and self._leader is not None:
                self._leader.wait_parts(step)  # each request gets exactly one answer
        for part in parts.iterdir():
            part.rename(folder / part.name)
        parts.rmdir()

    def _spare_file(self) -> snapshot.Spare:
        """The file for the next snapshot's arrays, which overwrite those of the last one if it has
        no reader."""
        if self._session.busy or self._spare.shared:
            self._spare.drop()
        return self._spare

    def _warn(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            self._session.warn(sentence)

    def prove(self) -> None:
        """Save the state, restore it and compare; StateError names an object that differs
        afterwards."""
        self._watchers.unchanged.look(1, snapshot=False)  # most entries change in the first step
        before = state.capture_all(self._state, self._begun)
        size = sum(blob.nbytes for blob in before[1].items)
        self._choose_place(size)
        folder = self._place / "tmp-proof"
        try:
            verify.prove(self._state, before, folder, spare=self._spare_file())
        except OSError as error:
            if error.errno not in scratch_space.FULL:
                raise
            self.drop_unfinished()
            raise self._no_room(size, "", error) from None
        shutil.rmtree(folder)
        if self._rank_state is not None:
            self._rank_state.prove(self._work)
