"""What is declared and only kept: networks, subnetworks, routers, firewalls, disks, images.

No packet is routed here and no disk holds a byte: each is checked, named, linked and answered as
Compute Engine does, so that programs which declare one find what they declared.
"""

import ipaddress
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.localcloud.base.clock import to_rfc3339
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry, State
from outlast.localcloud.compute import firewalls, rules
from outlast.localcloud.compute.answers import Answers, Json, fingerprint
from outlast.localcloud.compute.catalogue import ZONES, Catalogue, Image

if TYPE_CHECKING:
    from outlast.localcloud.compute.calls import Call, Handler

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
# Output only: a body may carry them, for clients send back whole answers.
OUTPUT_FIELDS = frozenset(
    {"kind", "id", "creationTimestamp", "selfLink", "selfLinkWithId", "fingerprint", "status"}
    | {"labelFingerprint", "region", "zone", "users"}
)

Settle = Callable[["Declared", Entry], Json]


@dataclass(frozen=True)
class Kind:
    """A kind of thing that is declared."""

    collection: str
    one: str
    """As in `compute#network`, and in the sentence that it is used."""
    scope: str
    settle: Settle
    """The whole body of what was asked for, checked, with what the API fills in."""
    fixed: frozenset[str] = frozenset()
    """Fields that a patch cannot change."""
    replaceable: bool = False
    """Whether PUT replaces it."""
    labelled: bool = False

    @property
    def path(self) -> str:
        return f"{PLACES[self.scope]}/{self.collection}"


