"""Calls of single kinds of declared objects, and lists that are always empty."""

from outlast.localcloud.base.state import Table
from outlast.localcloud.compute import rules
from outlast.localcloud.compute.calls import Call, Handler, Row
from outlast.localcloud.compute.declared import Declared
from outlast.localcloud.compute.declared_kinds import DISK, IMAGE, SUBNETWORK, network_of
from outlast.localcloud.compute.given import Given
from outlast.localcloud.compute.links import Json
from outlast.localcloud.compute.project_images import ProjectImages


class SpecialCalls:
    """Answers the calls that not every kind has."""

    def __init__(
        self, declared: Declared, images: ProjectImages, given: Given, table: Table
    ) -> None:
        """`table` holds all declared objects, by path."""
        self._declared = declared
        self._images = images
        self._given_things = given
        self._table = table

    def routes(self) -> list[Row]:
        """The routes of these calls, below a project. Images may be of other projects."""
        subnetwork, disk = SUBNETWORK.path + "/{name}", DISK.path + "/{name}"
        image = IMAGE.path + "/{name}"
        return [
            ("POST", IMAGE.path, self._insert_image, "images.create"),
            ("GET", IMAGE.path + "/family/{family}", self._get_family, "images.getFromFamily"),
            ("GET", image, self._get_image, "images.get"),
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

    async def _expand_range(self, call: Call) -> Json:
        entry = self._declared.entry(SUBNETWORK, call)
        wanted = str(call.body.get("ipCidrRange") or "")
        old, new = network_of(entry["body"]["ipCidrRange"]), network_of(wanted)
        if not (new.prefixlen < old.prefixlen and old.subnet_of(new)):
            raise rules.invalid(
                "ipCidrRange", wanted, f"Must contain the subnetwork's own range {old}."
            )
        body = {**entry["body"], "ipCidrRange": wanted}
        return self._declared.change(SUBNETWORK, entry, body, "expandIpCidrRange")

    async def _set_private_access(self, call: Call) -> Json:
        entry = self._declared.entry(SUBNETWORK, call)
        allowed = bool(call.body.get("privateIpGoogleAccess"))
        body = {**entry["body"], "privateIpGoogleAccess": allowed}
        return self._declared.change(SUBNETWORK, entry, body, "setPrivateIpGoogleAccess")

    async def _resize_disk(self, call: Call) -> Json:
        entry = self._declared.entry(DISK, call)
        size, wanted = int(entry["body"]["sizeGb"]), str(call.body.get("sizeGb") or "")
        if not wanted or int(wanted) <= size:
            raise rules.invalid("sizeGb", wanted, f"Must be larger than the current size {size}.")
        body = {**entry["body"], "sizeGb": wanted}
        return self._declared.change(DISK, entry, body, "resizeDisk")

    def _nothing(self, kind: str) -> Handler:
        """The handler of a list that clients read and that is always empty."""

        async def handle(call: Call) -> Json:
            return {"kind": f"compute#{kind}", "items": []}

        return handle

    async def _insert_image(self, call: Call) -> Json:
        name = rules.check_name("resource.name", call.body.get("name"))
        source = str(call.body.get("sourceDisk") or "")
        if "/disks/" in source and f"{IMAGE.path}/{name}" not in self._table:
            self._declared.disk_size_gb(source)
            await self._images.bake(name, source, call.query.get("forceCreate") == "true")
        operation = self._declared.insert(IMAGE, call)
        self._images.offer(self._table[f"{IMAGE.path}/{name}"])
        return operation

    async def _deprecate(self, call: Call) -> Json:
        entry = self._declared.entry(IMAGE, call)
        body = {**entry["body"], "deprecated": call.body}
        if call.body.get("state") in (None, "ACTIVE"):
            del body["deprecated"]
        operation = self._declared.change(IMAGE, entry, body, "deprecate")
        self._images.offer(self._table[entry["path"]])
        return operation

    async def _get_image(self, call: Call) -> Json:
        return self._image(f"projects/{call['project']}/global/images/{call['name']}")

    async def _get_family(self, call: Call) -> Json:
        return self._image(f"projects/{call['project']}/global/images/family/{call['family']}")

    def _image(self, path: str) -> Json:
        image, entry = self._images.find(path)
        return self._declared.shown(IMAGE, entry) if entry else self._given_things.image(image)
