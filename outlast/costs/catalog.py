"""Makes a price list from the SKUs of the Cloud Billing Catalog.

Only what a description names without doubt becomes a price: two different prices for one thing make
it ambiguous, and the built-in price stays with its own date. Source: the reference of the Cloud
Billing API (services.skus.list), read on 2026-11-30. No page lists the descriptions: those here are
from public code that reads the catalog, and none was checked against the catalog itself.
"""

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

COMPUTE = "6F81-5844-456A"
"""The id of Compute Engine among the catalog's services."""

_FAMILIES = {
    "N1 Predefined": "n1",
    "Custom": "n1-custom",
    "N2": "n2",
    "N2 Custom": "n2-custom",
    "N2D AMD": "n2d",
    "N2D AMD Custom": "n2d-custom",
    "N4": "n4",
    "E2": "e2",
    "E2 Custom": "e2-custom",
    "T2D AMD": "t2d",
    "C2D AMD": "c2d",
    "C3": "c3",
    "C3D": "c3d",
    "C4": "c4",
    "C4A Arm": "c4a",
    "H3": "h3",
    "A2": "a2",
    "G2": "g2",
}
_GPUS = {
    "Nvidia Tesla T4 GPU": "nvidia-tesla-t4",
    "Nvidia Tesla V100 GPU": "nvidia-tesla-v100",
    "Nvidia Tesla P100 GPU": "nvidia-tesla-p100",
    "Nvidia Tesla P4 GPU": "nvidia-tesla-p4",
    "Nvidia L4 GPU": "nvidia-l4",
    "Nvidia Tesla A100 GPU": "nvidia-tesla-a100",
    "Nvidia Tesla A100 80GB GPU": "nvidia-a100-80gb",
    "Nvidia H100 80GB GPU": "nvidia-h100-80gb",
}
_DISKS = {
    "Storage PD Capacity": "pd-standard",
    "Balanced PD Capacity": "pd-balanced",
    "SSD backed PD Capacity": "pd-ssd",
    "Extreme PD Capacity": "pd-extreme",
}
_LOCAL_SSD = "SSD backed Local Storage"
_IMAGE = "Storage Image"
_WHOLE = {"a2-highgpu": ("a2", "nvidia-tesla-a100")}
"""Machines that the built-in list prices as a whole, and what the catalog prices instead."""
_MODELS = {"OnDemand": "standard", "Preemptible": "spot"}
_UNITS = {"cpu": "h", "gib": "GiBy.h", "gpus": "h"}
_MONTH = "GiBy.mo"
_PLACE = re.compile(r" (?:running )?in [^,]+$")
_SPOT = re.compile(r"^Spot Preemptible | attached to Spot Preemptible VMs$")
_PART = re.compile(r"(?P<kind>.+) Instance (?P<part>Core|Ram)")
_C2 = re.compile(r"Compute optimized (?P<part>Core|Ram)")


@dataclass(frozen=True, order=True)
class Thing:
    """Something with a price in one region."""

    table: str
    region: str
    key: str
    model: str
    """`standard` or `spot`; empty for what has one price."""
    part: str = ""
    """Of a machine: `cpu` or `gib`."""


@dataclass(frozen=True)
class Refreshed:
    """A list with the catalog's prices."""

    table: Mapping[str, Any]
    prices: int
    """How many are the catalog's."""
    regions: int
    ambiguous: int
    """Things with two prices in the catalog."""


def refreshed(
    skus: Iterable[Mapping[str, Any]], built_in: Mapping[str, Any], day: str
) -> Refreshed:
    """The built-in list with the catalog's prices of that day; what the catalog does not have keeps
    its own date."""
    found: dict[Thing, set[float]] = {}
    for sku in skus:
        for thing, dollars in _priced(sku):
            found.setdefault(thing, set()).add(dollars)
    known = {thing: amounts.pop() for thing, amounts in sorted(found.items()) if len(amounts) == 1}
    table: dict[str, Any] = copy.deepcopy(dict(built_in))
    regions = sorted({thing.region for thing in known})
    for region in regions:
        _own_group(table, built_in, region)
    old = {region: _paths(table, region) for region in regions}
    put = [thing for thing, amount in known.items() if _put(table, thing, amount, known)]
    new = {_path(thing.table, thing.region, thing.key, thing.model) for thing in put}
    for region in regions:
        before = built_in["regions"].get(region, "")
        for path, key in old[region].items():
            if path not in new and path in _paths(table, region):
                named = built_in["of"].get(key) or built_in["of"].get(before)
                table["of"][path] = named or str(built_in["date"])
    table |= {"date": day, "refreshed": regions, "built_in": str(built_in["date"])}
    return Refreshed(table, len(put), len(regions), len(found) - len(known))


