"""Scenario files: what is read, and the one sentence for what is wrong."""

import copy
import itertools
import json
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from outlast.localcloud.__main__ import main
from outlast.localcloud.scenarios.scenario import (
    PHASES,
    Do,
    Scenario,
    ScenarioError,
    When,
    World,
    check,
    read,
)

MINIMAL = {"name": "x", "about": "One sentence."}
KILL = {"kill": {}}


def event(when: Any, do: Any = KILL, **more: Any) -> dict[str, Any]:
    return {**MINIMAL, "events": [{"when": when, "do": do, **more}]}


def world(**parts: Any) -> dict[str, Any]:
    return {**MINIMAL, "world": parts}


def test_a_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    file = tmp_path / "stockout.yaml"
    file.write_text(
        """
        name: stockout
        about: No room for eight seconds.
        seed: 7
        world:
          zones: {us-central1-a: {capacity: [{to_sec: 8, vms: 0}]}}
        events:
          - when: {attempt: 1, phase: step, share: 0.3}
            do: {preempt: {notice_sec: 2}}
          - when: {phase: upload}
            do: {kill: }
            times: 2
        expect: {end: {state: failed, reason: usage}, within_sec: 60, guarantees: [same-bytes]}
        """
    )
    scenario = read(file)
    assert scenario.seed == 7
    first, second = scenario.events
    assert (first.do.action, first.do.options.notice_sec, first.times) == ("preempt", 2, 1)
    assert (second.do.action, second.when.moment, second.times) == ("kill", "upload", 2)
    document = scenario.document()
    assert document["world"]["zones"]["us-central1-a"]["capacity"][0]["from_sec"] == 0
    assert document["expect"]["guarantees"] == ["same-bytes"]
    assert check(json.loads(json.dumps(document))) == scenario


