"""The world of a scenario: limits, deaths, boots without a network or a tool."""

import asyncio
import math
from collections.abc import Iterable

from outlast.localcloud.base.background import Background
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.scenarios.actions import EventActions, after
from outlast.localcloud.scenarios.lifetimes import death
from outlast.localcloud.scenarios.lives import Life, Lives
from outlast.localcloud.scenarios.played import Played
from outlast.localcloud.scenarios.scenario import Lifetimes, Scenario
from outlast.localcloud.vm.metadata import Trouble


class World:
    """The world of the active scenario."""

    def __init__(
        self,
        cloud: Cloud,
        lives: Lives,
        actions: EventActions,
        played: Played,
        background: Background,
    ) -> None:
        self._cloud = cloud
        self._lives = lives
        self._actions = actions
        self._played = played
        self._background = background
        self._scenario: Scenario | None = None
        self._switches: Entry = {}
        """Their values before the scenario."""
        self._deaths = 0
        self._bound: dict[tuple[str, ...], float] = {}
        """When each binding was created."""

    def install(self, scenario: Scenario) -> None:
        """Sets the rules, switches and speed, which apply before the first VM."""
        self._scenario = scenario
        for rule in scenario.world.faults:
            self._actions.add_rule(rule)
        for switch, value in scenario.world.switches.items():
            self._switches[switch] = self._cloud.set_switch(switch, value)
        self._set_speed(scenario.speed)

    def remove(self) -> None:
        """Reverts the settings of `install`."""
        for rule in self._actions.rules:
            self._cloud.faults.remove(rule)
        self._actions.rules.clear()
        for switch, value in self._switches.items():
            self._cloud.set_switch(switch, value)
        self._switches = {}
        self._scenario = None
        self._deaths = 0
        self._set_speed(1.0)

    def end(self) -> None:
        """Removes the limits that `begin` has set."""
        self._actions.platform.fleet.capacity.clear(self._lives.means)
        self._actions.platform.operations.clear(self._lives.owns)

    def forget(self) -> None:
        """Forgets every binding."""
        self._bound.clear()

    def _set_speed(self, speed: float) -> None:
        self._cloud.clock.set_speed(speed)
        self._cloud.machines.changed()

    def begin(self, zero: float) -> None:
        """Starts the time, at the first try to create a VM of the target. The fleet calls this in
        the middle of its work, so nothing here may start that work again."""
        assert self._scenario is not None
        world = self._scenario.world
        for zone, limits in world.zones.items():
            for window in limits.capacity:
                self._actions.limit_zone(zone, window, zero)
        for quota in world.quota:
            self._actions.limit_quota(quota, quota.to_sec, quota.from_sec)
        for trouble in world.operations:
            self._actions.platform.operations.add(
                trouble.match,
                delay_sec=trouble.delay_sec,
                error=(trouble.error.code, trouble.error.message) if trouble.error else None,
                times=trouble.count or None,
                applies=self._lives.owns,
            )
        if world.daily_preemption:
            self._background.begin(self._cut_daily(self._scenario, zero))

    def at_boot(self, life: Life) -> Entry:
        """Returns extra fields of `vm.machine.Machine` for a boot."""
        assert self._scenario is not None
        world = self._scenario.world
        extras: Entry = {}
        if world.tools and _at_boot(world.tools.boots, life):
            extras["missing_tools"] = tuple(world.tools.missing)
        if world.driver and life.boot in world.driver.fails_at_boots:
            extras["driver_fails"] = True
        late_sec = status = count = 0
        if world.metadata and _at_boot(world.metadata.boots, life):
            late_sec = world.metadata.late_sec
            status, count = world.metadata.status or 0, world.metadata.count
        if world.network and _at_boot(world.network.boots, life):
            late_sec = max(late_sec, world.network.late_sec)
        if late_sec or status:
            extras["trouble"] = Trouble(late_sec, status, count)
        for key in extras:
            self._played.note(None, key.replace("_", "-"), life, {})
        return extras

    def on_running(self, life: Life) -> None:
        """Handles the start of a VM of the target."""
        assert self._scenario is not None
        world = self._scenario.world
        if world.network and _at_boot(world.network.boots, life):
            self._background.begin(self._actions.cut_off(life, world.network.late_sec))
        if world.lifetimes:
            self._draw_death(self._scenario, world.lifetimes, life)

    def on_stopping(self, life: Life) -> None:
        """Handles the stop of a VM of the target."""
        assert self._scenario is not None
        lost = self._scenario.world.shutdown
        if lost and lost.network_lost_sec is not None:
            self._actions.lose_part(lost.network_lost_sec, life, "network-down", "")
        if lost and lost.gpu_lost_sec is not None:
            self._actions.lose_part(lost.gpu_lost_sec, life, "gpu-down", lost.gpu_process)

    def bound(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Notes that members were granted new roles."""
        self._bound.update(dict.fromkeys(keys, self._cloud.clock.now()))

    def in_force(self, key: tuple[str, ...], life: Life | None) -> bool:
        """Whether a binding is already effective for the VM that sends a request."""
        delay_sec = self._scenario.world.iam_delay_sec if self._scenario else 0
        if not delay_sec or (life is not None and not self._lives.is_ours(life)):
            return True
        return self._cloud.clock.now() >= self._bound.get(key, -math.inf) + delay_sec

    async def _cut_daily(self, scenario: Scenario, zero: float) -> None:
        cut = scenario.world.daily_preemption
        assert cut is not None
        due = zero + cut.at_sec
        while True:
            clock = self._cloud.clock
            await asyncio.sleep(max(0.0, clock.wall_sec(due - clock.now())))
            due += cut.every_sec
            for life in self._lives.living():
                self._played.note(None, "preempt", life, {"notice_sec": cut.notice_sec})
                await self._actions.preempt(life, cut.notice_sec)

    def _draw_death(self, scenario: Scenario, lifetimes: Lifetimes, life: Life) -> None:
        """Draws when and how this boot ends, and schedules it."""
        drawn = death(scenario.seed, lifetimes, life.boot)
        if drawn is None:
            return
        age_sec, noticed = drawn

        async def die() -> None:
            if life.ended or (lifetimes.deaths and self._deaths >= lifetimes.deaths):
                return
            self._deaths += 1
            self._played.note(None, "preempt" if noticed else "kill", life, {"age_sec": age_sec})
            if noticed:
                await self._actions.preempt(life, lifetimes.notice_sec)
            else:
                life.ended = True
                await self._actions.platform.hypervisor.kill(life.id)

        self._background.begin(after(self._cloud.clock.wall_sec(age_sec), die()))


def _at_boot(boots: list[int] | None, life: Life) -> bool:
    return boots is None or life.boot in boots
