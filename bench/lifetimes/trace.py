"""Lives of machines, what a save and a recovery cost, and how much of the time can be useful."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.localcloud.scenarios import lifetimes
from outlast.localcloud.scenarios.scenario import Lifetimes

SHORT_SEC = lifetimes.LIVES[0][1]
"""Mean life of the Spot VMs that are lost early, 54 of 100; a real trace is scaled by it."""


@dataclass(frozen=True)
class Life:
    """One machine, from the start of its trainer."""

    seconds: float
    noticed: bool
    """Whether a notice comes after those seconds; otherwise the machine is cut off then."""


@dataclass(frozen=True)
class Costs:
    """Seconds that things take."""

    step: float
    blocked: float
    """For which a save halts training."""
    commit: float
    """From a snapshot's hand-over until HEAD names it, while training continues."""
    recovery: float
    """From the trainer's start to the start of its first step."""

    @property
    def save(self) -> float:
        """From the last step's end until its state is safe."""
        return self.blocked + self.commit


@dataclass(frozen=True)
class Score:
    """Where the seconds of a trace went."""

    wall: float = 0.0
    useful: float = 0.0
    """Steps that were kept, so that no later machine repeats them."""
    recovery: float = 0.0
    blocked: float = 0.0
    """By saves; also the wait for the last commit after a notice."""
    saves: int = 0

    @property
    def lost(self) -> float:
        """Steps that were repeated or not finished."""
        return self.wall - self.useful - self.recovery - self.blocked

    @property
    def goodput(self) -> float:
        """The useful share of the time: Google's *runtime goodput* (``outlast/bucket/goodput.py``
        has the source). Time without a machine is not in it."""
        return self.useful / self.wall

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.wall + other.wall,
            self.useful + other.useful,
            self.recovery + other.recovery,
            self.blocked + other.blocked,
            self.saves + other.saves,
        )


def draw(seed: int, *, notice_share: float, scale: float, count: int) -> list[Life]:
    """So many lives of Spot VMs, times ``scale``, as the local cloud draws them."""
    source = Lifetimes(draw="spot", scale=scale, notice_share=notice_share)
    drawn = [lifetimes.death(seed, source, boot) for boot in range(1, count + 1)]
    return [Life(*death) for death in drawn if death is not None]


def window(seed: int, *, notice_share: float, scale: float, seconds: float) -> list[Life]:
    """Lives that fill ``seconds``; the last one ends there."""
    found: list[Life] = []
    left_sec = seconds
    for life in draw(seed, notice_share=notice_share, scale=scale, count=1000):
        if left_sec <= 0:
            break
        found.append(Life(min(life.seconds, left_sec), life.noticed))
        left_sec -= life.seconds
    return found


def bound(lives: Sequence[Life], costs: Costs, recoveries: Sequence[float] = ()) -> float:
    """The largest goodput that is possible on a trace, with these costs and whole steps.

    It takes a policy that knows when each machine will be lost: a machine recovers once, and saves
    once, so that the commit ends with the machine. A notice is answered by a save after the step
    under way. ``recoveries`` are those of each machine, if they are known.
    """
    useful = wall = 0.0
    for number, life in enumerate(lives):
        recovery = recoveries[number] if recoveries else costs.recovery
        left = life.seconds - recovery
        if left <= 0:
            wall += life.seconds
        elif life.noticed:
            made = math.ceil(left / costs.step) * costs.step
            useful += made
            wall += recovery + made + costs.save
        else:
            useful += max(0, math.floor((left - costs.save) / costs.step)) * costs.step
            wall += life.seconds
    return useful / wall


def young(mean_sec: float, costs: Costs) -> float:
    """The goodput that a policy without foresight and without notices can expect, to first order,
    if machines of this mean life are lost at random: 1 - sqrt(2 C / M) - (R + S) / M.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
    1974-09. J. T. Daly (Future Generation Computer Systems 22(3), 2006) adds terms of higher order,
    which matter where C is not small beside M. Both count a save as halting training until it is
    durable. Here only ``blocked`` halts it (C), and a commit (S) adds its time to what is lost.
    """
    first_order = 1 - math.sqrt(2 * costs.blocked / mean_sec)
    return first_order - (costs.recovery + costs.commit) / mean_sec