def test_every_phase_may_be_named() -> None:
    for phase in PHASES:
        assert check(event({"phase": phase})).events[0].when.moment == phase
    assert check(event({"boot": 2})).events[0].when.moment == "boot"
    assert check(event({"attempt": 2})).events[0].when.moment == "step"


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "scenario: must be a mapping"),
        ({"name": "x"}, "about: is missing"),
        ({**MINIMAL, "evnts": []}, "evnts: is not a key of a scenario"),
        (event({"whne": 1}), "events[0].when.whne: is not a key of a scenario"),
        (event({"phase": "lunch"}), "events[0].when.phase 'lunch': must be 'boot', 'setup', "),
        (event({"phase": "boot", "attempt": 2}), "events[0].when: attempt 2: phase 'boot' comes"),
        (event({"phase": "end", "share": 0.2}), "events[0].when: share 0.2: phase 'end' has no"),
        (event({"share": 1.2}), "events[0].when.share 1.2: must be less than or equal to 1"),
        (event({"at_sec": 1, "boot": 1}), "events[0].when: at_sec is a moment of the world"),
        (event({"at_sec": -1}), "events[0].when.at_sec -1: must be greater than or equal to 0"),
        (event({"at_sec": 1}, times=0), "events[0]: times 0: a moment of the world comes once"),
        (event({"attempt": 0}), "events[0].when.attempt 0: must be greater than or equal to 1"),
        (event({"attempt": "1"}), "events[0].when.attempt '1': must be a whole number"),
        (event({"nth": 2}), "events[0].when: nth 2: phase 'boot' comes once a boot; must be 1"),
        (event({"boot": 3}, times=2), "events[0]: times 2: boot 3 comes once; must be 1"),
        (event({"attempt": 3}, times=4), "events[0]: times 4: attempt 3 comes once; must be 1"),
        (event({}, {"thaw": {"boot": 1, "attempt": 1}}), "events[0].do.thaw: boot 1 and attempt 1"),
        (event({}, {"explode": {}}), "events[0].do.explode: is not a key of a scenario"),
        (event({}, {"kill": {}, "stop": {}}), "events[0].do: must have exactly one action, has ki"),
        (event({}, {}), "events[0].do: must have exactly one action, has none"),
        (event({}, {"kill": {"now": True}}), "events[0].do.kill.now: is not a key of a scenario"),
        (event({}, {"stays-stopping": None}), "events[0].do.stays-stopping.for_sec: is missing"),
        (
            event({}, {"capacity": {"zone": "mars-1a"}}),
            "events[0].do.capacity.zone 'mars-1a': the local cloud has no such zone",
        ),
        (
            event({}, {"signal": {"process": "(", "signal": "KILL"}}),
            "events[0].do.signal.process '(': must be a regular expression",
        ),
        (
            event({}, {"fault": {"do": {"explode": 1}}}),
            "events[0].do.fault.do.explode: is not a key",
        ),
        (
            event({}, {"fault": {"do": {"reset": False}}}),
            "events[0].do.fault.do: must name at least one action",
        ),
        (
            event({}, {"fault": {"do": {"retry_after_sec": 1}}}),
            "events[0].do.fault.do: retry_after_sec 1: must be with a status",
        ),
        (
            event({}, {"fault": {"match": {"method": "post"}, "do": {"reset": True}}}),
            "events[0].do.fault.match.method 'post': must be 'GET', 'HEAD', 'POST', 'PUT', 'PATCH'",
        ),
        (world(zones={1: {}}), "world.zones.1 1: must be text"),
        (world(zones={"us-central1-a": None}), "world.zones.us-central1-a null: must be a mapping"),
        (world(metadata={"boots": [1]}), "world.metadata: must have late_sec or status"),
        (world(shutdown={}), "world.shutdown: must have network_lost_sec or gpu_lost_sec"),
        (world(operations=[{"match": "x"}]), "world.operations[0]: must have delay_sec or error"),
        (
            world(zones={"us-central1-q": {}}),
            "world.zones.us-central1-q 'us-central1-q': the local cloud has no such zone",
        ),
        (
            world(zones={"us-central1-a": {"capacity": [{"from_sec": 8, "to_sec": 3, "vms": 0}]}}),
            "world.zones.us-central1-a.capacity[0]: to_sec 3: must be after from_sec 8",
        ),
        (world(quota=[{"metric": "cpus", "limit": 0}]), "world.quota[0].metric 'cpus': must match"),
        (world(switches={"nope": 1}), "world.switches: 'nope' is not a switch"),
        (
            world(switches={"limit_lowers_target": 3}),
            "world.switches: limit_lowers_target 3: must be true or false",
        ),
        (
            world(switches={"recreate_delay_sec": -1}),
            "world.switches: recreate_delay_sec -1: must be a finite number, 0 or more",
        ),
        (
            world(switches={"retry_delay_sec": 10**400}),
            "world.switches: retry_delay_sec 1000000000",
        ),
        (
            world(faults=[{"do": {"status": 503}, "wehn": 1}]),
            "world.faults[0].wehn: is not a key of",
        ),
        (
            world(faults=[{"id": "a", "do": {"reset": True}}, {"id": "a", "do": {"status": 503}}]),
            "scenario: id 'a' of a fault: is there twice",
        ),
        (world(lifetimes={}), "world.lifetimes: must have either draw or ages_sec"),
        (
            world(daily_preemption={"at_sec": 90000}),
            "world.daily_preemption: at_sec 90000: must be below",
        ),
        (world(tools={"missing": ["/bin/sh"]}), "world.tools.missing[0] '/bin/sh': must match"),
        ({**MINIMAL, "speed": 0}, "speed 0: must be greater than 0"),
        ({**MINIMAL, "speed": float("nan")}, "speed nan: must be a finite number"),
        ({**MINIMAL, "seed": True}, "seed True: must be a whole number"),
        ({**MINIMAL, "events": None}, "events null: must be a list"),
        ({**MINIMAL, "world": []}, "world (a list): must be a mapping"),
        ({**MINIMAL, "about": "x" * 4000 + "\0", "name": "y" * 4000}, f"name '{'y' * 79}…: must"),
        ({**MINIMAL, "stack": 3}, "stack 3: must be a mapping"),
        ({**MINIMAL, "stack": {"trainer": "dummy"}}, "stack.trainer 'trainer': must be the whole"),
        ({**MINIMAL, "stack": {"outlast:x": None}}, "stack.outlast:x null: is empty"),
        ({**MINIMAL, "stack": {"outlast:x": [date(2026, 1, 1)]}}, "stack.outlast:x: is of type da"),
        (
            {**MINIMAL, "stack": {"outlast:x": float("nan")}},
            "stack.outlast:x nan: must be a finite",
        ),
        ({**MINIMAL, "stack": {"outlast:x": {1: 2}}}, "stack.outlast:x: key 1: must be text"),
        ({**MINIMAL, "expect": {"end": {"state": "lunch"}}}, "expect.end.state 'lunch': must be"),
    ],
)
def test_an_error_is_one_sentence_with_its_place(document: Any, sentence: str) -> None:
    with pytest.raises(ScenarioError) as error:
        check(document)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


