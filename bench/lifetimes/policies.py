"""When to save: the product's policy, and others to compare it with.

Each gives a timer to a machine's training. A timer has the two methods of the product's
``Schedule`` that the loop calls, so that the same ones work in a real trainer and in a simulated
one.
"""

from dataclasses import dataclass
from typing import Protocol

from outlast.loop.schedule import Schedule
from outlast.protocol import Every, parse_every


class Timer(Protocol):
    """See ``outlast.loop.schedule.Schedule``."""

    def due(self, *, now_sec: float, step: int) -> bool: ...

    def taken(
        self, *, now_sec: float, step: int, cost_sec: float, commit_sec: float | None = None
    ) -> None: ...


@dataclass(frozen=True)
class Policy:
    """A way to choose the moments of saves."""

    name: str
    every: str
    """As ``checkpoint_every``; or ``foresight`` or ``never``."""
    answers_notice: bool
    speed: float = 1.0
    """How much faster its clock runs than the wall's: on a trace of scaled lives, one hour of the
    policy is an hour of unscaled lives."""

    def timer(
        self,
        *,
        now_sec: float,
        step: int,
        age_sec: float,
        commit_sec: float | None,
        save_at_sec: float | None,
    ) -> Timer:
        """For a training that begins now, after ``step``; ``save_at_sec`` is what only an oracle
        knows, None if it needs no save."""
        if self.every == "foresight":
            return Foresight(save_at_sec)
        if self.every == "never":
            return Foresight(None)
        return Sped(
            self.speed,
            parse_every(self.every),
            now_sec=now_sec,
            step=step,
            age_sec=age_sec,
            commit_sec=commit_sec,
        )


class Foresight:
    """Saves once, at a moment known before."""

    def __init__(self, at_sec: float | None) -> None:
        self._at_sec = at_sec

    def due(self, *, now_sec: float, step: int) -> bool:
        return self._at_sec is not None and now_sec >= self._at_sec

    def taken(
        self, *, now_sec: float, step: int, cost_sec: float, commit_sec: float | None = None
    ) -> None:
        self._at_sec = None


class Sped:
    """The product's ``Schedule`` on a clock that runs ``speed`` times as fast."""

    def __init__(
        self,
        speed: float,
        every: Every,
        *,
        now_sec: float,
        step: int,
        age_sec: float,
        commit_sec: float | None,
    ) -> None:
        self._speed = speed
        self._schedule = Schedule(
            every,
            now_sec=now_sec * speed,
            step=step,
            age_sec=age_sec * speed,
            commit_sec=None if commit_sec is None else commit_sec * speed,
        )

    def due(self, *, now_sec: float, step: int) -> bool:
        return self._schedule.due(now_sec=now_sec * self._speed, step=step)

    def taken(
        self, *, now_sec: float, step: int, cost_sec: float, commit_sec: float | None = None
    ) -> None:
        self._schedule.taken(
            now_sec=now_sec * self._speed,
            step=step,
            cost_sec=cost_sec * self._speed,
            commit_sec=None if commit_sec is None else commit_sec * self._speed,
        )


def outlast(speed: float = 1.0) -> Policy:
    """As it is shipped: ``auto``, and a save at a notice."""
    return Policy("outlast", "auto", answers_notice=True, speed=speed)


def oracle() -> Policy:
    """Knows when its machine will be lost."""
    return Policy("oracle", "foresight", answers_notice=True)


def fixed(minutes: float, speed: float = 1.0, *, answers_notice: bool = False) -> Policy:
    """A timer and nothing else: a notice does not reach it, unless said otherwise."""
    name = f"timer of {minutes:g} min"
    return Policy(name, f"{minutes * 60:g}s", answers_notice=answers_notice, speed=speed)


def notice_only() -> Policy:
    """Saves when it gets a notice; a machine that is cut off loses everything."""
    return Policy("notice only", "never", answers_notice=True)
