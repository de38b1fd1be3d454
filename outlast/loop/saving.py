"""Snapshots of a training's state: when one is due, where there is room, and what became of it."""

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlast.base import exits, scratch_space
from outlast.loop import ranks, schedule, snapshot, state, unchanged, verify
from outlast.loop.errors import DoesNotFit
from outlast.loop.history import Direction, History
from outlast.loop.rows import Rows
from outlast.loop.session import Session
from outlast.loop.unsaved import Unsaved
from outlast.loop.words import say
from outlast.protocol import Snapshot

BUSY_RETRY_SEC = 1.0
FULL_RETRY_SEC = 60.0
"""A snapshot that finds its disk full is tried for so long; the one before frees its room."""
NOTES = ("evaluations", "best", "unchanged", "drawn", "unsaved")
"""What each snapshot of a training notes beside the state."""
SPARE = "tmp-spare.bin"
EVALUATIONS = "tmp-evaluations"
"""Where the files of evaluations that are full stay while the training runs."""
RESULT = "tmp-result"
"""Where the files of the result are written until they are complete."""


@dataclass
class _Offer:
    """A written folder that the supervisor has not accepted yet."""

    folder: Path
    message: Snapshot
    cost_sec: float
    over: str | None = None
    """Why the loop is over, as it notes."""
    asked_at_sec: float | None = None
    """When it was handed over, where the answer has not come yet."""
    lacks_ranks: bool = False
    """Whether the parts of the ranks are still to be written."""


