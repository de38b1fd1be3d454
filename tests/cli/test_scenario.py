"""What the operator's machine makes of a scenario and of an own stack, before anything runs."""

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from outlast.base.exits import Reason, State
from outlast.bucket.history import History
from outlast.bucket.layout import EXPERIMENT_PATTERN
from outlast.cli import engine
from outlast.cli.engine import Parts, find_parts
from outlast.cli.errors import RehearsalError, UsageError
from outlast.cli.rehearsal import rehearsal as rehearsal_module
from outlast.cli.rehearsal import rehearse as rehearse_module
from outlast.cli.rehearsal import scenario, settings
from outlast.cli.rehearsal.rehearsal import Rehearsal, StackRun
from outlast.cli.rehearsal.seen import Ending
from outlast.cli.rehearsal.settings import Delivery, compose
from outlast.localcloud.scenarios import scenario as cloud_side
from tests.cli.test_guarantees import attempt, head

DOCUMENT = {
    "name": "mine",
    "about": "Something\n  happens.",
    "stack": {"outlast:trainer": "dummy", "outlast:provisioning": "standard"},
    "expect": {
        "end": {"state": "failed", "reason": "usage"},
        "within_sec": 7,
        "guarantees": ["single-lineage"],
    },
}


def document(**changes: Any) -> dict[str, Any]:
    return {**DOCUMENT, **changes}


def test_a_name_is_a_file_of_the_folder_and_a_path_is_itself(tmp_path: Path):
    assert scenario.find("storm") == scenario.FOLDER / "storm.yaml"
    own = tmp_path / "mine.yaml"
    own.write_text("name: mine\n")
    assert scenario.find(str(own)) == own


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("zombi", "scenario 'zombi': does not exist; did you mean zombie?"),
        ("qqq", "scenario 'qqq': does not exist; outlast rehearse --list shows"),
        ("gone.yaml", "scenario gone.yaml: no such file; give the path of a scenario file."),
        ("./storm", "scenario ./storm: no such file"),
    ],
)
def test_a_mistyped_name_is_one_sentence(name, sentence):
    with pytest.raises(UsageError) as raised:
        scenario.find(name)
    assert str(raised.value).startswith(sentence)


def test_a_document_is_read_with_what_is_expected_of_it():
    found = scenario.of(DOCUMENT)
    assert (found.name, found.about) == ("mine", "Something happens.")
    assert found.end == Ending("failed", "usage")
    assert (found.within_sec, found.guarantees) == (7.0, ("single-lineage",))
    assert not found.needs_baseline
    equal = document(expect={"guarantees": ["same-bytes"]})
    found = scenario.of(equal)
    assert found.needs_baseline
    assert (found.end, found.within_sec) == (Ending("done"), scenario.WITHIN_SEC)


def test_an_unknown_guarantee_is_named_with_its_place():
    with pytest.raises(UsageError) as raised:
        scenario.of(document(expect={"guarantees": ["single-lineage", "same-byte"]}))
    assert str(raised.value) == (
        "scenario mine: expect.guarantees[1] 'same-byte': is not a guarantee; "
        "did you mean same-bytes?"
    )


def test_an_unknown_reason_of_the_end_is_named():
    with pytest.raises(UsageError) as raised:
        scenario.of(document(expect={"end": {"state": "failed", "reason": "user-fail"}}))
    assert str(raised.value) == (
        "scenario mine: expect.end.reason 'user-fail': is not a reason; did you mean user-failed?"
    )


def test_a_setting_that_there_is_not_is_named_before_anything_starts():
    with pytest.raises(UsageError) as raised:
        scenario.of(document(stack={"outlast:trainer": "dummy", "outlast:checkpointEvry": "1s"}))
    assert str(raised.value) == (
        "scenario mine: stack.outlast:checkpointEvry: is not a setting of Outlast; "
        "did you mean outlast:checkpointEvery?"
    )


def test_what_happens_to_the_examples_zone_happens_to_the_own_stacks():
    world = {"zones": {"europe-west4-a": {"capacity": [{"vms": 0}]}}}
    event = {"when": {"boot": 1}, "do": {"capacity": {"zone": "europe-west4-a"}}}
    found = scenario.of(document(world=world, events=[event]))
    moved = found.moved("europe-west4-a", "us-central1-b").document
    assert list(moved["world"]["zones"]) == ["us-central1-b"]
    assert moved["events"][0]["do"] == {"capacity": {"zone": "us-central1-b"}}


@pytest.fixture(scope="module")
def parts() -> Parts:
    return find_parts()


