"""The rules of Compute Engine for templates and groups that its schema does not state.

Each check raises ApiError 400, in Google's words if they are known."""

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

from outlast.localcloud.base.clock import from_rfc3339
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.compute.fleet.model import duration_sec, is_spot

NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
BASE_NAME = re.compile(r"[a-z][-a-z0-9]{0,57}|(?=.{1,63}$)[a-z](?:[-a-z0-9]*[a-z0-9])?-?#{1,10}")
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,127}")
MAX_LABELS = 64
MAX_TAGS = 64
MAX_METADATA_VALUE_BYTES = 262144
MAX_METADATA_BYTES = 512 * 1024
NOTICES_SEC = (0, 120)
LONGEST_INITIAL_DELAY_SEC = 3600
HEALTH_CHECK_DEFAULTS = {
    "checkIntervalSec": 5,
    "timeoutSec": 5,
    "healthyThreshold": 2,
    "unhealthyThreshold": 2,
}
SHORTEST_RUN_SEC = 30
LONGEST_RUN_SEC = 120 * 86_400
MOST_VERSIONS = 2
LIMITS = ("maxSurge", "maxUnavailable")
"""The limits of an update policy."""
SMALLEST_IN_PERCENT = 10
"""Minimum size of a regional group whose update policy has percentages."""


def invalid(field: str, value: object, rule: str) -> ApiError:
    """A 400 about one field."""
    return ApiError(400, f"Invalid value for field '{field}': '{shown(value)}'. {rule}")


def shown(value: object) -> str:
    """A value as the API's messages show it."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, indent=2) if isinstance(value, dict | list) else str(value)


def no_stateful_groups(what: str) -> ApiError:
    """A 501 for features of stateful groups, which keep disks, addresses or metadata of their
    VMs."""
    return ApiError(501, f"{what}: the local cloud has no stateful groups; leave it out.")


def missing(field: str) -> ApiError:
    """A 400 for a required field that is missing."""
    return ApiError(400, f"Required field '{field}' not specified", "required")


def cleaned(value: Any) -> Any:
    """A body without empty values: nulls, empty objects, and values that hold only these."""
    if isinstance(value, dict):
        kept = {key: cleaned(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if not _means_nothing(item)}
    if isinstance(value, list) and value:
        return [item for item in map(cleaned, value) if not _means_nothing(item)] or None
    return value


def _means_nothing(value: Any) -> bool:
    return value is None or value == {}


def merged(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The result of a patch: objects are merged, other values replace the old ones."""
    result = dict(old)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(old.get(key), dict)
        result[key] = merged(old[key], value) if both else value
    return result


