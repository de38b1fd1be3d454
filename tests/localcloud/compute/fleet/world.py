"""A fleet with its own clock and machines that do nothing but what the model says."""

import itertools
import random
from collections.abc import Sequence

from outlast.localcloud.compute.fleet.fleet import Fleet
from outlast.localcloud.compute.fleet.model import (
    Boot,
    Discard,
    Fault,
    Group,
    Instance,
    Kill,
    Preempt,
    Probe,
    Stop,
)

ZONES = ("europe-west4-a", "europe-west4-b", "europe-west4-c")
REGION = "europe-west4"
ZONE = "europe-west4-a"
LONGEST_UNREST = 100
"""Rounds of commands in which a small group is done with anything."""


class Machines:
    """Does the model's commands without machines, and holds it to what machines need."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.live: dict[str, str] = {}
        """Names of the VMs with a process, by id."""
        self.disks: set[str] = set()
        self.ever: set[str] = set()
        self.stopping: set[str] = set()
        self.booting: set[str] = set()
        """VMs that have a process but are not up yet."""
        self.sick: set[str] = set()
        """Names of the VMs that answer that they are not well."""
        self.everybody_is_sick = False
        self.log: list[object] = []

    def settle(self, *, fails: bool = False, exits: bool = True, comes_up: bool = True) -> None:
        """Does all commands until there are none; VMs that were stopped have exited at the end, and
        those that were booted are up."""
        for _ in range(LONGEST_UNREST):
            self.fleet.tick()
            commands = self.fleet.take_commands()
            self.log += commands
            for command in commands:
                self._do(command, fails, comes_up)
            exiting = sorted(self.stopping) if exits else []
            self.stopping.difference_update(exiting)
            for instance_id in exiting:
                self.exit(instance_id)
            if not commands and not exiting:
                return
        raise AssertionError("the group makes and unmakes VMs without an end")

    def let(self, instance_id: str) -> None:
        """Releases a VM that was held back: it exits, or it is up."""
        if instance_id in self.stopping:
            self.stopping.discard(instance_id)
            self.exit(instance_id)
        else:
            self.booting.discard(instance_id)
            self.fleet.vms.running(instance_id)

    def exit(self, instance_id: str) -> None:
        self.booting.discard(instance_id)
        if self.live.pop(instance_id, None):
            self.fleet.vms.exited(instance_id)

    def _do(self, command: object, fails: bool, comes_up: bool) -> None:
        match command:
            case Boot(instance_id, new_disk):
                name = self.fleet.instances[instance_id].name
                assert name not in self.live.values(), "two live VMs with one name"
                assert new_disk == (instance_id not in self.ever), "an id was given twice"
                self.ever.add(instance_id)
                self.disks.add(instance_id)
                if fails:
                    self.fleet.vms.exited(instance_id, Fault("INTERNAL_ERROR", "no"))
                else:
                    self.live[instance_id] = name
                    self.booting.add(instance_id)
                    if comes_up:
                        self.let(instance_id)
            case Stop(instance_id) | Preempt(instance_id):
                if instance_id in self.live:
                    self.fleet.vms.stopping(instance_id)
                    self.stopping.add(instance_id)
            case Probe(instance_id):
                name = self.live.get(instance_id)
                sick = self.everybody_is_sick or name in self.sick
                self.fleet.vms.probed(instance_id, name is not None and not sick)
            case Kill(instance_id):
                self.exit(instance_id)
            case Discard(instance_id):
                assert instance_id not in self.live, "the disk of a live VM was deleted"
                self.disks.discard(instance_id)


class FakeClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self._now_sec = 1_800_000_000.0

    def now(self) -> float:
        return self._now_sec

    def advance(self, seconds: float) -> None:
        """Moves on by `seconds`."""
        self._now_sec += seconds


class World:
    """A fleet with its clock and machines."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        numbers = itertools.count(1000)
        self.fleet = Fleet(
            self.clock,
            project_number="123",
            next_id=lambda: next(numbers),
            rng=random.Random(1),
        )
        self.machines = Machines(self.fleet)

    def template(self, name: str, **scheduling: object) -> None:
        properties = {"machineType": "e2-medium", "scheduling": scheduling}
        self.fleet.blueprints.add_template(name, properties, "")

    def group(
        self,
        size: int = 1,
        template: str = "t1",
        zones: Sequence[str] | None = None,
        **body: object,
    ) -> Group:
        """A group that has done what it can; a regional one where zones are named."""
        version = {"instanceTemplate": template, "template": template}
        place = REGION if zones else ZONE
        body = {"baseInstanceName": "g", **body}
        group = self.fleet.add_group(place, "g", body, [version], size, zones)
        self.machines.settle()
        return group

    def only(self) -> Instance:
        (instance,) = self.fleet.instances.values()
        return instance

    def pass_time(self, seconds: float = 0.5) -> None:
        self.clock.advance(seconds)
        self.machines.settle()

    def pass_times(self, times: int = 20, seconds: float = 1.5) -> None:
        """A while in peace."""
        for _ in range(times):
            self.pass_time(seconds)

    def update(self, group: Group, template: str, **body: object) -> None:
        version = {"instanceTemplate": template, "template": template}
        self.fleet.change_group(group, {**group.body, **body}, [version])
        self.machines.settle()
