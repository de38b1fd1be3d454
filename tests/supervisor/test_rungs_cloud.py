"""Four trials of a sweep on VMs of a local cloud, two of which are pruned and killed on the way."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.sites import ACCOUNT, BUCKET, GROUPS, CloudSite, Job, local_cloud, make_plan
from outlast.base.exits import Reason, State
from outlast.bucket import rungs
from outlast.bucket.head import Head
from outlast.bucket.layout import Choice, Layout, RungDecision, RungValue, SweepLayout
from outlast.bucket.records import read_record
from outlast.cli import cloud as clouds
from outlast.spec import permissions
from outlast.spec.sweep_rules import SweepRules

pytestmark = [pytest.mark.rehearsal, pytest.mark.long, pytest.mark.timeout(300)]

WAIT_SEC = 120.0
SWEEP = SweepLayout("lr")
RULES = SweepRules.parse(
    {"name": "lr", "metric": "loss", "goal": "min", "rule": "halving", "rungs": [20], "eta": 2}
)
QUICK, SLOW = ("--epochs=2", "--step-ms=1"), ("--epochs=40", "--step-ms=50")
FLAGS = {
    "a": ("--learning-rate=0.02", *QUICK),
    "b": ("--learning-rate=0.05", *QUICK),
    "c": ("--learning-rate=0.1", *SLOW),
    "d": ("--learning-rate=0.001", *SLOW),
}
"""In the order of arrival, with losses of 0.53, 0.47, 0.474 and 0.68 at step 20. After d has
arrived, c would be among the best two of four."""


class Trial(CloudSite):
    """One trial, with a group of its name."""

    def __init__(self, name: str, cloud: clouds.LocalCloud, plans: Path) -> None:
        super().__init__(Job("dummy", FLAGS[name], "10"), cloud, plans)
        self.layout = Layout("experiments/dummy", name)

    def begin(self) -> None:
        make_plan(self._plans / self.group(self.layout), None)
        self.raise_group(self.layout, more={"outlast-sweep-rules": RULES.to_json()})

    def end(self) -> Head:
        return self._wait_for_end(self.layout)

    def play(self) -> Head:
        self.begin()
        return self.end()

    def kill(self, when: str) -> None:
        """SIGKILL of the VM's processes before or after the write of its decision."""
        path = f"^{SWEEP.decision(20, self.layout.run)}$"
        refused = {"status": 503} if when == "before" else {}
        self.fault({"method": "POST", "object": path}, when, {"kill_vm": True, **refused})

    def fault(self, match: dict[str, Any], when: str, do: dict[str, Any]) -> str:
        rule = {"match": match, "when": when, "do": do}
        return self._cloud.call("POST", "/_local/faults", rule)["id"]

    def lift(self, rule: str) -> None:
        self._cloud.call("DELETE", f"/_local/faults/{rule}")

    def value(self) -> RungValue | None:
        return read_record(self.store(), SWEEP.value(20, self.layout.run), RungValue)

    def decision(self) -> RungDecision | None:
        found = rungs.decisions_of(self.store(), SWEEP, self.layout.run)
        return found[0] if found else None


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + WAIT_SEC
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: did not happen in {WAIT_SEC:.0f} s"
        time.sleep(0.05)
    return found


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Callable[[str], Trial]]:
    with local_cloud(tmp_path / "work", tmp_path / "plans") as cloud:
        bind(cloud)
        yield lambda name: Trial(name, cloud, tmp_path / "plans")


def bind(cloud: clouds.LocalCloud) -> None:
    """The VMs' account may do what the components declare, and nothing else in the bucket."""
    member = [f"serviceAccount:{ACCOUNT}"]
    path = f"/cloudresourcemanager/v1/projects/{clouds.PROJECT}:setIamPolicy"
    compute = {"role": "roles/compute.instanceAdmin.v1", "members": member}
    cloud.call("POST", path, {"policy": {"bindings": [compute]}})
    policy = cloud.call("GET", f"/storage/v1/b/{BUCKET}/iam?optionsRequestedPolicyVersion=3")
    roles = (
        ("objectUser", ["experiments/"]),
        ("objectViewer", ["bundles/"]),
        ("objectViewer", [SWEEP.values, SWEEP.decisions]),
        ("objectCreator", [SWEEP.values, SWEEP.decisions]),
    )
    policy["version"] = 3
    policy["bindings"] += [
        {
            "role": f"roles/storage.{role}",
            "members": member,
            "condition": {"title": "t", "expression": permissions.starting(BUCKET, *starts)},
        }
        for role, starts in roles
    ]
    cloud.call("PUT", f"/storage/v1/b/{BUCKET}/iam", policy)


def test_trials_that_are_killed_end_as_they_would_have_ended(
    trial: Callable[[str], Trial],
) -> None:
    a, b, c, d = map(trial, "abcd")
    assert a.play().state is State.DONE
    assert b.play().state is State.DONE

    c.kill("before")
    c.begin()
    until(c.value, "the value of c")
    # The group creates another VM, which has to wait until d has arrived.
    held = c.fault({"object": f"^{c.layout.head}$", "count": 0}, "before", {"status": 503})
    assert c.decision() is None
    d.kill("after")
    d.begin()
    decided = until(d.decision, "the decision of d")
    c.lift(held)
    pruned = {"c": c.end(), "d": d.end()}

    values = {one.layout.run: until(one.value, "a value") for one in (a, b, c, d)}
    for one, others in ((c, "ab"), (d, "abc")):
        decision, head = one.decision(), pruned[one.layout.run]
        assert decision is not None and decision.choice is Choice.STOP
        assert [other.run for other in decision.others] == list(others)
        measured = [values[other].measured for other in others]
        verdict = RULES.decide(values[one.layout.run].measured, measured)
        assert decision.why.endswith(verdict.why) and verdict.stop
        assert head.state is State.PRUNED and head.end is not None and head.chain
        assert (head.end.reason, head.end.why) == (Reason.PRUNED, decision.why)
        assert head.term > 1
    assert d.decision() == decided
    for one in (a, b):
        decision = one.decision()
        assert decision is not None and decision.choice is Choice.CONTINUE
    groups = c._cloud.call("GET", GROUPS)["items"]
    assert {one["targetSize"] for one in groups} == {0}
