"""Computes what resources cost, from the dated list prices in `prices.yaml`.

A price that is not in the list is unknown: a sum with an unknown part is a lower bound and says "at
least". `outlast costs --refresh-prices` keeps a newer list in the user's cache folder, which is
read instead. It reads nothing but these files.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.base.numbers import dollars as dollars
from outlast.base.scratch_space import cache_home
from outlast.base.whole_file import write_whole

FILE = Path(__file__).with_name("prices.yaml")
FORMAT = 1
"""Of a refreshed list."""
HOURS_A_MONTH = 730.0
LOCAL_SSD_GIB = 375

_CUSTOM = re.compile(r"(?:(?P<family>[a-z][a-z0-9]*)-)?custom-(?P<cpus>[0-9]+)-(?P<mib>[0-9]+)")
_PREDEFINED = re.compile(r"(?P<family>[a-z][a-z0-9]*)-(?P<word>[a-z]+)-(?P<cpus>[0-9]+)")

Rates = Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """One item that is paid for by the hour."""

    what: str
    hour: float | None
    """Dollars; None: unknown."""


@dataclass(frozen=True)
class Sum:
    """The cost of several items."""

    items: tuple[Item, ...] = ()

    @property
    def hour(self) -> float:
        """Dollars an hour of the items with a known price."""
        return sum(item.hour or 0.0 for item in self.items)

    @property
    def month(self) -> float:
        """The same a month."""
        return self.hour * HOURS_A_MONTH

    @property
    def unknown(self) -> tuple[str, ...]:
        """The items without a known price."""
        return tuple(item.what for item in self.items if item.hour is None)

    def said(self, hours: float = 1.0) -> str:
        """The dollars for a number of hours; `at least` if a part is unknown."""
        if self.items and len(self.unknown) == len(self.items):
            return "unknown"
        return ("at least " if self.unknown else "") + dollars(self.hour * hours)


@dataclass(frozen=True)
class Shape:
    """A machine type, split into what its price depends on."""

    keys: tuple[str, ...]
    """Keys of its price, the most specific first."""
    cpus: float
    gib: float | None
    gpu: str = ""
    gpus: int = 0


@functools.cache
def built_in() -> Rates:
    """The price list that comes with Outlast."""
    import yaml

    return yaml.safe_load(FILE.read_text())


@functools.cache
def prices() -> Rates:
    """The price list: the refreshed one, unless the built-in one is newer."""
    kept = _kept()
    return kept if kept and str(kept["date"]) > str(built_in()["date"]) else built_in()


def kept_file() -> Path:
    """Where a refreshed list is kept."""
    return cache_home("outlast", "OUTLAST_CACHE") / "prices.json"


def _kept() -> Rates | None:
    """The refreshed list; None if there is none of this form."""
    try:
        found = json.loads(kept_file().read_text())
    except (OSError, ValueError):
        return None
    is_one = isinstance(found, dict) and found.get("format") == FORMAT
    return found if is_one and found.keys() >= built_in().keys() else None


def keep(table: Rates) -> Path:
    """Keeps a refreshed list for all later commands; returns its file. Raises OSError."""
    file = kept_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**table, "date": str(table["date"]), "format": FORMAT})
    write_whole(file, lambda part: part.write_text(text))
    prices.cache_clear()
    return file


def date() -> str:
    """The list's date."""
    return str(prices()["date"])


def dates() -> str:
    """The list's date for people, with that of what a refresh does not change."""
    older = prices().get("built_in")
    return f"{date()} (storage and network of {older})" if older else date()


def region_of(zone: str) -> str:
    """The region of a zone, given bare or as a URL."""
    return zone.rpartition("/")[2].rpartition("-")[0]


