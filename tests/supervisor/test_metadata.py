"""The metadata client and the spec that it carries."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from outlast.supervisor import metadata as metadata_module
from outlast.supervisor.metadata import (
    Absent,
    BadSpec,
    Metadata,
    Timeouts,
    Unreachable,
    parse_checkpoint_every,
    parse_spec,
    read_machine,
    rooted,
)
from tests.supervisor.fake_cloud import CUT, FakeCloud, fake_cloud

ATTRIBUTES = {
    "outlast-bucket": "runs",
    "outlast-prefix": "experiments/first",
    "outlast-run": "0123456789",
    "outlast-resume": "2",
    "outlast-placement": "1",
    "outlast-owner": "organization/outlast/first",
    "outlast-trainer": "digits",
    "outlast-deadline": "2026-11-27T23:59:59Z",
    "outlast-arg-epochs": "3",
    "outlast-arg-note": "-dash first",
    "outlast-arg-shuffle": "true",
    "outlast-arg-augment": "false",
}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    monkeypatch.setattr(metadata_module.time, "sleep", lambda seconds: None)
    with fake_cloud(monkeypatch) as cloud:
        cloud.boot("group", "17", {"outlast-run": "0123456789"})
        yield cloud


def test_values_and_absent_keys(cloud: FakeCloud) -> None:
    metadata = Metadata()
    assert metadata.get("instance/id") == "17"
    assert metadata.attributes()["outlast-run"] == "0123456789"
    with pytest.raises(Absent, match="instance/nothing: not set"):
        metadata.get("instance/nothing")


def test_a_503_and_an_answer_that_was_cut_are_asked_again_and_a_403_is_not(
    cloud: FakeCloud,
) -> None:
    cloud.answers["metadata"] = [503, CUT, 0]
    assert Metadata().get("instance/id") == "17"
    cloud.answers["metadata"] = [403]
    with pytest.raises(Unreachable, match="status 403"):
        Metadata().get("instance/id")


def test_a_proxy_in_the_environment_is_not_used(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert Metadata().get("instance/id") == "17"


def test_waiting_for_a_change(cloud: FakeCloud) -> None:
    metadata = Metadata()
    value, etag = metadata.wait_for_change("instance/preempted", last_etag="0")
    assert value == "FALSE"
    assert metadata.wait_for_change("instance/preempted", last_etag=etag, timeout_sec=0) == (
        "FALSE",
        etag,
    )
    cloud.set("instance/preempted", "TRUE")
    assert metadata.wait_for_change("instance/preempted", last_etag=etag)[0] == "TRUE"


def test_a_token_is_kept_until_it_is_forgotten_or_ends(cloud: FakeCloud) -> None:
    path = "instance/service-accounts/default/token"
    metadata = Metadata()
    assert metadata.token() == "token-1"
    cloud.set(path, json.dumps({"access_token": "token-2", "expires_in": 30}))
    assert metadata.token() == "token-1"
    metadata.forget_token()
    assert metadata.token() == "token-2"
    cloud.set(path, json.dumps({"access_token": "token-3", "expires_in": 30}))
    assert metadata.token() == "token-3"  # 30 s are too little to be kept


def test_the_machine(cloud: FakeCloud, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_ROOT", str(tmp_path))
    boot_id = rooted("/proc/sys/kernel/random/boot_id")
    assert boot_id == tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("some-boot\n")
    del cloud.values["instance/image"]
    machine = read_machine(Metadata())
    assert (machine.instance_id, machine.boot_id, machine.zone) == (
        "17",
        "some-boot",
        "test-zone1-a",
    )
    assert (machine.machine_type, machine.image) == ("e2-small", "")


def test_a_whole_spec() -> None:
    spec = parse_spec(ATTRIBUTES)
    assert (spec.resume, spec.placement, spec.retries_failures) == (2, 1, 0)
    assert spec.deadline == datetime(2026, 11, 27, 23, 59, 59, tzinfo=UTC)
    assert spec.argv() == ["--epochs=3", "--note=-dash first", "--shuffle"]
    assert spec.checkpoint_every == "auto"
    assert spec.timeouts == Timeouts()
    assert (spec.keep_every_steps, spec.trainer_python) == (0, "")
    assert json.dumps(spec.to_json())


@pytest.mark.parametrize("key", [key for key in ATTRIBUTES if not key.startswith("outlast-arg-")])
def test_a_missing_key_is_named(key: str) -> None:
    attributes = {name: value for name, value in ATTRIBUTES.items() if name != key}
    with pytest.raises(BadSpec, match=f"{key}: missing"):
        parse_spec(attributes)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("outlast-resume", "-1", "whole number"),
        ("outlast-placement", "one", "whole number"),
        ("outlast-retries-failures", "1.5", "whole number"),
        ("outlast-keep-every-steps", "few", "whole number"),
        ("outlast-run", "Up Down", "must match"),
        ("outlast-prefix", "experiments/first/", "no slash"),
        ("outlast-deadline", "tomorrow", "UTC time such as"),
        ("outlast-checkpoint-every", "often", "auto, seconds such as 30s"),
        ("outlast-timeouts", "[1]", "JSON object"),
        ("outlast-timeouts", '{"beet": 1}', "'beet' is not known"),
        ("outlast-timeouts", '{"heartbeat":-1}', "0 or more"),
        ("outlast-timeouts", '{"heartbeat":true}', "0 or more"),
    ],
)
def test_a_bad_value_is_named(key: str, value: str, message: str) -> None:
    with pytest.raises(BadSpec, match=message) as caught:
        parse_spec({**ATTRIBUTES, key: value})
    assert key.removeprefix("outlast-") in str(caught.value)


def test_waits_that_are_left_out_keep_their_default() -> None:
    assert Timeouts.parse('{"heartbeat":1, "notice": 3.5}') == Timeouts(heartbeat=1.0, notice=3.5)


@pytest.mark.parametrize("text", ["auto", "30s", "0.5s", "200"])
def test_checkpoint_intervals(text: str) -> None:
    assert parse_checkpoint_every(text) == text
