"""VMs: the effects of calls, of their machines' reports, and of time."""

from typing import Any

from outlast.localcloud.compute.fleet.inventory import Inventory
from outlast.localcloud.compute.fleet.manager import Manager
from outlast.localcloud.compute.fleet.model import (
    Announce,
    Exists,
    Fault,
    Group,
    Instance,
    Kill,
    NotFound,
    Preempt,
    SetMetadata,
    duration_sec,
    not_ready,
    template_path,
)


class Vms:
    """The VMs of the project, with or without a group."""

    def __init__(self, inventory: Inventory, manager: Manager) -> None:
        self._inventory = inventory
        self._manager = manager

    # Calls

    def instance(self, zone: str, name: str) -> Instance:
        """The VM of this name in a zone; raises NotFound."""
        found = self._inventory.named(zone, name)
        if found is None:
            raise NotFound(f"zones/{zone}/instances/{name}")
        return found

    def in_zone(self, zone: str) -> list[Instance]:
        """The VMs of a zone."""
        return [i for i in self._inventory.instances.values() if i.zone == zone]

    def add_instance(self, zone: str, name: str, properties: dict[str, Any]) -> Instance:
        """Adds a VM without a group; raises Exists if the name is taken."""
        if self._inventory.named(zone, name):
            raise Exists(f"zones/{zone}/instances/{name}")
        return self._inventory.add_instance(name, zone, properties)

    def late_create(self, group: Group, name: str = "", zone: str = "") -> Instance:
        """Adds a VM of the group's main version whose creation was cancelled too late: it boots and
        names its group, but is not a member. The group may be deleted already. Raises NotFound and
        Exists."""
        template = self._inventory.templates.get(group.main["template"])
        if template is None:
            raise NotFound(template_path(group.main["template"]))
        properties = self._manager.creation.properties(group, template)
        return self.add_instance(
            zone or group.zones[0], name or self._manager.creation.new_name(group), properties
        )

    def start_instance(self, instance: Instance) -> None:
        """Boots a stopped VM on its own disk, as `instances.start` does."""
        if instance.status != "TERMINATED":
            raise not_ready(f"zones/{instance.zone}/instances/{instance.name}")
        instance.preempting = instance.limited = False
        self._inventory.start(instance, new_disk=False)

    def stop_instance(self, instance: Instance) -> None:
        """Stops a VM, as `instances.stop` does; its group recreates it."""
        if instance.live:
            self._inventory.stop(instance)

    def delete_instance(self, instance: Instance) -> None:
        """Deletes a VM, as `instances.delete` does; its group does not know the intent and
        recreates it."""
        if instance.live:
            instance.discard = True
            self._inventory.stop(instance)
            self._inventory.keep("instances", instance.id)
        else:
            self._inventory.remove(instance)

    def reset_instance(self, instance: Instance) -> None:
        """Kills a VM and boots it again on its own disk."""
        if instance.status != "RUNNING":
            raise not_ready(f"zones/{instance.zone}/instances/{instance.name}")
        instance.restart = True
        self._inventory.commands.append(Kill(instance.id))

    def preempt_instance(self, instance: Instance) -> None:
        """Starts a preemption; does nothing if one has started or the VM is stopping."""
        if instance.status in ("PROVISIONING", "STAGING", "RUNNING") and not instance.preempting:
            instance.preempting = True
            self._inventory.commands.append(Preempt(instance.id))
            self._inventory.keep("instances", instance.id)

    def maintain_instance(self, instance: Instance, notice_sec: float | None = None) -> None:
        """Announces the maintenance of a VM's host. A Spot VM is preempted. Any other is migrated
        without an interruption or, after the notice, stopped and, with automaticRestart, booted
        again."""
        if instance.spot:
            self.preempt_instance(instance)
            return
        if instance.status != "RUNNING":
            raise not_ready(f"zones/{instance.zone}/instances/{instance.name}")
        if notice_sec is None:
            gpus = bool(instance.properties.get("guestAccelerators"))
            switches = self._inventory.switches
            notice_sec = (
                switches.maintenance_notice_gpu_sec if gpus else switches.maintenance_notice_sec
            )
        instance.maintenance_at = self._inventory.clock.now() + notice_sec
        policy = instance.scheduling.get("onHostMaintenance") or "MIGRATE"
        self._inventory.commands.append(Announce(instance.id, f"{policy}_ON_HOST_MAINTENANCE"))
        self._inventory.keep("instances", instance.id)
        self._inventory.at(instance.maintenance_at, "instance", instance.id)

    def hold_stopping(self, instance: Instance, hold_sec: float) -> None:
        """Shows the VM as STOPPING for `hold_sec` after its end, so that the end is noticed
        late."""
        instance.hold_sec = hold_sec
        self._inventory.keep("instances", instance.id)

    def change_instance(self, instance: Instance, **changes: Any) -> None:
        """Changes properties of a VM, at once or from its next boot."""
        instance.properties = {**instance.properties, **changes}
        instance.fingerprint += 1
        self._inventory.keep("instances", instance.id)

    def set_metadata(self, instance: Instance, items: list[dict[str, Any]]) -> None:
        """Replaces the VM's attributes; its metadata server shows them at once."""
        instance.properties["metadata"] = {"items": items}
        instance.fingerprint += 1
        self._inventory.commands.append(SetMetadata(instance.id))
        self._inventory.keep("instances", instance.id)

    # Events of the machines, by the VM's id; an unknown id is ignored.

    def running(self, instance_id: str) -> None:
        """Notes that the VM's system has started."""
        instance = self._inventory.instances.get(instance_id)
        if instance and instance.status in ("PROVISIONING", "STAGING"):
            instance.status = "RUNNING"
            instance.started = self._inventory.clock.now()
            limit_sec = duration_sec(instance.scheduling.get("maxRunDuration"))
            if limit_sec:
                instance.deadline = instance.started + limit_sec
                self._inventory.at(instance.deadline, "instance", instance.id)
            self._inventory.keep("instances", instance.id)
            self._manager.health.came_up(instance)

    def stopping(self, instance_id: str) -> None:
        """Notes that the VM's system is shutting down, for any reason."""
        instance = self._inventory.instances.get(instance_id)
        if instance and instance.live:
            instance.status = "STOPPING"
            instance.going_down = True
            self._inventory.keep("instances", instance.id)

    def exited(self, instance_id: str, fault: Fault | None = None) -> None:
        """Notes that the VM's process has ended; `fault` if it never had one."""
        instance = self._inventory.instances.get(instance_id)
        if instance is None or not instance.live or instance.held_until is not None:
            return
        hold_sec = instance.hold_sec or self._inventory.switches.stays_stopping_sec
        if hold_sec > 0 and instance.started is not None and not instance.restart:
            instance.status = "STOPPING"
            instance.held_until = self._inventory.clock.now() + hold_sec
            self._inventory.keep("instances", instance.id)
            self._inventory.at(instance.held_until, "instance", instance.id)
            return
        self.end(instance, fault)

    def probed(self, instance_id: str, healthy: bool) -> None:
        """Notes the result of a VM's probe."""
        if instance := self._inventory.instances.get(instance_id):
            self._manager.health.probed(instance, healthy)

    def lose(self, instance: Instance) -> None:
        """Treats the VM as lost, whatever its process does: its group recreates it at once, with
        its name and address, and the old one's events are ignored."""
        if instance.live:
            self._inventory.lose(instance)
            self.end(instance, None, deletes_disk=True)

    # Time

    def look_at(self, instance: Instance) -> None:
        """Handles a VM's timer: its limit, its host's maintenance, or its visible end."""
        now = self._inventory.clock.now()
        if instance.held_until is not None:
            if instance.held_until <= now:
                self.end(instance, None)
            return
        if not instance.live:
            return
        if instance.deadline is not None and instance.deadline <= now and not instance.limited:
            instance.limited = True
            if found := self._inventory.owner(instance):
                found[1].limited = True
                self._inventory.keep_member(*found)
            self._inventory.keep("instances", instance.id)
            self._inventory.stop(instance)
        elif instance.maintenance_at is not None and instance.maintenance_at <= now:
            if instance.scheduling.get("onHostMaintenance") != "TERMINATE":
                self._maintained(instance)
            elif not instance.stop_requested:
                self._inventory.stop(instance)
                instance.restart = self._restarts(instance)

    def _maintained(self, instance: Instance) -> None:
        instance.maintenance_at = None
        self._inventory.commands.append(Announce(instance.id, "NONE"))
        self._inventory.keep("instances", instance.id)

    def _restarts(self, instance: Instance) -> bool:
        """Whether the platform boots a VM again after the loss of its host."""
        asked = bool(instance.scheduling.get("automaticRestart"))
        return asked and self._inventory.switches.automatic_restart and not instance.spot

    def end(self, instance: Instance, fault: Fault | None, *, deletes_disk: bool = False) -> None:
        """Ends a VM; `deletes_disk`: its disk is lost too."""
        lost = not (instance.stop_requested or instance.going_down or instance.preempting)
        if lost and instance.started is not None and not deletes_disk and self._restarts(instance):
            instance.restart = True
        instance.status = "TERMINATED"
        instance.stopped = self._inventory.clock.now()
        instance.held_until = None
        instance.hold_sec = 0.0
        self._inventory.capacity.release(instance)
        self._inventory.keep("instances", instance.id)
        found = self._inventory.owner(instance)
        if found and instance.started is None and not found[1].leaving:
            fault = fault or Fault("INTERNAL_ERROR", "The instance stopped before it had started.")
            self._manager.creation.note(*found, fault)
        self._inventory.wake_owner(instance)
        ends_deleted = instance.scheduling.get("instanceTerminationAction") == "DELETE"
        if instance.restart and not instance.discard:
            instance.restart = False
            self._inventory.start(instance, new_disk=False)
            if instance.maintenance_at is not None:
                self._maintained(instance)
        elif instance.discard or (ends_deleted and (instance.preempting or instance.limited)):
            self._inventory.remove(instance)
