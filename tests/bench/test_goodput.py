"""Bounds and scores of traces: by hand, step by step, and against each other."""

import itertools
import json
import math
from pathlib import Path

import pytest

from bench import goodput
from bench.lifetimes import policies, real, simulated, trace
from bench.lifetimes.trace import Costs, Life, Score
from bench.lifetimes.watched import Boundary
from outlast.loop.schedule import Schedule
from outlast.protocol import Every

COSTS = Costs(step=1.0, blocked=1.0, commit=4.0, recovery=10.0)
CUT, NOTICED, TOO_SHORT = Life(100, False), Life(50, True), Life(5, True)


def test_the_bound_of_three_machines_is_as_by_hand() -> None:
    # Cut off: 90 s are left, and the last 5 for the save. Noticed: 40 steps, then the save.
    assert trace.bound([CUT, NOTICED, TOO_SHORT], COSTS) == (85 + 40) / (100 + 55 + 5)
    slow = trace.bound([CUT, NOTICED, TOO_SHORT], COSTS, [20, 10.5, 5])
    assert slow == (75 + 40) / (100 + 55.5 + 5)


def test_a_policy_that_saves_only_at_notices_scores_as_by_hand() -> None:
    cut = simulated.play([CUT], COSTS, policies.notice_only())
    assert cut == Score(wall=100, useful=0, recovery=10, blocked=0, saves=0)
    assert cut.lost == 90 and cut.goodput == 0
    noticed = simulated.play([NOTICED, TOO_SHORT], COSTS, policies.notice_only())
    assert noticed == Score(wall=60, useful=40, recovery=15, blocked=5, saves=1)


def test_a_fixed_timer_scores_as_by_hand_and_gets_no_notice() -> None:
    # Saves end at 31, 52, 73 and 94 s, after 20, 40, 60 and 80 steps; the last commit at 98.
    expected = Score(wall=100, useful=80, recovery=10, blocked=4, saves=4)
    for noticed in (False, True):
        assert simulated.play([Life(100, noticed)], COSTS, policies.fixed(20 / 60)) == expected
    cut_in_commit = simulated.play([Life(97, False)], COSTS, policies.fixed(20 / 60))
    assert (cut_in_commit.useful, cut_in_commit.lost) == (60, 97 - 60 - 10 - 4)


@pytest.mark.parametrize("costs", [COSTS, Costs(0.25, 0.004, 0.09, 3.0), Costs(2, 0, 30, 1)])
def test_the_fast_clock_agrees_with_the_products_policy_asked_at_each_step(costs: Costs) -> None:
    end = 4 * 3600.0
    schedule = Schedule(Every(), now_sec=costs.recovery, step=0, age_sec=costs.recovery)
    now, step, kept, saves = costs.recovery, 0, 0, 0
    commit: tuple[float, int] | None = None
    while now + costs.step <= end:
        now, step = now + costs.step, step + 1
        busy = commit is not None and now < commit[0]
        if busy or not schedule.due(now_sec=now, step=step):
            continue
        known = None if commit is None else costs.commit
        kept = 0 if commit is None else commit[1]
        now, saves = now + costs.blocked, saves + 1
        schedule.taken(now_sec=now, step=step, cost_sec=costs.blocked, commit_sec=known)
        commit = (now + costs.commit, step)
    if commit is not None and commit[0] <= end:
        kept = commit[1]
    found = simulated.play([Life(end, False)], costs, policies.outlast())
    assert saves > 50 and (found.saves, found.useful) == (saves, kept * costs.step)


def test_a_scaled_clock_makes_of_scaled_lives_what_the_clock_makes_of_full_ones() -> None:
    speed = 256.0  # a power of 2, so that floats stay exact
    lives = [Life(6000, False), Life(90_000, True), Life(40_000, False)]
    short = [Life(life.seconds / speed, life.noticed) for life in lives]
    costs = Costs(4.0, 0.5, 8.0, 64.0)
    scaled = Costs(4 / speed, 0.5 / speed, 8 / speed, 64 / speed)
    full = simulated.play(lives, costs, policies.outlast())
    fast = simulated.play(short, scaled, policies.outlast(speed))
    assert fast.saves == full.saves > 50 and fast.goodput == pytest.approx(full.goodput)
    unscaled = simulated.play(short, scaled, policies.outlast())
    assert unscaled.saves < full.saves


