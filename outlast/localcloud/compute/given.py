"""What exists without being created: the project, its zones, machine types, a default network."""

from outlast.localcloud.base.clock import to_rfc3339
from outlast.localcloud.compute.accounts import default_account
from outlast.localcloud.compute.calls import Call, Row, aggregated, listed, unknown
from outlast.localcloud.compute.catalogue import (
    ACCELERATORS,
    ALL_ZONES,
    MACHINE_TYPES,
    ZONES,
    Image,
    machine_type,
    region_of,
)
from outlast.localcloud.compute.fleet.capacity import Capacity
from outlast.localcloud.compute.links import HOST, Json, Links, fingerprint


class Given:
    """Renders these objects, and answers the API's calls for them."""

    def __init__(self, project: str, project_number: str, links: Links, capacity: Capacity) -> None:
        self._project = project
        self._number = project_number
        self._links = links
        self._capacity = capacity

    def routes(self) -> list[Row]:
        """The routes of these calls."""
        machine_types = "zones/{zone}/machineTypes"
        return [
            ("GET", "", self._get_project, "projects.get"),
            ("GET", "zones", self._list_zones, "zones.list"),
            ("GET", "zones/{zone}", self._get_zone, "zones.get"),
            ("GET", "regions", self._list_regions, "regions.list"),
            ("GET", "regions/{region}", self._get_region, "regions.get"),
            (
                *("GET", "aggregated/machineTypes", self._aggregate_machine_types),
                "machineTypes.list",
            ),
            (
                *("GET", "aggregated/acceleratorTypes", self._aggregate_accelerators),
                "acceleratorTypes.list",
            ),
            (
                *("GET", "zones/{zone}/acceleratorTypes/{name}", self._get_accelerator),
                "acceleratorTypes.get",
            ),
            ("GET", machine_types, self._list_machine_types, "machineTypes.list"),
            ("GET", machine_types + "/{name}", self._get_machine_type, "machineTypes.get"),
        ]

    async def _get_project(self, call: Call) -> Json:
        return self.project(default_account(self._number))

    async def _list_zones(self, call: Call) -> Json:
        return listed("zoneList", map(self.zone, ALL_ZONES))

    async def _get_zone(self, call: Call) -> Json:
        return self.zone(call["zone"])

    async def _list_regions(self, call: Call) -> Json:
        return listed("regionList", map(self.region, ZONES))

    async def _get_region(self, call: Call) -> Json:
        return self.region(call["region"])

    async def _list_machine_types(self, call: Call) -> Json:
        return listed("machineTypeList", self._machine_types(call["zone"]))

    async def _aggregate_machine_types(self, call: Call) -> Json:
        scopes = {f"zones/{zone}": self._machine_types(zone) for zone in ALL_ZONES}
        return aggregated("machineType", "machineTypes", scopes, lambda shown: shown)

    async def _aggregate_accelerators(self, call: Call) -> Json:
        scopes = {
            f"zones/{zone}": [self.accelerator(zone, name) for name in ACCELERATORS]
            for zone in ALL_ZONES
        }
        return aggregated("acceleratorType", "acceleratorTypes", scopes, lambda shown: shown)

    async def _get_accelerator(self, call: Call) -> Json:
        if call["name"] not in ACCELERATORS:
            path = f"zones/{call['zone']}/acceleratorTypes/{call['name']}"
            raise unknown(f"projects/{self._project}/{path}")
        return self.accelerator(call["zone"], call["name"])

    def _machine_types(self, zone: str) -> list[Json]:
        return [self.machine_type(zone, name) for name in MACHINE_TYPES]

    async def _get_machine_type(self, call: Call) -> Json:
        if machine_type(call["name"]) is None:
            path = f"zones/{call['zone']}/machineTypes/{call['name']}"
            raise unknown(f"projects/{self._project}/{path}")
        return self.machine_type(call["zone"], call["name"])

    def project(self, default_account: str) -> Json:
        """The project itself."""
        return {
            "kind": "compute#project",
            "id": self._number,
            "name": self._project,
            "creationTimestamp": to_rfc3339(0),
            "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": fingerprint(0)},
            "defaultServiceAccount": default_account,
            "defaultNetworkTier": "PREMIUM",
            "quotas": self._capacity.quotas(""),
            "selfLink": f"{HOST}/v1/projects/{self._project}",
        }

    def region(self, region: str) -> Json:
        """A region with its zones."""
        return {
            **self._links.head("region", f"regions/{region}", _number(region), 0),
            "description": region,
            "status": "UP",
            "zones": [self._links.link(f"zones/{zone}") for zone in ZONES[region]],
            "quotas": self._capacity.quotas(region),
        }

    def zone(self, zone: str) -> Json:
        """A zone."""
        return {
            **self._links.head("zone", f"zones/{zone}", _number(zone), 0),
            "description": zone,
            "status": "UP",
            "region": self._links.link(f"regions/{region_of(zone)}"),
        }

    def machine_type(self, zone: str, name: str) -> Json:
        """A machine type of the catalogue."""
        known = machine_type(name)
        assert known is not None
        path = f"zones/{zone}/machineTypes/{name}"
        return {
            **self._links.head("machineType", path, _number(name), 0),
            "description": f"{known.cpus} vCPU, {known.memory_mb / 1024:g} GB RAM",
            "guestCpus": known.cpus,
            "memoryMb": known.memory_mb,
            "isSharedCpu": known.cpus == 2 and name.startswith("e2-") and "-standard" not in name,
            "maximumPersistentDisks": 128,
            "maximumPersistentDisksSizeGb": "263168",
            "zone": zone,
        }

    def accelerator(self, zone: str, name: str) -> Json:
        """A GPU that can be attached to a VM."""
        path = f"zones/{zone}/acceleratorTypes/{name}"
        return {
            **self._links.head("acceleratorType", path, _number(name), 0),
            "maximumCardsPerInstance": ACCELERATORS[name],
            "zone": self._links.link(f"zones/{zone}"),
        }

    def image(self, image: Image) -> Json:
        """An image of any project."""
        return {
            "kind": "compute#image",
            "id": image.id,
            "name": image.name,
            "family": image.family,
            "creationTimestamp": to_rfc3339(0),
            "status": "READY",
            "sourceType": "RAW",
            "architecture": "X86_64",
            "diskSizeGb": str(image.size_gb),
            "archiveSizeBytes": "0",
            "labelFingerprint": fingerprint(0),
            "selfLink": f"{HOST}/v1/{image.path}",
        }

    def network(self) -> Json:
        """The network `default`."""
        regions = ZONES
        return {
            **self._links.head("network", "global/networks/default", _number("default"), 0),
            "autoCreateSubnetworks": True,
            "mtu": 1460,
            "routingConfig": {"routingMode": "REGIONAL"},
            "subnetworks": [self._links.link(f"regions/{r}/subnetworks/default") for r in regions],
        }

    def subnetwork(self, region: str) -> Json:
        """The subnetwork `default` of a region."""
        path = f"regions/{region}/subnetworks/default"
        return {
            **self._links.head("subnetwork", path, _number(region), 0),
            "ipCidrRange": "10.128.0.0/20",
            "gatewayAddress": "10.128.0.1",
            "network": self._links.link("global/networks/default"),
            "privateIpGoogleAccess": True,
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
            "region": self._links.link(f"regions/{region}"),
        }


def _number(name: str) -> str:
    """An id for an object that always existed."""
    return str(int.from_bytes(name.encode()[:7].ljust(7, b"\0"), "big"))
