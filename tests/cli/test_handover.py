"""`outlast handover` changes a run's owner, and nothing else, while no VM works on it."""

from dataclasses import replace
from typing import Any

import pytest

from outlast.bucket.head import read_head
from outlast.bucket.store import MemoryStore
from outlast.cli import runs
from outlast.cli.app import cli
from outlast.cli.errors import OperateError, UsageError
from outlast.cli.handover import hand_over
from tests.cli.records import start_record
from tests.cli.test_resume import COMMITTED, FAILED, LAYOUT, START

NEW = "acme/outlast/second"


def store_of(head: Any) -> MemoryStore:
    store = MemoryStore()
    store.put(LAYOUT.head, head.to_json())
    return store


@pytest.mark.parametrize("head", [COMMITTED, FAILED], ids=["open", "failed"])
def test_only_the_owner_changes_and_a_second_call_changes_nothing(head):
    store = store_of(head)
    done = hand_over(store, LAYOUT, NEW)
    assert done.before == head.owner
    found = read_head(store, LAYOUT)
    assert replace(found.head, owner=head.owner, nonce=head.nonce) == head
    assert found.head.owner == NEW and found.head.nonce != head.nonce
    again = hand_over(store, LAYOUT, NEW)
    assert again.before == NEW
    assert read_head(store, LAYOUT).object.generation == found.object.generation


def test_a_run_with_a_live_attempt_is_refused():
    store = store_of(COMMITTED)
    store.put(LAYOUT.attempt_start(3), start_record(3, 0, START).to_json())
    with pytest.raises(OperateError, match="attempt 3 gave a sign of life .* end its VM first"):
        hand_over(store, LAYOUT, NEW)
    assert read_head(store, LAYOUT).head.owner == COMMITTED.owner
    hand_over(store, LAYOUT, NEW, silent_sec=0.0)
    assert read_head(store, LAYOUT).head.owner == NEW


def test_a_head_that_a_vm_rewrites_meanwhile_is_not_overwritten():
    store = store_of(COMMITTED)
    later = replace(COMMITTED, term=4, nonce="another")

    def write_between(*_: Any, **__: Any) -> None:
        store.put(LAYOUT.head, later.to_json())

    class Racing(MemoryStore):
        def list(self, *args: Any, **named: Any) -> Any:
            write_between()
            return iter(())

    racing = Racing()
    racing.__dict__ = store.__dict__
    with pytest.raises(OperateError, match="HEAD has changed meanwhile, so a VM works on the run"):
        hand_over(racing, LAYOUT, NEW)
    assert read_head(store, LAYOUT).head == later


@pytest.mark.parametrize("owner", ["second", "a/b", "a/b/c/d", "a//c", "a/b/c d", ""])
def test_an_owner_is_organization_project_and_stack(owner):
    with pytest.raises(UsageError, match="must be organization/project/stack"):
        hand_over(store_of(COMMITTED), LAYOUT, owner)


def test_the_command_says_who_had_the_run(monkeypatch, capsys):
    store = store_of(COMMITTED)
    url = "gs://b/experiments/dev/0123456789"
    monkeypatch.setattr(runs, "find_damaged", lambda where: runs.Place(where, store, LAYOUT))
    cli.main(["handover", url, NEW], standalone_mode=False)
    cli.main(["handover", url, NEW], standalone_mode=False)
    assert capsys.readouterr().out.splitlines() == [
        f"{url}: at step 9, belongs to {NEW} now, and no longer to o/p/s; its pulumi up continues"
        " the run",
        f"{url}: belongs to {NEW} already",
    ]
    with pytest.raises(UsageError, match="must be a run's path"):
        cli.main(["handover", "dev", NEW], standalone_mode=False)
