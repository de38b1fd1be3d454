"""Looks up whether the stack's zones have its machine types and its GPU, and which others do.

Which zones have which changes with Google's months: the lists are the API's, not ours (Compute API,
methods machineTypes.get and acceleratorTypes.get, discovery document of revision 20261106).
"""

import urllib.parse
from collections.abc import Callable, Iterator
from functools import partial

from outlast.cloud.compute import Compute, ComputeError
from outlast.settings.asked import Answer, Question, ask_all
from outlast.settings.schema import Settings

SHOWN = 6
"""How many zones an answer suggests."""


def ask(settings: Settings) -> Callable[[], list[Answer]]:
    """Asks for each machine type, and for the GPU; the returned function waits for the answers."""
    return ask_all(_questions(settings))


def _questions(settings: Settings) -> Iterator[Question]:
    for name in dict.fromkeys((settings.machine_type, *settings.machine_types)):
        about = f"outlast:machineType {name!r}"
        yield about, partial(_look, settings, about, "machineTypes", name)
    if gpu := settings.accelerator:
        about = f"outlast:accelerator {gpu!r}"
        yield about, partial(_look, settings, about, "acceleratorTypes", gpu)


def _look(settings: Settings, about: str, collection: str, name: str) -> Answer:
    compute = Compute(settings.project)
    try:
        zones = _zones(settings, compute)
        if any(compute.find(f"zones/{zone}/{collection}/{name}") for zone in zones):
            return Answer()
        others = _others(compute, collection, name, settings.region)
    except ComputeError as error:
        return Answer(warning=f"{about}: not looked up ({error})")
    where = " or ".join(zones)
    if not others:
        return Answer(f"{about}: neither {where} nor any other zone has it; set another")
    return Answer(
        f"{about}: {where} does not have it; set outlast:zone to one that has it, such as"
        f" {', '.join(others[:SHOWN])}, or name another"
    )


def _zones(settings: Settings, compute: Compute) -> list[str]:
    """The zones in which a VM of the stack may be. Raises ComputeError."""
    if settings.zone or settings.zones:
        return [settings.zone] if settings.zone else list(settings.zones)
    found = compute.call("GET", f"regions/{settings.region}")
    return [str(one).rpartition("/")[2] for one in found.get("zones") or ()]


def _others(compute: Compute, collection: str, name: str, region: str) -> list[str]:
    """All zones that have it, those of the region first. Raises ComputeError."""
    asked = urllib.parse.urlencode({"filter": f'name = "{name}"'})
    found = compute.call("GET", f"aggregated/{collection}?{asked}")
    zones = [
        scope.rpartition("/")[2]
        for scope, content in (found.get("items") or {}).items()
        if any(one.get("name") == name for one in content.get(collection) or ())
    ]
    return sorted(zones, key=lambda zone: (not zone.startswith(f"{region}-"), zone))
