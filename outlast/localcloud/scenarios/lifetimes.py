"""Times at which Spot VMs end: listed in a scenario, or drawn with its seed from the distribution
of real lifetimes."""

import random

from outlast.localcloud.scenarios.scenario import Lifetimes

LIVES = ((0.54, 0.78 * 3600.0), (0.46, 36.0 * 3600.0))
"""(Share, mean seconds) of the lifetimes of Spot VMs: a mixture of two exponential distributions.

Fitted to 1442 lifetimes of Google's preemptible VMs (Kadupitiya, Jadhao and Sharma, HPDC 2020,
arXiv 1911.05160). Lifetimes that the limit of 24 hours ended count as censored, because Spot VMs
have no such limit.
"""


def death(seed: int, lifetimes: Lifetimes, boot: int) -> tuple[float, bool] | None:
    """(Age in seconds, whether with a notice) at which the nth boot ends; None if it does not
    end."""
    draws = random.Random(f"{seed}/lifetime/{boot}")
    share, noticed = draws.random(), draws.random() < lifetimes.notice_share
    if lifetimes.ages_sec is not None:
        if boot > len(lifetimes.ages_sec):
            return None
        return lifetimes.ages_sec[boot - 1] * lifetimes.scale, noticed
    for weight, mean_sec in LIVES:
        if share < weight or mean_sec == LIVES[-1][1]:
            return draws.expovariate(1 / mean_sec) * lifetimes.scale, noticed
        share -= weight
    raise AssertionError("unreachable")