NAMED = Path(__file__).parents[3] / "outlast/localcloud/scenarios"
STRANGE = (
    *(None, True, -1, 0, 2.5, float("nan"), 10**400, "", "x", "../x", "\n", "(", b"x"),
    *([], [None], {}, {"x": 1}, {1: 2}, {"": None}, date(2026, 1, 1)),
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every mapping or list of a document with each of its keys or indices."""
    if isinstance(value, dict | list):
        for key in [*value] if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@pytest.mark.parametrize("name", ["daily-preemption", "death-in-boot", "gpu-lost", "zone-failover"])
def test_a_changed_scenario_is_accepted_or_refused_in_one_sentence(
    name: str,
) -> None:
    whole = read(NAMED / f"{name}.yaml").document()
    for number in range(sum(1 for _ in places(whole))):
        for strange in STRANGE:
            document = copy.deepcopy(whole)
            holder, key = next(itertools.islice(places(document), number, None))
            holder[key] = strange
            try:
                json.dumps(check(document).document(), allow_nan=False)
            except ScenarioError as error:
                assert "\n" not in str(error) and len(str(error)) < 600, str(error)


def test_check_prints_the_document_or_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("{name: x, about: One sentence.}")
    assert main(["check", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["about"] == "One sentence."
    for text, says in (
        ("{name: y, about: One sentence.}", "name 'y': must be the file's own, 'x'"),
        ("{name: x, about: A., events: [{when: {}}]}", "events[0].do: is missing"),
        ("events: [", "line 1: is not YAML"),
        ("name: x\nabout: A.\nevents: []\nevents: []", "line 4: key 'events' is there twice; keep"),
        ("name: x\nabout: A.\nstack: &s\n  a: *s", "line 4: *s is an alias; write out what it"),
        ("a: &a [x, x]\nb: [*a, *a]", "line 2: *a is an alias; write out what it stands for"),
        ("seed: " + "9" * 5000, "is not YAML (Exceeds the limit (4300 digits)"),
        ("# nothing\n", "x.yaml: is empty; docs/scenarios.md lists the keys"),
        ("#" * (1 << 20) + "\n", "x.yaml: is above 1048576 bytes"),
        ("name: x\nabout: A.\n? [a]\n: b", "is not YAML (found unhashable key)"),
        ("name: x\n" + "a: {" * 3000, "is not YAML"),
        ("\x00", "is not YAML"),
    ):
        file.write_text(text)
        assert main(["check", str(file)]) == 64
        printed = capsys.readouterr()
        assert printed.out == ""
        assert says in printed.err
        assert printed.err.count("\n") == 1
    file.write_bytes(b"\xff\xfen\0a\0m\0e\0")
    for path, says in (
        (tmp_path / "absent.yaml", "absent.yaml: no such file or directory; name a scenario file"),
        (tmp_path, "is a directory; name a scenario file"),
        (file, "x.yaml: is not text; name a scenario file"),
    ):
        assert main(["check", str(path)]) == 64
        assert says in capsys.readouterr().err


def test_serve_refuses_a_bad_scenario_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("{name: x, about: A., sped: 2}")
    state = tmp_path / "state"
    assert main(["serve", "--state", str(state), "--scenario", str(file)]) == 64
    assert capsys.readouterr().err.startswith("rehearsal: sped: is not a key of a scenario")
    assert not state.exists()


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs/scenarios.md").read_text()
    words = set(re.findall(r"[a-z][-_a-z]*", " ".join(re.findall(r"`([^`\n]+)`", text))))
    for part in (Scenario, World, When, Do):
        for name, field in part.model_fields.items():
            assert (field.alias or name) in words, f"{part.__name__}.{name}"
    assert set(PHASES) <= words
