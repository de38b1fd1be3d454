"""Computes what a resource that exists costs, from what Compute Engine's API says of it.

A kind that is free of charge has no items. A price that the list lacks is unknown.
"""

from collections.abc import Mapping
from typing import Any

from outlast.costs import pricing
from outlast.costs.pricing import Item, Sum

_STOPPED = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})

Body = Mapping[str, Any]


def of(kind: str, body: Body, disks: Mapping[str, Body]) -> Sum:
    """What it costs an hour, and each hour that it stays. `disks`: the project's, by their link."""
    if kind == "VM":
        return _vm(body, disks)
    if kind == "disk":
        return _disk(body)
    if kind == "image":
        return _image(body)
    if kind == "address":  # Unused ones have another price than those of VMs.
        return Sum((Item("reserved address", None),))
    if kind == "router" and body.get("nats"):
        return pricing.nat(0)
    return Sum()


def stored(size: int, location: str) -> Sum:
    """Bytes in a bucket."""
    rate = pricing.storage_gib_month(location)
    gib = size / 2**30
    hour = None if rate is None else gib * rate / pricing.HOURS_A_MONTH
    return Sum((Item(f"{gib:,.2f} GiB in a bucket", hour),))


def _vm(body: Body, disks: Mapping[str, Body]) -> Sum:
    zone = str(body.get("zone") or "")
    found = [disks.get(str(one.get("source") or "")) for one in body.get("disks") or ()]
    kept = [_disk(one) if one else Sum((Item("disk", None),)) for one in found]
    if body.get("status") in _STOPPED:
        return pricing.added(kept)
    template = {
        "machineType": body.get("machineType", ""),
        "scheduling": body.get("scheduling") or {},
        "networkInterfaces": body.get("networkInterfaces") or (),
        "guestAccelerators": [
            {"type": one.get("acceleratorType", ""), "count": one.get("acceleratorCount")}
            for one in body.get("guestAccelerators") or ()
        ],
    }
    return pricing.added([pricing.vm(template, zone), *kept])


def _image(body: Body) -> Sum:
    """What its archive takes, where it is kept; unknown for several regions."""
    gib = int(body.get("archiveSizeBytes") or 0) / 2**30
    rate = pricing.image_gib_month(str((body.get("storageLocations") or [""])[0]))
    hour = None if rate is None or not gib else gib * rate / pricing.HOURS_A_MONTH
    return Sum((Item(f"image of {gib:,.1f} GiB", hour),))


def _disk(body: Body) -> Sum:
    return pricing.disk(
        str(body.get("type") or ""), int(body.get("sizeGb") or 0), str(body.get("zone") or "")
    )
