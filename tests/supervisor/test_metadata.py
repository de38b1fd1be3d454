"""The metadata client."""

import json
from collections.abc import Iterator

import pytest

from outlast.supervisor.metadata import Absent, Metadata, Unreachable, read_machine, rooted
from tests.stores import FakeClock
from tests.supervisor.fake_cloud import CUT, FakeCloud, fake_cloud


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    with fake_cloud(monkeypatch) as cloud:
        cloud.boot("group", "17", {"outlast-run": "0123456789"})
        yield cloud


def test_values_and_absent_keys(cloud: FakeCloud) -> None:
    metadata = Metadata()
    assert metadata.get("instance/id") == "17"
    assert metadata.attributes()["outlast-run"] == "0123456789"
    with pytest.raises(Absent, match="instance/nothing: not set"):
        metadata.get("instance/nothing")


def test_a_503_and_a_truncated_answer_are_retried_but_a_403_is_not(
    cloud: FakeCloud,
) -> None:
    cloud.answers["metadata"] = [503, CUT, 0]
    assert Metadata(clock=FakeClock()).get("instance/id") == "17"
    cloud.answers["metadata"] = [403]
    with pytest.raises(Unreachable, match="metadata key instance/id: 403 "):
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


def test_a_token_is_kept_until_it_is_dropped_or_expires(cloud: FakeCloud) -> None:
    path = "instance/service-accounts/default/token"
    metadata = Metadata()
    assert metadata.token() == "token-1"
    cloud.set(path, json.dumps({"access_token": "token-2", "expires_in": 30}))
    assert metadata.token() == "token-1"
    metadata.forget_token()
    assert metadata.token() == "token-2"
    cloud.set(path, json.dumps({"access_token": "token-3", "expires_in": 30}))
    assert metadata.token() == "token-3"  # 30 s are too little to be kept


def test_the_facts_of_the_machine_are_read(
    cloud: FakeCloud, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
