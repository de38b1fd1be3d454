"""The scenarios that play on a cloud at the same time, each for its own target."""

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.types import ASGIApp

from outlast.localcloud.base.access import Caller
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.compute.fleet.model import Instance
from outlast.localcloud.http.request_facts import RequestFacts
from outlast.localcloud.scenarios.director import ScenarioDirector
from outlast.localcloud.scenarios.lives import Life
from outlast.localcloud.scenarios.scenario import Scenario, ScenarioError


class Directors:
    """One director for each scenario. A scenario without a target plays alone.

    The clock and the switches are the whole cloud's: scenarios beside each other have the same
    speed, and only one that starts alone has switches."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._known: dict[str, Life] = {}
        self._idle = ScenarioDirector(cloud, self._known)
        """Follows the VMs for which no scenario plays."""
        self._playing: dict[str, ScenarioDirector] = {}
        """By target, in the order of their starts."""

    @property
    def playing(self) -> bool:
        """Whether a scenario is active."""
        return bool(self._playing)

    @property
    def _all(self) -> list[ScenarioDirector]:
        return [*self._playing.values(), self._idle]

    # -- start and end of a scenario -------------------------------------------------------------

    def install(self, scenario: Scenario, target: str = "") -> None:
        """Starts a scenario for the experiment `target`, or for all, and ends those for the same
        VMs. Raises ScenarioError if those that continue do not allow its speed or switches."""
        ending = [one for one in self._playing if "" in (one, target) or one == target]
        beside = [one for name, one in self._playing.items() if name not in ending]
        for other in beside:
            if other.speed != scenario.speed:
                raise ScenarioError(
                    f"speed {scenario.speed:g}: a scenario that plays on this cloud has "
                    f"{other.speed:g}; must be the same"
                )
        if beside and scenario.world.switches:
            raise ScenarioError(
                "world.switches: are the whole cloud's, and another scenario plays on it; must be"
                " absent"
            )
        for name in ending:
            self._playing.pop(name).remove()
        director = ScenarioDirector(self._cloud, self._known)
        self._playing[target] = director
        director.install(scenario, target)

    def remove(self, target: str | None = None) -> None:
        """Ends the scenario of a target, or all; effects that have happened remain."""
        for name in [name for name in self._playing if target in (None, name)]:
            director = self._playing.pop(name)
            director.forget_ended()
            director.remove()
        for other in self._playing.values():  # a removal resets the clock's speed
            self._cloud.clock.set_speed(other.speed)
            self._cloud.machines.changed()
            break

    def clear(self) -> None:
        """Forgets the scenarios and every VM."""
        for director in self._all:
            director.clear()
        self._playing.clear()

    def shown(self, target: str | None = None) -> Entry:
        """The scenario of a target, or the last that was started, as `ScenarioDirector.shown`."""
        if target is None:
            return self._all[-2 if self._playing else 0].shown()
        return self._playing.get(target, self._idle).shown()

    # -- for the other parts -----------------------------------------------------------------------

    def trying(self, properties: Mapping[str, Any]) -> None:
        """Notes that a VM of these properties is about to be created."""
        for director in self._playing.values():
            director.trying(properties)

    def booting(self, instance: Instance) -> Entry:
        """Notes that a VM is about to boot; returns extra fields of its `vm.machine.Machine`."""
        owner = (one for one in self._playing.values() if one.means(instance.properties))
        return next(owner, self._idle).booting(instance)

    def on_report(self, instance_id: str, event: str) -> None:
        """Notes that a VM is running, is stopping or has exited."""
        for director in self._all:
            director.on_report(instance_id, event)

    def notice(self, instance_id: str) -> tuple[float | None, float | None]:
        """Seconds of notice and grace of a VM's preemption; None if a scenario does not set
        them."""
        return self._idle.notice(instance_id)

    def bound(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Notes that members were granted new roles."""
        found = list(keys)
        for director in self._playing.values():
            director.bound(found)

    def in_force(self, key: tuple[str, ...], caller: Caller) -> bool:
        """Whether a binding is already effective for the VM that sends a request."""
        return all(director.in_force(key, caller) for director in self._playing.values())

    def is_cut_off(self, call: RequestFacts) -> bool:
        """Whether the sender has no network."""
        return self._idle.is_cut_off(call)

    def watch(self, call: RequestFacts, app: ASGIApp) -> ASGIApp:
        """The app, which also notices the moments of a VM's request."""
        for director in self._playing.values():
            app = director.watch(call, app)
        return app
