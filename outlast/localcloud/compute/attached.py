"""Attaches and detaches disks: how `attachDisk` and `detachDisk` change a VM's list of disks.

Guests see no bytes of an attached disk, as of any declared disk."""

from collections.abc import Iterable, Mapping
from typing import Any

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.compute import rules

Disk = dict[str, Any]

NOT_THERE = {
    "boot": "boots no VM from a disk that was attached to it",
    "autoDelete": "deletes no attached disk with its VM",
}
"""Fields of an `attachDisk` body that the local cloud does not support, each with the reason."""


def attached(disks: list[Disk], body: Mapping[str, Any], source: str) -> list[Disk]:
    """A VM's disks with the one of an `attachDisk` body added. `source` is its link. Raises
    ApiError."""
    if body.get("initializeParams"):
        raise rules.invalid(
            "initializeParams", "", "It is not possible to create and attach a disk at once."
        )
    for name, what in NOT_THERE.items():
        if body.get(name):
            raise ApiError(501, f"{name}: the local cloud {what}; leave it out.")
    index = 1 + max((int(disk["index"]) for disk in disks), default=-1)
    disk = {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": "READ_WRITE",
        "deviceName": f"persistent-disk-{index}",
        "autoDelete": False,
        "boot": False,
        **{key: value for key, value in body.items() if value not in (None, "", {})},
        "index": index,
        "source": source,
    }
    if disk["deviceName"] in [other["deviceName"] for other in disks]:
        raise rules.invalid(
            "deviceName", disk["deviceName"], "Another disk of the VM has this device name."
        )
    return [*disks, disk]


def detached(disks: list[Disk], device: str) -> list[Disk]:
    """A VM's disks without the one of a device name. Raises ApiError."""
    found = next((disk for disk in disks if disk["deviceName"] == device), None)
    if found is None:
        raise rules.invalid(
            "deviceName", device, f"No attached disk found with device name '{device}'."
        )
    if "source" not in found:
        raise ApiError(
            501,
            f"deviceName {device}: the local cloud detaches disks that were attached, and this "
            "one was made with the VM.",
        )
    return [disk for disk in disks if disk is not found]


def check_free(path: str, mode: str, users: Iterable[tuple[str, Disk]]) -> None:
    """Raises ApiError if the disk at `path` is attached to a VM and not read-only on both sides.
    `users`: the paths of its VMs, and how each has attached it."""
    for user, disk in users:
        if mode != "READ_ONLY" or disk["mode"] != "READ_ONLY":
            raise ApiError(
                400,
                f"The disk resource '{path}' is already being used by '{user}'",
                "resourceInUseByAnotherResource",
            )
