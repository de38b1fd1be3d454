"""The room of zones and the quotas: checked when a VM is created, never later."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.localcloud.base.clock import Clock
from outlast.localcloud.compute.catalogue import machine_type, region_of
from outlast.localcloud.compute.fleet.model import (
    Fault,
    Instance,
    duration_sec,
    is_spot,
)

# GPUs that machine types include: the model in the metric's name, and how many.
ATTACHED_GPUS = {
    "a2-highgpu-1g": ("NVIDIA_A100", 1),
    **{f"g2-standard-{cpus}": ("NVIDIA_L4", 1) for cpus in (4, 8, 12, 16, 32)},
    "g2-standard-24": ("NVIDIA_L4", 2),
    "g2-standard-48": ("NVIDIA_L4", 4),
    "g2-standard-96": ("NVIDIA_L4", 8),
}
VMS = "VMS"
"""Not a quota's metric: the VMs that a zone has room for."""
ALL_REGIONS = ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS")
LONGEST_PREEMPTIBLE_SEC = 7 * 86400


Applies = Callable[[Mapping[str, Any]], bool]
"""Whether a limit applies to VMs of these properties."""


def everything(properties: Mapping[str, Any]) -> bool:
    """The `Applies` of a limit for all VMs."""
    return True


@dataclass(frozen=True)
class Limit:
    """How much of a metric may be used, for a time, in a zone, in each region or in all regions."""

    metric: str
    limit: float
    place: str
    """Name of a zone or region. Empty: each region, or all together for a metric over all
    regions."""
    from_at: float
    to_at: float
    applies: Applies

    def binds(self, properties: Mapping[str, Any], now: float) -> bool:
        """Whether the limit applies now to a VM of these properties."""
        return self.from_at <= now < self.to_at and self.applies(properties)


@dataclass(frozen=True)
class _Use:
    zone: str
    properties: Mapping[str, Any]
    metrics: Counter[str]


class Capacity:
    """The room of zones, the quotas, and their use."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: list[Limit] = []
        self._quotas: list[Limit] = []
        self._uses: dict[str, _Use] = {}
        self._sums: Counter[tuple[str, str]] = Counter()
        """By place and metric: a zone's VMs, a region's use, and the use over all regions."""

    def add_window(
        self,
        zone: str,
        vms: int,
        from_at: float = -math.inf,
        to_at: float = math.inf,
        applies: Applies = everything,
    ) -> None:
        """Limits a zone to `vms` VMs between two times; VMs that exist count."""
        self._windows.append(Limit(VMS, vms, zone, from_at, to_at, applies))

    def limit(
        self,
        metric: str,
        limit: float,
        from_at: float = -math.inf,
        to_at: float = math.inf,
        applies: Applies = everything,
        region: str = "",
    ) -> None:
        """Sets a quota; metrics without one are unlimited."""
        self._quotas.append(Limit(metric, limit, region, from_at, to_at, applies))

    def clear(self, applies: Applies | None = None) -> None:
        """Removes the windows and quotas that were added with `applies`; all if it is None."""
        for limits in (self._windows, self._quotas):
            limits[:] = [one for one in limits if applies is not None and one.applies != applies]

    def has_room(self, zone: str, properties: Mapping[str, Any], count: int = 1) -> bool:
        """Whether the zone has room for `count` more VMs of these properties now."""
        now = self._clock.now()
        return all(
            self._used(window, zone) + count <= window.limit
            for window in self._windows
            if window.place == zone and window.binds(properties, now)
        )

    def refuse(self, properties: Mapping[str, Any], zone: str) -> Fault | None:
        """The reason that a VM of these properties cannot be created in the zone now; None if it
        can."""
        region = region_of(zone)
        now = self._clock.now()
        wanted = metrics_of(properties) if self._quotas else Counter()
        for quota in self._quotas:
            if quota.place not in ("", region) or not quota.binds(properties, now):
                continue
            place = _place(quota.metric, region)
            if wanted[quota.metric] and (
                self._used(quota, place) + wanted[quota.metric] > quota.limit
            ):
                where = f"in region {region}" if place else "globally"
                return Fault(
                    "QUOTA_EXCEEDED",
                    f"Quota '{quota.metric}' exceeded. Limit: {float(quota.limit)} {where}.",
                )
        return None if self.has_room(zone, properties) else exhausted(zone)

    def used(self, zone: str) -> int:
        """The number of VMs that take room in a zone."""
        return self._sums[zone, VMS]

    def charge(self, instance: Instance) -> None:
        """Counts the resources of a VM that has, or will have, a process."""
        if instance.id not in self._uses:
            metrics = metrics_of(instance.properties)
            use = self._uses[instance.id] = _Use(instance.zone, instance.properties, metrics)
            self._count(use, 1)

    def release(self, instance: Instance) -> None:
        """Stops counting the resources of a VM that has stopped or was deleted."""
        if use := self._uses.pop(instance.id, None):
            self._count(use, -1)

    def quotas(self, region: str) -> list[dict[str, Any]]:
        """A region's quotas as the API's JSON; the project's own for an empty name."""
        now = self._clock.now()
        return [
            {
                "metric": quota.metric,
                "limit": float(quota.limit),
                "usage": float(self._used(quota, region)),
            }
            for quota in self._quotas
            if _place(quota.metric, region) == region
            and quota.place in ("", region)
            and quota.from_at <= now < quota.to_at
        ]

    def _used(self, limit: Limit, place: str) -> int:
        if limit.applies is everything:
            return self._sums[place, limit.metric]
        return sum(
            use.metrics[limit.metric]
            for use in self._uses.values()
            if place in ("", use.zone, region_of(use.zone)) and limit.applies(use.properties)
        )

    def _count(self, use: _Use, by: int) -> None:
        for metric, amount in use.metrics.items():
            place = use.zone if metric == VMS else _place(metric, region_of(use.zone))
            self._sums[place, metric] += by * amount