class Saver:
    """Writes the state as snapshots and hands them to the supervisor, between two steps."""

    def __init__(
        self,
        session: Session,
        values: Mapping[str, object],
        history: History,
        rows: Rows,
        folders: Sequence[Path],
        *,
        rank_state: ranks.RankState | None = None,
        leader: ranks.Leader | None = None,
        watch: unchanged.Watch,
        unsaved: Unsaved,
    ) -> None:
        """``values`` are the training's ``state``; ``folders`` those for snapshots, the first one
        that of the supervisor's choice."""
        self._session = session
        self._state = values
        self._begun = state.survey(values)
        self._history = history
        self._rows = rows
        self._rank_state = rank_state
        self._leader = leader
        self._watch = watch
        self._unsaved = unsaved
        self._work = folders[0]
        self._scratch = folders
        for place in folders:
            # Of a trainer before, and perhaps still read under another name.
            (place / SPARE).unlink(missing_ok=True)
            shutil.rmtree(place / EVALUATIONS, ignore_errors=True)
        self._place, self._place_size = self._work, -1
        self._spare = snapshot.Spare(self._place / SPARE)
        self._pending: _Offer | None = None
        self.over: str | None = None
        """Why the loop is over, as the snapshots from now on note; None while it is not."""
        self._last: _Offer | None = None
        """The state that the loop ended with, until it is the supervisor's."""
        self._accepted_over: str | None = None
        """``over`` as the snapshot accepted last notes it."""
        self._accepted_step = -1
        self._retry_at_sec = 0.0
        self._waited = False
        """Whether the snapshot that is due has waited for one more step."""
        self._count = 0
        self._best_due = False
        self._best_saved: dict[str, dict[str, Any]] | None = None
        self._schedule: schedule.Schedule | None = None

    def begin(self, step: int, timing: schedule.Schedule, *, restored: bool) -> None:
        """The training begins after ``step``; if that was ``restored``, it is saved already."""
        self._schedule = timing
        if restored:
            self._accepted_step, self._accepted_over = step, self.over

    def close(self) -> None:
        """Give the room of what is not handed over back."""
        self._spare.drop()
        shutil.rmtree(self._place / EVALUATIONS, ignore_errors=True)
        if self._last is not None and self._last.asked_at_sec is None:
            shutil.rmtree(self._last.folder, ignore_errors=True)

    # What is due.

    def judge_best(self, name: str, step: int, value: float, direction: Direction) -> None:
        """A value of an evaluation in the step being made: a new best is saved after the step."""
        before = {name: dict(entry) for name, entry in self._history.best.items()}
        if self._history.judge(name, step, value, direction):
            self._best_due = True
            if self._best_saved is None:
                self._best_saved = before

    def save_due(self, step: int) -> None:
        """Between two steps: write and hand over what is due; training does not wait for it."""
        if self._best_due:
            self.hear_answer(wait=True)
            self._drop_pending()  # an older best is none any more
            self._pending = self._write(step, ["best"])
            self._best_due = False
        elif self._pending is None and self._due(step) and not self._session.busy:
            # Once: names that are bound again in turn would hold it back for good.
            self._waited = not self._waited and self._watch.wants_step(step)
            if not self._waited:
                self._pending = self._write(step, [])
        self._offer_pending()

    def _due(self, step: int) -> bool:
        now_sec = time.monotonic()
        if step == self._accepted_step or now_sec < self._retry_at_sec:
            return False
        assert self._schedule is not None
        return self._session.checkpoint_wanted or self._schedule.due(now_sec=now_sec, step=step)

    # Writing.

    def _write(self, step: int, tags: list[str], *, limit_sec: float | None = None) -> _Offer:
        """The state as a complete folder under its final name; DoesNotFit where there stays no
        room for it."""
        limit_sec = FULL_RETRY_SEC if limit_sec is None else min(limit_sec, FULL_RETRY_SEC)
        deadline = time.monotonic() + limit_sec
        tries = 0
        while True:
            tries += 1
            try:
                offer = self._write_once(step, tags)
                if tries > 1:
                    say(f"room for the snapshot at try {tries}")
                return offer
            except OSError as error:
                if error.errno not in scratch_space.FULL:
                    raise
                size = self._place_size
                self._drop_unfinished()
                if time.monotonic() >= deadline:
                    raise self._no_room(size, f" for {limit_sec:.0f} s", error) from None
                if tries == 1:  # the others of a minute would say the same
                    told = f"no room for a snapshot ({error}); trying for {limit_sec:.0f} s"
                    say(told)
            # The commit of the snapshot before makes room, or another process that filled the disk.
            self._session.tick(step, "snapshot")
            if not self._session.busy or not self._session.wait_committed(BUSY_RETRY_SEC):
                time.sleep(BUSY_RETRY_SEC / 2)

    def _no_room(self, size: int, how_long: str, error: OSError) -> DoesNotFit:
        return DoesNotFit(
            f"a snapshot of {size} bytes could not be written{how_long} ({error.strerror}); "
            f"{scratch_space.describe(self._scratch)}; choose a machine with more memory or a"
            " larger disk"
        )

    def _drop_unfinished(self) -> None:
        """Give the room of what could not be written back, and look for a place again."""
        self._spare.drop()
        for place in self._scratch:
            for left in place.glob("tmp-*"):
                # A rank's proof is its own, and it may be at it now.
                if left.name != RESULT and not left.name.startswith("tmp-proof-"):
                    shutil.rmtree(left, ignore_errors=True)
        self._place_size = -1

    def _choose_place(self, size: int) -> None:
        """Where two snapshots of ``size`` bytes fit; looked at again if they have grown."""
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

    def _write_once(self, step: int, tags: list[str], *, with_ranks: bool = True) -> _Offer:
        begun_sec = time.monotonic()
        self._warn(self._watch.look(step))
        self._warn(self._unsaved.look())
        self._count += 1
        identifier = f"{self._count:06d}"
        nodes, blobs = state.capture_all(self._state, self._begun)
        self._choose_place(sum(blob.nbytes for blob in blobs.items))
        temporary = self._place / f"tmp-{identifier}"
        loop = {**self._history.summary(), "unchanged": self._watch.note(), **self._unsaved.note()}
        if self.over is not None:
            loop["over"] = self.over
        saved = snapshot.Saved(step, loop, nodes, blobs)
        with self._rank_parts(step, temporary) if with_ranks else contextlib.nullcontext():
            snapshot.write(temporary, saved, spare=self._spare_file())
            self._history.write(temporary, self._place / EVALUATIONS)
        rows_offset = self._rows.flush()  # before it has its name: this disk, too, may be full
        folder = snapshot.publish(temporary, self._place / f"snap-{identifier}")
        message = Snapshot(identifier, str(folder), step, tags, rows_offset)
        cost_sec = time.monotonic() - begun_sec
        return _Offer(folder, message, cost_sec, self.over, lacks_ranks=not with_ranks)

    @contextlib.contextmanager
    def _rank_parts(self, step: int, folder: Path) -> Iterator[None]:
        """Has every rank write its part, at the same time as the rest of the snapshot is written;
        moves the parts into ``folder`` after it."""
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
                self._leader.wait_parts(step)  # each question has its one answer
        for part in parts.iterdir():
            part.rename(folder / part.name)
        parts.rmdir()

    def _spare_file(self) -> snapshot.Spare:
        """Where the next snapshot's arrays go: over those of the last one, if it has no reader."""
        if self._session.busy or self._spare.shared:
            self._spare.drop()
        return self._spare

    def _warn(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            self._session.warn(sentence)

    def prove(self) -> None:
        """Save the state, restore it and compare: what does not survive fails now, by name."""
        self._watch.look(1, snapshot=False)  # most of a state changes in the first step
        before = state.capture_all(self._state, self._begun)
        size = sum(blob.nbytes for blob in before[1].items)
        self._choose_place(size)
        folder = self._place / "tmp-proof"
        try:
            verify.prove(self._state, before, folder, spare=self._spare_file())
        except OSError as error:
            if error.errno not in scratch_space.FULL:
                raise
            self._drop_unfinished()
            raise self._no_room(size, "", error) from None
        shutil.rmtree(folder)
        if self._rank_state is not None:
            self._rank_state.prove(self._work)

    # Handing over.

    def _offer_pending(self) -> None:
        """Hand the pending folder over, unless the supervisor is known to be busy; training goes on
        meanwhile, and hears the answer at a later boundary."""
        offer, now_sec = self._pending, time.monotonic()
        if offer is None or offer.asked_at_sec is not None:
            return
        if self._session.busy or now_sec < self._retry_at_sec:
            return
        self._session.hand_over(offer.message)
        offer.asked_at_sec = now_sec

    def hear_answer(self, *, wait: bool = False) -> None:
        """What became of the folder that was handed over, where that is known; or, to ``wait``."""
        offer = self._pending
        if offer is None or offer.asked_at_sec is None:
            offer = self._last
        if offer is None or offer.asked_at_sec is None:
            return
        accepted = self._session.answer(wait=wait)
        if accepted is None:
            return
        asked_at_sec, offer.asked_at_sec = offer.asked_at_sec, None
        if not accepted:
            self._retry_at_sec = time.monotonic() + max(
                BUSY_RETRY_SEC, schedule.COST_FACTOR * offer.cost_sec
            )
            if not offer.message.tags and not offer.message.last:
                self._drop_pending()
            return
        if offer is self._pending:
            self._pending = None
        else:
            self._last = None
        self._accepted_step, self._accepted_over = offer.message.step, offer.over
        if "best" in offer.message.tags:
            self._best_saved = None
        assert self._schedule is not None
        self._schedule.taken(
            now_sec=asked_at_sec,
            step=offer.message.step,
            cost_sec=offer.cost_sec,
            commit_sec=self._session.commit_sec,
        )

    def _drop_pending(self) -> None:
        if self._pending is not None:
            shutil.rmtree(self._pending.folder, ignore_errors=True)
            self._pending = None

    # The end of the loop.

    def save_last(self, step: int) -> None:
        """The loop is over after ``step``: its state is handed over now, in line behind what is on
        its way, since evaluating it and writing the result may take long. If there is no room
        for it beside those, ``finish`` or ``finish_part`` tries again."""
        self.hear_answer(wait=True)
        if not self._is_saved(step):
            try:
                self._last = self._write_once(step, self._best_tags)
            except OSError as error:
                if error.errno not in scratch_space.FULL:
                    raise
                self._drop_unfinished()
                if self._session.busy:
                    return
                self._last = self._write(step, self._best_tags)
            self._best_due = False
        self._line_up()

    def write_last(self, step: int, *, sure: bool) -> None:
        """The loop was left in ``step``: write its state now, before the program goes on with it,
        and hand it over where it is ``sure`` that no error ended the loop. Raises nothing; what
        fails is tried again by ``finish`` or ``finish_part``."""
        try:
            self.hear_answer(wait=sure)
            if self._last is None and not self._is_saved(step):
                self._last = self._write_once(step, self._best_tags, with_ranks=False)
                self._best_due = False
            if sure and self._rank_state is None:
                self._line_up()
        except OSError:
            self._drop_unfinished()
        except Exception:
            return

    def _line_up(self) -> None:
        """Hand over what the loop has left; the answer to the state that it ended with is heard
        later."""
        if self._pending is not None and self._last is not None and not self._is_best_left:
            self._drop_pending()
        if self._pending is not None and not self._hand_over(self._pending):
            return
        if self._last is not None:
            self._ask(self._last)

    @property
    def _is_best_left(self) -> bool:
        """Whether what waits is the best so far, of an earlier step."""
        newer = self._last is not None and "best" in self._last.message.tags
        return self._pending is not None and "best" in self._pending.message.tags and not newer

    def finish(self, step: int, limit_sec: float) -> None:
        """Training is over after ``step``: what waits, or a best that the loop was left with, is
        handed over, or given up after the limit."""
        self.hear_answer(wait=True)
        if self._best_due:
            self._drop_pending()
            self._pending = self._write(step, ["best"])
            self._best_due = False
        for offer in (self._pending, self._last):
            if offer is None or self._hand_over(offer):
                continue
            if self._session.wait_committed(limit_sec):
                self._hand_over(offer)
        self._drop_pending()

    def finish_part(self, step: int) -> None:
        """Hand over what a part ended with after ``step``, whatever is on its way still."""
        self.hear_answer(wait=True)
        if self._last is not None and self._last.lacks_ranks:
            with self._rank_parts(step, self._last.folder):
                self._last.lacks_ranks = False
        elif self._last is None and not self._is_saved(step):
            self._last = self._write(step, self._best_tags)
            self._best_due = False
        if self._pending is not None and (self._last is None or self._is_best_left):
            self._hand_over_surely(step, self._pending)
        self._drop_pending()
        if self._last is not None:
            self._hand_over_surely(step, self._last)

    def _is_saved(self, step: int) -> bool:
        """Whether the state after ``step`` is the supervisor's, or written for it."""
        saved = [(self._accepted_step, self._accepted_over)]
        if self._pending is not None:
            saved.append((self._pending.message.step, self._pending.over))
        return not self._best_due and (step, self.over) in saved

    @property
    def _best_tags(self) -> list[str]:
        return ["best"] if self._best_due else []

    def _hand_over_surely(self, step: int, offer: _Offer) -> None:
        """SystemExit 75 where the machine ends before there is room for it."""
        while not self._hand_over(offer):
            if not self._session.last_snapshot_wanted:
                raise SystemExit(exits.INTERRUPTED)
            self._session.tick(step, "result")
            if not self._session.busy or not self._session.wait_committed(BUSY_RETRY_SEC):
                time.sleep(0.05)  # room is made by a commit, which may be one that we do not see

    def _hand_over(self, offer: _Offer) -> bool:
        """Hand over what the loop has left, to wait in line; False if there is no room yet."""
        self._ask(offer)
        self.hear_answer(wait=True)
        return offer is not self._pending and offer is not self._last

    def _ask(self, offer: _Offer) -> None:
        offer.message = replace(offer.message, last=True)
        self._session.hand_over(offer.message)
        offer.asked_at_sec = time.monotonic()

    # A stop.

    def hand_over(self, step: int, deadline: float) -> bool:
        """Whether this step's state is the supervisor's, at the latest by ``deadline``."""
        self.hear_answer(wait=True)
        if not self._session.last_snapshot_wanted:
            self._drop_pending()
            return step == self._accepted_step
        self._save_pending(deadline)
        tags = ["best"] if self._best_due else []
        if self._best_saved is not None and not tags:
            # That best was never saved: the next one that beats the last saved one shall be.
            self._history.best, self._best_saved = self._best_saved, None
        if step == self._accepted_step:
            return True
        offer = self._write(step, tags, limit_sec=deadline - time.monotonic())
        while not self._session.offer(offer.message):
            if time.monotonic() >= deadline or not self._session.last_snapshot_wanted:
                shutil.rmtree(offer.folder, ignore_errors=True)
                return False
            self._session.tick(step, "stop")
            time.sleep(0.05)  # room is made by a commit, which may be one that we do not see
        self._accepted_step, self._accepted_over = step, offer.over
        return True

    def _save_pending(self, deadline: float) -> None:
        """The best of an earlier step goes before this step, where there is time for both."""
        if self._pending is None:
            return
        left_sec = deadline - time.monotonic()
        if (
            left_sec > 4 * (self._session.commit_sec or left_sec)
            and self._session.wait_committed(left_sec / 2)
            and self._session.offer(self._pending.message)
        ):
            self._accepted_step = self._pending.message.step
            self._pending = self._best_saved = None
        self._drop_pending()
