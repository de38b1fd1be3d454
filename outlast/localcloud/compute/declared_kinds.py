"""The kinds of objects that are declared and only stored, and the rules of each."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.compute import rules
from outlast.localcloud.compute.links import Json

DEFAULT_NETWORK = "global/networks/default"
PLACES = {"global": "global", "region": "regions/{region}", "zone": "zones/{zone}"}
ANYWHERE = ["0.0.0.0/0"]
DEFAULT_SIZE_GB = 10
LOWEST_PRIORITY = 65535
SOURCES = ("rawDisk", "sourceDisk", "sourceImage", "sourceSnapshot")
NAT_DEFAULTS = {
    "type": "PUBLIC",
    "autoNetworkTier": "PREMIUM",
    "enableDynamicPortAllocation": False,
    "enableEndpointIndependentMapping": False,
    "endpointTypes": ["ENDPOINT_TYPE_VM"],
    "icmpIdleTimeoutSec": 30,
    "minPortsPerVm": 64,
    "tcpEstablishedIdleTimeoutSec": 1200,
    "tcpTimeWaitTimeoutSec": 120,
    "tcpTransitoryIdleTimeoutSec": 30,
    "udpIdleTimeoutSec": 30,
    "logConfig": {"enable": False, "filter": "ALL"},
}


class Project(Protocol):
    """The rest of the project, as the rules need it."""

    def link(self, path: str) -> str:
        """The address of an object in the project."""
        ...

    def image_size_gb(self, reference: str) -> int:
        """The size in GB of the image that a field names; ApiError if it does not exist."""
        ...

    def disk_size_gb(self, reference: str) -> int:
        """The size in GB of the disk that a field names; ApiError if it does not exist."""
        ...


Settle = Callable[[Project, Entry], Json]


@dataclass(frozen=True)
class Kind:
    """A kind of declared object."""

    collection: str
    one: str
    """The singular, as in `compute#network` and in the message that it is in use."""
    scope: str
    settle: Settle
    """Checks the requested body, and returns it with the API's defaults."""
    fixed: frozenset[str] = frozenset()
    """Fields that a patch cannot change."""
    labelled: bool = False
    patched: bool = True
    """Whether the API can change it."""

    @property
    def path(self) -> str:
        return f"{PLACES[self.scope]}/{self.collection}"


def network_of(text: str) -> ipaddress.IPv4Network:
    """The addresses of a range; ApiError if the text is not a range."""
    try:
        return ipaddress.IPv4Network(text)
    except ValueError:
        raise rules.invalid(
            "resource.ipCidrRange",
            text,
            "Must be a CIDR address range that is contained in RFC 1918.",
        ) from None


def _settled_network(project: Project, entry: Entry) -> Json:
    return {
        "autoCreateSubnetworks": False,
        "mtu": 1460,
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        **entry["body"],
        "routingConfig": {
            "routingMode": "REGIONAL",
            "bgpBestPathSelectionMode": "LEGACY",
            **(entry["body"].get("routingConfig") or {}),
        },
    }


def _settled_subnetwork(project: Project, entry: Entry) -> Json:
    _need(entry, "network")
    addresses = network_of(str(entry["body"].get("ipCidrRange") or ""))
    return {
        "allowSubnetCidrRoutesOverlap": False,
        "enableFlowLogs": False,
        "gatewayAddress": str(addresses.network_address + 1),
        "privateIpGoogleAccess": False,
        "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        **entry["body"],
    }


def _settled_router(project: Project, entry: Entry) -> Json:
    _need(entry, "network")
    nats = entry["body"].get("nats") or []
    for index, nat in enumerate(nats):
        where = f"resource.nats[{index}]"
        rules.check_name(f"{where}.name", nat.get("name"))
        if not nat.get("sourceSubnetworkIpRangesToNat"):
            name = f"{where}.sourceSubnetworkIpRangesToNat"
            raise ApiError(400, f"Required field '{name}' not specified", "required")
    names = [nat["name"] for nat in nats]
    if len(set(names)) < len(names):
        raise rules.invalid("resource.nats", ", ".join(names), "Names must be unique.")
    body = {"encryptedInterconnectRouter": False, **entry["body"]}
    if nats:
        body["nats"] = [{**NAT_DEFAULTS, **nat} for nat in nats]
    return body


