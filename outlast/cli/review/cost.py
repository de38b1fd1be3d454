"""Computes what a stack costs before and after a plan, by list prices. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outlast.base import numbers
from outlast.bucket.head import Head
from outlast.cli.review import rules
from outlast.cli.review.outcomes import Look
from outlast.cli.review.plan import BAKE, BUCKET, GROUPS, NAT, TEMPLATES, Pin, Step
from outlast.cloud.recipe import DISK_TYPE, image_name
from outlast.costs import pricing
from outlast.spec.run_spec import BadSpec, Timeouts

DROPS_A_DAY = 144
"""Assumed rate of checkpoints that retention drops, for prices: one every ten minutes."""
LOGS_AN_HOUR = 60
COMMIT_WRITES, COMMIT_READS = 6, 6
"""Assumed requests of a checkpoint: rows, three files, manifest and HEAD, and a look at each."""
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
    budget: float = 0.0
    """Dollars at which the run stops; 0 without a budget."""

    @property
    def an_hour(self) -> str:
        return self.sum.said() if self.sum.items else "nothing"

    @property
    def a_day(self) -> str:
        return self.sum.said(24) if self.sum.items else "nothing"

    @property
    def worst(self) -> float:
        """Dollars that it may still cost, as far as the prices are known. Earlier VMs of the run
        have used a part of its budget."""
        limit = self.most.hour * self.hours
        return min(limit, self.budget) if self.budget else limit

    @property
    def at_the_limit(self) -> str:
        if not self.sum.items:
            return "nothing"
        if self.budget and self.worst == self.budget:
            lasts = numbers.duration(self.budget / self.most.hour * 3600)
            return f"{pricing.dollars(self.budget)} ({lasts}, its budget)"
        return f"{self.most.said(self.hours)} ({numbers.duration(self.hours * 3600)}, {self.until})"

    def as_json(self) -> dict[str, Any]:
        return {
            "hour": round(self.sum.hour, 6),
            "day": round(self.sum.hour * 24, 6),
            "limit": round(self.worst, 6),
            "budget": self.budget or None,
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
    budget = _budget(template)
    deadline = pin.deadline
    if restarts and isinstance(head, Head) and head.resume == pin.resume:
        deadline = min(head.deadline, now + timedelta(minutes=pin.limit_minutes))
    elif restarts:
        deadline = None
    if deadline is None:
        return StackCost(total, pin.limit_minutes / 60, "its whole limit", most, budget)
    left = max((deadline - now).total_seconds() / 3600, 0.0)
    return StackCost(total, left, f"until {deadline:%Y-%m-%d %H:%M} UTC", most, budget)


def _budget(template: Mapping[str, Any]) -> float:
    """The run's budget in dollars; 0 without one."""
    text = (template.get("metadata") or {}).get("outlast-budget-dollars") or "0"
    try:
        return float(text)
    except ValueError:  # the template of another program
        return 0.0


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
            f" {most}{cost.said(minutes / 60)}, by its limit of {minutes} minutes;"
            f" {_image_kept(int(recipe['disk_gb']), recipe['zone'])}"
        )


def _image_kept(gib: int, zone: str) -> str:
    """What an image costs while it is kept: it has at most its builder's disk."""
    rate = pricing.image_gib_month(pricing.region_of(zone))
    if rate is None:
        return "the price of keeping it is unknown"
    return f"keeping it costs at most {pricing.dollars(gib * rate)} a month"


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


def of_usage(template: Mapping[str, Any] | None, sizes: Sizes) -> list[str]:
    """The cost of requests to the bucket while the VM runs, and of downloads."""
    if template is None:
        return []
    heartbeat_sec = _heartbeat_sec(template)
    commits = DROPS_A_DAY / 24
    writes = 3600 / heartbeat_sec + LOGS_AN_HOUR + commits * COMMIT_WRITES
    reads = 3600 / heartbeat_sec + commits * COMMIT_READS
    gib = pricing.download_gib()
    newest = ""
    if sizes:
        newest = f", {pricing.dollars(sizes[-1] / GIB * gib)} for the newest checkpoint"
    return [
        f"requests: about {pricing.dollars(pricing.requests(writes, reads))} an hour, with a"
        f" heartbeat every {heartbeat_sec:g} s, the log each minute, and a checkpoint every 10"
        " minutes",
        f"download: about {pricing.dollars(gib)} a GiB that leaves Google Cloud{newest}",
    ]


def _heartbeat_sec(template: Mapping[str, Any]) -> float:
    text = (template.get("metadata") or {}).get("outlast-timeouts") or "{}"
    try:
        return max(Timeouts.parse(str(text)).heartbeat, 1.0)
    except BadSpec:  # the template of another program
        return Timeouts.heartbeat


def _checkpoints(sizes: Sizes, run: str, rate: float | None) -> str:
    """The cost of keeping the checkpoints of the last run that has some."""
    if not sizes:
        return "checkpoints: how large they are is not known before a run's first"
    gib = sum(sizes) / GIB
    month = "" if rate is None else f", {pricing.dollars(gib * rate)} a month"
    return (
        f"checkpoints: run {run} keeps {len(sizes)}, {numbers.gib(gib, digits=1)} together{month}"
    )


def _dropped(sizes: Sizes, rate: float | None, days: float, how: str) -> str:
    """The cost of dropped checkpoints, under a stated assumption."""
    if not sizes or rate is None:
        return ""
    gib = sizes[-1] / GIB * DROPS_A_DAY * days
    return (
        f"; with one checkpoint of {numbers.gib(sizes[-1] / GIB, digits=1)} dropped every 10"
        f" minutes, {numbers.gib(gib, digits=1)} {how}, {pricing.dollars(gib * rate)} a month"
    )
