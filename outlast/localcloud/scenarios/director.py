"""Plays a scenario: knows how far each VM is, and does what the file says at its moment.

The cloud learns of a VM's life only what it serves: the names of the objects that the VM writes and
the calls that it makes. `MOMENTS` is the one table of them. Everything drawn comes from the
scenario's seed and the ordinal of the boot, so that the same seed gives the same draws whatever
else happens first.
"""

import asyncio
import json
import math
import random
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outlast.localcloud.base.background import Background
from outlast.localcloud.base.state import Entry
from outlast.localcloud.compute.fleet.model import Instance, ModelError
from outlast.localcloud.faults.rules import (
    Actions,
    Call,
    FaultRule,
    Injection,
    Rule,
)
from outlast.localcloud.iam.service import Caller
from outlast.localcloud.scenarios.scenario import (
    Capacity,
    Do,
    Event,
    Lifetimes,
    Scenario,
    When,
)
from outlast.localcloud.vm.metadata import Trouble

if TYPE_CHECKING:
    from outlast.localcloud.compute.service import Compute
    from outlast.localcloud.server import Cloud

LIVES = ((0.54, 0.78 * 3600.0), (0.46, 36.0 * 3600.0))
"""(Share, mean seconds) of the lives of Spot VMs: a mixture of two exponential distributions.

Fitted to 1442 lifetimes of preemptible VMs of Google's (Kadupitiya, Jadhao and Sharma, HPDC 2020,
arXiv 1911.05160), those cut off by the limit of 24 hours, which Spot VMs do not have, taken as
censored.
"""
NOTHING = Actions.model_construct()
ANY_VM = "any"
"""As `match.vm` of an event's fault: the sender of the request."""


@dataclass(frozen=True)
class Moment:
    """What a VM's request says about how far it is."""

    phase: str
    at: Literal["before", "mid-body", "after"]
    """The request has come in, half of its body has, or it has had its effect."""
    pattern: re.Pattern[str]
    """Searched in the name of an object that the VM writes, or for `leaving` in the path that it
    calls; `term` and `step` where they stand in it."""
    upload: bool = True


SNAPSHOT = r"/t(?P<term>\d{6,})/s(?P<step>\d{12,})-[0-9a-z]+/"
MOMENTS = (
    Moment("setup", "after", re.compile(r"/boots/[^/]+(?<!\.end)\.json$")),
    Moment("step", "after", re.compile(r"/attempts/(?P<term>\d{6,})/(start|heartbeat)\.json$")),
    Moment("snapshot", "before", re.compile(SNAPSHOT)),
    Moment("upload", "mid-body", re.compile(SNAPSHOT)),
    Moment("commit", "after", re.compile(SNAPSHOT + r"MANIFEST\.json$")),
    Moment("committed", "after", re.compile(r"/HEAD$")),
    Moment("final-upload", "mid-body", re.compile(r"/t(?P<term>\d{6,})/result/")),
    Moment("end", "after", re.compile(r"/END-r\d+\.json$")),
    Moment(
        "leaving",
        "before",
        re.compile(r"/instanceGroupManagers/[^/]+/(deleteInstances|resize)\b"),
        upload=False,
    ),
)
"""In the order in which one request brings them; `boot` comes from the hypervisor."""


@dataclass
class Life:
    """One boot of a VM, as far as the cloud knows it."""

    id: str
    name: str
    experiment: str
    """The bucket prefix that the VM works under; empty if its metadata has none."""
    boot: int
    term: int | None = None
    step: int = 0
    total: int | None = None
    part: str = ""
    """The part of the run that it trains; empty if the run has none."""
    before: int = 0
    """Steps of the parts before it, which step and total count."""
    commits: int = 0
    committing: bool = False
    """A manifest is stored that HEAD does not name yet."""
    ended: bool = False
    """It has no process any more."""
    cut_off: bool = False
    """It reaches nothing."""
    notice: tuple[float | None, float | None] = (None, None)
    """Seconds of notice and of grace of its preemption, where a scenario says them."""
    counted: dict[int, int] = field(default_factory=dict)
    """By event: the moments at which it could have happened."""


