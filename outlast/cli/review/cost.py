"""Computes what a stack costs before and after a plan, by list prices. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outlast.bucket.head import Head
from outlast.cli.review import rules
from outlast.cli.review.outcomes import Look
from outlast.cli.review.plan import BAKE, BUCKET, GROUPS, NAT, TEMPLATES, Pin, Step
from outlast.cloud.recipe import DISK_TYPE, image_name
from outlast.costs import pricing

DROPS_A_DAY = 144
"""Assumed rate of checkpoints that retention drops, for prices: one every ten minutes."""
GIB = 2**30
Sizes = tuple[int, ...]
"""Bytes of each checkpoint that a run keeps, the newest last."""


@dataclass(frozen=True)
class StackCost:
    """The cost of a stack before or after."""

    sum: pricing.Sum
    hours: float
    """Hours that it may still run."""
    until: str
    most: pricing.Sum
    """`sum` with the most expensive machine type that the group may choose."""

    @property
    def an_hour(self) -> str:
        return self.sum.said() if self.sum.items else "nothing"

    @property
    def at_the_limit(self) -> str:
        if not self.sum.items:
            return "nothing"
        return f"{self.most.said(self.hours)} ({self.hours:.1f} h, {self.until})"

    def as_json(self) -> dict[str, Any]:
        return {
            "hour": round(self.sum.hour, 6),
            "limit": round(self.most.hour * self.hours, 4),
            "hours": round(self.hours, 2),
            "unknown": list(self.sum.unknown),
            "items": [{"what": item.what, "hour": item.hour} for item in self.sum.items],
        }


def of_side(
    resources: Mapping[str, Mapping[str, Any]],
    pin: Pin | None,
    looks: Mapping[str, Look],
    now: datetime,
    *,
    restarts: bool = False,
) -> StackCost:
    template = next((resources[kind] for kind in TEMPLATES if kind in resources), None)
    group = next((resources[kind] for kind in GROUPS if kind in resources), {})
    if template is None or pin is None:
        return StackCost(pricing.Sum(), 0.0, "", pricing.Sum())
    zone = _zone(group, pin)
    others = [pricing.nat()] if NAT in resources else []
    total = pricing.added([pricing.vm(template, zone), *others])
    most = pricing.added([pricing.dearest(_choices(template, resources), zone), *others])
    head = looks.get(pin.run)
    deadline = pin.deadline
    if restarts and isinstance(head, Head) and head.resume == pin.resume:
        deadline = min(head.deadline, now + timedelta(minutes=pin.limit_minutes))
    elif restarts:
        deadline = None
    if deadline is None:
        return StackCost(total, pin.limit_minutes / 60, "its whole limit", most)
    left = max((deadline - now).total_seconds() / 3600, 0.0)
    return StackCost(total, left, f"until {deadline:%Y-%m-%d %H:%M} UTC", most)


def _choices(
    template: Mapping[str, Any], resources: Mapping[str, Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The template with each machine type that its group may choose."""
    pack = rules.load()
    known = [pack.Resource(kind, "", inputs) for kind, inputs in resources.items()]
    own = pack.Resource(pack.TEMPLATES[0], "", template)
    return [one.inputs for one in pack.choices(own, known)]


def _zone(group: Mapping[str, Any], pin: Pin) -> str:
    """A zone of the group; any zone of a regional one, because prices depend on the region."""
    if group.get("zone"):
        return str(group["zone"])
    return f"{group['region']}-a" if group.get("region") else pin.zone


