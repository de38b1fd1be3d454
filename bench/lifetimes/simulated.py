"""Simulated trainers: a policy's own timer on a fast clock, over a trace of any length.

Nothing is trained or written. A step, a save, a commit and a recovery take exactly their ``Costs``.
The timer is asked at the end of each step, as in the loop, unless a commit is in flight.
"""

import math
from collections.abc import Callable, Sequence

from bench.lifetimes.policies import Policy
from bench.lifetimes.trace import Costs, Life, Score


def play(lives: Sequence[Life], costs: Costs, policy: Policy) -> Score:
    """The score of a policy on a trace. A notice is long enough for a save."""
    score = Score()
    commit_sec: float | None = None  # as the next machine finds it in the last heartbeat
    for life in lives:
        if life.seconds <= costs.recovery:
            score += Score(wall=life.seconds, recovery=life.seconds)
            continue
        found = _Machine(life, costs, policy, commit_sec).play()
        commit_sec = costs.commit if found.saves else commit_sec
        score += found
    return score


class _Machine:
    """One life; the clock begins at 0, and so do the steps."""

    def __init__(self, life: Life, costs: Costs, policy: Policy, commit_sec: float | None) -> None:
        self._life, self._costs = life, costs
        self._answers = life.noticed and policy.answers_notice
        self._now = costs.recovery
        self._step = self._kept = self._saves = 0
        self._blocked = 0.0
        self._commit_sec = commit_sec
        self._usual = 1
        """Steps until the save before was due."""
        self._in_flight: tuple[float, int] | None = None
        """When the commit ends, and its step."""
        self._timer = policy.timer(
            now_sec=self._now,
            step=0,
            age_sec=self._now,
            commit_sec=commit_sec,
            save_at_sec=None if life.noticed else life.seconds - costs.save - costs.step,
        )

    def play(self) -> Score:
        life, costs = self._life, self._costs
        while self._now < life.seconds and self._train_until_due():
            self._save()
        if self._answers:
            return self._answer_notice()
        if self._in_flight is not None and self._in_flight[0] <= life.seconds:
            self._kept = self._in_flight[1]
        useful = self._kept * costs.step
        return Score(life.seconds, useful, costs.recovery, self._blocked, self._saves)

    def _train_until_due(self) -> bool:
        """Make the steps until a save is due; False, and none, if the machine ends before."""
        sec = self._costs.step
        left = math.floor((self._life.seconds - self._now) / sec)

        def due(count: int) -> bool:
            now_sec = self._now + count * sec
            if self._in_flight is not None and now_sec < self._in_flight[0]:
                return False
            return self._timer.due(now_sec=now_sec, step=self._step + count)

        count = first(due, left, self._usual)
        if count is None:
            return False
        self._usual = count
        self._now, self._step = self._now + count * sec, self._step + count
        return True

    def _save(self) -> None:
        costs = self._costs
        if self._in_flight is not None:
            self._kept, self._commit_sec = self._in_flight[1], costs.commit
        self._now += costs.blocked
        if self._now > self._life.seconds:  # cut off in it, or a notice comes in it
            self._blocked += costs.blocked
            return
        self._blocked += costs.blocked
        self._saves += 1
        self._timer.taken(
            now_sec=self._now,
            step=self._step,
            cost_sec=costs.blocked,
            commit_sec=self._commit_sec,
        )
        self._in_flight = (self._now + costs.commit, self._step)

    def _answer_notice(self) -> Score:
        """Finish the step under way, save it, and wait for its commit."""
        costs = self._costs
        more = max(0, math.ceil((self._life.seconds - self._now) / costs.step))
        end = self._now + more * costs.step + costs.save
        useful = (self._step + more) * costs.step
        return Score(end, useful, costs.recovery, self._blocked + costs.save, self._saves + 1)


def first(is_due: Callable[[int], bool], most: int, guess: int) -> int | None:
    """The smallest number from 1 to ``most`` for which ``is_due``, which stays true once it is;
    None if there is none. Asks around ``guess`` first."""
    low, high = 0, min(max(guess, 1), most)
    if high < 1:
        return None
    reach = 1
    if is_due(high):
        while high - reach > 0 and is_due(high - reach):
            high, reach = high - reach, 2 * reach
        low = max(0, high - reach)
    else:
        while not is_due(high):
            if high == most:
                return None
            low, high, reach = high, min(high + reach, most), 2 * reach
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_due(middle) else (middle, high)
    return high
