"""Kills by forks: a seeded part of the ten thousand holds, and each mutant is caught."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import kill_matrix
from bench.forks import matrix
from bench.forks.points import Deck, parse
from bench.forks.probe import Kind, short
from bench.forks.scenes import Scene, Truth
from outlast.base.exits import DONE, USAGE
from tests.bench.forked_mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
POINTS = 16
FEW = 10
"""Points within which each mutant is caught, of the kinds and phases that are for it."""


def run(*argv: str, limit_sec: float = 290) -> "subprocess.CompletedProcess[str]":
    """A separate process: forks of one with a test's threads could copy a lock that is held."""
    return subprocess.run(
        [sys.executable, "-m", *argv], cwd=ROOT, capture_output=True, text=True, timeout=limit_sec
    )


def test_a_seeded_part_of_the_kills_ends_in_the_undisturbed_bytes(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--forks", "--trainer", "dummy", "--points", str(POINTS), "--seed", "7"]
    done = run("bench.kill_matrix", *arguments, "--json", str(figures))
    assert done.returncode == DONE, done.stdout + done.stderr
    verdicts = json.loads(figures.read_bytes())["verdicts"]
    assert len(verdicts) == POINTS and all(not one["broken"] for one in verdicts)
    assert sum(one["hit"] for one in verdicts) >= POINTS - 2
    assert len({(one["point"]["phase"], one["point"]["blow"]["kind"]) for one in verdicts}) > 10
    assert f"{POINTS} points in" in done.stdout and "0 do not hold" in done.stdout


def assert_caught(names: Sequence[str], *, limit_sec: float) -> None:
    done = run("tests.bench.forked_mutants", *names, limit_sec=limit_sec)
    found = {one["mutant"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert set(found) == {*names}, done.stderr
    late = {name: one for name, one in found.items() if not one["points"] or one["points"] > FEW}
    assert not late


def test_each_mutant_is_caught_within_few_points() -> None:
    assert_caught(FAST, limit_sec=290)


FAST = (
    "head_before_the_checkpoint",
    "optimizer_not_restored",
    "fence_without_generation",
    "starts_from_scratch",
)
"""The rest plays in the test below."""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_each_other_mutant_is_caught_within_few_points() -> None:
    assert_caught([name for name in MUTANTS if name not in FAST], limit_sec=1190)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("t000012/s000000000040-0a1b2c/arrays.bin/000001", "s/arrays.bin/000001"),
        ("t000001/result/RESULT.json", "result/RESULT.json"),
        ("attempts/000003/start.json", "attempts/start.json"),
        ("metrics/t000003/000001.after-000000000040.jsonl", "metrics/*"),
        ("pages/t000003/" + "0a" * 16 + ".json", "pages/*.json"),
        ("HEAD", "HEAD"),
    ],
)
def test_names_of_events_leave_out_what_differs_between_attempts(path: str, name: str) -> None:
    assert short(path) == name


EVENTS = [
    ("vm", "get HEAD"),
    ("vm", "put HEAD"),
    ("vm", "put attempts/start.json"),
    ("trainer", "loop step"),
    ("vm", "put s/state.json"),
    ("vm", "put HEAD"),
    ("vm", "delete s/state.json"),
    ("vm", "put result/RESULT.json"),
    ("vm", "put HEAD"),
    ("vm", "call leave"),
]


@pytest.fixture
def scenes() -> dict[str, Scene]:
    from bench.forks.programs import PROGRAMS

    truth = Truth({}, [], {}, {})
    return {"dummy/empty": Scene(PROGRAMS["dummy"], "empty", None, truth, EVENTS)}


def test_a_point_is_the_same_for_a_seed_and_a_number_and_as_its_text(
    scenes: dict[str, Scene],
) -> None:
    deck = Deck(scenes)
    for number in range(200):
        point = deck.draw(3, number)
        assert deck.draw(3, number) == point == parse(point.text, scenes)
        assert point.text in point.command.replace("'", "")


def test_each_phase_meets_each_kind_that_there_is(scenes: dict[str, Scene]) -> None:
    deck = Deck(scenes)
    cells = {*deck.cells}
    phases = {phase for phase, _ in cells}
    assert phases == {
        *("term taking", "steps", "upload", "commit of HEAD", "retention"),
        *("result manifest", "ending", "leaving"),
    }
    assert {kind for phase, kind in cells if phase == "commit of HEAD"} == {*Kind}
    assert ("steps", Kind.REFUSED) not in cells and ("steps", Kind.ZOMBIE) in cells
    drawn = [deck.draw(1, number) for number in range(len(cells))]
    assert {(point.phase, point.blow.kind) for point in drawn} == cells


def test_what_cannot_be_forked_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert kill_matrix.main(["--forks", "--trainer", "census"]) == USAGE
    assert "cannot be forked; known are dummy, digits" in capsys.readouterr().err


def test_the_command_names_what_can_be_forked() -> None:
    assert tuple(matrix.PROGRAMS) == kill_matrix.FORKED
