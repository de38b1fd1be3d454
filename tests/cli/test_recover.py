"""`outlast recover`: what an `up` was making when it was killed, and whose lock may be removed."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.cli import engine, recover
from outlast.cli.errors import EngineError, OperateError
from outlast.cloud import bake
from outlast.cloud.compute import CannotAsk
from outlast.dynamic.image_bake import ImageBakeProvider
from outlast.localcloud.provider.server import KINDS
from tests.components import inventory

GROUP = "gcp:compute/instanceGroupManager:InstanceGroupManager"
BOUND = "gcp:storage/bucketIAMMember:BucketIAMMember"
TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
LOCKED = "error: the stack is currently locked by 1 lock(s).; created by me@{host} (pid {pid}) at x"
DEAD = 2**22 + 1
"""Above all that a kernel gives."""


def resource(kind: str, logical: str, /, **inputs: Any) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:dev::outlast::{kind}::{logical}", "type": kind, "inputs": inputs}


def creating(found: dict[str, Any]) -> dict[str, Any]:
    return {"type": "creating", "resource": found}


def test_what_was_being_made_enters_the_state_under_its_id():
    group = resource(GROUP, "trainer-group", project="p", zone="z", name="dev-1")
    bound = resource(BOUND, "read", bucket="b", role="r", member="m", condition={"title": "t"})
    pin = resource("pulumi-python:dynamic:RunPin", "run", bucket="b", name="r")
    half = resource(GROUP, "other", project="p")
    updating = {"type": "updating", "resource": resource(TEMPLATE, "t", project="p", name="t")}
    pending = [creating(group), creating(bound), creating(pin), creating(half), updating]
    state = {"pending_operations": pending, "resources": []}
    assert recover.take_up(state) == ("trainer-group", "read")
    assert state == {
        "resources": [
            {
                **group,
                "id": "projects/p/zones/z/instanceGroupManagers/dev-1",
                "outputs": group["inputs"],
            },
            {**bound, "id": "b/b/r/m/t", "outputs": bound["inputs"]},
        ]
    }


def test_every_kind_that_is_declared_is_taken_up_under_the_providers_id():
    listed = [yaml.safe_load(file.read_text()) for file in inventory.FOLDER.glob("*.yaml")]
    declared = {entry["type"] for entries in listed for entry in entries}
    nowhere = {f"pulumi-python:dynamic:{name}" for name in ("FoundationGuard", "RunPin")}
    assert set(recover.IDS) == declared - nowhere
    for token, form in recover.IDS.items():
        kind = KINDS.get(token)
        if kind is not None and kind.id_form:
            email = "{accountId}@{project}.iam.gserviceaccount.com"
            assert form == kind.id_form.replace("{email}", email), token


def test_what_was_to_take_the_place_of_something_is_to_be_deleted():
    old = resource(TEMPLATE, "trainer-template", project="p", name="old")
    new = resource(TEMPLATE, "trainer-template", project="p", name="new")
    state = {"pending_operations": [creating(new)], "resources": [{**old, "id": "old"}]}
    recover.take_up(state)
    first, second = state["resources"]
    assert "delete" not in first and second["delete"] is True
    assert second["id"] == "projects/p/global/instanceTemplates/new"


def test_what_was_deleted_to_make_room_gives_its_place_to_what_was_being_made():
    old = {**resource(GROUP, "g", project="p", zone="a", name="n"), "pendingReplacement": True}
    new = resource(GROUP, "g", project="p", zone="b", name="n")
    behind = resource(TEMPLATE, "t", project="p", name="t")
    state = {"pending_operations": [creating(new)], "resources": [{**old, "id": "1"}, behind]}
    assert recover.take_up(state) == ("g",)
    id = "projects/p/zones/b/instanceGroupManagers/n"
    assert state["resources"] == [{**new, "id": id, "outputs": new["inputs"]}, behind]


@pytest.mark.parametrize("operation", ["creating", "updating"])
def test_an_image_that_was_to_follow_another_is_left_to_the_next_bake(operation):
    """Which comes also where the recipe is the old one again."""
    bake = resource("pulumi-python:dynamic:ImageBake", "bake", project="p", family="new")
    old = {**resource("pulumi-python:dynamic:ImageBake", "bake"), "id": "p/old"}
    old["outputs"] = {"hash": "1", "family": "old", "image": "old-1"}
    pending = [{"type": operation, "resource": bake}]
    state = {"pending_operations": pending, "resources": [old]}
    assert recover.take_up(state) == ("bake",)
    (left,) = state["resources"]
    assert left == {**old, "outputs": {"hash": "1", "family": "old"}}
    assert ImageBakeProvider().diff("p/old", left["outputs"], left["outputs"]).changes
    state = {"pending_operations": [creating(bake)], "resources": []}
    assert recover.take_up(state) == ("bake",)


def test_an_empty_note_beside_the_state_is_removed_and_no_other(tmp_path, monkeypatch):
    stacks = tmp_path / ".pulumi/stacks/outlast"
    stacks.mkdir(parents=True)
    for name, text in {"dev.json": "{}", "dev.json.attrs": "", "dev.json.bak.attrs": "{}"}.items():
        (stacks / name).write_text(text)

    def run(args: list[str], *, env: Mapping[str, str], cwd: Path) -> str:
        if args[0] == "whoami":
            return json.dumps({"url": f"file://{tmp_path}"})
        if args[:2] == ["stack", "export"] and (stacks / "dev.json.attrs").exists():
            raise EngineError(engine._reason("error: failed to load checkpoint: EOF"))
        return json.dumps({"deployment": {}})

    monkeypatch.setattr(engine, "run_engine", run)
    recover.recover("dev")
    assert sorted(path.name for path in stacks.iterdir()) == ["dev.json", "dev.json.bak.attrs"]


def test_an_unreadable_state_names_the_recovery():
    reason = engine._reason("error: failed to load checkpoint: EOF")
    assert reason.startswith("failed to load checkpoint: EOF; ")
    assert reason.endswith("run outlast recover")


@pytest.fixture
def asked(monkeypatch):
    """A stack that is locked until a cancel; the commands that the engine is given."""
    given: list[str] = []
    deployment: dict[str, Any] = {"resources": []}
    says = [""]

    def run(args: list[str], *, env: Mapping[str, str], cwd: Path) -> str:
        given.append(" ".join(args[:2]))
        if args[0] == "cancel":
            says[0] = ""
        elif args[:2] == ["stack", "import"] and says[0]:
            raise EngineError(says[0])
        return json.dumps({"deployment": deployment})

    monkeypatch.setattr(engine, "run_engine", run)
    return given, deployment, says


def test_a_whole_stack_needs_nothing(asked):
    assert recover.recover("dev") is None


def test_recovery_continues_after_a_kill_before_its_refresh(asked):
    given, deployment, _ = asked
    group = resource(GROUP, "g", project="p", zone="z", name="n")
    deployment["resources"] = [
        {**group, "id": "1", "outputs": {**group["inputs"], "selfLink": "x"}}
    ]
    assert recover.recover("dev") is None
    deployment["resources"][0]["outputs"] = group["inputs"]
    assert recover.recover("dev") == recover.Recovered(False, ())
    assert given[-1] == "refresh --yes"


def test_the_lock_of_a_dead_process_of_this_machine_goes(asked):
    given, deployment, says = asked
    deployment["pending_operations"] = [creating(resource(GROUP, "g", project="p"))]
    says[0] = LOCKED.format(host=socket.gethostname(), pid=DEAD)
    assert recover.recover("dev") == recover.Recovered(True, ())
    assert given == [
        "stack export",
        "stack import",
        "cancel --yes",
        "stack import",
        "refresh --yes",
    ]


@pytest.mark.parametrize(
    ("host", "pid"),
    [("elsewhere", DEAD), (socket.gethostname(), os.getpid())],
    ids=["another machine", "one that lives"],
)
def test_the_lock_of_anybody_else_stays(asked, host, pid):
    given, _, says = asked
    says[0] = LOCKED.format(host=host, pid=pid)
    with pytest.raises(OperateError) as caught:
        recover.recover("dev")
    assert str(caught.value).startswith("stack dev: another process is working on it; wait for it")
    assert "pulumi cancel -s dev" in str(caught.value)
    assert "cancel --yes" not in given


def test_another_error_is_the_engines(asked):
    asked[2][0] = "error: no stack named 'dev' found"
    with pytest.raises(EngineError, match="no stack named"):
        recover.recover("dev")


@pytest.mark.parametrize("left", [True, False])
def test_a_bake_that_was_killed_is_a_difference_until_what_it_left_is_gone(left, monkeypatch):
    asked = []
    monkeypatch.setattr(bake, "has_left", lambda *given: asked.append(given) or left)
    recipe = {"hash": "h", "family": "f", "project": "p", "labels": {"stack": "dev"}}
    diff = ImageBakeProvider().diff
    assert diff("id", recipe, recipe).changes  # taken up, and still to be made
    assert asked == []
    assert diff("id", {**recipe, "image": "x/i"}, recipe).changes is left
    assert asked == [("x/i", "f", "p", {"stack": "dev"})]


def test_without_an_answer_about_a_bakes_leftovers_nothing_is_assumed(monkeypatch, capfd):
    def silent(*_):
        raise CannotAsk(0, "aggregated/instances: no answer")

    monkeypatch.setattr(bake, "has_left", silent)
    recipe = {"hash": "h", "family": "f", "project": "p", "labels": {}}
    assert not ImageBakeProvider().diff("id", {**recipe, "image": "x/i"}, recipe).changes
    said = capfd.readouterr().err
    assert said == "image family f: not looked up (aggregated/instances: no answer)\n"