def shape(machine_type: str) -> Shape | None:
    """None if the name does not say the size."""
    known = prices()["shapes"].get(machine_type)
    words = machine_type.split("-")
    if known:
        keys = (machine_type, known.get("like", "-".join(words[:2])), words[0])
        return Shape(
            keys, known.get("cpus", 0), known.get("gib"), known.get("gpu", ""), known.get("gpus", 0)
        )
    custom = _CUSTOM.fullmatch(machine_type)
    if custom:
        # Extended memory (-ext) has another price, which is not listed here.
        keys = (f"{custom['family'] or 'n1'}-custom",)
        return Shape(keys, int(custom["cpus"]), int(custom["mib"]) / 1024)
    predefined = _PREDEFINED.fullmatch(machine_type)
    if predefined is None:
        return None
    family, word = predefined["family"], predefined["word"]
    memory = prices()["memory"]
    cpus = int(predefined["cpus"])
    ratio = memory.get(family, memory["all"]).get(word)
    return Shape((f"{family}-{word}", family), cpus, None if ratio is None else cpus * ratio)


def vm(template: Mapping[str, Any], zone: str) -> Sum:
    """One VM of an instance template's inputs: machine, GPUs, disks, addresses."""
    region = prices()["regions"].get(region_of(zone), "")
    scheduling = template.get("scheduling") or {}
    spot = "spot" if scheduling.get("provisioningModel") == "SPOT" else "standard"
    name = str(template.get("machineType", "")).rpartition("/")[2]
    machine, has_gpus = _machine(name, region, spot)
    items = [machine, *_gpus(template, "" if has_gpus else name, region, spot)]
    for disk in template.get("disks") or ():
        items.append(_disk(disk, region, spot))
    for interface in template.get("networkInterfaces") or ():
        for _ in interface.get("accessConfigs") or ():
            items.append(Item("external address", prices()["network"]["address"]))
    return Sum(tuple(items))


def billed_vm(billed: Mapping[str, Any], machine_type: str, zone: str) -> Sum:
    """One VM, with its share of a NAT, from what an attempt's record says is billed (`Settings`
    writes it)."""
    template: dict[str, Any] = {
        "machineType": machine_type,
        "scheduling": {"provisioningModel": "SPOT" if billed.get("spot") else "STANDARD"},
        "disks": [
            {"diskType": billed.get("disk"), "diskSizeGb": billed.get("disk_gb")},
            *({"type": "SCRATCH"} for _ in range(int(billed.get("ssds") or 0))),
        ],
        "networkInterfaces": [{"accessConfigs": [{}] if billed.get("address") else []}],
    }
    if billed.get("accelerator"):
        template["guestAccelerators"] = [
            {"type": billed["accelerator"], "count": billed.get("accelerators")}
        ]
    return added([vm(template, zone), *([nat()] if billed.get("nat") else [])])


def disk(kind: str, gib: int, zone: str) -> Sum:
    """One disk that no VM need have; `kind` is bare or a URL."""
    region = prices()["regions"].get(region_of(zone), "")
    return Sum((_disk({"diskType": kind, "diskSizeGb": gib}, region, "standard"),))


def dearest(templates: Sequence[Mapping[str, Any]], zone: str) -> Sum:
    """The most expensive of several VMs, of which one is created. Items of the others without a
    known price might cost more, so they are unknown in the sum.
    """
    sums = [vm(template, zone) for template in templates]
    most = max(sums, key=lambda one: one.hour)
    unknown = dict.fromkeys(what for one in sums for what in one.unknown)
    known = [item for item in most.items if item.hour is not None]
    return Sum((*known, *(Item(what, None) for what in unknown)))


def nat(vms: int = 1) -> Sum:
    """A NAT gateway for a number of VMs, without its traffic."""
    network = prices()["network"]
    hour = network["nat_vm"] * vms + network["nat_address"]
    return Sum((Item(f"NAT (and {dollars(network['nat_gib'])} for each GiB through it)", hour),))


def storage_gib_month(location: str) -> float | None:
    """A GiB in a bucket for a month; None if unknown."""
    return prices()["storage"]["gib_month"].get(location.lower())