class Declared:
    """The declared things of one project."""

    def __init__(
        self,
        state: State,
        answers: Answers,
        catalogue: Catalogue,
        now: Callable[[], float],
        operation: Callable[[str, str, str], Json],
        disks: Callable[[str], Iterable[Json]],
        users: Callable[[str], Sequence[str]],
        bake: Callable[[str, str, Path, bool], Awaitable[None]],
    ) -> None:
        """`operation(kind, path, target id)` records what was done; `disks(zone)` are the VMs';
        `users(path)` are the paths of the VMs that a declared disk is attached to;
        `bake(zone, disk, folder, force)` copies what one of them holds."""
        self._state = state
        self._table = state.table("compute/declared")
        self._answers = answers
        self._catalogue = catalogue
        self._now = now
        self._operation = operation
        self._disks = disks
        self._users = users
        self._bake = bake
        for entry in sorted(self._images(), key=lambda entry: entry["created"]):
            self._offer(entry)

    def paths(self) -> list[str]:
        """What is declared, for audits."""
        return list(self._table)

    def clear(self) -> None:
        """Forgets everything that was declared."""
        for entry in self._images():
            self._catalogue.withdraw(entry["name"])
        self._table.clear()
        shutil.rmtree(self._folder(""), ignore_errors=True)

    def routes(self) -> list[tuple[str, str, "Handler", str | None]]:
        """(method, path, handler, permission) of every path below a project."""
        table: list[tuple[str, str, Handler, str | None]] = []
        for kind in KINDS:
            one = kind.path + "/{name}"
            insert = self._insert_image if kind is IMAGE else self._on(kind, self._insert)
            table += [
                ("POST", kind.path, insert, f"{kind.collection}.create"),
                ("GET", kind.path, self._on(kind, self._list), f"{kind.collection}.list"),
                ("DELETE", one, self._on(kind, self._delete), f"{kind.collection}.delete"),
            ]
            if kind is IMAGE:  # also those of other projects
                table.append(("GET", kind.path + "/family/{family}", self._get_family, None))
                table.append(("GET", one, self._get_image, None))
            else:
                table.append(("GET", one, self._on(kind, self._get), f"{kind.collection}.get"))
            update = f"{kind.collection}.update"
            table.append(("PATCH", one, self._on(kind, self._patch), update))
            if kind.replaceable:
                table.append(("PUT", one, self._on(kind, self._replace), update))
            if kind.labelled:
                labels = f"{kind.collection}.setLabels"
                table.append(("POST", one + "/setLabels", self._on(kind, self._label), labels))
        subnetwork, disk = SUBNETWORK.path + "/{name}", DISK.path + "/{name}"
        table += [
            (
                *("POST", subnetwork + "/expandIpCidrRange", self._expand_range),
                "subnetworks.expandIpCidrRange",
            ),
            (
                *("POST", subnetwork + "/setPrivateIpGoogleAccess", self._set_private_access),
                "subnetworks.setPrivateIpGoogleAccess",
            ),
            ("POST", disk + "/resize", self._resize_disk, "disks.resize"),
            ("POST", IMAGE.path + "/{name}/deprecate", self._deprecate, "images.deprecate"),
            ("GET", "global/routes", self._nothing("routeList"), "routes.list"),
            (
                "GET",
                "zones/{zone}/autoscalers",
                self._nothing("autoscalerList"),
                "autoscalers.list",
            ),
            (
                *("GET", "regions/{region}/autoscalers", self._nothing("regionAutoscalerList")),
                "autoscalers.list",
            ),
        ]
        return table

    # What every kind has

    def _on(self, kind: Kind, work: "Callable[[Kind, Call], Json]") -> "Handler":
        async def handle(call: "Call") -> Json:
            return work(kind, call)

        return handle

    def _place(self, kind: Kind, call: "Call") -> str:
        return kind.path.format_map(dict(call.params))

    def _entry(self, kind: Kind, call: "Call") -> Entry:
        """The declared thing that a call names, by its name or its number."""
        place, asked = self._place(kind, call), call["name"]
        for key in (f"{place}/{asked}", *(self._table if asked.isdigit() else ())):
            entry = self._table.get(key)
            if entry and key.startswith(f"{place}/") and asked in (entry["name"], entry["id"]):
                return entry
        given = {one["name"] for one in self._given(kind, call)}
        if asked in given:
            raise ApiError(501, f"{place}/{asked}: the local cloud's own cannot be changed.")
        raise self._unknown(f"{place}/{asked}")

    def _unknown(self, path: str) -> ApiError:
        project = self._answers.link("").split("/projects/")[1]
        return ApiError(404, f"The resource 'projects/{project}{path}' was not found")

    def _given(self, kind: Kind, call: "Call") -> list[Json]:
        """What is there without having been declared."""
        if kind is NETWORK:
            return [self._answers.network()]
        if kind is SUBNETWORK:
            return [self._answers.subnetwork(call["region"])]
        if kind is DISK:
            return list(self._disks(call["zone"]))
        if kind is IMAGE:
            own = [i for i in self._catalogue.images if i.project == self._catalogue.project]
            declared = {entry["name"] for entry in self._images()}
            return [self._answers.image(image) for image in own if image.name not in declared]
        return []

    def _shown(self, kind: Kind, entry: Entry) -> Json:
        answer = {
            "kind": f"compute#{kind.one}",
            "id": entry["id"],
            "name": entry["name"],
            "creationTimestamp": to_rfc3339(entry["created"]),
            "selfLink": self._answers.link(entry["path"]),
        }
        place = entry["path"].rpartition("/")[0]
        if kind.scope != "global":
            answer[kind.scope] = self._answers.link(place.rpartition("/")[0])
        if kind.labelled:
            answer["labelFingerprint"] = fingerprint(entry["fingerprint"])
        if kind is NETWORK:
            answer["selfLinkWithId"] = self._answers.link(f"{place}/{entry['id']}")
            answer["subnetworks"] = self._subnetworks_of(entry)
        if kind is SUBNETWORK:
            answer["fingerprint"] = fingerprint(entry["fingerprint"])
        if kind is DISK and (users := self._users(entry["path"])):
            answer["users"] = [self._answers.link(user) for user in users]
        return {**answer, **entry["body"]}

    def _insert(self, kind: Kind, call: "Call") -> Json:
        place = self._place(kind, call)
        name = rules.check_name("resource.name", call.body.get("name"))
        path = f"{place}/{name}"
        taken = {one["name"] for one in self._given(kind, call)}
        if path in self._table or name in taken:
            project = self._answers.link(path).split("/v1/")[1]
            raise ApiError(409, f"The resource '{project}' already exists", "alreadyExists")
        entry: Entry = {
            "path": path,
            "name": name,
            "id": str(self._state.next_number()),
            "created": self._now(),
            "fingerprint": 1,
            "body": self._body(call.body),
        }
        self._table[path] = self._settled(kind, entry)
        return self._operation("insert", path, entry["id"])

    def _body(self, body: Json) -> Json:
        kept = {key: value for key, value in body.items() if key not in {*OUTPUT_FIELDS, "name"}}
        if "network" in kept:
            kept["network"] = self._network(str(kept["network"]))
        return kept

    def _network(self, reference: str) -> str:
        """The link of a network that is there."""
        path = f"global/networks/{reference.rpartition('/')[2]}"
        if path != DEFAULT_NETWORK and path not in self._table:
            raise rules.invalid(
                "resource.network", reference, "The referenced network resource cannot be found."
            )
        return self._answers.link(path)

    def _settled(self, kind: Kind, entry: Entry) -> Entry:
        if kind.labelled:
            rules.check_labels("resource.labels", entry["body"].get("labels") or {})
        return {**entry, "body": kind.settle(self, entry)}

    def _get(self, kind: Kind, call: "Call") -> Json:
        for one in self._given(kind, call):
            if call["name"] in (one["name"], one["id"]):
                return one
        return self._shown(kind, self._entry(kind, call))

    def _list(self, kind: Kind, call: "Call") -> Json:
        place = self._place(kind, call) + "/"
        declared = [self._table[key] for key in self._table if key.startswith(place)]
        items = [*self._given(kind, call), *(self._shown(kind, entry) for entry in declared)]
        return {
            "kind": f"compute#{kind.one}List",
            "id": place.rstrip("/"),
            "items": items,
            "selfLink": self._answers.link(place.rstrip("/")),
        }

    def _change(self, kind: Kind, entry: Entry, body: Json, operation: str) -> Json:
        changed = {**entry, "body": body, "fingerprint": entry["fingerprint"] + 1}
        self._table[entry["path"]] = self._settled(kind, changed)
        return self._operation(operation, entry["path"], entry["id"])

    def _patch(self, kind: Kind, call: "Call") -> Json:
        entry = self._entry(kind, call)
        _check_fingerprint(entry, call.body.get("fingerprint"), "Invalid fingerprint.")
        changes = self._body(call.body)
        _check_fixed(kind, entry, call.body.get("name"), changes)
        return self._change(kind, entry, rules.merged(entry["body"], changes), "patch")

    def _replace(self, kind: Kind, call: "Call") -> Json:
        entry = self._entry(kind, call)
        body = self._body(call.body)
        _check_fixed(kind, entry, call.body.get("name"), body)
        kept = {key: entry["body"][key] for key in kind.fixed if key in entry["body"]}
        return self._change(kind, entry, {**kept, **body}, "update")

    def _label(self, kind: Kind, call: "Call") -> Json:
        entry = self._entry(kind, call)
        _check_fingerprint(
            entry,
            call.body.get("labelFingerprint") or "",
            "Labels fingerprint either invalid or resource labels have changed",
        )
        body = {**entry["body"], "labels": call.body.get("labels") or {}}
        return self._change(kind, entry, body, "setLabels")

    def _delete(self, kind: Kind, call: "Call") -> Json:
        path = f"{self._place(kind, call)}/{call['name']}"
        user = self._user_of(kind, path, call)
        if user:
            project = self._answers.link("").split("/v1/")[1]
            raise ApiError(
                400,
                f"The {kind.one} resource '{project}{path}' is already being used by "
                f"'{project}{user}'",
                "resourceInUseByAnotherResource",
            )
        entry = self._entry(kind, call)
        del self._table[entry["path"]]
        if kind is IMAGE:
            self._catalogue.withdraw(entry["name"])
            shutil.rmtree(self._folder(entry["name"]), ignore_errors=True)
        return self._operation("delete", entry["path"], entry["id"])

    def _user_of(self, kind: Kind, path: str, call: "Call") -> str | None:
        """The path of what needs it: another declared thing, or the VM that a disk is of."""
        if kind is NETWORK:
            link = self._answers.link(path)
            users = (key for key in self._table if self._table[key]["body"].get("network") == link)
            return next(users, None)
        if kind is DISK:
            disks = [disk for disk in self._given(kind, call) if disk["name"] == call["name"]]
            own = next((disk["users"][0].split("/", 7)[7] for disk in disks), None)
            return own or next(iter(self._users(path)), None)
        return None

    # What single kinds have

    async def _expand_range(self, call: "Call") -> Json:
        entry = self._entry(SUBNETWORK, call)
        wanted = str(call.body.get("ipCidrRange") or "")
        old, new = _network_of(entry["body"]["ipCidrRange"]), _network_of(wanted)
        if not (new.prefixlen < old.prefixlen and old.subnet_of(new)):
            raise rules.invalid(
                "ipCidrRange", wanted, f"Must contain the subnetwork's own range {old}."
            )
        body = {**entry["body"], "ipCidrRange": wanted}
        return self._change(SUBNETWORK, entry, body, "expandIpCidrRange")

    async def _set_private_access(self, call: "Call") -> Json:
        entry = self._entry(SUBNETWORK, call)
        allowed = bool(call.body.get("privateIpGoogleAccess"))
        body = {**entry["body"], "privateIpGoogleAccess": allowed}
        return self._change(SUBNETWORK, entry, body, "setPrivateIpGoogleAccess")

    async def _resize_disk(self, call: "Call") -> Json:
        entry = self._entry(DISK, call)
        size, wanted = int(entry["body"]["sizeGb"]), str(call.body.get("sizeGb") or "")
        if not wanted or int(wanted) <= size:
            raise rules.invalid("sizeGb", wanted, f"Must be larger than the current size {size}.")
        body = {**entry["body"], "sizeGb": wanted}
        return self._change(DISK, entry, body, "resizeDisk")

    def _nothing(self, kind: str) -> "Handler":
        """What clients look for before they go on, and there is none of."""

        async def handle(call: "Call") -> Json:
            return {"kind": f"compute#{kind}", "items": []}

        return handle

    async def _insert_image(self, call: "Call") -> Json:
        force = call.query.get("forceCreate") == "true"
        body = call.body
        name = rules.check_name("resource.name", body.get("name"))
        folder = self._folder(name)
        place, _, disk = str(body.get("sourceDisk") or "").rpartition("/disks/")
        zone = place.rpartition("/")[2]
        if disk and f"{IMAGE.path}/{name}" not in self._table:
            self.disk_size_gb(body["sourceDisk"])
            if f"zones/{zone}/disks/{disk}" not in self._table:
                await self._bake(zone, disk, folder, force)
        operation = self._insert(IMAGE, call)
        self._offer(self._table[f"{IMAGE.path}/{name}"])
        return operation

    def _images(self) -> list[Entry]:
        return [self._table[key] for key in self._table if key.startswith(f"{IMAGE.path}/")]

    def _folder(self, name: str) -> Path:
        """Where what an image holds lies, if it was baked."""
        return self._state.root / "images" / name

    def _offer(self, entry: Entry) -> None:
        """Lets disks start from a declared image: what was baked, or what its source image has."""
        body = entry["body"]
        source = self._catalogue.image(str(body.get("sourceImage") or ""))
        baked = self._folder(entry["name"])
        folder = baked if baked.is_dir() else source.folder if source else None
        self._catalogue.offer(
            Image(
                self._catalogue.project,
                body.get("family") or "",
                entry["name"],
                int(body["diskSizeGb"]),
                folder,
                (body.get("deprecated") or {}).get("state") or "ACTIVE",
            )
        )

    async def _deprecate(self, call: "Call") -> Json:
        entry = self._entry(IMAGE, call)
        body = {**entry["body"], "deprecated": call.body}
        if call.body.get("state") in (None, "ACTIVE"):
            del body["deprecated"]
        operation = self._change(IMAGE, entry, body, "deprecate")
        self._offer(self._table[entry["path"]])
        return operation

    async def _get_image(self, call: "Call") -> Json:
        path = f"projects/{call['project']}/global/images/{call['name']}"
        return self._image(path)

    async def _get_family(self, call: "Call") -> Json:
        return self._image(f"projects/{call['project']}/global/images/family/{call['family']}")

    def _image(self, path: str) -> Json:
        image = self._catalogue.image(path)
        if image is None:
            raise ApiError(404, f"The resource '{path}' was not found")
        entry = self._table.get(f"global/images/{image.name}")
        if entry and image.project == self._catalogue.project:
            return self._shown(IMAGE, entry)
        return self._answers.image(image)

    def image_size_gb(self, reference: str) -> int:
        """The size of the image that a field means; ApiError if there is none."""
        image = self._catalogue.image(reference)
        if image is None:
            raise rules.invalid(
                "resource.sourceImage", reference, "The referenced image resource cannot be found."
            )
        return image.size_gb

    def disk_path(self, zone: str, reference: str) -> str:
        """The path of a declared disk of a zone that a `source` names."""
        place, _, name = reference.partition("/disks/")
        path = f"zones/{zone}/disks/{name}"
        if not name or place.rpartition("zones/")[2] != zone:
            raise rules.invalid("source", reference, f"Must be the URL of a disk of zone {zone}.")
        if path not in self._table:
            project = self._answers.link("").split("/v1/")[1]
            raise ApiError(404, f"The resource '{project}{path}' was not found")
        return path

    def disk_size_gb(self, reference: str) -> int:
        """The size of a declared disk or a VM's."""
        place, _, name = reference.partition("/disks/")
        zone = place.rpartition("/")[2]
        entry = self._table.get(f"zones/{zone}/disks/{name}")
        if entry:
            return int(entry["body"]["sizeGb"])
        for disk in self._disks(zone):
            if disk["name"] == name:
                return int(disk["sizeGb"])
        raise rules.invalid(
            "resource.sourceDisk", reference, "The referenced disk resource cannot be found."
        )

    def lets_in(self, properties: Json, account: str, sources: Iterable[str], port: int) -> bool:
        """Whether TCP from all of these addresses reaches a port of a VM."""
        interface = (properties.get("networkInterfaces") or [{}])[0]
        entries = [self._table[key] for key in self._table if key.startswith(f"{FIREWALL.path}/")]
        return all(
            firewalls.lets_in(
                [entry["body"] for entry in entries],
                network=self._network_behind(interface),
                tags=(properties.get("tags") or {}).get("items") or [],
                account=account,
                source=source,
                port=port,
            )
            for source in sources
        )

    def _network_behind(self, interface: Json) -> str:
        """The network that a VM's interface is in, by itself or by its subnetwork."""
        if interface.get("network"):
            return str(interface["network"])
        path = str(interface.get("subnetwork") or "").partition("/regions/")[2]
        entry = self._table.get(f"regions/{path}")
        return str(entry["body"]["network"]) if entry else DEFAULT_NETWORK

    def link(self, path: str) -> str:
        """The address of something in the project."""
        return self._answers.link(path)

    def _subnetworks_of(self, entry: Entry) -> list[str]:
        """Links of a network's subnetworks."""
        network = self.link(entry["path"])
        if entry["body"]["autoCreateSubnetworks"]:
            return [self.link(f"regions/{r}/subnetworks/{entry['name']}") for r in ZONES]
        return [
            self.link(key)
            for key in self._table
            if "/subnetworks/" in key and self._table[key]["body"].get("network") == network
        ]


