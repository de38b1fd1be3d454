"""What a campaign draws, and how a failure is reduced: without a cloud."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outlast.cli.rehearsal import scenario
from outlast.localcloud.scenarios import scenario as cloud_side
from tests.campaign import reduce, run, sampling
from tests.campaign.sampling import JOBS, SWEEP, Member

SEEDS = range(40)


def members() -> list[Member]:
    return [
        sampling.draw(seed, number, job)
        for seed in SEEDS
        for number, job in enumerate((*JOBS, JOBS[0]))
    ]


def checked(document: Any) -> scenario.Scenario:
    """As a rehearsal reads the file."""
    plain = json.loads(json.dumps(document))
    return scenario.of(cloud_side.check(plain).document())


def test_every_run_has_a_scenario_that_a_rehearsal_reads() -> None:
    for member in (*members(), *map(sampling.baseline, JOBS)):
        assert len(member.scenarios) == (len(sampling.SWEEP_RATES) if member.job == SWEEP else 1)
        for document in member.scenarios:
            checked(document).check_moments(command="outlast:command" in document["stack"])


def test_the_same_seed_and_number_give_the_same_run() -> None:
    assert members() == members()
    assert sampling.draw(1, 0, JOBS[0]) != sampling.draw(2, 0, JOBS[0])
    for member in members():
        text = json.dumps(member.as_json())
        assert json.dumps(Member.of(json.loads(text)).as_json()) == text


def test_a_run_is_found_again_by_its_name() -> None:
    for number, job in enumerate(JOBS):
        found = sampling.draw(7, number, job)
        assert sampling.named(7, found.name) == found
    with pytest.raises(ValueError, match="run 'm1-nothing': must be as a campaign printed it"):
        sampling.named(7, "m1-nothing")


def test_each_kind_of_fault_is_drawn() -> None:
    drawn = members()
    documents = [document for member in drawn for document in member.scenarios]
    events = [next(iter(event["do"])) for one in documents for event in one["events"]]
    assert set(events) == {
        *("kill", "preempt", "stop", "delete", "lost", "late-create", "freeze", "network-down"),
        "thaw",
    }
    worlds = {key for one in documents for key in one["world"]}
    assert worlds == {
        *("faults", "lifetimes", "metadata", "network", "iam_delay_sec", "zones", "quota"),
        "operations",
    }
    actions = {
        key for one in documents for rule in one["world"].get("faults", ()) for key in rule["do"]
    }
    assert actions >= {"status", "reset", "stall", "drop_answer", "delay_sec", "bytes_per_sec"}
    assert any(one.operator.cuts for one in drawn) and any(one.operator.damages for one in drawn)
    assert any(one.operator.watch_sec for one in drawn)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_campaign_damages_a_checkpoint_and_continues_a_vm_beside_its_successor(
    seed: int,
) -> None:
    """The first runs of the jobs, which even the shortest campaign plays."""
    names = ("dummy", "command-marks", "digits", "command-saves")
    drawn = [sampling.draw(seed, n, sampling.job_of(name)) for n, name in enumerate(names)]
    done = [[next(iter(event["do"])) for event in one.scenarios[0]["events"]] for one in drawn]
    (damaged,) = (n for n, one in enumerate(drawn) if one.operator.damages)
    (zombie,) = (n for n, actions in enumerate(done) if "thaw" in actions)
    assert done[damaged][0] == "kill" and not drawn[damaged].operator.cuts
    assert done[zombie][:2] == ["lost", "thaw"]
    ages = drawn[zombie].scenarios[0]["world"]["lifetimes"]["ages_sec"]
    assert ages[:2] == [FOREVER, FOREVER], "nothing else ends the two"


def test_an_interpreter_without_packages_plays_what_needs_none() -> None:
    import sys

    names = {job.name for job in sampling.available(sys.executable)}
    assert {"dummy", "command-marks", "command-saves", SWEEP} <= names


STOP, KILL, FREEZE = (
    {"when": {"boot": 1}, "do": {name: {}}} for name in ("stop", "kill", "freeze")
)
RULES = [{"match": {"object": name}, "do": {"status": 503}} for name in ("HEAD", "MANIFEST")]
FOREVER = sampling.FOREVER_SEC


def test_a_scenario_is_reduced_to_the_faults_that_it_needs() -> None:
    """Here it needs the second event, the second rule, and that the third boot ends."""
    whole = {
        **sampling.baseline(JOBS[0]).scenarios[0],
        "events": [STOP, KILL, FREEZE],
        "world": {
            "iam_delay_sec": 2,
            "faults": RULES,
            "lifetimes": {"ages_sec": [3.0, FOREVER, 4.0, 5.0], "notice_share": 0.5},
        },
        "expect": {"guarantees": ["resumed", "same-bytes"]},
    }
    played: list[Member] = []

    def play(alone: Member) -> Sequence[str]:
        played.append(alone)
        document = alone.scenarios[0]
        checked(document)
        world = document.get("world") or {}
        needs = [
            KILL in (document.get("events") or ()),
            RULES[1] in (world.get("faults") or ()),
            (world.get("lifetimes") or {}).get("ages_sec", ())[2:3] == [4.0],
        ]
        return ["same-bytes"] if all(needs) else []

    member = replace(sampling.draw(1, 0, JOBS[0]), scenarios=(whole,))
    reduced = reduce.reduce(member, 0, ["same-bytes"], play, seconds=60)
    assert reduced.alone and reduced.plays == len(played)
    assert reduced.document["events"] == [KILL]
    assert reduced.document["world"] == {
        "faults": [RULES[1]],
        "lifetimes": {"ages_sec": [FOREVER, FOREVER, 4.0], "notice_share": 0.5},
    }
    assert reduced.document["expect"]["guarantees"] == ["same-bytes"]
    assert not any(one.operator.acts for one in played), "a scenario does not say what it does"


def test_what_does_not_fail_alone_is_kept_as_it_was_drawn() -> None:
    found = members()[0]
    reduced = reduce.reduce(found, 0, ["resumed"], lambda alone: ["same-bytes"], seconds=60)
    assert (reduced.alone, reduced.plays) == (False, 2)
    assert len(reduce.pieces(reduced.document)) == len(reduce.pieces(found.scenarios[0]))


def test_memory_that_grows_is_not_flat() -> None:
    assert not run.grows([70, 80, 90, 90, 91, 90, 92, 90])
    assert run.grows([70, 80, 90, 90, 100, 110, 120, 130])
    assert not run.grows([80.0])