def without_nulls(old: dict[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    """The old values that a patch keeps: it is a JSON merge patch, whose nulls remove fields."""
    kept = {key: value for key, value in old.items() if sent.get(key, value) is not None}
    for key, value in kept.items():
        if isinstance(value, dict) and isinstance(sent.get(key), dict):
            kept[key] = without_nulls(value, sent[key])
    return kept


def check_name(field: str, name: object) -> str:
    """Checks and returns a resource's name."""
    if name is None:
        raise missing(field)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(field, name, f"Must be a match of regex '(?:{NAME.pattern})'")
    return name


def check_request_id(value: str) -> None:
    """Checks a request id, by which a repeated call is recognized."""
    try:
        number = uuid.UUID(value).int
    except ValueError:
        number = 0
    if not number:
        raise invalid("requestId", value, "Must be a UUID other than zero.")


def check_labels(field: str, labels: dict[str, Any]) -> None:
    """Checks labels: at most 64, in lower case."""
    if len(labels) > MAX_LABELS:
        raise invalid(field, len(labels), f"Must have at most {MAX_LABELS} labels.")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            raise invalid(field, key, f"Keys must match regex '{LABEL_KEY.pattern}'.")
        if not LABEL_VALUE.fullmatch(str(value)):
            raise invalid(f"{field}.{key}", value, f"Must match regex '{LABEL_VALUE.pattern}'.")


def check_tags(field: str, items: list[str]) -> None:
    """Checks tags: at most 64 names."""
    if len(items) > MAX_TAGS:
        raise invalid(field, len(items), f"Must have at most {MAX_TAGS} tags.")
    for index, item in enumerate(items):
        check_name(f"{field}.items[{index}]", item)


def check_metadata(field: str, items: list[dict[str, Any]]) -> None:
    """Checks metadata: its keys, the sizes in bytes, and their sum."""
    total = 0
    seen: set[str] = set()
    for index, item in enumerate(items):
        key, value = str(item.get("key") or ""), str(item.get("value") or "")
        if not METADATA_KEY.fullmatch(key):
            pattern = f"(?:{METADATA_KEY.pattern})"
            where = f"{field}.items[{index}].key"
            raise invalid(where, key, f"Must be a match of regex '{pattern}'")
        if key in seen:
            raise invalid(field, {"key": key}, f"Metadata has duplicate keys: {key}")
        seen.add(key)
        size = len(value.encode())
        if size > MAX_METADATA_VALUE_BYTES:
            raise ApiError(
                400,
                f"Value for field '{field}.items[{index}].value' is too large: maximum size "
                f"{MAX_METADATA_VALUE_BYTES} character(s); actual size {size}.",
            )
        total += size + len(key)
    if total >= MAX_METADATA_BYTES:
        raise ApiError(
            400,
            f"Value for field '{field}' is too large: the total size of all keys and values is "
            f"{total} bytes; it must be less than 512 KB.",
        )


def checked_properties(
    properties: dict[str, Any], field: str = "resource.properties"
) -> dict[str, Any]:
    """The properties of a template or a VM, checked and with the API's defaults.

    A template's machine type is a name. `field` is the path of the properties in the body."""
    machine_type = properties.get("machineType")
    if not machine_type:
        raise missing(f"{field}.machineType")
    if "/" in machine_type:
        raise invalid(f"{field}.machineType", machine_type, "Must be a name, not a URL.")
    check_labels(f"{field}.labels", properties.get("labels") or {})
    check_metadata(f"{field}.metadata", (properties.get("metadata") or {}).get("items") or [])
    disks = [_disk(field, index, disk) for index, disk in enumerate(properties.get("disks") or [])]
    if sum(bool(disk.get("boot")) for disk in disks) != 1:
        raise invalid(f"{field}.disks", len(disks), "Exactly one disk must be a boot disk.")
    interfaces = properties.get("networkInterfaces") or []
    if not interfaces:
        raise invalid(f"{field}.networkInterfaces", "", "At least one is required.")
    for index, interface in enumerate(interfaces):
        interface.setdefault("name", f"nic{index}")
        interface.setdefault("kind", "compute#networkInterface")
    metadata = {"kind": "compute#metadata", "fingerprint": "AAAAAAAAAAE=", "items": []}
    return {
        **properties,
        "disks": disks,
        "networkInterfaces": interfaces,
        "metadata": {**metadata, **(properties.get("metadata") or {})},
        "scheduling": checked_scheduling(properties.get("scheduling") or {}, f"{field}.scheduling"),
    }


def _disk(field: str, index: int, disk: dict[str, Any]) -> dict[str, Any]:
    parameters = disk.get("initializeParams") or {}
    if disk.get("boot") and not (parameters.get("sourceImage") or disk.get("source")):
        raise invalid(f"{field}.disks[{index}]", "", "A boot disk needs a sourceImage.")
    defaults = {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": "READ_WRITE",
        "index": index,
        "deviceName": f"persistent-disk-{index}",
        "autoDelete": False,
    }
    return {**defaults, **disk}


def checked_scheduling(
    scheduling: dict[str, Any], field: str = "resource.properties.scheduling"
) -> dict[str, Any]:
    """A `scheduling` block, checked and complete."""
    spot = is_spot(scheduling)
    limited = bool(scheduling.get("maxRunDuration") or scheduling.get("terminationTime"))
    on_maintenance = scheduling.get("onHostMaintenance") or ("TERMINATE" if spot else "MIGRATE")
    restart = scheduling.get("automaticRestart", not spot)
    if spot and scheduling.get("provisioningModel") == "STANDARD":
        raise invalid(
            f"{field}.provisioningModel",
            "STANDARD",
            "A preemptible VM cannot have the standard provisioning model.",
        )
    if spot and restart:
        raise invalid(
            f"{field}.preemptible",
            True,
            "Scheduling must have preemptible be false when AutomaticRestart is true.",
        )
    if spot and on_maintenance != "TERMINATE":
        raise invalid(
            f"{field}.preemptible",
            True,
            "Scheduling must have preemptible be false when OnHostMaintenance isn't TERMINATE.",
        )
    if scheduling.get("instanceTerminationAction") and not (spot or limited):
        raise invalid(
            f"{field}.instanceTerminationAction",
            scheduling["instanceTerminationAction"],
            "You cannot specify a termination action for a VM instance that has the standard "
            "provisioning model (default). To use instance termination action, the VM instance "
            "must use the Spot, Reservation-Bound or Flex Start provisioning model.",
        )
    if scheduling.get("maxRunDuration") and scheduling.get("terminationTime"):
        raise invalid(
            f"{field}.maxRunDuration",
            scheduling["maxRunDuration"],
            "Only one of maxRunDuration and terminationTime can be specified.",
        )
    if scheduling.get("maxRunDuration"):
        limit_sec = duration_sec(scheduling["maxRunDuration"])
        if not SHORTEST_RUN_SEC <= limit_sec <= LONGEST_RUN_SEC:
            rule = f"Must be {SHORTEST_RUN_SEC} s to {LONGEST_RUN_SEC} s."
            raise invalid(f"{field}.maxRunDuration", limit_sec, rule)
    if scheduling.get("terminationTime"):
        try:
            from_rfc3339(scheduling["terminationTime"])
        except ValueError:
            raise invalid(
                f"{field}.terminationTime", scheduling["terminationTime"], "Must be RFC 3339."
            ) from None
    if "preemptionNoticeDuration" in scheduling:
        notice_sec = duration_sec(scheduling["preemptionNoticeDuration"])
        if not spot:
            raise invalid(
                f"{field}.preemptionNoticeDuration",
                scheduling["preemptionNoticeDuration"],
                "It can be specified only for Spot VMs.",
            )
        if notice_sec not in NOTICES_SEC:
            raise invalid(f"{field}.preemptionNoticeDuration", notice_sec, "Must be 0 s or 120 s.")
    return {
        "provisioningModel": "SPOT" if spot and "provisioningModel" in scheduling else "STANDARD",
        **scheduling,
        "preemptible": spot,
        "automaticRestart": restart,
        "onHostMaintenance": on_maintenance,
    }


def checked_health_check(body: dict[str, Any]) -> dict[str, Any]:
    """A health check's body, checked and with the API's defaults."""
    checked = {**HEALTH_CHECK_DEFAULTS, **body}
    for name in HEALTH_CHECK_DEFAULTS:
        if not 1 <= int(checked[name]) <= 300:
            raise invalid(f"resource.{name}", checked[name], "Must be between 1 and 300.")
    if int(checked["timeoutSec"]) > int(checked["checkIntervalSec"]):
        raise invalid(
            "resource.timeoutSec",
            checked["timeoutSec"],
            f"Must be at most checkIntervalSec, {checked['checkIntervalSec']}.",
        )
    kinds = [name for name in checked if name.endswith("HealthCheck")]
    if len(kinds) != 1:
        raise invalid("resource", ", ".join(kinds), "Exactly one kind of health check is required.")
    kind = kinds[0].removesuffix("HealthCheck").upper()
    if body.get("type") not in (None, kind):
        raise invalid("resource.type", body["type"], f"Must be {kind}, as {kinds[0]} says.")
    return {**checked, "type": kind}


def checked_zones(body: dict[str, Any], region: str, known: Sequence[str]) -> list[str]:
    """The zones of a regional group's body, checked; all `known` ones if it names none."""
    asked = (body.get("distributionPolicy") or {}).get("zones") or []
    zones = [str(entry.get("zone")).rpartition("/")[2] for entry in asked]
    for zone in zones:
        if zone not in known:
            raise invalid(
                "resource.distributionPolicy.zones", zone, f"Must be a zone of region {region}."
            )
    return zones or list(known)


def _check_region(body: dict[str, Any], zones: Sequence[str], size: int) -> None:
    """Checks the rules of regional groups.

    The messages about `fixed` and `percent` are the API's own, as gcloud and Terraform have shown
    them. Compute's discovery document (v1, revision 20261106) says of maxSurge and maxUnavailable,
    in any group, "a fixed number or, if the group has 10 or more instances, a percentage". No
    refusal of a percentage in a zonal group was seen, so it is accepted there."""
    policy = body.get("updatePolicy") or {}
    for key in LIMITS:
        limit, field = policy.get(key) or {}, f"resource.updatePolicy.{key}"
        fixed, percent = limit.get("fixed"), limit.get("percent")
        if fixed is not None and 0 < int(fixed) < len(zones):
            raise invalid(
                f"{field}.fixed",
                fixed,
                f"Fixed updatePolicy.{key} for regional managed instance group has to be either 0 "
                "or at least equal to the number of zones.",
            )
        if percent is not None and size < SMALLEST_IN_PERCENT:
            raise invalid(
                f"{field}.percent",
                percent,
                f"Percent updatePolicy.{key} for regional managed instance group is only allowed "
                f"for regional managed instance groups with size at least {SMALLEST_IN_PERCENT}.",
            )
    lifecycle = body.get("instanceLifecyclePolicy") or {}
    if (lifecycle.get("onRepair") or {}).get("allowChangingZone") != "YES":
        return
    shape = (body.get("distributionPolicy") or {}).get("targetShape") or "EVEN"
    field = "resource.instanceLifecyclePolicy.onRepair.allowChangingZone"
    if shape not in ("BALANCED", "ANY"):
        raise invalid(field, "YES", f"The target shape must be BALANCED or ANY, not {shape}.")
    if lifecycle.get("forceUpdateOnRepair") != "YES":
        raise invalid(field, "YES", "forceUpdateOnRepair must be YES.")
    if policy.get("instanceRedistributionType") != "NONE":
        raise invalid(field, "YES", "instanceRedistributionType must be NONE.")


def check_versions(versions: Sequence[dict[str, Any]]) -> None:
    """Checks a group's versions: one or two, and exactly one without a target size."""
    field = "resource.versions"
    if len(versions) > MOST_VERSIONS:
        raise invalid(field, len(versions), f"At most {MOST_VERSIONS} versions can be specified.")
    names = [version.get("name") or "" for version in versions]
    if len(set(names)) < len(names):
        raise invalid(f"{field}[1].name", names[1], "Names of versions must be unique.")
    sizes = [version.get("targetSize") or {} for version in versions]
    given = [{key: n for key, n in size.items() if key != "calculated"} for size in sizes]
    for index, size in enumerate(given):
        _check_fixed_or_percent(f"{field}[{index}].targetSize", size)
    if sum(not size for size in given) != 1:
        raise invalid(field, given, "Exactly one version must leave targetSize unset.")


def _check_fixed_or_percent(field: str, size: dict[str, Any]) -> None:
    """Checks a number of VMs or a percentage of a group."""
    given = {key: size[key] for key in ("fixed", "percent") if size.get(key) is not None}
    if len(given) > 1:
        raise invalid(field, given, "Only one of fixed and percent can be set.")
    if not 0 <= int(given.get("percent", 0)) <= 100:
        raise invalid(f"{field}.percent", given["percent"], "Must be from 0 to 100.")
    if int(given.get("fixed", 0)) < 0:
        raise invalid(f"{field}.fixed", given["fixed"], "Must be at least 0.")


def check_group(body: dict[str, Any], size: int, zones: Sequence[str] | None = None) -> None:
    """Checks a group's whole body after a change. `size`: its target size; `zones`: the zones of a
    regional group."""
    base_name = body.get("baseInstanceName")
    if base_name and not BASE_NAME.fullmatch(base_name):
        raise invalid(
            "resource.baseInstanceName",
            base_name,
            f"Must be a match of regex '(?:{BASE_NAME.pattern})'",
        )
    policy = body.get("updatePolicy") or {}
    surge = policy.get("maxSurge") or {}
    unavailable = policy.get("maxUnavailable") or {}
    for key in LIMITS:
        _check_fixed_or_percent(f"resource.updatePolicy.{key}", policy.get(key) or {})
    if policy.get("replacementMethod") == "RECREATE":
        if surge.get("fixed", 0 if surge.get("percent") is not None else 1) > 0 or surge.get(
            "percent"
        ):
            raise invalid(
                "resource.updatePolicy.maxSurge",
                surge or {"fixed": 1},
                "maxSurge must be equal to 0 when replacement method is set to RECREATE",
            )
        if unavailable.get("fixed") == 0 or unavailable.get("percent") == 0:
            raise invalid(
                "resource.updatePolicy.maxUnavailable",
                unavailable,
                "maxUnavailable must be greater than 0 when replacement method is set to RECREATE",
            )
    if surge.get("fixed") == 0 and unavailable.get("fixed") == 0:
        raise invalid(
            "resource.updatePolicy", policy, "Only one of maxSurge and maxUnavailable can be 0."
        )
    lifecycle = body.get("instanceLifecyclePolicy") or {}
    if zones:
        _check_region(body, zones, size)
    elif (lifecycle.get("onRepair") or {}).get("allowChangingZone") == "YES":
        raise ApiError(400, "allowChangingZone can be YES only in a regional group.")
    healing = (body.get("autoHealingPolicies") or [{}])[0]
    delay_sec = int(healing.get("initialDelaySec") or 0)
    if not 0 <= delay_sec <= LONGEST_INITIAL_DELAY_SEC:
        raise invalid(
            "resource.autoHealingPolicies[0].initialDelaySec",
            delay_sec,
            f"Must be between 0 and {LONGEST_INITIAL_DELAY_SEC}.",
        )
    if (body.get("statefulPolicy") or {}).get("preservedState"):
        raise no_stateful_groups("statefulPolicy.preservedState")
