"""Objects that are declared and only stored: networks, subnetworks, routers, firewalls, disks,
images.

No packet is routed and no disk holds data: each object is checked, named, linked and answered as
Compute Engine does, so that programs find what they declared."""

from collections.abc import Callable, Iterable, Sequence

from outlast.localcloud.base.clock import to_rfc3339
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry, State
from outlast.localcloud.compute import rules
from outlast.localcloud.compute.calls import Call, Handler, Row, aggregated
from outlast.localcloud.compute.catalogue import ALL_ZONES, ZONES
from outlast.localcloud.compute.declared_kinds import (
    DEFAULT_NETWORK,
    DISK,
    IMAGE,
    KINDS,
    NETWORK,
    SUBNETWORK,
    Kind,
)
from outlast.localcloud.compute.given import Given
from outlast.localcloud.compute.links import Json, Links, fingerprint
from outlast.localcloud.compute.project_images import ProjectImages

# Output only. A body may contain them, because clients send back whole answers.
OUTPUT_FIELDS = frozenset(
    {"kind", "id", "creationTimestamp", "selfLink", "selfLinkWithId", "fingerprint", "status"}
    | {"labelFingerprint", "region", "zone", "users"}
)


class Declared:
    """The declared objects of one project."""

    def __init__(
        self,
        state: State,
        links: Links,
        given: Given,
        now: Callable[[], float],
        operation: Callable[[str, str, str], Json],
        disks: Callable[[str], Iterable[Json]],
        users: Callable[[str], Sequence[str]],
        images: ProjectImages,
    ) -> None:
        """`operation(kind, path, target id)` records an operation. `disks(zone)` returns the disks
        of the VMs. `users(path)` returns the paths of the VMs that a declared disk is attached
        to."""
        self._state = state
        self._table = state.table("compute/declared")
        self._images = images
        self.image_size_gb = images.image_size_gb
        self._links = links
        self._given_things = given
        self._now = now
        self._operation = operation
        self._disks = disks
        self._users = users

    def paths(self) -> list[str]:
        """The paths of all declared objects, for audits."""
        return list(self._table)

    def clear(self) -> None:
        """Forgets all declared objects."""
        self._images.clear()
        self._table.clear()

    def routes(self) -> list[Row]:
        """The routes that every kind has, below a project; `SpecialCalls` has the others."""
        table: list[Row] = []
        for kind in KINDS:
            one = kind.path + "/{name}"
            if kind.scope != "global":
                everywhere = f"aggregated/{kind.collection}"
                list_all = f"{kind.collection}.list"
                table.append(("GET", everywhere, self._on(kind, self._aggregate), list_all))
            table += [
                ("GET", kind.path, self._on(kind, self._list), f"{kind.collection}.list"),
                ("DELETE", one, self._on(kind, self._delete), f"{kind.collection}.delete"),
            ]
            if kind is not IMAGE:
                create = f"{kind.collection}.create"
                table.append(("POST", kind.path, self._on(kind, self.insert), create))
                table.append(("GET", one, self._on(kind, self._get), f"{kind.collection}.get"))
            if kind.patched:
                update = f"{kind.collection}.update"
                table.append(("PATCH", one, self._on(kind, self._patch), update))
            if kind.labelled:
                labels = f"{kind.collection}.setLabels"
                table.append(("POST", one + "/setLabels", self._on(kind, self._label), labels))
        return table

    # Calls of every kind

    def _on(self, kind: Kind, work: "Callable[[Kind, Call], Json]") -> Handler:
        async def handle(call: Call) -> Json:
            return work(kind, call)

        return handle

    def _place(self, kind: Kind, call: Call) -> str:
        return kind.path.format_map(dict(call.params))

    def entry(self, kind: Kind, call: Call) -> Entry:
        """The declared object that a call names, by its name or its number. Raises ApiError."""
        place, asked = self._place(kind, call), call["name"]
        for key in (f"{place}/{asked}", *(self._table if asked.isdigit() else ())):
            entry = self._table.get(key)
            if entry and key.startswith(f"{place}/") and asked in (entry["name"], entry["id"]):
                return entry
        given = {one["name"] for one in self._given(kind, self._place(kind, call))}
        if asked in given:
            raise ApiError(501, f"{place}/{asked}: the local cloud's own cannot be changed.")
        raise self._unknown(f"{place}/{asked}")

    def _unknown(self, path: str) -> ApiError:
        project = self._links.link("").split("/projects/")[1]
        return ApiError(404, f"The resource 'projects/{project}{path}' was not found")

    def _given(self, kind: Kind, place: str) -> list[Json]:
        """The objects of a kind and a place that exist without a declaration."""
        if kind is NETWORK:
            return [self._given_things.network()]
        if kind is SUBNETWORK:
            return [self._given_things.subnetwork(place.split("/")[1])]
        if kind is DISK:
            return list(self._disks(place.split("/")[1]))
        if kind is IMAGE:
            return [self._given_things.image(image) for image in self._images.given()]
        return []

    def shown(self, kind: Kind, entry: Entry) -> Json:
        """The JSON of a declared object."""
        answer = {
            "kind": f"compute#{kind.one}",
            "id": entry["id"],
            "name": entry["name"],
            "creationTimestamp": to_rfc3339(entry["created"]),
            "selfLink": self._links.link(entry["path"]),
        }
        place = entry["path"].rpartition("/")[0]
        if kind.scope != "global":
            answer[kind.scope] = self._links.link(place.rpartition("/")[0])
        if kind.labelled:
            answer["labelFingerprint"] = fingerprint(entry["fingerprint"])
        if kind is NETWORK:
            answer["selfLinkWithId"] = self._links.link(f"{place}/{entry['id']}")
            answer["subnetworks"] = self._subnetworks_of(entry)
        if kind is SUBNETWORK:
            answer["fingerprint"] = fingerprint(entry["fingerprint"])
        if kind is DISK and (users := self._users(entry["path"])):
            answer["users"] = [self._links.link(user) for user in users]
        return {**answer, **entry["body"]}

    def insert(self, kind: Kind, call: Call) -> Json:
        """Declares an object; returns the operation."""
        place = self._place(kind, call)
        name = rules.check_name("resource.name", call.body.get("name"))
        path = f"{place}/{name}"
        taken = {one["name"] for one in self._given(kind, self._place(kind, call))}
        if path in self._table or name in taken:
            project = self._links.link(path).split("/v1/")[1]
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
        """The link of an existing network; raises ApiError."""
        path = f"global/networks/{reference.rpartition('/')[2]}"
        if path != DEFAULT_NETWORK and path not in self._table:
            raise rules.invalid(
                "resource.network", reference, "The referenced network resource cannot be found."
            )
        return self._links.link(path)

    def _settled(self, kind: Kind, entry: Entry) -> Entry:
        if kind.labelled:
            rules.check_labels("resource.labels", entry["body"].get("labels") or {})
        return {**entry, "body": kind.settle(self, entry)}

    def _get(self, kind: Kind, call: Call) -> Json:
        for one in self._given(kind, self._place(kind, call)):
            if call["name"] in (one["name"], one["id"]):
                return one
        return self.shown(kind, self.entry(kind, call))

    def _list(self, kind: Kind, call: Call) -> Json:
        place = self._place(kind, call)
        return {
            "kind": f"compute#{kind.one}List",
            "id": place,
            "items": self._in(kind, place),
            "selfLink": self._links.link(place),
        }

    def _aggregate(self, kind: Kind, call: Call) -> Json:
        places = ALL_ZONES if kind.scope == "zone" else ZONES
        scopes = {
            f"{kind.scope}s/{name}": self._in(kind, kind.path.format_map({kind.scope: name}))
            for name in places
        }
        return aggregated(kind.one, kind.collection, scopes, lambda shown: shown)

    def _in(self, kind: Kind, place: str) -> list[Json]:
        """The objects of a kind in a place."""
        declared = [self._table[key] for key in self._table if key.startswith(f"{place}/")]
        return [*self._given(kind, place), *(self.shown(kind, entry) for entry in declared)]

    def change(self, kind: Kind, entry: Entry, body: Json, operation: str) -> Json:
        """Checks and stores an object's new body; returns the operation."""
        changed = {**entry, "body": body, "fingerprint": entry["fingerprint"] + 1}
        self._table[entry["path"]] = self._settled(kind, changed)
        return self._operation(operation, entry["path"], entry["id"])

    def _patch(self, kind: Kind, call: Call) -> Json:
        entry = self.entry(kind, call)
        _check_fingerprint(entry, call.body.get("fingerprint"), "Invalid fingerprint.")
        changes = self._body(call.body)
        _check_fixed(kind, entry, call.body.get("name"), changes)
        return self.change(kind, entry, rules.merged(entry["body"], changes), "patch")

    def _label(self, kind: Kind, call: Call) -> Json:
        entry = self.entry(kind, call)
        _check_fingerprint(
            entry,
            call.body.get("labelFingerprint") or "",
            "Labels fingerprint either invalid or resource labels have changed",
        )
        body = {**entry["body"], "labels": call.body.get("labels") or {}}
        return self.change(kind, entry, body, "setLabels")

    def _delete(self, kind: Kind, call: Call) -> Json:
        path = f"{self._place(kind, call)}/{call['name']}"
        user = self._user_of(kind, path, call)
        if user:
            project = self._links.link("").split("/v1/")[1]
            raise ApiError(
                400,
                f"The {kind.one} resource '{project}{path}' is already being used by "
                f"'{project}{user}'",
                "resourceInUseByAnotherResource",
            )
        entry = self.entry(kind, call)
        del self._table[entry["path"]]
        if kind is IMAGE:
            self._images.forget(entry["name"])
        return self._operation("delete", entry["path"], entry["id"])

    def _user_of(self, kind: Kind, path: str, call: Call) -> str | None:
        """The path of its user: another declared object, or the VM of a disk; None if it has
        none."""
        if kind is NETWORK:
            link = self._links.link(path)
            users = (key for key in self._table if self._table[key]["body"].get("network") == link)
            return next(users, None)
        if kind is DISK:
            disks = [
                disk
                for disk in self._given(kind, self._place(kind, call))
                if disk["name"] == call["name"]
            ]
            own = next((disk["users"][0].split("/", 7)[7] for disk in disks), None)
            return own or next(iter(self._users(path)), None)
        return None

    # Calls of single kinds

    def disk_path(self, zone: str, reference: str) -> str:
        """The path of the declared disk of a zone that a `source` names. Raises ApiError."""
        place, _, name = reference.partition("/disks/")
        path = f"zones/{zone}/disks/{name}"
        if not name or place.rpartition("zones/")[2] != zone:
            raise rules.invalid("source", reference, f"Must be the URL of a disk of zone {zone}.")
        if path not in self._table:
            project = self._links.link("").split("/v1/")[1]
            raise ApiError(404, f"The resource '{project}{path}' was not found")
        return path

    def disk_size_gb(self, reference: str) -> int:
        """The size in GB of a declared disk or of a VM's disk. Raises ApiError."""
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

    def link(self, path: str) -> str:
        """The address of an object in the project."""
        return self._links.link(path)

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


def _check_fixed(kind: Kind, entry: Entry, name: str | None, changes: Json) -> None:
    if name not in (None, entry["name"]):
        raise rules.invalid("resource.name", name, "A name cannot be changed.")
    for key in kind.fixed:
        if key in changes and changes[key] != entry["body"].get(key):
            raise rules.invalid(
                f"resource.{key}", changes[key], "The field cannot be changed after creation."
            )
