"""Saves a training's state: makes snapshots when they are due and hands them over."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outlast.base import exits, scratch_space
from outlast.loop import ranks, schedule
from outlast.loop.call import Call
from outlast.loop.history import Direction
from outlast.loop.recording import Recording
from outlast.loop.session import Session
from outlast.loop.watchers import Watchers
from outlast.loop.writing import BUSY_RETRY_SEC, Offer, Writer


class Saver:
    """Writes the state as snapshots and hands them to the supervisor, between two steps."""

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
        """See Writer."""
        self._session = session
        self._writer = Writer(session, call, recording, watchers, folders, leader=leader)
        self._history = recording.history
        self._unchanged = watchers.unchanged
        self._has_rank_state = call.rank_state is not None
        self._pending: Offer | None = None
        self.over: str | None = None
        """Why the loop is over, for the notes of later snapshots; None while it is not."""
        self._last: Offer | None = None
        """The state at the loop's end, until the supervisor accepts it."""
        self._accepted_over: str | None = None
        """``over`` in the last accepted snapshot."""
        self._accepted_step = -1
        self._retry_at_sec = 0.0
        self._waited = False
        """Whether the due snapshot has waited for one more step."""
        self._best_due = False
        self._best_saved: dict[str, dict[str, Any]] | None = None
        self._schedule: schedule.Schedule | None = None

    def prove(self) -> None:
        """See Writer."""
        self._writer.prove()

    def begin(self, step: int, timing: schedule.Schedule, *, restored: bool) -> None:
        """Begin after ``step``, which is already saved if it was ``restored``."""
        self._schedule = timing
        if restored:
            self._accepted_step, self._accepted_over = step, self.over

    def close(self) -> None:
        """Remove files that were not handed over."""
        self._writer.close()
        if self._last is not None and self._last.asked_at_sec is None:
            shutil.rmtree(self._last.folder, ignore_errors=True)

    # Due snapshots.

    def judge_best(self, name: str, step: int, value: float, direction: Direction) -> None:
        """Judge a value evaluated in the current step; a new best is saved after the step."""
        before = {name: dict(entry) for name, entry in self._history.best.items()}
        if self._history.judge(name, step, value, direction):
            self._best_due = True
            if self._best_saved is None:
                self._best_saved = before

    def save_due(self, step: int) -> None:
        """Between two steps, write and hand over a due snapshot; training does not wait for its
        commit."""
        if self._best_due:
            self.hear_answer(wait=True)
            self._drop_pending()  # an older best is obsolete
            self._pending = self._writer.write(step, ["best"], self.over)
            self._best_due = False
        elif self._pending is None and self._due(step) and not self._session.busy:
            # Wait only once, because names that are bound again in turn would delay it forever.
            self._waited = not self._waited and self._unchanged.wants_step(step)
            if not self._waited:
                self._pending = self._writer.write(step, [], self.over)
        # Training continues, and a later boundary reads the supervisor's answer.
        offer, now_sec = self._pending, time.monotonic()
        if offer is None or offer.asked_at_sec is not None:
            return
        if not self._session.busy and now_sec >= self._retry_at_sec:
            self._session.hand_over(offer.message)
            offer.asked_at_sec = now_sec

    def _due(self, step: int) -> bool:
        now_sec = time.monotonic()
        if step == self._accepted_step or now_sec < self._retry_at_sec:
            return False
        assert self._schedule is not None
        return self._session.checkpoint_wanted or self._schedule.due(now_sec=now_sec, step=step)

    # Handing over.

    def hear_answer(self, *, wait: bool = False) -> None:
        """Read the supervisor's answer about the last folder, if it has come; ``wait`` for it if
        asked to."""
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
        """After the loop ended with ``step``, hand over its state now, queued behind earlier
        snapshots, because evaluating it and writing the result may take long. If there is no room
        for it, ``finish`` or ``finish_part`` tries again."""
        self.hear_answer(wait=True)
        if not self._is_saved(step):
            try:
                self._last = self._writer.write_once(step, self._best_tags, self.over)
            except OSError as error:
                if error.errno not in scratch_space.FULL:
                    raise
                self._writer.drop_unfinished()
                if self._session.busy:
                    return
                self._last = self._writer.write(step, self._best_tags, self.over)
            self._best_due = False
        self._line_up()

    def write_last(self, step: int, *, sure: bool) -> None:
        """After the loop was left in ``step``, write its state now, before the program continues to
        use it, and hand it over if it is ``sure`` that no error ended the loop. Raises nothing;
        ``finish`` or ``finish_part`` tries again after a failure."""
        try:
            self.hear_answer(wait=sure)
            if self._last is None and not self._is_saved(step):
                self._last = self._writer.write_once(
                    step, self._best_tags, self.over, with_ranks=False
                )
                self._best_due = False
            if sure and not self._has_rank_state:
                self._line_up()
        except OSError:
            self._writer.drop_unfinished()
        except Exception:
            return

    def _line_up(self) -> None:
        """Hand over the remaining snapshots; the answer about the loop's last state is read
        later."""
        if self._pending is not None and self._last is not None and not self._is_best_left:
            self._drop_pending()
        if self._pending is not None and not self._hand_over(self._pending):
            return
        if self._last is not None:
            self._ask(self._last)

    @property
    def _is_best_left(self) -> bool:
        """Whether the waiting snapshot is the best so far, from an earlier step."""
        newer = self._last is not None and "best" in self._last.message.tags
        return self._pending is not None and "best" in self._pending.message.tags and not newer

    def finish(self, step: int, limit_sec: float) -> None:
        """After training ended with ``step``, hand over the waiting snapshots or a best at the
        loop's end; give up after the limit."""
        self.hear_answer(wait=True)
        if self._best_due:
            self._drop_pending()
            self._pending = self._writer.write(step, ["best"], self.over)
            self._best_due = False
        for offer in (self._pending, self._last):
            if offer is None or self._hand_over(offer):
                continue
            if self._session.wait_committed(limit_sec):
                self._hand_over(offer)
        self._drop_pending()

    def finish_part(self, step: int) -> None:
        """Hand over a part's last state, after ``step``, and wait until there is room for it."""
        self.hear_answer(wait=True)
        if self._last is not None and self._last.lacks_ranks:
            with self._writer.rank_parts(step, self._last.folder):
                self._last.lacks_ranks = False
        elif self._last is None and not self._is_saved(step):
            self._last = self._writer.write(step, self._best_tags, self.over)
            self._best_due = False
        if self._pending is not None and (self._last is None or self._is_best_left):
            self._hand_over_surely(step, self._pending)
        self._drop_pending()
        if self._last is not None:
            self._hand_over_surely(step, self._last)

    def _is_saved(self, step: int) -> bool:
        """Whether the state after ``step`` was accepted, or is written and waits."""
        saved = [(self._accepted_step, self._accepted_over)]
        if self._pending is not None:
            saved.append((self._pending.message.step, self._pending.over))
        return not self._best_due and (step, self.over) in saved

    @property
    def _best_tags(self) -> list[str]:
        return ["best"] if self._best_due else []

    def _hand_over_surely(self, step: int, offer: Offer) -> None:
        """Hand over a snapshot as soon as there is room; SystemExit 75 if the machine ends
        first."""
        while not self._hand_over(offer):
            if not self._session.last_snapshot_wanted:
                raise SystemExit(exits.INTERRUPTED)
            self._session.tick(step, "result")
            if not self._session.busy or not self._session.wait_committed(BUSY_RETRY_SEC):
                time.sleep(0.05)  # room comes from a commit, perhaps one that we do not see

    def _hand_over(self, offer: Offer) -> bool:
        """Queue a snapshot of the ended loop at the supervisor; False if there is no room yet."""
        self._ask(offer)
        self.hear_answer(wait=True)
        return offer is not self._pending and offer is not self._last

    def _ask(self, offer: Offer) -> None:
        offer.message = replace(offer.message, last=True)
        self._session.hand_over(offer.message)
        offer.asked_at_sec = time.monotonic()

    # A stop.

    def hand_over(self, step: int, deadline: float) -> bool:
        """Hand over this step's state by ``deadline``; whether the supervisor accepted it."""
        self.hear_answer(wait=True)
        if not self._session.last_snapshot_wanted:
            self._drop_pending()
            return step == self._accepted_step
        self._save_pending(deadline)
        tags = ["best"] if self._best_due else []
        if self._best_saved is not None and not tags:
            # That best was never saved, so compare with the last saved one from now on.
            self._history.best, self._best_saved = self._best_saved, None
        if step == self._accepted_step:
            return True
        offer = self._writer.write(step, tags, self.over, limit_sec=deadline - time.monotonic())
        while not self._session.offer(offer.message):
            if time.monotonic() >= deadline or not self._session.last_snapshot_wanted:
                shutil.rmtree(offer.folder, ignore_errors=True)
                return False
            self._session.tick(step, "stop")
            time.sleep(0.05)  # room comes from a commit, perhaps one that we do not see
        self._accepted_step, self._accepted_over = step, offer.over
        return True

    def _save_pending(self, deadline: float) -> None:
        """Hand over the best of an earlier step first, if there is time for both."""
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