def _priced(sku: Mapping[str, Any]) -> Iterable[tuple[Thing, float]]:
    """What a SKU prices in each of its regions; nothing for one that is not understood."""
    category = sku.get("category") or {}
    model = _MODELS.get(str(category.get("usageType")))
    amount, unit = _amount(sku)
    if model is None or not amount:
        return
    text = _SPOT.sub("", _PLACE.sub("", str(sku.get("description"))))
    for region in sku.get("serviceRegions") or ():
        thing = _thing(text, str(region), model, unit)
        if thing is not None:
            yield thing, amount


def _thing(text: str, region: str, model: str, unit: str) -> Thing | None:
    machine = _PART.fullmatch(text)
    family = _FAMILIES.get(machine["kind"]) if machine else None
    if machine is None and (machine := _C2.fullmatch(text)):
        family = "c2"
    if machine is not None:
        part = "cpu" if machine["part"] == "Core" else "gib"
        is_known = family is not None and unit == _UNITS[part]
        return Thing("machines", region, str(family), model, part) if is_known else None
    if text in _GPUS:
        return Thing("gpus", region, _GPUS[text], model) if unit == _UNITS["gpus"] else None
    if unit != _MONTH:
        return None
    if text == _LOCAL_SSD:
        return Thing("local_ssd", region, "", model)
    if model != "standard":
        return None
    if text in _DISKS:
        return Thing("disks", region, _DISKS[text], "")
    return Thing("images", region, "", "") if text == _IMAGE else None


def _amount(sku: Mapping[str, Any]) -> tuple[float, str]:
    """Dollars and unit of a SKU: of several tiers the highest price. 0 if it is not in dollars."""
    try:
        expression = sku["pricingInfo"][-1]["pricingExpression"]
        prices = [tier["unitPrice"] for tier in expression["tieredRates"]]
        if any(price.get("currencyCode", "USD") != "USD" for price in prices):
            return 0.0, ""
        amounts = [int(one.get("units") or 0) + int(one.get("nanos") or 0) / 1e9 for one in prices]
        return max(amounts, default=0.0), str(expression["usageUnit"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return 0.0, ""


def _own_group(table: dict[str, Any], built_in: Mapping[str, Any], region: str) -> None:
    """Gives a region its own prices, which begin as those that it shared."""
    before = built_in["regions"].get(region, "")
    table["regions"][region] = region
    for name in ("machines", "gpus", "disks", "local_ssd"):
        table[name][region] = copy.deepcopy(built_in[name].get(before, {}))


def _put(table: dict[str, Any], thing: Thing, amount: float, known: Mapping[Thing, float]) -> bool:
    """Writes a price; returns whether it was."""
    if thing.table == "images":
        table["images"]["gib_month"][thing.region] = amount
    elif thing.table == "disks":
        table["disks"][thing.region][thing.key] = amount
    elif thing.table == "local_ssd":
        table["local_ssd"][thing.region][thing.model] = amount
    elif thing.table == "gpus":
        table["gpus"][thing.region].setdefault(thing.key, {})[thing.model] = amount
    else:
        return _put_machine(table["machines"][thing.region], thing, amount, known)
    return True


def _put_machine(
    machines: dict[str, Any], thing: Thing, amount: float, known: Mapping[Thing, float]
) -> bool:
    """A machine's price needs both of its parts."""
    other = replace(thing, part="gib" if thing.part == "cpu" else "cpu")
    if other not in known:
        return False
    rates = machines.setdefault(thing.key, {})
    rates.setdefault(thing.model, {})[thing.part] = amount
    # A price of one middle word, which is read first, is older now.
    for key in [one for one in machines if one.startswith(f"{thing.key}-")]:
        rate = machines[key].get(thing.model, {})
        family, gpu = _WHOLE.get(key, ("", ""))
        by_gpu = Thing("gpus", thing.region, gpu, thing.model)
        is_replaced = family == thing.key and by_gpu in known
        if is_replaced or (rate.keys() == {"cpu"} and not key.endswith("-custom")):
            machines[key].pop(thing.model, None)
            if not machines[key]:
                del machines[key]
    return True


def _paths(table: Mapping[str, Any], region: str) -> dict[str, str]:
    """The path of each price of a region, and its key."""
    found = {
        _path(name, region, key, model): key
        for name in ("machines", "gpus")
        for key, rates in table[name][region].items()
        for model in rates
    }
    found |= {_path("disks", region, key, ""): key for key in table["disks"][region]}
    models = table["local_ssd"][region]
    return found | {_path("local_ssd", region, "", model): "" for model in models}


def _path(table: str, region: str, key: str, model: str) -> str:
    return f"{table}/{region}/{key}/{model}"