def test_a_file_is_checked_by_the_local_cloud(tmp_path: Path, parts: Parts):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(DOCUMENT))
    assert scenario.read(file, parts).end == Ending("failed", "usage")
    file.write_text(yaml.safe_dump(document(evnets=[])))
    with pytest.raises(UsageError, match="evnets: is not a key of a scenario"):
        scenario.read(file, parts)


# ------------------------------------------------------------------------------- settings


def test_settings_are_the_stacks_with_the_scenarios_and_the_calls_over_them():
    settings = {"outlast:trainer": "digits", "outlast:args": {"epochs": 5, "seed": 1}}
    found = compose(settings, scenario.of(DOCUMENT), {"epochs": 9}, own=False)
    assert found["outlast:trainer"] == "dummy"
    assert found["outlast:provisioning"] == "standard"
    assert found["outlast:args"] == {"epochs": 9, "seed": 1}


def test_a_stack_of_ones_own_keeps_its_trainer():
    settings = {"outlast:trainer": "mine", "outlast:args": {"depth": 5}}
    found = compose(settings, scenario.of(DOCUMENT), {"limit-rows": 64}, own=True)
    assert found["outlast:trainer"] == "mine"
    assert found["outlast:args"] == {"depth": 5, "limit-rows": 64}
    assert found["outlast:provisioning"] == "standard"


def test_the_baseline_of_the_longest_name_has_a_name_that_may_be():
    assert settings.baseline_of("dev") == "dev-baseline"
    for name in ("x" * 40, "x" * 34 + "-y", "x" * 35 + "-baseline"):
        baseline = settings.baseline_of(name)
        assert EXPERIMENT_PATTERN.fullmatch(baseline) and baseline != name


def test_a_scenario_about_a_command_is_not_for_a_trainer_of_ones_own():
    command = scenario.of(document(stack={"outlast:command": "exit 3"}))
    with pytest.raises(UsageError, match="has its own command"):
        compose({}, command, {}, own=True)
    found = compose({"outlast:command": "./mine.sh"}, command, {}, own=True)
    assert found["outlast:command"] == "./mine.sh"
    with pytest.raises(UsageError, match="--limit-rows: is a trainer's flag"):
        compose({}, command, {"limit-rows": 64}, own=False)


def test_a_command_is_rehearsed_at_moments_that_it_has():
    command = {"outlast:command": "./mine.sh"}
    assert scenario.default_of({"outlast:trainer": "digits"}) == "storm"
    for name in (scenario.default_of(command), "exit-0-on-sigterm"):
        scenario.of(cloud_side.read(scenario.find(name)).document()).check_moments(command=True)
    storm = scenario.of(cloud_side.read(scenario.find("storm")).document())
    storm.check_moments(command=False)
    with pytest.raises(UsageError) as raised:
        storm.check_moments(command=True)
    assert str(raised.value) == (
        "scenario storm: events[0].when.share 0.15: never happens, since a command has no total of "
        "steps; play command-storm, or name commits instead."
    )


class Recorder(rehearsal_module.Watcher):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def test_in_a_long_silence_it_is_said_where_each_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")  # no server is asked
    recorder, config = Recorder(), settings.read_config("dev")
    rehearsal = Rehearsal(cast("Any", None), scenario.of(DOCUMENT), config, tmp_path, recorder)
    rehearsal.stack_runs = [StackRun(name, config, tmp_path) for name in ("dev", "dev-baseline")]
    rehearsal.say_where()
    assert recorder.lines == []
    monkeypatch.setattr(rehearsal_module, "QUIET_SEC", 0.0)
    rehearsal.stack_runs[0].outputs = {"run": "0123456789"}
    rehearsal.say_where()
    living = replace(attempt(1, 0, 9, 0, Reason.DONE), end=None, reason=None)
    book = History(head(state=State.OPEN, end=None), (living,), {}, 90, (), "search")
    rehearsal.stack_runs[0].note(book)
    rehearsal.say_where()
    rehearsal.stack_runs[0].note(replace(book, total=None, phase=""))
    rehearsal.say_where()
    rehearsal.say_where("destroying")
    assert recorder.lines == [
        "dev: no attempt yet; dev-baseline: pulumi up",
        "dev: attempt 1, phase search, step 9 of 90; dev-baseline: pulumi up",
        "dev: attempt 1, phase setup, step 9; dev-baseline: pulumi up",
        "still destroying",
    ]