def _check_fingerprint(entry: Entry, asked: str | None, message: str) -> None:
    if asked is not None and asked != fingerprint(entry["fingerprint"]):
        raise ApiError(412, message, "conditionNotMet")


def _network_of(text: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError:
        raise rules.invalid(
            "resource.ipCidrRange",
            text,
            "Must be a CIDR address range that is contained in RFC 1918.",
        ) from None


def _check_fixed(kind: Kind, entry: Entry, name: str | None, changes: Json) -> None:
    if name not in (None, entry["name"]):
        raise rules.invalid("resource.name", name, "A name cannot be changed.")
    for key in kind.fixed:
        if key in changes and changes[key] != entry["body"].get(key):
            raise rules.invalid(
                f"resource.{key}", changes[key], "The field cannot be changed after creation."
            )


def _settled_network(declared: Declared, entry: Entry) -> Json:
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


def _settled_subnetwork(declared: Declared, entry: Entry) -> Json:
    _need(entry, "network")
    addresses = _network_of(str(entry["body"].get("ipCidrRange") or ""))
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


def _settled_router(declared: Declared, entry: Entry) -> Json:
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


def _settled_firewall(declared: Declared, entry: Entry) -> Json:
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
        "network": declared.link(DEFAULT_NETWORK),
        "priority": 1000,
        **everyone,
        **body,
    }