@dataclass
class _Pending:
    """An event with what is left of it."""

    index: int
    event: Event
    left: float
    """Plays still to come; infinite for `times: 0`."""


class Director:
    """The scenario of a cloud. Everything on the cloud's loop."""

    def __init__(self, cloud: "Cloud") -> None:
        self._cloud = cloud
        self._scenario: Scenario | None = None
        self._target = ""
        self._zero: float | None = None
        self._lives: dict[str, Life] = {}
        """The last boot of each VM, by instance id, in the order of the boots."""
        self._boots = 0
        self._deaths = 0
        self._events: list[_Pending] = []
        self._log: list[Entry] = []
        self._rules: list[str] = []
        self._switches: Entry = {}
        """As they were before."""
        self._own: re.Pattern[str] = re.compile("")
        """What of a request's target tells that it is the scenario's."""
        self._bound: dict[tuple[str, ...], float] = {}
        self._background = Background(cloud.fail)

    @property
    def playing(self) -> bool:
        """Whether a scenario is in force."""
        return self._scenario is not None

    @property
    def _compute(self) -> "Compute":
        return cast("Compute", self._cloud.machines)

    # -- a scenario comes and goes ---------------------------------------------------------------

    def install(self, scenario: Scenario, target: str = "") -> None:
        """Puts a scenario in force, in the place of any other. It applies to the VMs, groups and
        objects of the experiment `target`, or to all."""
        self.remove()
        self._scenario, self._target = scenario, target
        for place, life in enumerate(filter(self._is_ours, self._lives.values()), 1):
            life.boot = self._boots = place
        self._events = [
            _Pending(index, event, event.times or math.inf)
            for index, event in enumerate(scenario.events)
        ]
        name = re.escape(target)
        self._own = re.compile(
            rf"experiments/{name}/|/{name}-[0-9a-f]{{10}}(-r\d+)?(?![-0-9a-z])" if target else ""
        )
        for rule in scenario.world.faults:
            self._add_rule(rule)
        for switch, value in scenario.world.switches.items():
            self._switches[switch] = getattr(self._compute.fleet.switches, switch)
            self._cloud.machines.set_switch(switch, value)
        self._set_speed(scenario.speed)
        self._cloud.events.write("scenario", name=scenario.name, target=target)

    def remove(self) -> None:
        """Ends what is in force; what has happened stays."""
        self._background.cancel()
        for rule in self._rules:
            self._cloud.faults.remove(rule)
        if self._scenario and self._zero is not None:
            self._compute.fleet.capacity.clear()
            self._compute.operations.clear()
        for switch, value in self._switches.items():
            self._cloud.machines.set_switch(switch, value)
        for life in self._lives.values():
            life.cut_off = False
        self._set_speed(1.0)
        self._switches = {}
        self._scenario, self._target, self._zero = None, "", None
        self._boots = self._deaths = 0
        self._events, self._log, self._rules = [], [], []

    def _set_speed(self, speed: float) -> None:
        self._cloud.clock.set_speed(speed)
        self._cloud.machines.changed()

    def clear(self) -> None:
        """Forgets the scenario and every VM."""
        self.remove()
        self._lives.clear()
        self._bound.clear()

    def shown(self) -> Entry:
        """{document, target, log, pending, waiting}; document None if no scenario is in force.
        `waiting` are the events that are to come, `pending` is how often in all."""
        waiting = [event for event in self._events if 0 < event.left < math.inf]
        return {
            "document": self._scenario.document() if self._scenario else None,
            "target": self._target,
            "log": self._log,
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

    # -- who is meant ----------------------------------------------------------------------------

    def _means(self, properties: Mapping[str, Any]) -> bool:
        """Whether a VM of these properties is the target's."""
        return not self._target or _experiment(properties) == f"experiments/{self._target}"

    def _is_ours(self, life: Life) -> bool:
        return not self._target or life.experiment == f"experiments/{self._target}"

    def _hits(self, call: Call) -> bool:
        """Whether a request is the target's: of its VMs, on its objects or its groups."""
        life = self._life_of(call) if call.vm else None
        if life:
            return self._is_ours(life)
        return any(self._own.search(text) for text in (*call.subjects, call.object or ""))

    def _life_of(self, call: Call) -> Life | None:
        if call.instance is not None:
            return self._lives.get(call.instance)
        named = [life for life in self._lives.values() if life.name == call.vm]
        return named[-1] if named else None

    def _living(self) -> list[Life]:
        return [life for life in self._lives.values() if self._is_ours(life) and not life.ended]

    # -- what the compute part asks and tells ----------------------------------------------------

    def trying(self, properties: Mapping[str, Any]) -> None:
        """A VM of these properties is about to be created; the target's first starts the world."""
        if self._scenario and self._zero is None and self._means(properties):
            self._begin(self._scenario)

    def booting(self, instance: Instance) -> Entry:
        """A VM is about to boot: what `guest.Machine` has to have for it."""
        life = Life(
            instance.id, instance.name, _experiment(instance.properties), boot=self._boots + 1
        )
        self._lives.pop(instance.id, None)  # an earlier boot of this VM
        self._lives[instance.id] = life
        if self._scenario is None or not self._is_ours(life):
            return {}
        self._boots += 1
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
            self._note(None, key.replace("_", "-"), life, {})
        return extras

    def on_report(self, instance_id: str, event: str) -> None:
        """The hypervisor says that a VM is running, stopping or has exited."""
        life = self._lives.get(instance_id)
        if life is None:
            return
        if event in ("exited", "failed"):
            life.ended = True
        if self._scenario is None or not self._is_ours(life):
            return
        world = self._scenario.world
        if event == "running":
            if world.network and _at_boot(world.network.boots, life):
                self._background.begin(self._cut_off(life, world.network.late_sec))
            if world.lifetimes:
                self._draw_death(self._scenario, world.lifetimes, life)
            self._background.begin(self._reach(life, "boot"))
        elif event == "stopping" and world.shutdown:
            lost = world.shutdown
            if lost.network_lost_sec is not None:
                self._lose_part(lost.network_lost_sec, life, "network-down", "")
            if lost.gpu_lost_sec is not None:
                self._lose_part(lost.gpu_lost_sec, life, "gpu-down", lost.gpu_process)

    def notice(self, instance_id: str) -> tuple[float | None, float | None]:
        """Seconds of notice and grace of a VM's preemption, where a scenario says them."""
        life = self._lives.get(instance_id)
        return life.notice if life else (None, None)

    # -- what IAM asks ---------------------------------------------------------------------------

    def bound(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Members have got roles that they had not."""
        self._bound.update(dict.fromkeys(keys, self._cloud.clock.now()))

    def in_force(self, key: tuple[str, ...], caller: Caller) -> bool:
        """Whether a binding works already for the VM that asks."""
        delay_sec = self._scenario.world.iam_delay_sec if self._scenario else 0
        life = self._lives.get(caller.instance or "")
        if not delay_sec or (life is not None and not self._is_ours(life)):
            return True
        return self._cloud.clock.now() >= self._bound.get(key, -math.inf) + delay_sec

    # -- what the fault layer asks ---------------------------------------------------------------

    def is_cut_off(self, call: Call) -> bool:
        """Whether the sender has no network."""
        life = self._life_of(call) if call.vm else None
        return life is not None and life.cut_off

    def watch(self, call: Call, app: ASGIApp) -> ASGIApp:
        """The app, with the moments of a VM's request noticed on the way."""
        life = self._life_of(call) if call.vm and self._scenario else None
        if life is None or not self._is_ours(life) or call.method not in ("POST", "PUT"):
            return app
        for moment in reversed(MOMENTS):
            subject = (call.object or "") if moment.upload else call.subjects[0]
            uploads = "/upload/storage/" in call.subjects[0]
            opens = "uploadType=resumable" in call.subjects[0] and call.method == "POST"
            match = moment.pattern.search(subject) if uploads == moment.upload else None
            # The bytes of a resumable upload come after the call that opens it.
            if match and not (opens and moment.at != "before"):
                app = self._watched(life, moment, match, call, app)
        return app

    def _watched(
        self, life: Life, moment: Moment, match: re.Match[str], call: Call, app: ASGIApp
    ) -> ASGIApp:
        async def arrive() -> bool:
            await self._see(life, moment, match.groupdict(), call)
            return not (life.ended or life.cut_off)

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            await _Sight(self._cloud, moment, call, app, (scope, receive, send), arrive).run()

        return watched

    async def _see(
        self, life: Life, moment: Moment, found: Mapping[str, str | None], call: Call
    ) -> None:
        """Takes down what a request tells, and lets happen what is due."""
        if found.get("term"):
            life.term = int(found["term"] or 0)
        if found.get("step"):
            life.step = int(found["step"] or 0)
        match moment.phase:
            case "step":
                self._read_heartbeat(life, call)
            case "commit":
                life.committing = True
            case "committed":
                if not life.committing:
                    return
                life.committing = False
                life.commits += 1
        await self._reach(life, moment.phase)
        if moment.phase == "snapshot":  # it tells the step, between two heartbeats
            await self._reach(life, "step")

    def _read_heartbeat(self, life: Life, call: Call) -> None:
        bucket = re.search(r"/b/([^/]+)/o", call.subjects[1])
        content = self._cloud.storage.content(bucket[1], call.object or "") if bucket else None
        with suppress(ValueError, TypeError, AttributeError):
            heartbeat = json.loads(content or b"{}")
            life.step = int(heartbeat.get("step") or life.step)
            life.total = int(heartbeat["total"]) if heartbeat.get("total") else life.total
            life.part, life.before = (
                str(heartbeat.get("part") or ""),
                int(heartbeat.get("before") or 0),
            )
        if life.total is None:  # an attempt before has said it
            totals = [other.total for other in self._lives.values() if self._is_ours(other)]
            life.total = next((total for total in reversed(totals) if total), None)

    # -- moments and events ----------------------------------------------------------------------

    async def _reach(self, life: Life, phase: str) -> None:
        """A VM has come to a moment of this phase."""
        for pending in self._events:
            if life.ended:
                return
            if not pending.left or not self._is_due(pending.event.when, life, phase):
                continue
            count = life.counted[pending.index] = life.counted.get(pending.index, 0) + 1
            if count != pending.event.when.nth:
                continue
            pending.left -= 1
            work = self._play(pending, life)
            if pending.event.when.after_sec:
                wait_sec = self._cloud.clock.wall_sec(pending.event.when.after_sec)
                self._background.begin(_after(wait_sec, work))
            else:
                await work

    def _is_due(self, when: When, life: Life, phase: str) -> bool:
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

    async def _play(self, pending: _Pending, life: Life | None) -> None:
        """Lets an event happen to a VM, or at a moment of the world to every one there is."""
        do = pending.event.do
        options = do.options.model_dump(exclude_none=True)
        lives: list[Life | None] = [life]
        if life is None and do.action in VM_ACTIONS:
            lives = [*self._living()]
        if not lives:
            self._note(pending.index, do.action, None, {**options, "missed": "there is no VM"})
        for each in lives:
            entry = self._note(pending.index, do.action, each, options)
            try:
                await self._act(do, each)
            except (LookupError, ModelError) as error:
                entry["missed"] = str(error)

    def _note(
        self, event: int | None, do: str, life: Life | None, options: Mapping[str, Any]
    ) -> Entry:
        """Puts down what happens, before it does; gives what it put down."""
        entry = {
            **{key: value for key, value in options.items() if value is not None},
            "time": time.time(),
            "event": event,
            "do": do,
            "vm": life.name if life else None,
            "instance_id": life.id if life else None,
            "attempt": life.term if life else None,
            "boot": life.boot if life else None,
            "step": life.step if life else None,
        }
        self._log.append(entry)
        self._cloud.events.write("scenario-event", **entry)
        return entry

    async def _act(self, do: Do, life: Life | None) -> None:
        """What each action does; KeyError and ModelError if it cannot be done."""
        compute, options = self._compute, do.options
        match do.action:
            case "capacity":
                window = Capacity(vms=options.vms, to_sec=options.for_sec)
                self._limit_zone(options.zone, window, self._cloud.clock.now())
                compute.changed()
            case "quota":
                self._limit_quota(options, options.for_sec)
                compute.changed()
            case "new-image":
                self._offer_image(options.family)
            case "late-create":
                await self._create_late(options.after_sec, options.lives_sec)
            case "fault":
                sender = options.match.vm or (life.name if life else None)
                vm = None if sender == ANY_VM else sender
                match = options.match.model_copy(update={"vm": vm})
                self._add_rule(options.model_copy(update={"match": match}))
            case "thaw" if options.boot is not None or options.attempt is not None:
                await compute.hypervisor.thaw(self._named(options.boot, options.attempt).id)
            case _:
                assert life is not None
                await self._act_on_vm(do, life)

    async def _act_on_vm(self, do: Do, life: Life) -> None:
        compute, options = self._compute, do.options
        instance = compute.fleet.instances.get(life.id)
        if instance is None or life.ended:
            raise LookupError("the VM has ended")
        match do.action:
            case "kill":
                life.ended = True
                await compute.hypervisor.kill(life.id)
            case "preempt":
                life.notice = (options.notice_sec, options.grace_sec)
                await compute.preempt(life.name)
            case "freeze":
                await compute.hypervisor.freeze(life.id)
                if options.for_sec is not None:
                    thaw = compute.hypervisor.thaw(life.id)
                    self._background.begin(_after(options.for_sec, thaw))
            case "thaw":
                await compute.hypervisor.thaw(life.id)
            case "stop":
                compute.fleet.stop_instance(instance)
            case "delete":
                compute.fleet.delete_instance(instance)
            case "lost":
                await self._lose(instance, options.frozen, options.frozen_sec, options.lives_sec)
            case "stays-stopping":
                compute.fleet.hold_stopping(instance, options.for_sec)
                compute.fleet.stop_instance(instance)
            case "maintenance":
                compute.fleet.maintain_instance(instance, options.notice_sec)
            case "signal":
                number = signal.Signals[f"SIG{options.signal}"]
                await self._signal(life, options.process, number)
            case "out-of-memory":
                if not await compute.hypervisor.out_of_memory(life.id):
                    raise LookupError("the VM runs nothing")
            case "gpu-down":
                await self._signal(life, options.process, signal.SIGABRT)
            case "network-down":
                await self._cut_off(life, None)
                if options.for_sec is not None:
                    self._background.begin(_after(options.for_sec, self._connect(life)))
        compute.changed()

    def _add_rule(self, rule: FaultRule) -> None:
        document = rule.model_dump(exclude_none=True)
        self._rules.append(self._cloud.faults.add(document, self._hits))

    def _lose_part(self, wait_sec: float, life: Life, do: str, process: str) -> None:
        """A stopping VM loses its network, or the GPU of a process, after so long."""

        async def lose() -> None:
            self._note(None, do, life, {})
            with suppress(LookupError):
                if process:
                    await self._signal(life, process, signal.SIGABRT)
                else:
                    await self._cut_off(life, None)

        self._background.begin(_after(wait_sec, lose()))

    def _offer_image(self, family: str) -> None:
        """A family of the project gets a newer image, of the same content."""
        catalogue = self._compute.catalogue
        newest = catalogue.image(f"global/images/family/{family}")
        if newest is None:
            raise LookupError(f"family {family}: has no image")
        number = sum(image.family == family for image in catalogue.images) + 1
        catalogue.offer(replace(newest, name=f"{family}-local-{number}"))

    def _named(self, boot: int | None, attempt: int | None) -> Life:
        for life in self._lives.values():
            if self._is_ours(life) and (
                life.boot == boot if boot is not None else life.term == attempt
            ):
                return life
        raise LookupError(
            f"no VM has begun attempt {attempt}" if boot is None else f"no VM has begun boot {boot}"
        )

    async def _lose(
        self, instance: Instance, frozen: bool, frozen_sec: float, lives_sec: float | None
    ) -> None:
        """The platform takes the VM for dead; its processes live on."""
        hypervisor = self._compute.hypervisor
        if frozen or frozen_sec:
            await hypervisor.freeze(instance.id)
        await hypervisor.withdraw_address(instance.id)
        if frozen_sec:
            self._background.begin(_after(frozen_sec, hypervisor.thaw(instance.id)))
        if lives_sec is not None:
            self._background.begin(_after(lives_sec, hypervisor.kill(instance.id)))
        self._compute.fleet.lose(instance)

    async def _signal(self, life: Life, process: str, number: int) -> None:
        count = await asyncio.to_thread(
            self._compute.hypervisor.signal, life.id, process, signal.Signals(number)
        )
        if not count:
            raise LookupError(f"no process matches {process!r}")

    async def _cut_off(self, life: Life, for_sec: float | None) -> None:
        """Takes the VM's network away, for so many seconds on the wall or for good."""
        life.cut_off = True
        if for_sec is not None:
            await asyncio.sleep(for_sec)
            await self._connect(life)

    async def _connect(self, life: Life) -> None:
        life.cut_off = False

    async def _create_late(self, after_sec: float, lives_sec: float | None) -> None:
        """A VM comes up that a group had begun to create before it was cancelled."""
        fleet = self._compute.fleet
        groups = [group for group in fleet.groups.values() if self._owns(group.name)]
        if not groups:
            raise LookupError("the target has no group")
        group = groups[-1]

        async def create() -> None:
            try:
                instance = fleet.late_create(group)
            except ModelError as error:  # what it was to be made from has gone, or there is no room
                self._note(None, "late-create", None, {"missed": str(error)})
                return
            self._compute.changed()
            if lives_sec is not None:
                await asyncio.sleep(self._cloud.clock.wall_sec(lives_sec))
                if instance.id in fleet.instances:
                    fleet.delete_instance(instance)
                    self._compute.changed()

        self._background.begin(_after(self._cloud.clock.wall_sec(after_sec), create()))

    def _owns(self, path: str) -> bool:
        """Whether a path of Compute is the target's."""
        return self._own.search(f"/{path}") is not None

    # -- the world -------------------------------------------------------------------------------

    def _begin(self, scenario: Scenario) -> None:
        """Second 0: the first try to create a VM of the target. It is asked in the middle of the
        fleet's work, so that nothing here may set that going again."""
        zero = self._zero = self._cloud.clock.now()
        world = scenario.world
        for zone, limits in world.zones.items():
            for window in limits.capacity:
                self._limit_zone(zone, window, zero)
        for quota in world.quota:
            self._limit_quota(quota, quota.to_sec, quota.from_sec)
        for trouble in world.operations:
            self._compute.operations.add(
                trouble.match,
                delay_sec=trouble.delay_sec,
                error=(trouble.error.code, trouble.error.message) if trouble.error else None,
                times=trouble.count or None,
                applies=self._owns,
            )
        if world.daily_preemption:
            self._background.begin(self._cut_daily(scenario))
        for pending in self._events:
            at_sec = pending.event.when.at_sec
            if at_sec is not None:
                self._background.begin(self._play_at(pending, at_sec))

    def _limit_zone(self, zone: str, window: Capacity, since: float) -> None:
        ends = math.inf if window.to_sec is None else since + window.to_sec
        self._compute.fleet.capacity.add_window(
            zone, window.vms, since + window.from_sec, ends, applies=self._means
        )

    def _limit_quota(self, quota: Any, to_sec: float | None, from_sec: float = 0.0) -> None:
        now = self._cloud.clock.now()
        ends = math.inf if to_sec is None else now + to_sec
        self._compute.fleet.capacity.limit(
            quota.metric, quota.limit, now + from_sec, ends, applies=self._means
        )

    async def _play_at(self, pending: _Pending, at_sec: float) -> None:
        await asyncio.sleep(self._cloud.clock.wall_sec(at_sec))
        pending.left = 0
        await self._play(pending, None)

    async def _cut_daily(self, scenario: Scenario) -> None:
        cut = scenario.world.daily_preemption
        assert cut is not None and self._zero is not None
        due = self._zero + cut.at_sec
        while True:
            clock = self._cloud.clock
            await asyncio.sleep(max(0.0, clock.wall_sec(due - clock.now())))
            due += cut.every_sec
            for life in self._living():
                self._note(None, "preempt", life, {"notice_sec": cut.notice_sec})
                await self._preempt(life, cut.notice_sec)

    async def _preempt(self, life: Life, notice_sec: float | None) -> None:
        life.notice = (notice_sec, None)
        with suppress(LookupError, ModelError):
            await self._compute.preempt(life.name)

    def _draw_death(self, scenario: Scenario, lifetimes: Lifetimes, life: Life) -> None:
        """Settles when and how this boot ends, and lets it happen."""
        drawn = death(scenario.seed, lifetimes, life.boot)
        if drawn is None:
            return
        age_sec, noticed = drawn

        async def die() -> None:
            if life.ended or (lifetimes.deaths and self._deaths >= lifetimes.deaths):
                return
            self._deaths += 1
            self._note(None, "preempt" if noticed else "kill", life, {"age_sec": age_sec})
            if noticed:
                await self._preempt(life, lifetimes.notice_sec)
            else:
                life.ended = True
                await self._compute.hypervisor.kill(life.id)

        self._background.begin(_after(self._cloud.clock.wall_sec(age_sec), die()))


VM_ACTIONS = frozenset(
    (
        *("kill", "preempt", "freeze", "thaw", "stop", "delete", "lost", "stays-stopping"),
        *("maintenance", "signal", "out-of-memory", "gpu-down", "network-down"),
    )
)
"""Actions that need a VM."""


class _Sight(Injection):
    """One request at which a moment is noticed; it ends with the VM, if that ends at it."""

    def __init__(
        self,
        cloud: "Cloud",
        moment: Moment,
        call: Call,
        app: ASGIApp,
        connection: tuple[Scope, Receive, Send],
        arrive: Callable[[], Coroutine[Any, Any, bool]],
    ) -> None:
        rule = Rule(id=moment.phase, when=moment.at, do=NOTHING)
        super().__init__(cloud, rule, call, app, *connection)
        self._arrive = arrive

    async def run(self) -> None:
        headers = Headers(scope=self._scope)
        empty = not int(headers.get("content-length") or 0) and "transfer-encoding" not in headers
        if self._rule.when == "mid-body" and empty:  # a question about an upload
            await self._app(self._scope, self._receive, self._send)
        else:
            await super().run()

    async def _inject(self) -> bool:
        self._injected = True
        refused = self._rule.when == "after" and not 200 <= self._status < 300
        if not refused and not await self._arrive():
            self._cut = True
            self._reset()
        return not self._cut


def death(seed: int, lifetimes: Lifetimes, boot: int) -> tuple[float, bool] | None:
    """(Age in seconds, whether with a notice) at which the nth boot ends; None: it does not."""
    draws = random.Random(f"{seed}/lifetime/{boot}")
    share, noticed = draws.random(), draws.random() < lifetimes.notice_share
    if lifetimes.ages_sec is not None:
        if boot > len(lifetimes.ages_sec):
            return None
        return lifetimes.ages_sec[boot - 1] * lifetimes.scale, noticed
    for weight, mean_sec in LIVES:
        if share < weight or mean_sec == LIVES[-1][1]:
            return draws.expovariate(1 / mean_sec) * lifetimes.scale, noticed
        share -= weight
    raise AssertionError("unreachable")


def _experiment(properties: Mapping[str, Any]) -> str:
    """The bucket prefix that a VM's metadata names."""
    items = (properties.get("metadata") or {}).get("items") or []
    return next((str(i.get("value") or "") for i in items if i["key"] == "outlast-prefix"), "")


def _at_boot(boots: list[int] | None, life: Life) -> bool:
    return boots is None or life.boot in boots


async def _after(wait_sec: float, work: Coroutine[Any, Any, None]) -> None:
    """Waits, then works; work that is never begun is closed."""
    try:
        await asyncio.sleep(wait_sec)
    except BaseException:
        work.close()
        raise
    await work
