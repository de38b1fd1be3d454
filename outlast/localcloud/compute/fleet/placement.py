"""Chooses the zone of a group's next VM, by the target shape of regional groups."""

from collections.abc import Callable, Mapping
from typing import Any

from outlast.localcloud.compute.fleet.model import Group, Member

HasRoom = Callable[[str, int], bool]
"""Whether a zone has room for a number of additional VMs."""


def choose_zone(group: Group, member: Member, has_room: HasRoom) -> str:
    """The zone for a member without a VM; the member itself is not counted.

    EVEN keeps to the most even zone, even if it has no room. BALANCED is as even as the room
    allows. ANY takes the first zone with room. ANY_SINGLE_ZONE takes one zone for the whole
    group."""
    zones = group.zones
    if len(zones) == 1:
        return zones[0]
    others = group.spread.copy()
    if not member.leaving and member.name in group.members:
        others[member.zone] -= 1
    by_count = sorted(zones, key=lambda zone: others[zone])  # stable: in the order of the zones
    if group.shape == "EVEN":
        return by_count[0]
    if group.shape == "ANY_SINGLE_ZONE":
        settled = next(
            (m.zone for m in group.members.values() if m is not member and m.instance), ""
        )
        if settled:
            return settled
        whole = [zone for zone in zones if has_room(zone, group.target_size)]
        return (whole or [zone for zone in zones if has_room(zone, 1)] or zones)[0]
    order = by_count if group.shape == "BALANCED" else zones
    return next((zone for zone in order if has_room(zone, 1)), order[0])


def ranked_types(body: Mapping[str, Any]) -> list[str]:
    """The machine types of a group's flexibility policy, the lowest rank first; empty without
    one."""
    policy = body.get("instanceFlexibilityPolicy") or {}
    selections = (policy.get("instanceSelections") or {}).values()
    ordered = sorted(selections, key=lambda selection: int(selection.get("rank") or 0))
    return [name for selection in ordered for name in selection.get("machineTypes") or []]


def may_move(group: Group, member: Member) -> bool:
    """Whether a member without a VM may have its next one in another zone."""
    if not group.regional or group.shape == "EVEN":
        return False
    if not member.repaired:  # it never had one, or gets one by a rolling update
        return member.instance is None and not member.replace
    on_repair = (group.body.get("instanceLifecyclePolicy") or {}).get("onRepair") or {}
    return on_repair.get("allowChangingZone") == "YES"


def crowded_zone(group: Group, has_room: HasRoom) -> str | None:
    """The zone from which an evenly spread group should move a VM; None if it is even enough."""
    kind = group.policy("updatePolicy", "instanceRedistributionType", "PROACTIVE")
    if not group.regional or group.shape != "EVEN" or kind != "PROACTIVE":
        return None
    fullest = max(group.zones, key=lambda zone: group.spread[zone])
    emptiest = min(group.zones, key=lambda zone: group.spread[zone])
    if group.spread[fullest] - group.spread[emptiest] < 2 or not has_room(emptiest, 1):
        return None
    return fullest
