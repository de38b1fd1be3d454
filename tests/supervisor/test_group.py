"""Membership and leaving: yes, no and not known are never mixed up."""

from collections.abc import Iterator
from typing import Any

import pytest

from outlast.base.retry import Patience
from outlast.supervisor.group import (
    WITHOUT_TOKEN_SEC,
    Group,
    Left,
    Member,
    NoGroup,
    NotMember,
    Refused,
    Stranded,
    Unknown,
    find_group,
    leave_until_deleted,
    wait_for_permission,
)
from outlast.supervisor.metadata import Metadata
from tests.log_lines import log_lines
from tests.stores import FakeClock
from tests.supervisor.fake_cloud import (
    CUT,
    ZONE,
    FakeCloud,
    fake_cloud,
)


@pytest.fixture(params=[f"zones/{ZONE}", "regions/europe-west4"])
def cloud(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FakeCloud]:
    """With the VM of a zonal or of a regional group."""
    made_by = f"projects/1/{request.param}/instanceGroupManagers/group"
    with fake_cloud(monkeypatch) as cloud:
        cloud.boot("group", "17", {"created-by": made_by})
        yield cloud


@pytest.fixture
def group(cloud: FakeCloud) -> Group:
    metadata = Metadata()
    found = find_group(metadata, metadata.attributes())
    assert isinstance(found, Group)
    return found


def test_a_member_is_found_by_its_id_on_any_page(cloud: FakeCloud, group: Group) -> None:
    assert group.membership() == Member("group-0001", ZONE)
    cloud.groups["group"] = [{"id": str(n), "name": f"group-{n}"} for n in range(5)] + [
        {"id": "17", "name": "group-0001"}
    ]
    cloud.page_size = 2
    assert isinstance(group.membership(), Member)
    assert cloud.calls.count("listManagedInstances") == 4


def test_a_namesake_with_another_id_is_another_machine(cloud: FakeCloud, group: Group) -> None:
    cloud.groups["group"] = [{"id": "18", "name": "group-0001"}]
    assert isinstance(group.membership(), NotMember)
    assert isinstance(group.leave(), Left)
    assert "deleteInstances" not in cloud.calls
    assert cloud.groups["group"] != []


def test_no_such_group_means_left(cloud: FakeCloud, group: Group) -> None:
    del cloud.groups["group"]
    assert isinstance(group.membership(), NotMember)
    assert isinstance(group.leave(), Left)


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_an_error_means_unknown_membership(cloud: FakeCloud, group: Group, status: int) -> None:
    cloud.answers["listManagedInstances"] = [status]
    assert isinstance(group.membership(), Unknown)
    assert isinstance(group.leave(), Unknown)
    assert "deleteInstances" not in cloud.calls


def test_an_incomplete_answer_means_unknown_membership(cloud: FakeCloud, group: Group) -> None:
    cloud.answers["listManagedInstances"] = [CUT]
    assert isinstance(group.membership(), Unknown)
    cloud.close()
    assert isinstance(group.membership(), Unknown)


def test_leaving_deletes_the_vm_from_its_group(cloud: FakeCloud, group: Group) -> None:
    assert isinstance(group.leave(), Left)
    assert cloud.groups["group"] == []
    assert cloud.calls == ["listManagedInstances", "deleteInstances"]


def test_a_refused_deletion_is_followed_by_a_resize(cloud: FakeCloud, group: Group) -> None:
    cloud.answers["deleteInstances"] = [403]
    assert isinstance(group.leave(), Left)
    assert cloud.calls[-1] == "resize" and cloud.groups["group"] == []


