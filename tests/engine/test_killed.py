"""The engine killed with SIGKILL at any of its writes, and the next command: nothing twice, nothing
left over, and the run continues. No VM has a process here."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.base import process_tree
from outlast.bucket.head import Head, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import open_store
from outlast.cli import engine as engines
from outlast.cli import recover
from tests.engine.conftest import Project, checkout_on_a_separate_cloud, until
from tests.engine.test_preview import train_to

CYCLES = int(os.environ.get("OUTLAST_KILL_CYCLES", "2"))
"""28 play every moment."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800 * CYCLES)]

SEED = int(os.environ.get("OUTLAST_KILL_SEED", "1"))
STEP = 400

UP = ("up", "--yes", "--skip-preview", "-s", "dev")
DESTROY = ("destroy", "--yes", "--skip-preview", "-s", "dev")
PHASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "create": (UP, {}),
    "update": (UP, {"labels": {"team": "blue"}, "machineType": "n2-standard-4"}),
    "move": (UP, {"zone": "europe-west4-b"}),
    "replace": (UP, {"args": {"epochs": 7}, "onNewRun": "replace"}),
    "destroy": (DESTROY, {}),
}
"""What is killed, and what is changed before: each on top of the ones before it."""

_GROUPS = r"instanceGroupManagers\?", r"instanceGroupManagers/[^/]+\?"
_TEMPLATES = r"instanceTemplates\?", r"instanceTemplates/[^/]+\?"
_CHANGED = [
    ("POST", _TEMPLATES[0]),
    ("DELETE", _TEMPLATES[1]),
]
_MOVED = [*_CHANGED, ("DELETE", _GROUPS[1]), ("POST", _GROUPS[0])]
WRITES = {
    "create": [
        *(("POST", rf"/{kind}\?") for kind in ("b", "serviceAccounts", "roles", "networks")),
        *(("POST", rf"/{kind}\?") for kind in ("subnetworks", "routers", "firewalls")),
        *(("POST", rf"/{kind}\?") for kind in ("healthChecks", "instanceTemplates")),
        ("POST", _GROUPS[0]),
        ("POST", r":setIamPolicy\?"),
        ("PUT", r"/b/[^/]+/iam\?"),
        ("PATCH", r"/routers/[^/]+\?"),
        ("POST", "/upload/"),
    ],
    "update": [*_CHANGED, ("PATCH", _GROUPS[1])],
    "move": _MOVED,
    "replace": _MOVED,
    "destroy": [
        *(("DELETE", rf"/{kind}/[^/]+\?") for kind in ("serviceAccounts", "roles", "networks")),
        *(("DELETE", rf"/{kind}/[^/]+\?") for kind in ("subnetworks", "routers", "firewalls")),
        *(("DELETE", rf"/{kind}/[^/]+\?") for kind in ("healthChecks", "instanceTemplates")),
        ("DELETE", _GROUPS[1]),
        ("POST", r":setIamPolicy\?"),
        ("PUT", r"/b/[^/]+/iam\?"),
        ("PATCH", r"/routers/[^/]+\?"),
    ],
}
"""The engine's writes in each."""


@dataclass(frozen=True)
class Moment:
    """A write of the engine, before or after it has had its effect."""

    when: str
    method: str
    path: str
    """A regular expression."""

    def __str__(self) -> str:
        return f"{self.when} {self.method} {self.path}"


@pytest.fixture
def stack(parts: engines.Parts, tmp_path: Path) -> Iterator[Project]:
    """A stack that declares all that an experiment can, in a cloud whose VMs do nothing."""
    with checkout_on_a_separate_cloud(parts, tmp_path, guests=False) as made:
        yield made


@pytest.fixture
def configure(stack: Project) -> Callable[..., None]:
    file = stack.folder / "Pulumi.dev.yaml"
    plain = yaml.safe_load(file.read_text())

    def write(settings: Mapping[str, Any]) -> None:
        base = {
            "trainer": "dummy",
            "network": "isolated",
            "externalIp": False,
            "nat": True,
            "ssh": "iap",
            "health": "observe",
        }
        config = {f"outlast:{key}": value for key, value in {**base, **settings}.items()}
        file.write_text(yaml.safe_dump({**plain, "config": {**plain["config"], **config}}))

    return write


