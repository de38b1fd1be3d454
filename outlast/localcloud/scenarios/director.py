"""Plays a scenario: follows how far each VM is, and carries out the events at their moments.

The cloud knows of a VM's life only what it serves: the names of the objects that the VM writes and
the calls that it makes. `moments.MOMENTS` lists them. All random values come from the scenario's
seed and the number of the boot, so that the same seed gives the same values whatever else happens
first.

    lives      the VMs that the cloud has seen, and the scenario's target among them
    moments    the requests that show how far a VM is
    actions    the actions of events
    world      the conditions that apply without an event
"""

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from outlast.localcloud.base.access import Caller
from outlast.localcloud.base.background import Background
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.compute.fleet.model import Instance, ModelError
from outlast.localcloud.http.request_facts import RequestFacts
from outlast.localcloud.scenarios.actions import VM_ACTIONS, EventActions, after
from outlast.localcloud.scenarios.lives import Life, Lives
from outlast.localcloud.scenarios.moments import Moments
from outlast.localcloud.scenarios.played import Played
from outlast.localcloud.scenarios.scenario import Event, Scenario, When
from outlast.localcloud.scenarios.world import World


@dataclass
class _Pending:
    """An event, and how often it is still to be played."""

    index: int
    event: Event
    left: float
    """Remaining plays; infinite for `times: 0`."""