@pytest.mark.parametrize("notice_share", [0, 0.5, 1])
def test_every_policy_stays_below_the_bound_and_below_the_oracle(
    notice_share: float,
) -> None:
    lives = trace.draw(7, notice_share=notice_share, scale=0.1, count=40)
    costs = Costs(1.0, 0.5, 3.0, 20.0)
    best = trace.bound(lives, costs)
    oracle = simulated.play(lives, costs, policies.oracle()).goodput
    others = [policies.outlast(), policies.fixed(1), policies.fixed(30), policies.notice_only()]
    assert best >= oracle >= 0.99 * best
    for policy in others:
        found = simulated.play(lives, costs, policy)
        assert found.goodput <= oracle and found.lost >= -1e-6


def test_the_first_due_step_is_found_from_any_guess() -> None:
    for due_from, most, guess in itertools.product(range(1, 15), range(12), range(1, 14)):
        found = simulated.first(lambda n, at=due_from: n >= at, most, guess)
        assert found == (due_from if due_from <= most else None)


def test_lives_fill_a_window_and_the_last_one_ends_with_it() -> None:
    lives = trace.window(4, notice_share=0.5, scale=0.01, seconds=500)
    assert sum(life.seconds for life in lives) == pytest.approx(500)
    assert lives[:-1] == trace.draw(4, notice_share=0.5, scale=0.01, count=len(lives) - 1)


def record(*boundaries: tuple[int, float, float, bool]) -> list[Boundary]:
    return [Boundary(*fields, commit_sec=math.nan) for fields in boundaries]


def test_a_real_machines_steps_count_if_its_newest_checkpoint_has_them() -> None:
    seen = real.Measured()
    made = record((4, 1, 2, False), (5, 3, 3, False), (6, 5, 5.5, True), (7, 7, 7, False))
    score, recovery = real.score_of(made, 0.5, 9.5, 4, 6, seen)
    assert recovery == 1.5
    assert score == Score(wall=9, useful=1 + 2, recovery=1.5, blocked=0.5, saves=1)
    assert score.lost == 4 and seen.steps == [1, 2, 1.5] and seen.blocked == [0.5]


def test_a_real_machine_that_saved_at_its_notice_ends_with_the_commit() -> None:
    made = record((0, 1, 2, False), (1, 3, 4.5, True))
    score, _ = real.score_of(made, 0, 99, 0, 1, real.Measured())
    assert score == Score(wall=4.5, useful=1, recovery=2, blocked=1.5, saves=1)


def test_a_real_machine_that_resumed_elsewhere_is_refused() -> None:
    with pytest.raises(real.BenchError, match="resumed at step 4; the newest checkpoint is of 5"):
        real.score_of(record((4, 1, 2, False)), 0, 9, 5, 5, real.Measured())


@pytest.mark.parametrize(("blocked", "code"), [(0.001, 0), (10.0, 1)])
def test_the_exit_code_says_whether_outlast_reaches_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: float, code: int
) -> None:
    costs = Costs(0.01, blocked, 0.5, 2.0)
    monkeypatch.setattr(goodput, "_real", lambda *given: (costs, []))
    monkeypatch.setattr(goodput, "HINDSIGHT", (10,))
    out = tmp_path / "figures.json"
    words = ["--trainer", "dummy", "--lives", "5", "--notice", "0", "--larger", "1"]
    assert goodput.main([*words, "--json", str(out)]) == code
    body = json.loads(out.read_text())
    assert "simulated" in body["parts"][0]["title"]
    assert {"command", "date", "machine"} <= {*body["header"]}
    assert body["costs"]["dummy"]["blocked"] == blocked
