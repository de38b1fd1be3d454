"""The order in which a campaign plays its runs, and what it says: without a cloud."""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import pytest

from outlast.base.exits import USAGE
from tests.campaign import run, sampling
from tests.campaign.member import Result
from tests.campaign.run import Campaign, Failure
from tests.campaign.sampling import JOBS, Member


class Noted:
    """Notes what it is asked to play; `broken`: what a run breaks, by its name."""

    def __init__(self, broken: Mapping[str, dict[str, str]] | None = None) -> None:
        self.asked: list[Member] = []
        self.seconds: Counter[str] = Counter()
        self.interrupted = False
        self._broken = broken or {}
        self._lock = threading.Lock()

    def play(self, member: Member) -> Result:
        with self._lock:
            self.asked.append(member)
        return Result(broken=self._broken.get(member.name, {}))

    def interrupt(self) -> None:
        self.interrupted = True


def play_all(noted: Noted, seconds: float, parallel: int = 1) -> list[str]:
    jobs = JOBS[:3]
    run.play_all(cast(Campaign, noted), jobs, 1, seconds=seconds, parallel=parallel)
    return [member.name for member in noted.asked]


def test_each_job_runs_undisturbed_and_then_once_even_without_time() -> None:
    names = play_all(Noted(), 0)
    assert names == [
        *("b-dummy", "b-command-marks", "b-digits"),
        *("m0-dummy", "m1-command-marks", "m2-digits"),
    ]


def test_the_runs_are_those_of_their_numbers_until_no_other_would_end_in_time() -> None:
    noted = Noted()
    noted.seconds["digits"] = 10_000  # so long did one take
    noted.seconds["dummy"] = noted.seconds["command-marks"] = 50
    names: list[str] = []

    def play(member: Member) -> Result:
        names.append(member.name)
        if len(names) == 9:
            noted.seconds["dummy"] = noted.seconds["command-marks"] = 10_000
        return Result()

    noted.play = play  # type: ignore[method-assign]
    play_all(noted, 1000)
    assert names[6:] == ["m3-dummy", "m4-command-marks", "m6-dummy"]


def test_without_an_undisturbed_run_nothing_is_compared() -> None:
    noted = Noted({"b-command-marks": {"no-vm-left": "one"}})
    names = play_all(noted, 1000)
    assert noted.interrupted and names == ["b-dummy", "b-command-marks"]


def test_of_failures_that_broke_the_same_the_first_is_reduced() -> None:
    member = sampling.draw(1, 0, JOBS[0])
    results = [
        Result(broken={"same-bytes": "a"}),
        Result(error="no engine"),
        Result(broken={"same-bytes": "b"}),
    ]
    failures = [Failure(member, result, "") for result in results]
    assert run._different(failures) == failures[:2]


def test_a_name_that_no_run_has_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--only", "m1-nothing"]) == USAGE
    assert "run 'm1-nothing': must be as a campaign printed it" in capsys.readouterr().out


def test_the_figures_say_when_memory_grows() -> None:
    class Memory:
        mb: Any = [80.0] * 8 + [90.0, 100.0, 110.0, 120.0]

    found = cast(Any, Campaign)(cast(Any, None), cast(Any, None))
    found.totals.update(runs=3, preemptions=2, faults=5, commits=7, fenced=1, fallbacks=1, lost=9)
    lines = run.report(found, cast(Any, Memory()), {"no-vm-left": "one"}, 60)
    text = "\n".join(lines)
    for said in (
        "3 runs in 60 s",
        "2 preemptions survived, 5 faults injected",
        "7 commits, 1 fenced attempts, 1 fallbacks to an older checkpoint, 9 steps lost",
        "80, 80, 80, 110: it GROWS",
        "LEFT OVER: no-vm-left: one",
    ):
        assert said in text, text