def test_an_engine_may_take_as_many_times_longer_as_its_guests_are_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An image is baked while the engine waits."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")  # no server is asked
    limit_sec, now = rehearsal_module.LIMIT_SEC, [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.append(now.pop() + 60))
    monkeypatch.setattr(rehearsal_module, "time", clock)
    started: list[Rehearsal] = []

    class Started(Exception):
        pass

    def start(*given: Any, **more: Any) -> None:
        now[0] = 0.0
        started.append(Rehearsal(*given, **more))
        raise Started

    cloud = SimpleNamespace(variables=lambda *_: {}, stop=lambda: None)
    monkeypatch.setattr(rehearse_module.clouds, "start", lambda *_, **__: cloud)
    monkeypatch.setattr(rehearse_module.engine, "enter", lambda _: None)
    monkeypatch.setattr(rehearse_module, "Rehearsal", start)
    for images, times in (({}, 1), ({"debian-13": tmp_path}, settings.VM_PATIENCE)):
        with pytest.raises(Started):
            rehearse_module.rehearse(watcher=Recorder(), guest_images=images)
        with pytest.raises(RehearsalError) as refused:
            started[-1]._wait([Future()])
        assert str(refused.value) == f"rehearsal: the engine did not end in {limit_sec * times} s."
        assert limit_sec * times <= now[0] <= limit_sec * times + 120
    assert settings.VM_PATIENCE > 1


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stacks, with the example's."""
    (tmp_path / "Pulumi.dev.yaml").write_text((engine.project() / "Pulumi.dev.yaml").read_text())
    monkeypatch.setattr(engine, "project", lambda: tmp_path)
    return tmp_path


def write_stack(folder: Path, **config: Any) -> None:
    settings = {key.replace("__", ":"): value for key, value in config.items()}
    (folder / "Pulumi.mine.yaml").write_text(yaml.safe_dump({"config": settings}))


def test_a_stack_of_ones_own_is_moved_to_the_local_cloud(checkout: Path):
    write_stack(
        checkout,
        gcp__project="my-project",
        gcp__zone="us-central1-b",
        outlast__trainer="mine",
        outlast__image="projects/debian-cloud/global/images/family/debian-13",
        outlast__noticeSec="120",
        outlast__webhook="https://example.com/hook",
    )
    found = settings.read_own("mine")
    assert found["gcp:project"] == "outlast-rehearsal"
    assert found["gcp:zone"] == "us-central1-b"
    assert found["outlast:bucket"] == "my-project-outlast"
    assert found["outlast:experiment"] == "mine"
    assert found["outlast:trainer"] == "mine"
    assert found["outlast:noticeSec"] == "3"
    assert "outlast-rehearsal" in found["outlast:image"]
    assert "outlast:webhook" not in found


def test_a_stack_that_is_not_there_is_one_sentence(checkout: Path):
    with pytest.raises(UsageError) as raised:
        settings.read_own("mien")
    assert str(raised.value) == (
        f"--stack mien: there is no Pulumi.mien.yaml in {checkout}; known are dev."
    )


def test_a_stack_with_a_secret_is_refused_by_the_keys_name(checkout: Path):
    write_stack(checkout, outlast__args={"secure": "v1:abc"})
    with pytest.raises(UsageError, match="outlast:args is a secret"):
        settings.read_own("mine")


def test_a_stack_file_that_is_not_yaml_gives_one_sentence(checkout: Path):
    (checkout / "Pulumi.mine.yaml").write_text("config: [\n")
    with pytest.raises(RehearsalError, match=r"Pulumi\.mine\.yaml: is not YAML"):
        settings.read_own("mine")


# ------------------------------------------------------------------------------- data


def test_a_folders_files_become_objects_below_the_path(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.csv").write_text("2")
    (tmp_path / "a.csv").write_text("1")
    delivery = Delivery.parse(f"gs://bucket/data/census/={tmp_path}")
    names = [delivery.object(file) for file in delivery.files()]
    assert (delivery.bucket, names) == ("bucket", ["data/census/a.csv", "data/census/deep/b.csv"])
    top = Delivery.parse(f"gs://bucket={tmp_path}")
    assert [top.object(file) for file in top.files()] == ["a.csv", "deep/b.csv"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gs://bucket/data", "must be gs://BUCKET/PATH=FOLDER."),
        ("bucket/data=.", "must be gs://BUCKET/PATH=FOLDER."),
        ("gs://=.", "must be gs://BUCKET/PATH=FOLDER."),
        ("gs://bucket/data=gone", "gone is not a folder; give one with the data's files."),
    ],
)
def test_data_that_is_none_is_one_sentence(text, sentence):
    with pytest.raises(UsageError) as raised:
        Delivery.parse(text)
    assert str(raised.value) == f"--data {text}: {sentence}"


def test_an_empty_folder_is_said_to_be(tmp_path: Path):
    with pytest.raises(UsageError, match="holds no file"):
        Delivery.parse(f"gs://bucket/data={tmp_path}")
