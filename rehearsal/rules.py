"""The rules of Compute Engine that its schema does not say, for templates and groups.

Each check raises ApiError 400 in Google's words where those are known.
"""

import re
from typing import Any

from rehearsal.clock import from_rfc3339
from rehearsal.errors import ApiError
from rehearsal.model import duration_sec, is_spot

NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
BASE_NAME = re.compile(r"[a-z][-a-z0-9]{0,57}|(?=.{1,63}$)[a-z](?:[-a-z0-9]*[a-z0-9])?-?#{1,10}")
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,127}")
MAX_LABELS = 64
MAX_METADATA_VALUE_BYTES = 262144
MAX_METADATA_BYTES = 512 * 1024
NOTICES_SEC = (0, 120)
SHORTEST_RUN_SEC = 30


def invalid(field: str, value: object, rule: str) -> ApiError:
    """400 for one field."""
    return ApiError(400, f"Invalid value for field '{field}': '{value}'. {rule}")


def cleaned(value: Any) -> Any:
    """A body without what means nothing: nulls, empty objects and what holds only these."""
    if isinstance(value, dict):
        kept = {key: cleaned(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if not _means_nothing(item)}
    if isinstance(value, list) and value:
        return [item for item in map(cleaned, value) if not _means_nothing(item)] or None
    return value


def _means_nothing(value: Any) -> bool:
    return value is None or value == {}


def check_name(field: str, name: object) -> str:
    """A resource's name."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(field, name, f"Must be a match of regex '{NAME.pattern}'")
    return name


def check_labels(field: str, labels: dict[str, Any]) -> None:
    """At most 64, in lower case."""
    if len(labels) > MAX_LABELS:
        raise invalid(field, len(labels), f"Must have at most {MAX_LABELS} labels.")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            raise invalid(field, key, f"Keys must match regex '{LABEL_KEY.pattern}'.")
        if not LABEL_VALUE.fullmatch(str(value)):
            raise invalid(f"{field}.{key}", value, f"Must match regex '{LABEL_VALUE.pattern}'.")


def check_metadata(field: str, items: list[dict[str, Any]]) -> None:
    """Keys, sizes and their sum."""
    total = 0
    seen: set[str] = set()
    for item in items:
        key, value = str(item.get("key") or ""), str(item.get("value") or "")
        if not METADATA_KEY.fullmatch(key):
            raise invalid(f"{field}.items.key", key, f"Must match '{METADATA_KEY.pattern}'.")
        if key in seen:
            raise invalid(field, key, "Metadata has duplicate keys.")
        seen.add(key)
        size = len(value.encode())
        if size > MAX_METADATA_VALUE_BYTES:
            raise ApiError(
                400,
                f"Value for field '{field}.items[{key}].value' is too large: maximum size "
                f"{MAX_METADATA_VALUE_BYTES} character(s); actual size {size}.",
            )
        total += size + len(key)
    if total >= MAX_METADATA_BYTES:
        raise ApiError(
            400, f"The total size of '{field}' is {total} bytes; it must be less than 512 KB."
        )


def checked_properties(properties: dict[str, Any]) -> dict[str, Any]:
    """A template's properties, checked and with the defaults that the API fills in."""
    field = "resource.properties"
    machine_type = properties.get("machineType")
    if not machine_type:
        raise invalid(f"{field}.machineType", "", "The machine type is required.")
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
        "scheduling": checked_scheduling(properties.get("scheduling") or {}),
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


def checked_scheduling(scheduling: dict[str, Any]) -> dict[str, Any]:
    """A `scheduling` block, checked and complete."""
    field = "resource.properties.scheduling"
    spot = is_spot(scheduling)
    limited = bool(scheduling.get("maxRunDuration") or scheduling.get("terminationTime"))
    on_maintenance = scheduling.get("onHostMaintenance") or ("TERMINATE" if spot else "MIGRATE")
    restart = scheduling.get("automaticRestart", not spot)
    if spot and scheduling.get("provisioningModel") == "STANDARD":
        raise ApiError(400, "A preemptible instance cannot have the provisioning model STANDARD.")
    if spot and restart:
        raise ApiError(
            400, "Scheduling must have automatic restart turned off for preemptible instances."
        )
    if spot and on_maintenance != "TERMINATE":
        raise ApiError(
            400, "Scheduling must have on host maintenance TERMINATE for preemptible instances."
        )
    if scheduling.get("instanceTerminationAction") and not (spot or limited):
        raise ApiError(
            400,
            "Instance termination action can be specified only for Spot VMs and for VMs with a "
            "time limit.",
        )
    if scheduling.get("maxRunDuration") and scheduling.get("terminationTime"):
        raise ApiError(400, "Only one of maxRunDuration and terminationTime can be specified.")
    if scheduling.get("maxRunDuration"):
        limit_sec = duration_sec(scheduling["maxRunDuration"])
        if limit_sec < SHORTEST_RUN_SEC:
            raise invalid(
                f"{field}.maxRunDuration", limit_sec, f"Must be at least {SHORTEST_RUN_SEC} s."
            )
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
            raise ApiError(400, "Preemption notice duration can be specified only for Spot VMs.")
        if notice_sec not in NOTICES_SEC:
            raise invalid(f"{field}.preemptionNoticeDuration", notice_sec, "Must be 0 s or 120 s.")
    return {
        "provisioningModel": "SPOT" if spot and "provisioningModel" in scheduling else "STANDARD",
        **scheduling,
        "preemptible": spot,
        "automaticRestart": restart,
        "onHostMaintenance": on_maintenance,
    }


def check_group(body: dict[str, Any]) -> None:
    """A group's body after a change, whole."""
    base_name = body.get("baseInstanceName")
    if base_name and not BASE_NAME.fullmatch(base_name):
        raise invalid(
            "resource.baseInstanceName", base_name, f"Must match regex '{BASE_NAME.pattern}'."
        )
    policy = body.get("updatePolicy") or {}
    surge = policy.get("maxSurge") or {}
    unavailable = policy.get("maxUnavailable") or {}
    if policy.get("replacementMethod") == "RECREATE":
        if surge.get("fixed", 0 if surge.get("percent") is not None else 1) > 0 or surge.get(
            "percent"
        ):
            raise ApiError(
                400, "maxSurge must be equal to 0 when the replacement method is RECREATE."
            )
        if unavailable.get("fixed") == 0 or unavailable.get("percent") == 0:
            raise ApiError(
                400,
                "maxUnavailable must be greater than 0 when the replacement method is RECREATE.",
            )
    elif policy.get("type") == "PROACTIVE":
        raise ApiError(501, "updatePolicy PROACTIVE with SUBSTITUTE is not in the local cloud.")
    if surge.get("fixed") == 0 and unavailable.get("fixed") == 0:
        raise ApiError(400, "Only one of maxSurge and maxUnavailable can be 0.")
    lifecycle = body.get("instanceLifecyclePolicy") or {}
    if (lifecycle.get("onRepair") or {}).get("allowChangingZone") == "YES":
        raise ApiError(400, "allowChangingZone can be YES only in a regional group.")
    if body.get("autoHealingPolicies"):
        raise ApiError(501, "autoHealingPolicies: the local cloud has no health checks.")
    if (body.get("statefulPolicy") or {}).get("preservedState"):
        raise ApiError(501, "statefulPolicy: the local cloud has no stateful groups.")