def of_bakes(steps: Sequence[Step]) -> Iterator[str]:
    """The cost of the builders of images to bake, if each runs to its limit."""
    for step in steps:
        if step.type != BAKE or step.op not in ("create", "replace", "update"):
            continue
        if step.old.get("image") and step.old.get("hash") == step.new["hash"]:
            yield (
                f"image {image_name(step.new['recipe']['family'], step.new['hash'])} exists, and"
                " nothing is baked: leftovers of a killed bake are deleted"
            )
            continue
        recipe, minutes = step.new["recipe"], int(step.new["recipe"]["limit_minutes"])
        disk = {"diskType": DISK_TYPE, "diskSizeGb": int(recipe["disk_gb"])}
        interface = {"accessConfigs": [{}] if step.new.get("external_ip") else []}
        builder = {
            "machineType": recipe["machine_type"],
            "disks": [disk],
            "networkInterfaces": [interface],
        }
        cost = pricing.vm(builder, recipe["zone"])
        most = "" if cost.unknown else "at most "
        yield (
            f"image {image_name(recipe['family'], step.new['hash'])} is baked once: its builder"
            f" ({', '.join(item.what for item in cost.items)}) costs"
            f" {most}{cost.said(minutes / 60)}, by its limit of {minutes} minutes"
        )


def of_storage(news: Sequence[Step], sizes: Sizes, run: str) -> list[str]:
    """The cost of the bucket; `sizes` are those of the checkpoints of `run`."""
    lines = []
    group = next((step.new for step in news if step.type in GROUPS), {})
    region = str(group.get("region") or pricing.region_of(str(group.get("zone", ""))))
    # An adopted bucket has two steps: import and update.
    for step in {step.name: step for step in news if step.type == BUCKET}.values():
        # An adopted bucket stays where it is, whatever is declared.
        location = str(step.old.get("location") or step.new.get("location", "")).lower()
        rate = pricing.storage_gib_month(location)
        price = "unknown" if rate is None else pricing.dollars(rate)
        lines.append(
            f"bucket {step.new.get('name', step.name)} ({location}): {price} a GiB and month"
        )
        lines.append(_checkpoints(sizes, run, rate))
        soft = step.new.get("softDeletePolicy") or {}
        days = float(soft.get("retentionDurationSeconds") or 0) / 86_400
        if days:
            part = "an unknown price" if rate is None else pricing.dollars(rate * days * 24 / 730)
            lines.append(
                f"soft delete: every GiB that retention drops is billed for {days:g} more days,"
                f" {part} each{_dropped(sizes, rate, days, 'held at a time')}"
            )
        if (step.new.get("versioning") or {}).get("enabled"):
            lines.append(
                "versions: overwritten or dropped objects are billed until someone deletes them,"
                f" {price} a GiB and month{_dropped(sizes, rate, 1, 'more with each day')}"
            )
        if region and location and location != region and not region.startswith(f"{location}-"):
            gib = pricing.transfer_gib(location, region)
            cost = "at a price that is not in the list"
            if gib is not None:
                cost = f"at most {pricing.dollars(gib)} each"
            lines.append(
                f"the VM is in {region} and the bucket in {location}: reads and writes across"
                f" regions are billed by the GiB, {cost}"
            )
    return lines


def _checkpoints(sizes: Sizes, run: str, rate: float | None) -> str:
    """The cost of keeping the checkpoints of the last run that has some."""
    if not sizes:
        return "checkpoints: how large they are is not known before a run's first"
    gib = sum(sizes) / GIB
    month = "" if rate is None else f", {pricing.dollars(gib * rate)} a month"
    return f"checkpoints: run {run} keeps {len(sizes)}, {_amount(gib)} together{month}"


def _dropped(sizes: Sizes, rate: float | None, days: float, how: str) -> str:
    """The cost of dropped checkpoints, under a stated assumption."""
    if not sizes or rate is None:
        return ""
    gib = sizes[-1] / GIB * DROPS_A_DAY * days
    return (
        f"; with one checkpoint of {_amount(sizes[-1] / GIB)} dropped every 10 minutes,"
        f" {_amount(gib)} {how}, {pricing.dollars(gib * rate)} a month"
    )


def _amount(gib: float) -> str:
    return f"{gib:,.1f} GiB" if gib >= 0.1 else f"{gib * 1024:,.1f} MiB"
