"""A stack's file is a person's: one sentence for what a rehearsal cannot read; a value of another
kind is left to the program, which refuses it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.cli import engine
from outlast.cli.errors import OperateError
from outlast.cli.rehearsal import scenario, secrets, settings
from outlast.cli.rehearsal.settings import Delivery

EXAMPLE = engine.project() / "Pulumi.dev.yaml"
PLAYED = scenario.of({"name": "baseline", "about": "Nothing happens."})


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the example's stack file only."""
    monkeypatch.setattr(engine, "project", lambda: tmp_path)
    (tmp_path / EXAMPLE.name).write_bytes(EXAMPLE.read_bytes())
    return tmp_path


def composed(args: dict[str, Any] | None = None) -> dict[str, Any]:
    """Stack `mine` as a rehearsal makes it, up to where the local cloud starts."""
    config = settings.compose(settings.read_own("mine"), PLAYED, args or {}, own=True)
    assert scenario.default_of(config) in scenario.names()
    zone, place = settings.zone_of(config), settings.place_of(config)
    assert isinstance(zone, str) and isinstance(place, str)
    pace = settings.pace_of(config)
    assert pace.notice_sec >= 0 and pace.grace_sec >= 0
    name = str(config["outlast:experiment"])
    assert settings.baseline_of(name) != name
    taken, _ = secrets.take_over(config, {})
    yaml.safe_dump({"config": taken})
    return taken


WRONG = {
    "no YAML": b"config: [",
    "a tab": b"config:\n\toutlast:args: {}\n",
    "bytes that are not text": b"config:\n  outlast:trainer: \xff\xfe\n",
    "a control character": b"config:\n  outlast:trainer: \x07\n",
    "nothing": b"",
    "a list": b"- a\n",
    "a text": b"config\n",
    "a number": b"7\n",
    "no config": b"encryptionsalt: v1\n",
    "an empty config": b"config:\n",
    "config as a list": b"config: [1]\n",
    "config as a text": b"config: ab\n",
    "a setting without a name": b"config:\n  1: x\n",
    "a tag": b"config: !!python/object:os.system x\n",
    "an impossible day": b"config: {a: 2020-99-99}\n",
    "very deep": b"config: " + b"[" * 5000,
    "a half mapping": b"config: {a\n",
    "two documents": b"config: {}\n---\nconfig: {}\n",
    "a secret": b"config:\n  outlast:webhook:\n    secure: AAA\n  outlast:args:\n    secure: BBB\n",
    "an alias to nothing": b"config: *nothing\n",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_stack_file_gives_one_sentence(checkout: Path, wrong: str) -> None:
    (checkout / "Pulumi.mine.yaml").write_bytes(WRONG[wrong])
    with pytest.raises(OperateError) as caught:
        composed()
    said = str(caught.value)
    assert "mine" in said and "\n" not in said and said.endswith(".")


READ = "zones zone region noticeSec stopSec args experiment bucket secretEnv webhookSecret command"
"""Keys whose values a rehearsal reads itself."""


@pytest.mark.parametrize("key", [*READ.split(), "gcp:zone", "gcp:region", "gcp:project"])
def test_a_value_of_another_kind_is_left_to_the_program(checkout: Path, key: str) -> None:
    full = key if ":" in key else f"outlast:{key}"
    for value in (None, "", "x", 7, -1.5, float("inf"), True, [], [3], {}, {"a": {}}):
        text = yaml.safe_dump({"config": {"outlast:trainer": "dummy", full: value}})
        (checkout / "Pulumi.mine.yaml").write_text(text)
        found = composed()
        if value and key in ("zones", "zone", "args", "experiment", "bucket", "command"):
            assert found[full] == value


def test_the_examples_file_has_the_local_clouds_place_and_pace() -> None:
    example = yaml.safe_load(EXAMPLE.read_text())["config"]
    local = {**settings.LOCAL_PLACE, **settings.LOCAL_SETTINGS}
    assert {key: example.get(key) for key in local} == local


def test_a_file_without_place_and_pace_gets_the_local_clouds(checkout: Path) -> None:
    (checkout / EXAMPLE.name).write_text("config:\n  outlast:trainer: mine\n")
    found = settings.read_own("dev")
    assert found["gcp:zone"] == "europe-west4-a" and found["outlast:noticeSec"] == "3"
    assert found["outlast:image"].startswith("projects/outlast-rehearsal/")


def test_a_folder_of_data_with_a_name_that_no_system_takes() -> None:
    with pytest.raises(OperateError, match="is not a folder"):
        Delivery.parse("gs://bucket/data=" + "a" * 5000)
