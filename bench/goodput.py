"""How much of the time on machines that are lost is useful, and how much could be.

    python -m bench.goodput
    python -m bench.goodput --trainer torch_cnn --python .venv-bench/bin/python --seconds 300

*Goodput* is the time of steps that were kept, so that no later machine repeats them, divided by all
time. **Real**: trainers in processes that get SIGTERM (a notice) or SIGKILL (cut off), in real time
on scaled lives of Spot VMs. Each policy has the same trace, and its clock is scaled like the lives,
except for the row of Outlast with unscaled clock. **Simulated**: the same policies on a fast clock
over lives of full length, with the costs that the real part measured, and with larger ones.

The **bound** is what a policy that knows each loss beforehand would reach with the measured costs.
Target: Outlast reaches 99 % of it where a save blocks training for less than 1 % of the mean life.
Exit codes: 0 all targets met, 1 one is not, 69 the bench could not run.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.lifetimes import policies, real, simulated, trace
from bench.lifetimes.policies import Policy
from bench.lifetimes.trace import Costs, Life, Score
from bench.result import Result, command_line
from bench.sites import BenchError, Job, scratch
from outlast.base.exits import DONE

FAILED, CANNOT = 1, 69
TARGET, BLOCKED_SHARE = 0.99, 0.01
MINUTES = (1, 10, 60)
"""Of the fixed timers, in the time of unscaled lives."""
HINDSIGHT = (0.3, 1, 2, 4, 8, 15, 30, 60, 120, 240)
"""Minutes among which the best timer is chosen after the fact."""
CALIBRATED_EVERY_MIN = 1 / 60
MARGIN = 1.5
"""How much longer than a usual save the oracle leaves itself."""
REAL_NOTICE = 0.5
"""Share of losses with a notice in the real part, which has only a few machines."""
LONG_STEP_SEC = 1.0
ENDLESS = ("--epochs=1000000",)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.goodput", __doc__)
    made.add_argument("--trainer", nargs="+", default=["dummy", "digits"])
    made.add_argument("--python", default=sys.executable, help="interpreter of the trainers")
    made.add_argument("--seconds", type=float, default=30, help="real time for each policy")
    made.add_argument(
        "--life-sec", type=float, default=8, help="mean of the short lives in the real part"
    )
    made.add_argument(
        "--notice",
        type=float,
        nargs="+",
        default=[0, 0.9],
        metavar="SHARE",
        help="of losses with a notice, in the simulated part",
    )
    made.add_argument("--lives", type=int, default=40, help="of each simulated trace")
    made.add_argument(
        "--larger",
        type=float,
        nargs="+",
        default=[1, 100],
        metavar="TIMES",
        help="simulated saves cost so many times what the real ones did",
    )
    made.add_argument("--seed", type=int, default=4)
    made.add_argument("--keep", type=Path, help="folder for the real runs")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    args, result = parser().parse_args(argv), Result("bench.goodput", argv)
    targets: list[dict[str, Any]] = []
    measured: dict[str, Costs] = {}
    try:
        with scratch(args.keep) as work:
            for trainer in args.trainer:
                measured[trainer], found = _real(args, trainer, work / trainer, result)
                targets += found
    except BenchError as error:
        print(f"goodput: {error}", file=sys.stderr)
        return CANNOT
    for trainer, costs in measured.items():
        targets += _simulated(args, trainer, costs, result)
    result.table("Targets: Outlast beside the bound", targets)
    code = DONE if all(line["met"] for line in targets) else FAILED
    return result.end(args.json, code, costs={name: asdict(one) for name, one in measured.items()})


# Real trainers.


def _real(
    args: argparse.Namespace, trainer: str, work: Path, result: Result
) -> tuple[Costs, list[dict[str, Any]]]:
    """Play all policies on one trace; the costs, measured in all of their attempts, and the
    target."""
    job = Job(trainer, ENDLESS, "auto", args.python)
    seen = real.calibrate(job, policies.fixed(CALIBRATED_EVERY_MIN), work)
    save_sec = MARGIN * (max(seen.commits) + max(seen.blocked)) + 2 * seen.costs().step
    scale = args.life_sec / trace.SHORT_SEC
    lives = trace.window(args.seed, notice_share=REAL_NOTICE, scale=scale, seconds=args.seconds)
    unscaled = replace(policies.outlast(), name="outlast, unscaled clock")
    played = {}
    for policy in [*_policies(1 / scale), unscaled]:
        played[policy] = real.play(job, lives, policy, work, save_sec)
        seen.add(played[policy].seen)
    costs = seen.costs()
    lines, shares = [], []
    for policy, found in played.items():
        best = trace.bound(lives, costs, found.recoveries)
        expected = simulated.play(lives, costs, policy).goodput / trace.bound(lives, costs)
        shares.append(found.score.goodput / best)
        lines.append({**_line(policy, found.score, best), "simulated": _percent(expected)})
    noticed = sum(life.noticed for life in lives)
    result.table(
        f"\n{trainer}, real: {len(lives)} machines in {args.seconds:g} s, {noticed} with a notice; "
        f"1 s here is {1 / scale / 60:.1f} min of a Spot VM",
        lines,
    )
    result.say(_costs_in_words(costs))
    mean_sec = statistics.fmean(life.seconds for life in lives)
    result.say(
        "Without foresight and notices, Young's estimate for this mean life is a goodput of "
        f"{_percent(trace.young(mean_sec, costs))}.\n"
    )
    return costs, _judge(f"{trainer}, real", lives, costs, shares[0])


def _policies(speed: float) -> list[Policy]:
    timers = [policies.fixed(minutes, speed) for minutes in MINUTES]
    return [policies.outlast(speed), policies.oracle(), *timers, policies.notice_only()]


# Simulated ones.


def _simulated(
    args: argparse.Namespace, trainer: str, measured: Costs, result: Result
) -> list[dict[str, Any]]:
    """Play all policies on long traces; the targets."""
    targets = []
    for times, share in itertools.product(args.larger, args.notice):
        costs = replace(
            measured,
            step=LONG_STEP_SEC,
            blocked=measured.blocked * times,
            commit=measured.commit * times,
        )
        lives = trace.draw(args.seed, notice_share=share, scale=1.0, count=args.lives)
        best = trace.bound(lives, costs)
        scores = {policy: simulated.play(lives, costs, policy) for policy in _policies(1.0)}
        timer, timed = _best_timer(lives, costs)
        hindsight = replace(timer, name=f"{timer.name}, the best in hindsight")
        lines = [_line(policy, found, best) for policy, found in scores.items()]
        days = sum(life.seconds for life in lives) / 86400
        what = f"{trainer}, simulated, saves times {times:g}, notices {share:.0%}"
        result.table(
            f"\n{what}: {len(lives)} machines in {days:.0f} days",
            [*lines, _line(hindsight, timed, best)],
        )
        result.say(_costs_in_words(costs))
        ours = next(iter(scores.values())).goodput
        targets += _judge(what, lives, costs, ours / best, timed.goodput / best)
    return targets


def _best_timer(lives: Sequence[Life], costs: Costs) -> tuple[Policy, Score]:
    """The fixed timer that is best on this trace, chosen afterwards; it answers notices."""
    timers = [policies.fixed(minutes, answers_notice=True) for minutes in HINDSIGHT]
    scores = [(timer, simulated.play(lives, costs, timer)) for timer in timers]
    return max(scores, key=lambda one: one[1].goodput)


def _line(policy: Policy, score: Score, best: float) -> dict[str, Any]:
    return {
        "policy": policy.name,
        "goodput": _percent(score.goodput),
        "bound": _percent(best),
        "of bound": _percent(score.goodput / best),
        "recovery": _percent(score.recovery / score.wall),
        "blocked": _percent(score.blocked / score.wall),
        "lost": _percent(score.lost / score.wall),
        "saves": score.saves,
    }


def _judge(
    what: str, lives: Sequence[Life], costs: Costs, share: float, best_timer: float | None = None
) -> list[dict[str, Any]]:
    """The target, where a save blocks for little of a mean life; else nothing."""
    blocked = costs.blocked / statistics.fmean(life.seconds for life in lives)
    if blocked >= BLOCKED_SHARE:
        return []
    return [
        {
            "trace": what,
            "a save of a life": f"{blocked:.5%}",
            "of bound": _percent(share),
            "best timer": None if best_timer is None else _percent(best_timer),
            "target": _percent(TARGET),
            "met": share >= TARGET,
        }
    ]


def _percent(share: float) -> str:
    return f"{share:.2%}"


def _costs_in_words(costs: Costs) -> str:
    return (
        f"Costs: step {costs.step * 1e3:.1f} ms, a save blocks {costs.blocked * 1e3:.1f} ms, "
        f"commit {costs.commit * 1e3:.0f} ms, recovery {costs.recovery:.2f} s.\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
