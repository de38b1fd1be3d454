"""Boots that are not the usual one: no baked interpreter, a bundle that lacks a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.head import HeadLost, read_head
from outlast.bucket.layout import AttemptStart, BootEnd
from outlast.bucket.store import Store, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.engine.conftest import Project, Watch, checkout_on

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

STOCK_IMAGE = "projects/debian-cloud/global/images/family/debian-13"


@pytest.fixture
def offline(parts: engines.Parts, tmp_path: Path) -> Iterator[clouds.LocalCloud]:
    """A local cloud whose VMs install from the wheels of `make setup`, and from nowhere else."""
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": parts.wheels}
    started = clouds.start(tmp_path / "cloud", parts, guest_env=env, dies_with_us=True)
    yield started
    started.stop()


@pytest.fixture
def stack(offline: clouds.LocalCloud, parts: engines.Parts, tmp_path: Path) -> Project:
    made = checkout_on(offline, parts, tmp_path)
    made.set("outlast:args.epochs", "2")
    return made


@pytest.fixture
def store(offline: clouds.LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", offline.url)
    return open_store("gs://outlast-rehearsal-outlast")


def test_a_stock_image_installs_the_bundles_requirements_and_trains(stack: Project, store: Store):
    """Also where the bucket answers 403 for objects that do not exist yet."""
    stack.cloud.call("POST", "/_local/switches", {"absent_forbidden": True})
    stack.set("outlast:image", STOCK_IMAGE)
    stack.up()
    run = Watch(stack, store)
    head = run.wait_until_gone()
    assert head is not None and head.state is State.DONE
    (item,) = [i for i in store.list(run.layout.attempts) if i.path.endswith("/start.json")]
    start = AttemptStart.from_json(store.get(item.path)[0])
    assert "debian-13" in start.image  # which has no /opt/outlast
    serial = "".join(file.read_text() for file in (stack.cloud.state / "serial").iterdir())
    assert "make-interpreter" in serial


def test_a_bundle_without_a_module_fails_instead_of_using_another_copy(
    stack: Project, store: Store
):
    (stack.folder / "outlast" / "supervisor" / "notice.py").unlink()
    stack.up()
    run = Watch(stack, store)
    run.wait_until_gone()
    with pytest.raises(HeadLost):
        read_head(store, run.layout)
    ends = [
        BootEnd.from_json(store.get(item.path)[0])
        for item in store.list(run.layout.boots)
        if item.path.endswith(".end.json")
    ]
    (end,) = ends  # every VM would meet it, so the first one leaves
    assert end.reason is Reason.SETUP_FAILED
    assert "outlast.supervisor.notice" in end.message
    assert list(store.list(run.layout.attempts)) == []


def test_a_vm_that_may_not_write_head_leaves_instead_of_rebooting(stack: Project, store: Store):
    stack.set("outlast:iamPropagationSec", "3")
    rule = {"match": {"object": "/HEAD$", "method": "POST", "count": 0}, "when": "before"}
    stack.cloud.call("POST", "/_local/faults", {**rule, "do": {"status": 403}})
    stack.up()
    run = Watch(stack, store)
    run.wait_until_gone()
    ends = [
        BootEnd.from_json(store.get(item.path)[0])
        for item in store.list(run.layout.boots)
        if item.path.endswith(".end.json")
    ]
    assert [end.reason for end in ends] == [Reason.FORBIDDEN]