def exhausted(zone: str) -> Fault:
    """The platform's error for a zone without room."""
    return Fault(
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        f"The zone '{zone}' does not have enough resources available to fulfill the request.",
    )


def metrics_of(properties: Mapping[str, Any]) -> Counter[str]:
    """The amount of each metric that a VM uses. Spot VMs use the preemptible quotas. So do the GPUs
    of short standard VMs that are deleted at their limit."""
    scheduling = properties.get("scheduling") or {}
    limit_sec = duration_sec(scheduling.get("maxRunDuration"))
    short = (
        0 < limit_sec <= LONGEST_PREEMPTIBLE_SEC
        and scheduling.get("instanceTerminationAction") == "DELETE"
    )
    prefix = "PREEMPTIBLE_" if is_spot(scheduling) else ""
    gpu_prefix = "PREEMPTIBLE_" if prefix or short else ""
    used = Counter({VMS: 1, "INSTANCES": 1})
    name = str(properties.get("machineType"))
    if known := machine_type(name):
        used[f"{prefix}CPUS"] += known.cpus
        used["CPUS_ALL_REGIONS"] += known.cpus
    for model, count in gpus_of(properties):
        if count:
            used[f"{gpu_prefix}{model}_GPUS"] += count
            used["GPUS_ALL_REGIONS"] += count
    return used


def gpus_of(properties: Mapping[str, Any]) -> list[tuple[str, int]]:
    """A VM's GPUs, attached or included in its machine type: the model in the metric's name, and
    how many."""
    attached = [
        (_metric(str(a.get("acceleratorType"))), int(a.get("acceleratorCount") or 0))
        for a in properties.get("guestAccelerators") or []
    ]
    return attached or [ATTACHED_GPUS.get(str(properties.get("machineType")), ("", 0))]


def _metric(accelerator: str) -> str:
    """`NVIDIA_T4` of `nvidia-tesla-t4`."""
    return accelerator.upper().replace("-TESLA-", "-").replace("-", "_")


def _place(metric: str, region: str) -> str:
    return "" if metric in ALL_REGIONS else region
