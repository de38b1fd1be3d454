"""Decides when the next snapshot is due: ``auto``, or after a number of seconds or steps.

``auto`` weighs the cost of a snapshot against the cost of a lost machine: snapshots are frequent
while the machine is young, when most are preempted, and rarer later; see ``interval_sec``.
"""

import math
import time

from outlast.protocol import Every, Welcome, parse_every

FIRST_SEC = 5.0
"""Seconds until the first snapshot of an attempt, whose cost is not known yet."""
SHORTEST_SEC = 5.0
"""Shortest interval, because more frequent commits only cost requests."""
LONGEST_SEC = 3600.0
COST_FACTOR = 20.0
"""Snapshots take at most a twentieth of the time, even if machines are never preempted."""

LIVES = ((0.54, 0.78 * 3600.0), (0.46, 36.0 * 3600.0))
"""(Share, mean seconds) of the lifetimes of Spot VMs, a mixture of two exponential distributions.

Fitted to 1442 lifetimes of Google's preemptible VMs (Kadupitiya, Jadhao and Sharma, HPDC 2020,
arXiv 1911.05160). Lifetimes that ended at the limit of 24 hours, which Spot VMs do not have, count
as censored.
"""


def hazard_per_sec(age_sec: float) -> float:
    """Expected preemptions per second of a Spot VM at the age ``age_sec``.

    The density divided by the survival function of ``LIVES``: sum(p/m e^(-t/m)) / sum(p e^(-t/m)).
    It falls from one in 85 minutes at boot to one in 36 hours, when only long-lived machines are
    left.
    """
    # Divided by the slowest term, so that nothing underflows at any age.
    slowest = max(mean for _, mean in LIVES)
    age_sec = max(0.0, age_sec)
    left = [(share * math.exp(-age_sec * (1 / mean - 1 / slowest)), mean) for share, mean in LIVES]
    return sum(share / mean for share, mean in left) / sum(share for share, _ in left)


def interval_sec(cost_sec: float, age_sec: float, commit_sec: float | None = None) -> float:
    """Seconds from one snapshot to the next that lose the least time.

    Young's first-order optimum (J. W. Young, CACM 17(9), 1974; restated in arXiv 2410.18124), T =
    sqrt(2 C M), with the mean time between failures M = 1 / hazard at the machine's age.
    ``cost_sec`` is C, the seconds for which a snapshot halts training. Uploading happens during
    training and is not part of C, but only one commit is in flight at a time, so T is never less
    than ``commit_sec``, the duration of a commit.
    """
    best_sec = math.sqrt(2 * max(0.0, cost_sec) / hazard_per_sec(age_sec))
    floor_sec = max(SHORTEST_SEC, COST_FACTOR * cost_sec, commit_sec or 0.0)
    return max(min(best_sec, LONGEST_SEC), floor_sec)


class Schedule:
    """Decides at each step boundary; the caller passes the time."""

    def __init__(
        self,
        every: Every,
        *,
        now_sec: float,
        step: int,
        age_sec: float = 0.0,
        commit_sec: float | None = None,
    ) -> None:
        """``age_sec`` is the machine's age at ``now_sec``; ``commit_sec`` the duration of an
        earlier commit."""
        self._every = every
        self._born_sec = now_sec - age_sec
        self._last_sec = now_sec
        self._last_step = step
        self._cost_sec: float | None = None
        self._commit_sec = commit_sec
        self._interval_sec = FIRST_SEC if every.seconds is None else every.seconds

    def due(self, *, now_sec: float, step: int) -> bool:
        """Whether a snapshot should be taken at this boundary. Stays true until one is."""
        if step == self._last_step:
            return False
        if self._every.steps is not None:
            return step // self._every.steps > self._last_step // self._every.steps
        return now_sec - self._last_sec >= self._interval_sec

    def taken(
        self, *, now_sec: float, step: int, cost_sec: float, commit_sec: float | None = None
    ) -> None:
        """Note that a snapshot was handed over.

        ``cost_sec`` is the time for which it halted training, ``commit_sec`` the duration of the
        last commit, if known.
        """
        self._last_sec, self._last_step = now_sec, step
        if self._every != Every():
            return
        # The newest counts as much as all earlier ones, because the first one is slower than the
        # others.
        before = cost_sec if self._cost_sec is None else self._cost_sec
        self._cost_sec = (before + cost_sec) / 2
        self._commit_sec = self._commit_sec if commit_sec is None else commit_sec
        age_sec = now_sec - self._born_sec
        self._interval_sec = interval_sec(self._cost_sec, age_sec, self._commit_sec)


def begin(every: str, step: int, answer: Welcome) -> Schedule:
    """The schedule of a training that begins after ``step``, from the supervisor's data about the
    machine and the previous commit."""
    return Schedule(
        parse_every(every),
        now_sec=time.monotonic(),
        step=step,
        age_sec=answer.machine_age_sec,
        commit_sec=answer.commit_sec,
    )