def requests(writes: float, reads: float) -> float:
    """Dollars for that many writes or lists, and reads, of a bucket's objects."""
    storage = prices()["storage"]
    return (writes * storage["thousand_writes"] + reads * storage["thousand_reads"]) / 1000


def download_gib() -> float:
    """A GiB of a bucket that leaves Google Cloud, of the first TiB a month."""
    return prices()["storage"]["download_gib"]


def image_gib_month(region: str) -> float | None:
    """A GiB of an image for a month; None if unknown."""
    return prices()["images"]["gib_month"].get(prices()["regions"].get(region, ""))


def transfer_gib(one: str, other: str) -> float | None:
    """The most that a GiB between two different locations costs; None if unknown."""
    rates = prices()["transfer"]
    ends = {rates["continents"].get(place.lower().partition("-")[0]) for place in (one, other)}
    if None in ends:
        return None
    if len(ends) == 1:
        return rates["within"].get(ends.pop())
    return rates["australia"] if "australia" in ends else rates["between"]


def added(sums: Iterable[Sum]) -> Sum:
    """The items together."""
    return Sum(tuple(item for one in sums for item in one.items))


def _machine(name: str, region: str, spot: str) -> tuple[Item, bool]:
    """The machine, and whether its price includes its GPUs."""
    what = f"{name} {'Spot' if spot == 'spot' else 'on demand'}"
    found, rates = shape(name), prices()["machines"].get(region, {})
    if found is None:
        return Item(what, None), False
    for key in found.keys:
        rate = rates.get(key, {}).get(spot)
        if rate is None:
            continue
        dated = _dated(what, "machines", region, key, spot)
        if "gpu" in rate:
            return Item(dated, rate["gpu"] * found.gpus), True
        if "machine" in rate:
            return Item(dated, rate["machine"]), False
        if "gib" not in rate:
            return Item(dated, rate["cpu"] * found.cpus), False
        if found.gib is not None:
            return Item(dated, rate["cpu"] * found.cpus + rate["gib"] * found.gib), False
    return Item(what, None), False


def _gpus(template: Mapping[str, Any], name: str, region: str, spot: str) -> Sequence[Item]:
    found, rates = shape(name), prices()["gpus"].get(region, {})
    wanted = [(found.gpu, found.gpus)] if found and found.gpus else []
    for one in template.get("guestAccelerators") or ():
        wanted.append((str(one.get("type", "")).rpartition("/")[2], int(one.get("count") or 1)))
    items = []
    for gpu, count in wanted:
        rate = rates.get(gpu, {}).get(spot)
        what = _dated(f"{count} {gpu}", "gpus", region, gpu, spot)
        items.append(Item(what, None if rate is None else rate * count))
    return items


def _disk(disk: Mapping[str, Any], region: str, spot: str) -> Item:
    if disk.get("type") == "SCRATCH":
        rate = prices()["local_ssd"].get(region, {}).get(spot)
        gib = int(disk.get("diskSizeGb") or LOCAL_SSD_GIB)
        what = _dated("local SSD", "local_ssd", region, "", spot)
    else:
        kind = str(disk.get("diskType") or "pd-standard").rpartition("/")[2]
        rate = prices()["disks"].get(region, {}).get(kind)
        gib, what = int(disk.get("diskSizeGb") or 0), _dated(kind, "disks", region, kind, "")
    hour = None if rate is None or gib <= 0 else rate * gib / HOURS_A_MONTH
    return Item(f"{gib} GiB {what}", hour)


def _dated(what: str, table: str, region: str, key: str, spot: str) -> str:
    """What an item is, with the date of its price if that is older than the list."""
    of, built_in_date = prices()["of"], prices().get("built_in")
    if region in prices().get("refreshed", ()):
        date = of.get(f"{table}/{region}/{key}/{spot}")
    else:
        # Of machines alone the built-in list has other dates than its own.
        own = of.get(key) or of.get(region) if table == "machines" else None
        date = own or built_in_date
    return f"{what}, price of {date}" if date else what