def test_a_refusal_because_of_a_successor_resizes_nothing(
    cloud: FakeCloud, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    successor = [{"id": "18", "name": "group-0001"}]
    call = group._call

    def replaced_meanwhile(url: str, body: Any) -> Any:
        if url.endswith("deleteInstances"):
            cloud.groups["group"] = successor
        return call(url, body)

    monkeypatch.setattr(group, "_call", replaced_meanwhile)
    cloud.answers["deleteInstances"] = [400]
    assert isinstance(group.leave(), Left)
    assert "resize" not in cloud.calls
    assert cloud.groups["group"] == successor


def test_a_deletion_with_an_unknown_result_resizes_nothing(cloud: FakeCloud, group: Group) -> None:
    cloud.answers["deleteInstances"] = [503]
    assert isinstance(group.leave(), Unknown)
    assert "resize" not in cloud.calls


def test_a_vm_stays_until_it_may_leave(cloud: FakeCloud, group: Group) -> None:
    cloud.answers = {"deleteInstances": [403, 403, 0], "resize": [403]}
    said = log_lines()
    waits: list[float] = []
    leave_until_deleted(group, backoff_sec=10.0, clock=Noting(waits))
    assert cloud.groups["group"] == []
    assert [line.startswith("stuck-leaving") for line in said] == [True, True, False]
    # About 10 s and about 20 s: each is jittered by a half.
    assert len(waits) == 2 and 5 <= waits[0] <= 15 and 10 <= waits[1] <= 30


class Noting(FakeClock):
    """Notes each sleep."""

    def __init__(self, waits: list[float]) -> None:
        super().__init__()
        self.waits = waits

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.waits.append(seconds)


TOKEN = "instance/service-accounts/default/token"


def test_a_vm_that_gets_no_token_stops_asking_after_a_minute(cloud: FakeCloud) -> None:
    """Only another one, on another host, may get a token."""
    del cloud.values[TOKEN]
    metadata = Metadata()
    group = find_group(metadata, metadata.attributes())
    waits: list[float] = []
    with pytest.raises(Stranded, match="no token"):
        leave_until_deleted(group, backoff_sec=10.0, clock=Noting(waits))
    assert WITHOUT_TOKEN_SEC <= sum(waits) < 3 * WITHOUT_TOKEN_SEC
    assert cloud.calls == []


def test_a_vm_whose_token_comes_back_leaves(cloud: FakeCloud) -> None:
    token = cloud.values.pop(TOKEN)
    metadata = Metadata()
    group = find_group(metadata, metadata.attributes())

    class Coming(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            cloud.values[TOKEN] = token

    assert isinstance(leave_until_deleted(group, backoff_sec=10.0, clock=Coming()), Left)
    assert cloud.groups["group"] == []


def test_a_vm_that_has_a_token_waits_however_long_the_group_is_silent(
    cloud: FakeCloud, group: Group
) -> None:
    cloud.answers["listManagedInstances"] = [503] * 20 + [0]
    clock = FakeClock()
    assert isinstance(leave_until_deleted(group, backoff_sec=10.0, clock=clock), Left)
    assert clock.elapsed > 3600.0


def test_a_vm_that_may_neither_delete_nor_resize_is_refused(cloud: FakeCloud, group: Group) -> None:
    cloud.answers = {"deleteInstances": [403], "resize": [403]}
    answer = group.leave()
    assert isinstance(answer, Refused) and "403" in answer.why


def test_permission_may_still_be_spreading(cloud: FakeCloud, group: Group) -> None:
    permissions, cloud.permissions = cloud.permissions, []
    said = log_lines()

    class Granting(FakeClock):
        def sleep(self, seconds: float) -> None:
            cloud.permissions = permissions

    assert wait_for_permission(group, Patience(Granting()).permitting(600))
    assert said[0] == (
        "permission to leave the group: missing; permissions may still be spreading, trying again"
        " for up to 10 min"
    )


def test_a_permission_that_never_spreads_is_an_error(cloud: FakeCloud, group: Group) -> None:
    cloud.permissions = cloud.permissions[:1]
    clock = FakeClock()
    assert not wait_for_permission(group, Patience(clock).permitting(600))
    assert clock.elapsed >= 600


def test_a_machine_without_a_group(cloud: FakeCloud) -> None:
    group = find_group(Metadata(), {})
    assert isinstance(group, NoGroup)
    assert isinstance(group.leave(), Left) and group.may_leave()
    with pytest.raises(ValueError, match="created-by"):
        Group(Metadata(), "someone")
