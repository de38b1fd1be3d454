"""Moments are a function of the seed, and verdicts count what they say they count."""

import json
from pathlib import Path

import pytest

from bench import table
from bench.points import PHASES, Phases, Point, Verdict, draw, kinds, row_faults, summary

SEEN = Phases(
    {
        "setup": [1.0],
        "step": [0.01],
        "snapshot": [0.002, 0.004],
        "upload": [0.5, 0.25],
        "evaluation": [0.1],
        "final upload": [0.3],
    },
    steps=40,
)


def points(seed: int, count: int = 60, where: str = "folder") -> list[Point]:
    return [draw(seed, number, where, SEEN, kinds(where)) for number in range(count)]


def test_a_seed_gives_the_same_points_and_another_seed_others() -> None:
    assert points(1) == points(1)
    assert [p.offset_sec for p in points(1)] != [p.offset_sec for p in points(2)]


@pytest.mark.parametrize("where", ["folder", "cloud"])
def test_every_phase_is_struck_in_every_way(where: str) -> None:
    drawn = {(p.phase, p.kind, p.target) for p in points(1, 60, where)}
    assert drawn == {(phase, *kind) for phase in PHASES for kind in kinds(where)}


def test_moments_lie_within_what_was_seen() -> None:
    for point in points(3, 200):
        most = SEEN.steps if point.phase == "step" else len(SEEN.seconds[point.phase])
        assert 1 <= point.nth <= most
        seconds = SEEN.seconds[point.phase]
        longest = seconds[0] if point.phase == "step" else seconds[point.nth - 1]
        assert 0 <= point.offset_sec <= longest + 1e-5


def test_a_phase_that_was_not_seen_is_not_drawn(tmp_path: Path) -> None:
    marks = [{"phase": "setup", "seconds": 1.0}, {"phase": "step", "seconds": 0.1}, {"steps": 7}]
    (tmp_path / "marks.jsonl").write_text("\n".join(json.dumps(mark) for mark in marks))
    phases = Phases.read(tmp_path)
    assert (phases.known, phases.steps) == (["setup", "step"], 7)


@pytest.mark.parametrize(
    ("steps", "faults"),
    [([1, 2, 3], (0, 0)), ([1, 2, 2, 3], (1, 0)), ([1, 3], (0, 1)), ([3, 3, 3], (2, 2))],
)
def test_duplicate_and_missing_rows_are_counted(steps: list[int], faults: tuple[int, int]) -> None:
    assert row_faults(steps, 3) == faults


def verdict(number: int, *, equal: bool = True, hit: bool = True) -> Verdict:
    return Verdict(points(1)[number], hit, True, equal, 3 * number, 0, 0)


def test_the_summary_counts_only_blows_that_fell() -> None:
    lines = summary("digits", [verdict(0), verdict(1, equal=False), verdict(2, hit=False)])
    whole = lines[-1]
    assert (whole["points"], whole["ended before"]) == (2, 1)
    assert (whole["resumed %"], whole["equal bytes %"]) == (100.0, 50.0)
    assert whole["lost max"] == 3
    shown = table.show("title", lines)
    assert len(shown.splitlines()) == 3 + len(lines) and "50" in shown