def _settled_image(declared: Declared, entry: Entry) -> Json:
    body = entry["body"]
    sources = [key for key in SOURCES if body.get(key)]
    if len(sources) != 1:
        raise ApiError(400, f"Exactly one of {', '.join(SOURCES)} must be specified.")
    size_gb = DEFAULT_SIZE_GB
    if "diskSizeGb" in body:  # kept from its creation, whatever became of the source
        size_gb = body["diskSizeGb"]
    elif "sourceImage" in sources:
        size_gb = declared.image_size_gb(body["sourceImage"])
    elif "sourceDisk" in sources:
        size_gb = declared.disk_size_gb(body["sourceDisk"])
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


def _settled_disk(declared: Declared, entry: Entry) -> Json:
    body = entry["body"]
    least = declared.image_size_gb(body["sourceImage"]) if body.get("sourceImage") else 1
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
        "type": declared.link(f"{zone}/diskTypes/pd-standard"),
        **body,
        "sizeGb": str(size_gb),
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
    replaceable=True,
)
FIREWALL = Kind(
    *("firewalls", "firewall", "global", _settled_firewall),
    fixed=frozenset({"network", "direction"}),
    replaceable=True,
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
KINDS = (NETWORK, SUBNETWORK, ROUTER, FIREWALL, IMAGE, DISK)
