"""Google's regions and zones, and the rules for a stack's zone, zones and region.

Source: Compute Engine's page "Available regions and zones", early 2026, of which public code keeps
copies; asia-southeast3 from the release notes of 20 January 2026; AI zones (`us-central1-ai1a`)
from the page "AI zones". A newer region or zone passes if `outlast:allowUnlisted` names it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outlast.base.suggest import did_you_mean
from outlast.machines.machines import MachineError, either

AS_OF = "January 2026"
"""The newest region of the list."""

ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-(?:ai[0-9]+)?[a-z]")
REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_AI_ZONE = re.compile(r"ai[0-9]+[a-z]")

_OTHER_LETTERS = {"europe-west1": "bcd", "us-central1": "abcf", "us-east1": "bcd"}

REGIONS: Mapping[str, str] = {
    region: _OTHER_LETTERS.get(region, "abc")
    for region in (
        *("africa-south1", "asia-east1", "asia-east2"),
        *("asia-northeast1", "asia-northeast2", "asia-northeast3", "asia-south1", "asia-south2"),
        *("asia-southeast1", "asia-southeast2", "asia-southeast3"),
        *("australia-southeast1", "australia-southeast2"),
        *("europe-central2", "europe-north1", "europe-north2", "europe-southwest1"),
        *("europe-west1", "europe-west2", "europe-west3", "europe-west4", "europe-west6"),
        *("europe-west8", "europe-west9", "europe-west10", "europe-west12"),
        *("me-central1", "me-central2", "me-west1"),
        *("northamerica-northeast1", "northamerica-northeast2", "northamerica-south1"),
        *("southamerica-east1", "southamerica-west1"),
        *("us-central1", "us-east1", "us-east4", "us-east5", "us-south1"),
        *("us-west1", "us-west2", "us-west3", "us-west4"),
    )
}
"""The letters of each region's zones."""


@dataclass(frozen=True)
class Location:
    """The group's location: a zone, or zones of a region."""

    region: str
    zone: str = ""
    """Empty if the group is regional."""
    zones: tuple[str, ...] = ()
    """Zones of a regional group; empty for all of the region's."""


def locate(
    zone: str,
    region: str,
    zones: Sequence[str],
    *,
    default: str = "",
    unlisted: Sequence[str] = (),
) -> Location:
    """`default`: the engine's zone, if none is set; `unlisted`: regions and zones that are newer
    than the list. Raises MachineError if one does not exist or they contradict each other.
    """
    for one in zones:
        check_zone("zones", one, unlisted)
    if region:
        _check_region("region", region, region, unlisted)
    if not zones and not region:
        key = "zone" if zone or not default else "gcp:zone"
        check_zone(key, zone or default, unlisted)
        zone = zone or default
        return Location(zone.rpartition("-")[0], zone)
    key, value = ("zones", list(zones)) if zones else ("region", region)
    if zone:
        raise MachineError(
            "zone",
            zone,
            f"is one zone, beside outlast:{key} {value}",
            f"leave out outlast:zone or outlast:{key}",
        )
    regions = sorted({one.rpartition("-")[0] for one in zones} | ({region} if region else set()))
    if len(regions) > 1:
        raise MachineError(
            key, value, f"a group has zones of one region, these are in {' and '.join(regions)}"
        )
    if len(zones) == 1 or len(set(zones)) < len(zones):
        raise MachineError(
            "zones",
            list(zones),
            "must be two zones or more, each once",
            "set outlast:zones, or outlast:zone for a single one",
        )
    return Location(regions[0], "", tuple(zones))


def check_engine(region: str, zone: str, unlisted: Sequence[str] = ()) -> None:
    """Checks the engine's own region and zone; either may be empty. Raises MachineError if one does
    not exist, or if the zone is in another region.
    """
    if zone:
        check_zone("gcp:zone", zone, unlisted)
    if not region:
        return
    _check_region("gcp:region", region, region, unlisted)
    its = zone.rpartition("-")[0]
    if zone and its != region:
        raise MachineError(
            "gcp:region",
            region,
            f"gcp:zone {zone} is in {its}",
            f"set gcp:region to {its} or leave it out, or set gcp:zone to a zone of {region}",
        )


def check_zone(key: str, zone: str, unlisted: Sequence[str]) -> None:
    """Raises MachineError if Google does not have it."""
    if not ZONE.fullmatch(zone):
        rule = "must be zones such as" if key == "zones" else "must be a zone such as"
        action = "set outlast:zone, or set gcp:zone" if key == "zone" else ""
        raise MachineError(key, zone, f"{rule} europe-west4-a", action)
    region, _, letter = zone.rpartition("-")
    if zone in unlisted:
        return
    _check_region(key, zone, region, unlisted)
    letters = REGIONS.get(region)
    if letters and letter not in letters and not _AI_ZONE.fullmatch(letter):
        raise MachineError(
            key,
            zone,
            f"{region} has the zones {either([f'{region}-{one}' for one in letters], 'and')}",
            f"set {_full(key)}, or name {zone} in outlast:allowUnlisted if it is newer than"
            f" {AS_OF}",
        )


def _check_region(key: str, value: str, region: str, unlisted: Sequence[str]) -> None:
    if not REGION.fullmatch(region):
        action = f"set {_full(key)} or leave it empty"
        raise MachineError(key, value, "must be a region such as europe-west4", action)
    if region in REGIONS or region in unlisted:
        return
    hint = did_you_mean(region, REGIONS)
    raise MachineError(
        key,
        value,
        f"Google has no region {region}{hint and '; '}{hint}",
        f"set {_full(key)}, or name {region} in outlast:allowUnlisted if it is newer than {AS_OF}",
    )


def _full(key: str) -> str:
    return key if ":" in key else f"outlast:{key}"