def _settled_firewall(project: Project, entry: Entry) -> Json:
    body = entry["body"]
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise rules.invalid(
            "resource.allowed",
            body.get("allowed", ""),
            "Exactly one of allowed and denied is needed.",
        )
    priority = body.get("priority", 1000)
    if not 0 <= int(priority) <= LOWEST_PRIORITY:
        raise rules.invalid("resource.priority", priority, f"Must be 0 to {LOWEST_PRIORITY}.")
    incoming = body.get("direction", "INGRESS") == "INGRESS"
    sources = [
        key for key in ("sourceRanges", "sourceTags", "sourceServiceAccounts") if key in body
    ]
    if sources and not incoming:
        raise rules.invalid(
            f"resource.{sources[0]}", body[sources[0]], "Not allowed for the direction EGRESS."
        )
    everyone = {} if sources else {"sourceRanges" if incoming else "destinationRanges": ANYWHERE}
    return {
        "description": "",
        "direction": "INGRESS",
        "disabled": False,
        "logConfig": {"enable": False},
        "network": project.link(DEFAULT_NETWORK),
        "priority": 1000,
        **everyone,
        **body,
    }


def _settled_image(project: Project, entry: Entry) -> Json:
    body = entry["body"]
    sources = [key for key in SOURCES if body.get(key)]
    if len(sources) != 1:
        raise ApiError(400, f"Exactly one of {', '.join(SOURCES)} must be specified.")
    size_gb = DEFAULT_SIZE_GB
    if "diskSizeGb" in body:  # set when it was created; the source may have changed since
        size_gb = body["diskSizeGb"]
    elif "sourceImage" in sources:
        size_gb = project.image_size_gb(body["sourceImage"])
    elif "sourceDisk" in sources:
        size_gb = project.disk_size_gb(body["sourceDisk"])
    return {
        "architecture": "X86_64",
        "archiveSizeBytes": "0",
        "labels": {},
        "sourceType": "RAW",
        "status": "READY",
        "storageLocations": ["eu"],
        **body,
        "diskSizeGb": str(size_gb),
    }


def _settled_disk(project: Project, entry: Entry) -> Json:
    body = entry["body"]
    least = project.image_size_gb(body["sourceImage"]) if body.get("sourceImage") else 1
    size_gb = int(body.get("sizeGb") or max(least, DEFAULT_SIZE_GB))
    if size_gb < least:
        raise rules.invalid(
            "resource.sizeGb",
            size_gb,
            f"Requested disk size cannot be smaller than the image size ({least} GB)",
        )
    zone = "/".join(entry["path"].split("/")[:2])
    return {
        "labels": {},
        "physicalBlockSizeBytes": "4096",
        "status": "READY",
        "type": project.link(f"{zone}/diskTypes/pd-standard"),
        **body,
        "sizeGb": str(size_gb),
    }


def _settled_address(project: Project, entry: Entry) -> Json:
    low = int(entry["id"]) % 250 + 1
    return {
        "address": f"203.0.113.{low}",
        "addressType": "EXTERNAL",
        "labels": {},
        "networkTier": "PREMIUM",
        "status": "RESERVED",
        **entry["body"],
    }


def _need(entry: Entry, name: str) -> None:
    if not entry["body"].get(name):
        raise ApiError(400, f"Required field 'resource.{name}' not specified", "required")


NETWORK = Kind("networks", "network", "global", _settled_network)
SUBNETWORK = Kind(
    *("subnetworks", "subnetwork", "region", _settled_subnetwork),
    fixed=frozenset({"network", "ipCidrRange"}),
)
ROUTER = Kind(
    *("routers", "router", "region", _settled_router),
    fixed=frozenset({"network"}),
)
FIREWALL = Kind(
    *("firewalls", "firewall", "global", _settled_firewall),
    fixed=frozenset({"network", "direction"}),
)
IMAGE = Kind(
    *("images", "image", "global", _settled_image),
    fixed=frozenset(SOURCES),
    labelled=True,
)
DISK = Kind(
    *("disks", "disk", "zone", _settled_disk),
    fixed=frozenset({"sourceImage", "type"}),
    labelled=True,
)
ADDRESS = Kind(
    *("addresses", "address", "region", _settled_address),
    labelled=True,
    patched=False,
)
KINDS = (NETWORK, SUBNETWORK, ROUTER, FIREWALL, IMAGE, DISK, ADDRESS)