class ScenarioDirector:
    """Plays one scenario of a cloud. Everything runs on the cloud's loop."""

    def __init__(self, cloud: Cloud, known: dict[str, Life] | None = None) -> None:
        """`known`: the VMs of the cloud, if other scenarios play beside this one."""
        self._cloud = cloud
        self._scenario: Scenario | None = None
        self._zero: float | None = None
        self._events: list[_Pending] = []
        self._background = Background(cloud.fail)
        self._lives = Lives(known)
        self._played = Played(cloud.events)
        self._actions = EventActions(cloud, self._lives, self._played, self._background)
        self._world = World(cloud, self._lives, self._actions, self._played, self._background)
        self._moments = Moments(cloud, self._lives, self._reach)

    @property
    def playing(self) -> bool:
        """Whether a scenario is active."""
        return self._scenario is not None

    # -- start and end of a scenario -------------------------------------------------------------

    def install(self, scenario: Scenario, target: str = "") -> None:
        """Starts a scenario and ends any other. It applies to the VMs, groups and objects of the
        experiment `target`, or to all."""
        self.remove()
        self._scenario = scenario
        self._lives.aim(target)
        self._events = [
            _Pending(index, event, event.times or math.inf)
            for index, event in enumerate(scenario.events)
        ]
        self._world.install(scenario)
        self._cloud.events.write("scenario", name=scenario.name, target=target)

    def remove(self) -> None:
        """Ends the active scenario; effects that have happened remain."""
        self._background.cancel()
        if self._scenario and self._zero is not None:
            self._world.end()
        for life in self._lives.all():
            life.cut_off = life.cut_off and not self._lives.is_ours(life)
        self._scenario, self._zero = None, None
        self._world.remove()
        self._events = []
        self._played.entries = []

    def clear(self) -> None:
        """Forgets the scenario and every VM."""
        self.remove()
        self._lives.clear()
        self._world.forget()

    def forget_ended(self) -> None:
        """Forgets the target's VMs whose process has ended."""
        self._lives.forget_ended()

    def means(self, properties: Mapping[str, Any]) -> bool:
        """Whether a VM of these properties belongs to the target."""
        return self._lives.means(properties)

    @property
    def speed(self) -> float:
        """How fast the scenario lets the cloud's clock run."""
        return self._scenario.speed if self._scenario else 1.0

    def shown(self) -> Entry:
        """{document, target, log, pending, waiting, rules, commits}; document is None without a
        scenario. `waiting` lists the events still to come, `pending` is the number of their plays,
        `rules` the ids of its fault rules, `commits` the number of commits of the target's VMs."""
        waiting = [event for event in self._events if 0 < event.left < math.inf]
        return {
            "document": self._scenario.document() if self._scenario else None,
            "target": self._lives.target,
            "log": self._played.entries,
            "rules": list(self._actions.rules),
            "commits": sum(life.commits for life in self._lives.all() if self._lives.is_ours(life)),
            "pending": sum(int(event.left) for event in waiting),
            "waiting": [
                {
                    "event": event.index,
                    "left": int(event.left),
                    "when": event.event.when.model_dump(mode="json", exclude_defaults=True),
                    "do": event.event.do.action,
                }
                for event in waiting
            ],
        }

    # -- for the other parts -----------------------------------------------------------------------

    def trying(self, properties: Mapping[str, Any]) -> None:
        """Notes that a VM of these properties is about to be created; the target's first one starts
        the world."""
        if self._scenario is None or self._zero is not None or not self._lives.means(properties):
            return
        self._zero = self._cloud.clock.now()
        self._world.begin(self._zero)
        for pending in self._events:
            at_sec = pending.event.when.at_sec
            if at_sec is not None:
                self._background.begin(self._play_at(pending, at_sec))

    def booting(self, instance: Instance) -> Entry:
        """Notes that a VM is about to boot; returns extra fields of its `vm.machine.Machine`."""
        life = self._lives.begin(instance, counts=self.playing)
        if self._scenario is None or not self._lives.is_ours(life):
            return {}
        return self._world.at_boot(life)

    def on_report(self, instance_id: str, event: str) -> None:
        """Notes that a VM is running, is stopping or has exited."""
        life = self._lives.get(instance_id)
        if life is None:
            return
        if event in ("exited", "failed"):
            life.ended = True
        if self._scenario is None or not self._lives.is_ours(life):
            return
        if event == "running":
            self._world.on_running(life)
            self._background.begin(self._reach(life, "boot"))
        elif event == "stopping":
            self._world.on_stopping(life)

    def notice(self, instance_id: str) -> tuple[float | None, float | None]:
        """Seconds of notice and grace of a VM's preemption; None if a scenario does not set
        them."""
        life = self._lives.get(instance_id)
        return life.notice if life else (None, None)

    def bound(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Notes that members were granted new roles."""
        self._world.bound(keys)

    def in_force(self, key: tuple[str, ...], caller: Caller) -> bool:
        """Whether a binding is already effective for the VM that sends a request."""
        return self._world.in_force(key, self._lives.get(caller.instance))

    def is_cut_off(self, call: RequestFacts) -> bool:
        """Whether the sender has no network."""
        life = self._lives.of(call)
        return life is not None and life.cut_off

    def watch(self, call: RequestFacts, app: ASGIApp) -> ASGIApp:
        """The app, which also notices the moments of a VM's request."""
        return self._moments.watch(call, app) if self.playing else app

    # -- moments and events ----------------------------------------------------------------------

    async def _reach(self, life: Life, phase: str) -> None:
        """Plays the events that are due at a VM's moment of this phase."""
        self._played.begun(life)
        for pending in self._events:
            if life.ended:
                return
            if not pending.left or not _is_due(pending.event.when, life, phase):
                continue
            count = life.counted[pending.index] = life.counted.get(pending.index, 0) + 1
            if count != pending.event.when.nth:
                continue
            pending.left -= 1
            work = self._play(pending, life)
            if pending.event.when.after_sec:
                wait_sec = self._cloud.clock.wall_sec(pending.event.when.after_sec)
                self._background.begin(after(wait_sec, work))
            else:
                await work

    async def _play_at(self, pending: _Pending, at_sec: float) -> None:
        await asyncio.sleep(self._cloud.clock.wall_sec(at_sec))
        pending.left = 0
        await self._play(pending, None)

    async def _play(self, pending: _Pending, life: Life | None) -> None:
        """Plays an event for one VM or, at a moment of the world, for every living one."""
        do = pending.event.do
        options = do.options.model_dump(exclude_none=True)
        lives: list[Life | None] = [life]
        if life is None and do.action in VM_ACTIONS:
            lives = [*self._lives.living()]
        if not lives:
            missed = {**options, "missed": "there is no VM"}
            self._played.note(pending.index, do.action, None, missed)
        for each in lives:
            entry = self._played.note(pending.index, do.action, each, options)
            try:
                await self._actions.act(do, each)
            except (LookupError, ModelError) as error:
                entry["missed"] = str(error)


def _is_due(when: When, life: Life, phase: str) -> bool:
    if when.at_sec is not None or when.moment != phase or life.commits < when.commits:
        return False
    if when.boot not in (None, life.boot) or when.attempt not in (None, life.term):
        return False
    if when.part not in (None, life.part):
        return False
    if when.share is None:
        return True
    total = (life.total or 0) - life.before
    return total > 0 and life.step - life.before >= when.share * total