def killed(stack: Project, command: tuple[str, ...], moment: Moment) -> bool:
    """Runs a command of the engine and kills it and its plugins, the provider among them, at a
    moment. False if the command had ended before that came."""
    mark = f"{process_tree.VARIABLE}=killed-{os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    env = {**stack.env, name: value}
    ready = stack.folder / "provider.json"
    ready.unlink(missing_ok=True)
    provider = subprocess.Popen(
        [sys.executable, "-m", "outlast.localcloud.provider", "--endpoint", stack.cloud.url]
        + ["--ready-file", str(ready)],
        cwd=engines.project(),
        env=env,
        stdout=subprocess.DEVNULL,
    )
    rule = {
        "match": {"method": moment.method, "path": moment.path},
        "when": moment.when,
        "do": {"stall": True},
    }
    process = None
    try:
        until(ready.exists, "the provider does not serve")
        env["PULUMI_DEBUG_PROVIDERS"] = f"gcp:{json.loads(ready.read_text())['port']}"
        stack.cloud.call("POST", "/_local/faults", rule)
        process = subprocess.Popen(
            ["pulumi", *command, "--non-interactive"],
            cwd=stack.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

        def over() -> bool:
            return process.poll() is not None or bool(stack.cloud.faults()[0]["fired"])

        until(over, f"{command[0]}: neither ended nor at {moment}")
        return process.poll() is None
    finally:
        if process is not None:
            process_tree.kill_tree(process.pid, mark)
            process.wait()
        process_tree.kill_marked(mark)
        provider.wait()
        stack.cloud.call("DELETE", "/_local/faults")


def moments(phase: str, dice: random.Random) -> list[Moment]:
    """All of a phase, in some order."""
    found = [Moment(when, *write) for write in WRITES[phase] for when in ("before", "after")]
    dice.shuffle(found)
    return found


def in_state(stack: Project) -> list[dict[str, Any]]:
    """The resources in the engine's state. None of them waits for deletion."""
    exported = json.loads(stack.pulumi("stack", "export", "-s", "dev"))["deployment"]
    assert not exported.get("pending_operations")
    resources = exported.get("resources") or []
    assert not [one["urn"] for one in resources if one.get("delete")]
    return [one for one in resources if one["type"].startswith("gcp:")]


def check_alike(stack: Project) -> None:
    """The cloud holds what the state does, and no VM, group or anything else besides."""
    resources = in_state(stack)

    def outputs(kind: str) -> list[dict[str, Any]]:
        return [one["outputs"] for one in resources if one["type"].endswith(f":{kind}")]

    def names(*kinds: str) -> list[str]:
        return sorted(one["name"] for kind in kinds for one in outputs(kind))

    groups = names("InstanceGroupManager", "RegionInstanceGroupManager")

    def alike() -> bool:
        audit = stack.cloud.audit()
        vms = [vm["group"] for vm in stack.cloud.vms()]
        return vms == groups == audit["groups"] and audit["disks"] == audit["vms"]

    until(alike, f"{groups}: {stack.cloud.audit()}")
    audit = stack.cloud.audit()
    assert len(groups) <= 1
    assert audit["templates"] == names("InstanceTemplate")
    assert audit["health_checks"] == names("HealthCheck")
    declared = [path.rpartition("/")[2] for path in audit["declared"]]
    assert sorted(declared) == names("Firewall", "Network", "Router", "Subnetwork")
    assert audit["service_accounts"] == [one["email"] for one in outputs("Account")]
    assert audit["roles"] == names("IAMCustomRole")
    bound = [*outputs("IAMMember"), *outputs("BucketIAMMember")]
    assert sorted((one["role"], one["member"]) for one in audit["bindings"]) == sorted(
        (one["role"], one["member"]) for one in bound
    )


def head_of(outputs: Mapping[str, Any]) -> Head:
    store = open_store(f"gs://{outputs['bucket']}")
    return read_head(store, Layout(outputs["prefix"], outputs["run"])).head


def test_the_next_command_recovers_one_killed_at_any_write(
    stack: Project, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)
    dice = random.Random(SEED)
    drawn = {phase: moments(phase, dice) for phase in PHASES}
    for cycle in range(CYCLES):
        stack.cloud.reset()
        settings: dict[str, Any] = {}
        outputs: dict[str, Any] = {}
        for phase, (command, changes) in PHASES.items():
            moment = drawn[phase].pop() if drawn[phase] else None
            if moment is None and phase != "destroy":
                continue  # each moment once
            before = outputs
            settings |= changes
            configure(settings)
            if moment is not None:
                hit = killed(stack, command, moment)
                done = recover.recover("dev", env=stack.env, cwd=stack.folder)
                print(f"{cycle} {phase}: {moment}: {hit}, {done}", flush=True)
                assert hit, f"{phase}: ended before {moment}"
            stack.pulumi(*command)
            check_alike(stack)
            if phase == "destroy":
                assert in_state(stack) == []
                continue
            outputs = stack.outputs()
            assert stack.cloud.group_size(outputs["group"], outputs["groupZone"]) == 1
            if phase in ("create", "replace"):
                assert outputs["placement"] == 0
                train_to(STEP, outputs)  # as its VM does
            else:
                same = ("run", "deadline", "group")
                assert {key: outputs[key] for key in same} == {key: before[key] for key in same}
            if phase == "move":
                assert outputs["placement"] > before["placement"] and outputs["groupZone"].endswith(
                    "-b"
                )
            assert head_of(outputs).chain[-1].step == STEP
