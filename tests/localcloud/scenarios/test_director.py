"""The director: every moment is noticed, and what happens at it hits whom it should.

Its cloud is a stand-in here, with a clock that the test moves; VMs are names.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.localcloud.base import switches
from outlast.localcloud.base.access import Caller
from outlast.localcloud.compute.fleet.model import Instance, Switches
from outlast.localcloud.faults.layer import FaultLayer
from outlast.localcloud.http.request_facts import RequestFacts as Facts
from outlast.localcloud.scenarios.directors import Directors
from outlast.localcloud.scenarios.lifetimes import death
from outlast.localcloud.scenarios.scenario import PHASES, Lifetimes, ScenarioError, check
from tests.localcloud.local_cloud import LocalCloud

RUN = "experiments/dev/0123456789"
ZONE = "us-central1-a"


class Clock:
    def __init__(self) -> None:
        self.time, self.speed = 1000.0, 1.0

    def now(self) -> float:
        return self.time

    def set_speed(self, speed: float) -> None:
        self.speed = speed

    def wall_sec(self, seconds: float) -> float:
        return seconds / self.speed


class Hypervisor:
    """Notes what it is asked for."""

    def __init__(self, rehearsal: "Rehearsal") -> None:
        self._stage = rehearsal

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[int]]:
        async def act(instance_id: str, *options: Any) -> int:
            self._stage.did.append((verb, instance_id, *options))
            return 1

        return act

    def signal(self, instance_id: str, pattern: str, number: int) -> int:
        self._stage.did.append(("signal", instance_id, pattern, int(number)))
        return 1 if "trainers" in pattern else 0


class Rehearsal:
    """A director with all that it sees of a cloud."""

    def __init__(self, document: dict[str, Any], target: str = "") -> None:
        self.did: list[tuple[Any, ...]] = []
        self.served: list[str] = []
        self.failures: list[BaseException] = []
        self.objects: dict[str, bytes] = {}
        self.clock = Clock()
        self.limits: list[tuple[Any, ...]] = []
        limit = SimpleNamespace(
            add_window=lambda *a, applies: self.limits.append((*a, applies)),
            limit=lambda *a, applies: self.limits.append((*a, applies)),
            clear=self._clear_limits,
        )
        self.instances: dict[str, Instance] = {}
        self.fleet = SimpleNamespace(
            switches=Switches(), instances=self.instances, capacity=limit, groups={}
        )
        verbs = ("stop_instance", "delete_instance", "lose", "hold_stopping", "maintain_instance")
        self.fleet.vms = SimpleNamespace(**{verb: self._noting(verb) for verb in verbs})
        platform = SimpleNamespace(
            fleet=self.fleet,
            hypervisor=Hypervisor(self),
            changed=lambda: None,
            operations=SimpleNamespace(clear=lambda applies: None),
        )
        machines = SimpleNamespace(
            platform=platform,
            changed=lambda: None,
            preempt=self._preempt,
        )
        cloud: Any = SimpleNamespace(
            clock=self.clock,
            machines=machines,
            set_switch=lambda name, value: switches.set_one(self.fleet.switches, name, value),
            events=SimpleNamespace(write=lambda *_, **__: None),
            storage=SimpleNamespace(content=lambda bucket, name: self.objects.get(name)),
            fail=self.failures.append,
        )
        cloud.faults = self.faults = FaultLayer(cloud)
        self.director = cloud.director = Directors(cloud)
        self.target = target
        self.document = {"name": "x", "about": "A test.", **document}

    def _clear_limits(self, applies: Any) -> None:
        self.limits[:] = [limit for limit in self.limits if limit[-1] != applies]

    def _noting(self, verb: str) -> Callable[..., None]:
        return lambda instance, *options: self.did.append((verb, instance.id, *options))

    async def _preempt(self, name: str) -> None:
        self.did.append(("preempt", name))

    def install(self) -> None:
        self.director.install(check(self.document), self.target)

    async def boot(self, vm: str, prefix: str = "experiments/dev") -> dict[str, Any]:
        """A VM boots and runs; what its machine has to have."""
        metadata = {"items": [{"key": "outlast-prefix", "value": prefix}]}
        instance = Instance(vm, vm, ZONE, 0.0, {"metadata": metadata})
        self.instances[vm] = instance
        self.director.trying(instance.properties)
        extras = self.director.booting(instance)
        self.director.on_report(vm, "running")
        await self.settle()
        return extras

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for what a timer brings."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.001)

    async def settle(self) -> None:
        """Lets what is due happen."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def write(self, vm: str, name: str, data: bytes = b"0123456789", to: str = RUN) -> bool:
        """A VM writes an object of its run; whether it has got the answer."""
        target = f"/upload/storage/v1/b/bucket/o?uploadType=media&name={to}/{name}"
        return await self._send(vm, target, f"{to}/{name}", data)

    async def call(self, vm: str, path: str) -> bool:
        """A VM calls Compute; whether it has got the answer."""
        return await self._send(vm, f"/compute/v1/projects/p/{path}", None, b"{}")

    async def _send(self, vm: str, target: str, name: str | None, data: bytes) -> bool:
        answers: list[str] = []
        parts = [data[: len(data) // 2], data[len(data) // 2 :]]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            body, more = b"", True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body += message["body"]
                more = message["more_body"]
            self.served.append(name or target)
            if name:
                self.objects[name] = body
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async def receive() -> Any:
            if not parts:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            answers.append(message["type"])

        connection = SimpleNamespace(setsockopt=lambda *_: None)
        transport = SimpleNamespace(get_extra_info=lambda _: connection, abort=lambda: None)
        scope: Any = {
            "type": "http",
            "headers": [(b"content-length", str(len(data)).encode())],
            "state": {"transport": transport},
        }
        call = Facts("POST", [target, target], name, vm, vm)
        if self.director.is_cut_off(call):
            return False
        await self.director.watch(call, app)(scope, receive, send)
        await self.settle()
        return bool(answers)

    async def heartbeat(self, vm: str, term: int, step: int, total: int | None = 100) -> bool:
        data = json.dumps({"step": step, "total": total}).encode()
        return await self.write(vm, f"attempts/{term:06d}/heartbeat.json", data)

    async def start(self, vm: str, term: int) -> None:
        await self.write(vm, f"boots/{vm}-0.json")
        await self.write(vm, f"attempts/{term:06d}/start.json", b'{"format": 1}')

    async def commit(self, vm: str, term: int, step: int) -> None:
        folder = f"t{term:06d}/s{step:012d}-0a1b"
        for name in (f"{folder}/model", f"{folder}/MANIFEST.json", "HEAD"):
            await self.write(vm, name)


def play(
    scene: Callable[[Rehearsal], Awaitable[None]], *, target: str = "", **document: Any
) -> Rehearsal:
    """A scene under a scenario of these parts."""
    rehearsal = Rehearsal(document, target)

    async def run() -> None:
        rehearsal.install()
        await scene(rehearsal)
        rehearsal.director.remove()

    asyncio.run(run())
    assert rehearsal.failures == []
    return rehearsal


def events(*pairs: tuple[dict[str, Any], dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    return [{"when": when, "do": do, **more} for when, do in pairs]


# The last thing of a VM's life that has had its effect when the VM is killed at each phase.
LAST = {
    "boot": None,
    "setup": f"{RUN}/boots/vm-0.json",
    "step": f"{RUN}/attempts/000001/start.json",
    "snapshot": f"{RUN}/attempts/000001/heartbeat.json",
    "upload": f"{RUN}/attempts/000001/heartbeat.json",
    "commit": f"{RUN}/t000001/s000000000050-0a1b/MANIFEST.json",
    "committed": f"{RUN}/HEAD",
    "final-upload": f"{RUN}/HEAD",
    "end": f"{RUN}/END-r0.json",
    "leaving": f"{RUN}/END-r0.json",
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_vm_dies_at_each_moment_of_its_life(phase: str) -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("vm")
        for step in (
            rehearsal.write("vm", "boots/vm-0.json"),
            rehearsal.write("vm", "attempts/000001/start.json"),
            rehearsal.heartbeat("vm", 1, 10),
            rehearsal.write("vm", "t000001/s000000000050-0a1b/model"),
            rehearsal.write("vm", "t000001/s000000000050-0a1b/MANIFEST.json"),
            rehearsal.write("vm", "HEAD"),
            rehearsal.write("vm", "t000001/result/model"),
            rehearsal.write("vm", "END-r0.json"),
            rehearsal.call("vm", "zones/z/instanceGroupManagers/dev/deleteInstances"),
        ):
            if rehearsal.did:
                step.close()  # a dead VM says no more
            else:
                await step
        assert rehearsal.did == [("kill", "vm")]
        assert (rehearsal.served or [None])[-1] == LAST[phase]
        (entry,) = rehearsal.director.shown()["log"]
        assert (entry["event"], entry["do"], entry["vm"], entry["boot"]) == (0, "kill", "vm", 1)
        assert entry["attempt"] == (None if phase in ("boot", "setup") else 1)
        assert rehearsal.director.shown()["pending"] == 0

    play(scene, events=events(({"phase": phase}, {"kill": None})))


def test_a_share_waits_for_the_step_in_a_heartbeat_or_a_snapshot() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("vm")
        await rehearsal.start("vm", 1)
        await rehearsal.heartbeat("vm", 1, 60, total=None)
        await rehearsal.heartbeat("vm", 1, 29)
        assert not rehearsal.did
        await rehearsal.commit("vm", 1, 30)
        assert rehearsal.did == [("preempt", "vm")]
        assert rehearsal.director.notice("vm") == (2.0, None)
        await rehearsal.heartbeat("vm", 1, 80)
        assert len(rehearsal.did) == 1

    play(scene, events=events(({"attempt": 1, "share": 0.3}, {"preempt": {"notice_sec": 2}})))


def test_events_name_boots_attempts_commits_and_the_nth_moment() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("a")  # never comes to an attempt
        await rehearsal.boot("b")
        await rehearsal.start("b", 1)
        await rehearsal.commit("b", 1, 10)
        assert not rehearsal.did
        await rehearsal.boot("c")
        await rehearsal.start("c", 2)
        await rehearsal.write("c", "t000002/s000000000020-0a1b/one")
        await rehearsal.write("c", "t000002/s000000000020-0a1b/two")
        assert rehearsal.did == [("freeze", "c")]
        await rehearsal.commit("c", 2, 20)
        assert rehearsal.did[1:] == [("thaw", "b")]
        await rehearsal.commit("c", 2, 30)
        assert rehearsal.did[2:] == [("stop_instance", "c")]

    play(
        scene,
        events=events(
            ({"attempt": 2, "phase": "upload", "nth": 2}, {"freeze": None}),
            ({"boot": 3, "phase": "committed"}, {"thaw": {"attempt": 1}}),
            ({"phase": "committed", "commits": 2}, {"stop": None}),
        ),
    )


def test_an_event_happens_its_number_of_times_and_once_a_boot() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        for term, vm in enumerate("abcd", 1):
            await rehearsal.boot(vm)
            await rehearsal.start(vm, term)
            await rehearsal.commit(vm, term, 10)
            await rehearsal.commit(vm, term, 20)
        assert Counter(rehearsal.did) == {
            **{("stop_instance", vm): 1 for vm in "ab"},
            **{("delete_instance", vm): 1 for vm in "abcd"},
        }

    play(
        scene,
        events=[
            *events(({"phase": "commit"}, {"stop": None}), times=2),
            *events(({"phase": "commit"}, {"delete": None}), times=0),
        ],
    )


def test_the_baseline_is_left_alone() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        baseline = "experiments/dev-baseline/0123456789"
        await rehearsal.boot("baseline", "experiments/dev-baseline")
        assert not rehearsal.limits, "the world begins with the target's first VM"
        await rehearsal.write("baseline", "attempts/000001/start.json", to=baseline)
        extras = await rehearsal.boot("vm")
        assert extras["missing_tools"] == ("curl",)
        assert (await rehearsal.boot("baseline2", "experiments/dev-baseline")) == {}
        await rehearsal.start("vm", 1)
        assert rehearsal.did == [("stop_instance", "vm")]
        ((_, vms, _, _, applies),) = rehearsal.limits
        assert vms == 0
        for name, ours in (("experiments/dev", True), ("experiments/dev-baseline", False)):
            item = {"key": "outlast-prefix", "value": name}
            assert applies({"metadata": {"items": [item]}}) is ours
        calls = {
            "vm": Facts("GET", ["/x"], None, "vm", "vm"),
            "baseline": Facts("GET", ["/x"], None, "baseline", "baseline"),
            "own object": Facts("GET", ["/storage/v1/b/b/o/x"], f"{RUN}/HEAD", None),
            "baseline's object": Facts("GET", ["/storage/v1/b/b/o/x"], f"{baseline}/HEAD", None),
            "own group": Facts("POST", ["/x/dev-0123456789/resize?size=0"], None, None),
            "own later group": Facts("POST", ["/x/dev-0123456789-r1/resize"], None, None),
            "baseline's group": Facts("POST", ["/x/dev-baseline-0123456789/resize"], None, None),
        }
        (rule,) = rehearsal.faults._rules.values()
        hit = {name for name, call in calls.items() if rule.matches(call)}
        assert hit == {"vm", "own object", "own group", "own later group"}

    play(
        scene,
        target="dev",
        events=events(({"phase": "step"}, {"stop": None}), times=0),
        world={
            "zones": {ZONE: {"capacity": [{"vms": 0, "from_sec": 1}]}},
            "tools": {"missing": ["curl"]},
            "faults": [{"do": {"status": 503}}],
        },
    )


def test_after_sec_and_the_moments_of_the_world_follow_the_clocks_speed() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("vm")
        assert not rehearsal.did
        await rehearsal.until(lambda: len(rehearsal.did) == 2)
        assert sorted(rehearsal.did) == [("delete_instance", "vm"), ("stop_instance", "vm")]
        assert rehearsal.limits[0][:4] == (ZONE, 0, 1000.0, 1005.0)

    play(
        scene,
        speed=1000,
        events=events(
            ({"boot": 1, "after_sec": 20}, {"stop": None}),
            ({"at_sec": 30}, {"delete": None}),
            ({"at_sec": 5}, {"capacity": {"zone": ZONE, "for_sec": 5}}),
        ),
    )


def test_actions_on_a_vm_reach_the_platform_or_its_processes() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("vm")
        await rehearsal.until(lambda: len(rehearsal.did) == 9)
        assert rehearsal.did == [
            ("freeze", "vm"),
            ("withdraw_address", "vm"),
            ("lose", "vm"),
            ("hold_stopping", "vm", 3.0),
            ("stop_instance", "vm"),
            ("maintain_instance", "vm", None),
            ("signal", "vm", "-m outlast.trainers", 6),
            ("signal", "vm", "nobody", 9),
            ("out_of_memory", "vm"),
        ]
        log = rehearsal.director.shown()["log"]
        assert [entry["do"] for entry in log if "missed" in entry] == ["signal"]
        assert not await rehearsal.write("vm", "boots/vm-0.json"), "the network is down"
        await rehearsal.until(
            lambda: not rehearsal.director.is_cut_off(Facts("GET", [], None, "vm", "vm"))
        )
        assert await rehearsal.write("vm", "boots/vm-0.json")

    play(
        scene,
        events=events(
            ({"boot": 1}, {"lost": {"frozen": True}}),
            ({"boot": 1}, {"stays-stopping": {"for_sec": 3}}),
            ({"boot": 1}, {"maintenance": None}),
            ({"boot": 1}, {"gpu-down": None}),
            ({"boot": 1}, {"signal": {"process": "nobody", "signal": "KILL"}}),
            ({"boot": 1}, {"out-of-memory": None}),
            ({"boot": 1}, {"network-down": {"for_sec": 0.02}}),
        ),
    )


def test_a_missed_action_is_reported_even_if_others_happen_meanwhile() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("vm")
        await rehearsal.until(lambda: len(rehearsal.director.shown()["log"]) == 2)
        await rehearsal.until(lambda: rehearsal.director.shown()["log"][0].get("missed"))
        signal, stop = rehearsal.director.shown()["log"]
        assert (signal["do"], stop["do"], "missed" in stop) == ("signal", "stop", False)

    no_process = {"signal": {"process": "absent", "signal": "KILL"}}  # a thread looks for it
    play(
        scene,
        speed=1000,
        events=events(({"at_sec": 1}, no_process), ({"at_sec": 1}, {"stop": None})),
    )


def test_a_host_taken_for_dead_thaws_and_ends_at_its_time() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("vm")
        await rehearsal.until(lambda: len(rehearsal.did) == 5)
        lost = ["freeze", "withdraw_address", "lose", "thaw", "kill"]
        assert rehearsal.did == [(verb, "vm") for verb in lost]

    lost = {"lost": {"frozen_sec": 0.01, "lives_sec": 0.1}}
    play(scene, events=events(({"boot": 1}, lost)))


def test_a_fault_of_an_event_affects_only_its_vm() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("vm")
        first, second = rehearsal.faults.shown()
        assert (first["match"]["object"], first["match"]["vm"]) == ("HEAD", "vm")
        assert "vm" not in second["match"]
        rehearsal.director.remove()
        assert rehearsal.faults.shown() == []

    play(
        scene,
        events=events(
            ({}, {"fault": {"match": {"object": "HEAD"}, "do": {"status": 429}}}),
            ({}, {"fault": {"match": {"vm": "any"}, "do": {"reset": True}}}),
        ),
    )


def test_bindings_take_effect_late_for_the_target() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        rehearsal.director.bound([("projects/p", "roles/x", "m", "")])
        await rehearsal.boot("vm")
        await rehearsal.boot("baseline", "experiments/dev-baseline")
        key, vm = ("projects/p", "roles/x", "m", ""), Caller("m", "vm", "vm")
        assert not rehearsal.director.in_force(key, vm)
        assert rehearsal.director.in_force(key, Caller("m", "baseline", "baseline"))
        assert rehearsal.director.in_force(("projects/p", "roles/old", "m", ""), vm)
        rehearsal.clock.time += 5
        assert rehearsal.director.in_force(key, vm)

    play(scene, target="dev", world={"iam_delay_sec": 5})


def test_same_seed_same_draws() -> None:
    spot = Lifetimes(draw="spot", notice_share=0.5)
    boots = range(1, 50)
    drawn = [death(7, spot, boot) for boot in boots]
    assert drawn == [death(7, spot, boot) for boot in boots]
    assert drawn != [death(8, spot, boot) for boot in boots]
    assert death(7, spot, 30) == drawn[29], "whatever was drawn before"
    assert {True, False} == {noticed for _, noticed in filter(None, drawn)}


def test_spot_lifetimes_are_the_fitted_ones() -> None:
    draws = [death(seed, Lifetimes(draw="spot"), 1) for seed in range(4000)]
    ages = sorted(age for age, _ in filter(None, draws))
    for hours in (0.25, 1, 3, 24):
        expected = 0.54 * (1 - math.exp(-hours / 0.78)) + 0.46 * (1 - math.exp(-hours / 36))
        found = sum(age < hours * 3600 for age in ages) / len(ages)
        assert abs(found - expected) < 0.025, hours


def test_vms_die_at_the_ages_that_are_drawn() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        for vm in "abc":
            await rehearsal.boot(vm)
        await rehearsal.until(lambda: len(rehearsal.did) == 2)
        assert rehearsal.did == [("preempt", "b"), ("preempt", "a")]
        assert [entry["age_sec"] for entry in rehearsal.director.shown()["log"]] == [10.0, 40.0]

    play(scene, speed=1000, world={"lifetimes": {"ages_sec": [40, 10]}})


def test_the_daily_preemption_takes_every_vm_again_and_again() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("a")
        await rehearsal.until(lambda: rehearsal.did == [("preempt", "a")])
        await rehearsal.boot("b")
        await rehearsal.until(lambda: rehearsal.did[-2:] == [("preempt", "a"), ("preempt", "b")])
        rehearsal.director.on_report("a", "exited")
        before = len(rehearsal.did)
        await rehearsal.until(lambda: len(rehearsal.did) > before)
        assert set(rehearsal.did[before:]) == {("preempt", "b")}

    play(scene, speed=1000, world={"daily_preemption": {"every_sec": 100, "at_sec": 60}})


def test_a_stopping_vm_loses_its_network_and_its_gpu() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("vm")
        rehearsal.director.on_report("vm", "stopping")
        await rehearsal.until(
            lambda: rehearsal.director.is_cut_off(Facts("GET", [], None, "vm", "vm"))
        )
        assert rehearsal.did == [("signal", "vm", "-m outlast.trainers", 6)]
        assert not await rehearsal.write("vm", "boots/vm-0.json")

    play(scene, world={"shutdown": {"network_lost_sec": 0.01, "gpu_lost_sec": 0}})


def test_each_boot_has_one_of_the_named_faults() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        first, second = await rehearsal.boot("a"), await rehearsal.boot("b")
        assert set(first) == {"trouble"}
        assert set(second) == {"driver_fails"}
        answers = [first["trouble"].answer().status for _ in range(2)]
        assert answers == [503, 503]
        assert first["trouble"].answer() is None

    play(
        scene,
        world={
            "metadata": {"status": 503, "count": 2, "boots": [1]},
            "driver": {"fails_at_boots": [2]},
        },
    )


def test_a_notice_before_the_attempt_is_one_of_the_attempt() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        await rehearsal.boot("a")
        await rehearsal.boot("b")
        await rehearsal.start("a", 1)
        log = rehearsal.director.shown()["log"]
        assert [(one["do"], one["vm"], one["attempt"]) for one in log] == [
            ("preempt", "a", 1),
            ("preempt", "b", None),
        ]

    play(scene, events=events(({"phase": "boot"}, {"preempt": {}}), times=0))


def test_scenarios_of_two_targets_play_beside_each_other() -> None:
    full = {"zones": {ZONE: {"capacity": [{"vms": 3}]}}}

    async def scene(rehearsal: Rehearsal) -> None:
        other = {**rehearsal.document, "name": "other", "events": events(({}, {"stop": None}))}
        rehearsal.director.install(check(other), "other")
        first = await rehearsal.boot("a", "experiments/dev")
        second = await rehearsal.boot("b", "experiments/other")
        await rehearsal.boot("c", "experiments/third")
        assert (set(first), set(second)) == ({"driver_fails"}, {"driver_fails"})
        assert rehearsal.did == [("kill", "a"), ("stop_instance", "b")]
        shown = [rehearsal.director.shown(target) for target in ("dev", "other", "third")]
        assert [one["target"] for one in shown] == ["dev", "other", ""]
        assert [[each["vm"] for each in one["log"][1:]] for one in shown] == [["a"], ["b"], []]
        assert len(rehearsal.limits) == 2
        rehearsal.director.remove("other")
        assert rehearsal.clock.speed == 2, "the other one still needs it"
        assert len(rehearsal.limits) == 1
        await rehearsal.boot("d", "experiments/other")
        assert len(rehearsal.did) == 2
        assert rehearsal.director.shown()["target"] == "dev"

    play(
        scene,
        target="dev",
        speed=2,
        world={**full, "driver": {"fails_at_boots": [1]}},
        events=events(({}, {"kill": None})),
    )


def test_what_is_the_whole_clouds_is_not_changed_beside_another_scenario() -> None:
    async def scene(rehearsal: Rehearsal) -> None:
        install = rehearsal.director.install
        for part, said in (
            ({"speed": 3}, "speed 3: a scenario that plays on this cloud has 1; must be the same"),
            ({"world": {"switches": {"no_capacity": True}}}, "world.switches: are the whole"),
        ):
            with pytest.raises(ScenarioError, match=said):
                install(check({**rehearsal.document, **part}), "other")
            assert rehearsal.director.shown()["target"] == "dev"
        install(check({**rehearsal.document, "speed": 3}))  # without a target it ends the others
        assert rehearsal.director.shown("dev")["document"] is None

    play(scene, target="dev")


def test_a_scenario_is_put_shown_and_taken_away(cloud: LocalCloud) -> None:
    document = {
        "name": "x",
        "about": "A test.",
        "events": events(({}, {"kill": None}), times=3),
        "world": {"faults": [{"match": {"object": "^experiments/dev/"}, "do": {"status": 503}}]},
    }
    path = "/_local/scenario"
    try:
        put = cloud.call("PUT", path, json={"document": document, "target": "dev"})
        assert put.status_code == 200, put.text
        shown = cloud.call("GET", path).json()
        assert (shown["target"], shown["pending"], shown["log"]) == ("dev", 3, [])
        assert shown["waiting"] == [{"event": 0, "left": 3, "when": {}, "do": "kill"}]
        assert shown["document"]["events"][0]["times"] == 3
        bad = cloud.call("PUT", path, json={**document, "sped": 2})
        assert bad.status_code == 400
        assert bad.json()["error"]["message"].startswith("sped: is not a key of a scenario")
        assert cloud.call("GET", path).json() == shown, "a bad one leaves the good one in force"
        read = cloud.object("GET", "b", "experiments/dev/x")
        assert (read.status_code, cloud.object("GET", "b", "x").status_code) == (503, 404)
    finally:
        assert cloud.call("DELETE", path).status_code == 200
    assert cloud.call("GET", path).json()["document"] is None
    assert cloud.call("GET", "/_local/faults").json() == []
