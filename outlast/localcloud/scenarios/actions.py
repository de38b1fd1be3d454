"""The actions of a scenario's events."""

import asyncio
import math
import signal
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from outlast.localcloud.base.background import Background
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.compute.fleet.model import Instance, ModelError
from outlast.localcloud.compute.platform import Platform
from outlast.localcloud.compute.service import Compute
from outlast.localcloud.faults.rules import FaultRule
from outlast.localcloud.scenarios.lives import Life, Lives
from outlast.localcloud.scenarios.played import Played
from outlast.localcloud.scenarios.scenario import Capacity, Do

ANY_VM = "any"
"""Value of `match.vm` in an event's fault for any sender."""
VM_ACTIONS = frozenset(
    (
        *("kill", "preempt", "freeze", "thaw", "stop", "delete", "lost", "stays-stopping"),
        *("maintenance", "signal", "out-of-memory", "gpu-down", "network-down"),
    )
)
"""Actions that need a VM."""


async def after(wait_sec: float, work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work after a delay in seconds; closes it if it is never started."""
    try:
        await asyncio.sleep(wait_sec)
    except BaseException:
        work.close()
        raise
    await work


class EventActions:
    """Carries out the actions of events."""

    def __init__(self, cloud: Cloud, lives: Lives, played: Played, background: Background) -> None:
        self._cloud = cloud
        self._lives = lives
        self._played = played
        self._background = background
        self.rules: list[str] = []
        """Ids of the fault rules that were added."""

    @property
    def platform(self) -> Platform:
        """The platform behind Compute Engine."""
        return cast("Compute", self._cloud.machines).platform

    async def act(self, do: Do, life: Life | None) -> None:
        """Carries out an action. Raises LookupError and ModelError if that is impossible."""
        platform, options = self.platform, do.options
        match do.action:
            case "capacity":
                window = Capacity(vms=options.vms, to_sec=options.for_sec)
                self.limit_zone(options.zone, window, self._cloud.clock.now())
                platform.changed()
            case "quota":
                self.limit_quota(options, options.for_sec)
                platform.changed()
            case "new-image":
                self._offer_image(options.family)
            case "late-create":
                self._create_late(options.after_sec, options.lives_sec)
            case "fault":
                sender = options.match.vm or (life.name if life else None)
                vm = None if sender == ANY_VM else sender
                match = options.match.model_copy(update={"vm": vm})
                self.add_rule(options.model_copy(update={"match": match}))
            case "thaw" if options.boot is not None or options.attempt is not None:
                await platform.hypervisor.thaw(self._lives.named(options.boot, options.attempt).id)
            case _:
                assert life is not None
                await self._act_on_vm(do, life)

    async def _act_on_vm(self, do: Do, life: Life) -> None:
        platform, options = self.platform, do.options
        instance = platform.fleet.instances.get(life.id)
        if instance is None or life.ended:
            raise LookupError("the VM has ended")
        match do.action:
            case "kill":
                life.ended = True
                await platform.hypervisor.kill(life.id)
            case "preempt":
                life.notice = (options.notice_sec, options.grace_sec)
                await self._cloud.machines.preempt(life.name)
            case "freeze":
                await platform.hypervisor.freeze(life.id)
                if options.for_sec is not None:
                    self._later(options.for_sec, platform.hypervisor.thaw(life.id))
            case "thaw":
                await platform.hypervisor.thaw(life.id)
            case "stop":
                platform.fleet.vms.stop_instance(instance)
            case "delete":
                platform.fleet.vms.delete_instance(instance)
            case "lost":
                await self._lose(instance, options.frozen, options.frozen_sec, options.lives_sec)
            case "stays-stopping":
                platform.fleet.vms.hold_stopping(instance, options.for_sec)
                platform.fleet.vms.stop_instance(instance)
            case "maintenance":
                platform.fleet.vms.maintain_instance(instance, options.notice_sec)
            case "signal":
                number = signal.Signals[f"SIG{options.signal}"]
                await self._signal(life, options.process, number)
            case "out-of-memory":
                if not await platform.hypervisor.out_of_memory(life.id):
                    raise LookupError("the VM runs nothing")
            case "gpu-down":
                await self._signal(life, options.process, signal.SIGABRT)
            case "network-down":
                await self.cut_off(life)
                if options.for_sec is not None:
                    self._later(options.for_sec, self._connect(life))
        platform.changed()

    def _later(self, wait_sec: float, work: Coroutine[Any, Any, None]) -> None:
        self._background.begin(after(wait_sec, work))

    # For the world, too

    def add_rule(self, rule: FaultRule) -> None:
        """Adds a fault rule for the target's requests."""
        document = rule.model_dump(exclude_none=True)
        self.rules.append(self._cloud.faults.add(document, self._lives.hits))

    def limit_zone(self, zone: str, window: Capacity, since: float) -> None:
        """Limits the number of the target's VMs in a zone, for a time."""
        ends = math.inf if window.to_sec is None else since + window.to_sec
        self.platform.fleet.capacity.add_window(
            zone, window.vms, since + window.from_sec, ends, applies=self._lives.means
        )

    def limit_quota(self, quota: Any, to_sec: float | None, from_sec: float = 0.0) -> None:
        """Sets a quota for the target's VMs, for a time from now on."""
        now = self._cloud.clock.now()
        ends = math.inf if to_sec is None else now + to_sec
        self.platform.fleet.capacity.limit(
            quota.metric, quota.limit, now + from_sec, ends, applies=self._lives.means
        )

    async def preempt(self, life: Life, notice_sec: float | None) -> None:
        """Preempts a VM; does nothing if it no longer exists."""
        life.notice = (notice_sec, None)
        with suppress(LookupError, ModelError):
            await self._cloud.machines.preempt(life.name)

    async def cut_off(self, life: Life, for_sec: float | None = None) -> None:
        """Cuts off the VM's network, for a number of real seconds or permanently."""
        life.cut_off = True
        if for_sec is not None:
            await asyncio.sleep(for_sec)
            await self._connect(life)

    def lose_part(self, wait_sec: float, life: Life, do: str, process: str) -> None:
        """Takes the network, or the GPU of a process, from a stopping VM after a delay in
        seconds."""

        async def lose() -> None:
            self._played.note(None, do, life, {})
            with suppress(LookupError):
                if process:
                    await self._signal(life, process, signal.SIGABRT)
                else:
                    await self.cut_off(life)

        self._later(wait_sec, lose())

    # Single actions

    def _offer_image(self, family: str) -> None:
        """Adds a newer image with the same content to a family of the project."""
        catalogue = self.platform.catalogue
        newest = catalogue.image(f"global/images/family/{family}")
        if newest is None:
            raise LookupError(f"family {family}: has no image")
        number = sum(image.family == family for image in catalogue.images) + 1
        catalogue.offer(replace(newest, name=f"{family}-local-{number}"))

    async def _lose(
        self, instance: Instance, frozen: bool, frozen_sec: float, lives_sec: float | None
    ) -> None:
        """Makes the platform treat the VM as lost, although its processes keep running."""
        hypervisor = self.platform.hypervisor
        if frozen or frozen_sec:
            await hypervisor.freeze(instance.id)
        await hypervisor.withdraw_address(instance.id)
        if frozen_sec:
            self._later(frozen_sec, hypervisor.thaw(instance.id))
        if lives_sec is not None:
            self._later(lives_sec, hypervisor.kill(instance.id))
        self.platform.fleet.vms.lose(instance)

    async def _signal(self, life: Life, process: str, number: int) -> None:
        count = await asyncio.to_thread(
            self.platform.hypervisor.signal, life.id, process, signal.Signals(number)
        )
        if not count:
            raise LookupError(f"no process matches {process!r}")

    async def _connect(self, life: Life) -> None:
        life.cut_off = False

    def _create_late(self, after_sec: float, lives_sec: float | None) -> None:
        """Boots a VM whose creation by a group was cancelled too late."""
        fleet = self.platform.fleet
        groups = [group for group in fleet.groups.values() if self._lives.owns(group.name)]
        if not groups:
            raise LookupError("the target has no group")
        group = groups[-1]

        async def create() -> None:
            try:
                instance = fleet.vms.late_create(group)
            except ModelError as error:  # its template no longer exists, or there is no room
                self._played.note(None, "late-create", None, {"missed": str(error)})
                return
            self.platform.changed()
            if lives_sec is not None:
                await asyncio.sleep(self._cloud.clock.wall_sec(lives_sec))
                if instance.id in fleet.instances:
                    fleet.vms.delete_instance(instance)
                    self.platform.changed()

        self._later(self._cloud.clock.wall_sec(after_sec), create())
