"""Networks, firewalls, routers and health checks: resources that are only declared and stored."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from outlast.localcloud.provider import changes, tables
from outlast.localcloud.provider.kind import (
    DEFAULTS,
    Body,
    Inputs,
    Kind,
    Settings,
)
from outlast.localcloud.provider.rest import ProviderError
from outlast.localcloud.provider.tables import (
    PLACE,
    SETTING,
    Block,
    Value,
)

LOG_CONFIG: tables.Table = {
    "aggregationInterval": Value("aggregationInterval"),
    "enable": Value("enable"),
    "filter": Value("filter"),
    "flowSampling": Value("flowSampling"),
    "metadata": Value("metadata"),
}

NETWORK: tables.Table = {
    "project": PLACE,
    "name": Value("name"),
    "autoCreateSubnetworks": Value("autoCreateSubnetworks"),
    "deleteDefaultRoutesOnCreate": SETTING,
    "description": Value("description"),
    "mtu": Value("mtu"),
    "routingMode": Value("routingConfig.routingMode"),
}

SUBNETWORK: tables.Table = {
    "project": PLACE,
    "region": PLACE,
    "name": Value("name"),
    "description": Value("description"),
    "ipCidrRange": Value("ipCidrRange"),
    "logConfig": Block("logConfig", LOG_CONFIG),
    "network": Value("network"),
    "privateIpGoogleAccess": Value("privateIpGoogleAccess"),
    "purpose": Value("purpose"),
    "stackType": Value("stackType"),
}

ROUTER: tables.Table = {
    "project": PLACE,
    "region": PLACE,
    "name": Value("name"),
    "description": Value("description"),
    "network": Value("network"),
}

NAT: tables.Table = {
    "project": PLACE,
    "region": PLACE,
    "router": PLACE,
    "name": Value("name"),
    "enableEndpointIndependentMapping": Value("enableEndpointIndependentMapping"),
    "logConfig": Block("logConfig", LOG_CONFIG),
    "minPortsPerVm": Value("minPortsPerVm"),
    "natIpAllocateOption": Value("natIpAllocateOption"),
    "sourceSubnetworkIpRangesToNat": Value("sourceSubnetworkIpRangesToNat"),
    "subnetworks": Block(
        "subnetworks",
        {"name": Value("name"), "sourceIpRangesToNats": Value("sourceIpRangesToNat")},
        "list",
    ),
}

RULE: tables.Table = {"protocol": Value("IPProtocol"), "ports": Value("ports")}

FIREWALL: tables.Table = {
    "project": PLACE,
    "name": Value("name"),
    "allows": Block("allowed", RULE, "list"),
    "denies": Block("denied", RULE, "list"),
    "description": Value("description"),
    "destinationRanges": Value("destinationRanges"),
    "direction": Value("direction"),
    "disabled": Value("disabled"),
    "network": Value("network"),
    "priority": Value("priority"),
    "sourceRanges": Value("sourceRanges"),
    "sourceServiceAccounts": Value("sourceServiceAccounts"),
    "sourceTags": Value("sourceTags"),
    "targetServiceAccounts": Value("targetServiceAccounts"),
    "targetTags": Value("targetTags"),
}

HTTP_CHECK: tables.Table = {
    "host": Value("host"),
    "port": Value("port"),
    "portName": Value("portName"),
    "portSpecification": Value("portSpecification"),
    "proxyHeader": Value("proxyHeader"),
    "requestPath": Value("requestPath"),
    "response": Value("response"),
}
TCP_CHECK: tables.Table = {
    "port": Value("port"),
    "portName": Value("portName"),
    "portSpecification": Value("portSpecification"),
    "proxyHeader": Value("proxyHeader"),
    "request": Value("request"),
    "response": Value("response"),
}
CHECKS = {"httpHealthCheck": "HTTP", "httpsHealthCheck": "HTTPS", "tcpHealthCheck": "TCP"}

HEALTH_CHECK: tables.Table = {
    "project": PLACE,
    "name": Value("name"),
    "checkIntervalSec": Value("checkIntervalSec"),
    "description": Value("description"),
    "healthyThreshold": Value("healthyThreshold"),
    "httpHealthCheck": Block("httpHealthCheck", HTTP_CHECK),
    "httpsHealthCheck": Block("httpsHealthCheck", HTTP_CHECK),
    "logConfig": Block("logConfig", {"enable": Value("enable")}),
    "tcpHealthCheck": Block("tcpHealthCheck", TCP_CHECK),
    "timeoutSec": Value("timeoutSec"),
    "unhealthyThreshold": Value("unhealthyThreshold"),
}


class Declared(Kind):
    """A resource with one address, one body and no states."""

    collection: ClassVar[str]
    regional: ClassVar[bool] = False
    method: ClassVar[Literal["PATCH", "PUT"]] = "PATCH"
    """PUT sends all fields, PATCH only changed ones."""
    auto_named = True
    filled_in = ("project",)
    computed = ("creationTimestamp", "selfLink")

    def place(self, inputs: Inputs) -> str:
        """The path of its collection."""
        where = f"regions/{inputs['region']}" if self.regional else "global"
        return f"projects/{inputs['project']}/{where}/{self.collection}"

    def body(self, inputs: Inputs) -> Body:
        """The body that is sent at its creation."""
        return tables.to_body(self.table, inputs)

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        place = self.place(inputs)
        cloud.compute.operate("POST", place, self.body(inputs))
        id = f"{place}/{inputs['name']}"
        return id, cloud.compute.call("GET", id)

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        return cloud.compute.find(id)

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        if self.method == "PUT":
            cloud.compute.operate("PUT", id, self.body(new))
            return
        body = tables.to_body(self.table, self.changed(old, new))
        if body:
            live = cloud.compute.call("GET", id)
            if "fingerprint" in live:
                body["fingerprint"] = live["fingerprint"]
            cloud.compute.operate("PATCH", id, body)

    @staticmethod
    def changed(old: Inputs, new: Inputs) -> Inputs:
        """The inputs that differ, with their new values."""
        return {
            key: new.get(key)
            for key in sorted({*old, *new} - {DEFAULTS})
            if list(changes.differences(old.get(key), new.get(key)))
        }

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        cloud.compute.destroy(id)

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        live = {**super().live_inputs(cloud, id, body), "project": id.split("/")[1]}
        return {**live, "region": id.split("/")[3]} if self.regional else live

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {
            "creationTimestamp": body.get("creationTimestamp", ""),
            "selfLink": body.get("selfLink", ""),
        }


class Network(Declared):
    """A network. By default the provider creates one with subnetworks in every region."""

    token = "gcp:compute/network:Network"
    id_form = "projects/{project}/global/networks/{name}"
    table = NETWORK
    collection = "networks"
    replace_on = frozenset({"name", "project", "autoCreateSubnetworks", "description"})
    computed = ("creationTimestamp", "networkId", "selfLink")
    chosen_by_api = frozenset({"mtu", "routingMode"})

    def body(self, inputs: Inputs) -> Body:
        return {"autoCreateSubnetworks": True, **super().body(inputs)}

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {**super().outputs(cloud, id, body), "networkId": str(body["id"])}


class Subnetwork(Declared):
    """A subnetwork. Its range can grow."""

    token = "gcp:compute/subnetwork:Subnetwork"
    id_form = "projects/{project}/regions/{region}/subnetworks/{name}"
    table = SUBNETWORK
    collection = "subnetworks"
    regional = True
    required = ("network", "ipCidrRange")
    filled_in = ("project", "region")
    replace_on = frozenset({"name", "project", "region", "network", "description", "purpose"})
    computed = ("creationTimestamp", "fingerprint", "gatewayAddress", "selfLink")
    volatile = ("fingerprint",)
    chosen_by_api = frozenset({"purpose", "stackType", "privateIpGoogleAccess"})

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        for key, verb in (
            ("ipCidrRange", "expandIpCidrRange"),
            ("privateIpGoogleAccess", "setPrivateIpGoogleAccess"),
        ):
            if key in self.changed(old, new):
                cloud.compute.operate("POST", f"{id}/{verb}", {key: new.get(key)})
                old = {**old, key: new.get(key)}
        super().update(cloud, id, old, new)

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {
            **super().outputs(cloud, id, body),
            "fingerprint": body.get("fingerprint", ""),
            "gatewayAddress": body.get("gatewayAddress", ""),
        }


class Router(Declared):
    """A router; its NATs are separate resources."""

    token = "gcp:compute/router:Router"
    id_form = "projects/{project}/regions/{region}/routers/{name}"
    table = ROUTER
    collection = "routers"
    regional = True
    required = ("network",)
    filled_in = ("project", "region")
    replace_on = frozenset({"name", "project", "region", "network"})


class RouterNat(Declared):
    """A NAT: an entry of its router, which is read, changed and sent back."""

    token = "gcp:compute/routerNat:RouterNat"
    id_form = "projects/{project}/regions/{region}/routers/{router}/{name}"
    table = NAT
    collection = "routers"
    regional = True
    required = ("router", "sourceSubnetworkIpRangesToNat")
    filled_in = ("project", "region")
    replace_on = frozenset({"name", "project", "region", "router"})
    computed = ()
    chosen_by_api = frozenset({"enableEndpointIndependentMapping", "minPortsPerVm", "logConfig"})

    def body(self, inputs: Inputs) -> Body:
        # Google's plugin sends a null for this name, which is in no document.
        return {**super().body(inputs), "initialNatIps": None}

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        router = f"{self.place(inputs)}/{inputs['router'].rpartition('/')[2]}"
        nats = cloud.compute.call("GET", router).get("nats", [])
        if inputs["name"] in [nat["name"] for nat in nats]:
            raise ProviderError(f"NAT {inputs['name']}: exists already in {router}.")
        wanted = self.body(inputs)
        cloud.compute.operate("PATCH", router, {"nats": [*nats, wanted]})
        id = f"{router}/{inputs['name']}"
        body = self.read(cloud, id, inputs)
        if body is None:
            raise ProviderError(f"NAT {id}: is not there after it was written.")
        return id, body

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        router, _, name = id.rpartition("/")
        live = cloud.compute.find(router) or {}
        return next((nat for nat in live.get("nats", []) if nat["name"] == name), None)

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        self._write(cloud, id, [self.body(new)])

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        if self.read(cloud, id, state):
            self._write(cloud, id, [])

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        return {**super().live_inputs(cloud, id, body), "router": id.split("/")[5]}

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {}

    @staticmethod
    def _write(cloud: Settings, id: str, wanted: list[Body]) -> None:
        router, _, name = id.rpartition("/")
        nats = cloud.compute.call("GET", router).get("nats", [])
        others = [nat for nat in nats if nat["name"] != name]
        cloud.compute.operate("PATCH", router, {"nats": [*others, *wanted]})


class Firewall(Declared):
    """A firewall rule."""

    token = "gcp:compute/firewall:Firewall"
    id_form = "projects/{project}/global/firewalls/{name}"
    table = FIREWALL
    collection = "firewalls"
    required = ("network",)
    replace_on = frozenset({"name", "project", "network", "direction"})
    chosen_by_api = frozenset(
        {"direction", "priority", "sourceRanges", "destinationRanges", "description"}
    )


class HealthCheck(Declared):
    """A health check, whose updates send the whole body."""

    token = "gcp:compute/healthCheck:HealthCheck"
    id_form = "projects/{project}/global/healthChecks/{name}"
    table = HEALTH_CHECK
    collection = "healthChecks"
    method = "PUT"
    replace_on = frozenset({"name", "project"})
    computed = ("creationTimestamp", "selfLink", "type")
    chosen_by_api = frozenset(
        {"checkIntervalSec", "healthyThreshold", "logConfig", "timeoutSec", "unhealthyThreshold"}
    )

    def body(self, inputs: Inputs) -> Body:
        kinds = [kind for key, kind in CHECKS.items() if inputs.get(key)]
        if len(kinds) != 1:
            raise ProviderError(
                f"health check {inputs['name']}: needs exactly one of {', '.join(CHECKS)}."
            )
        return {**super().body(inputs), "type": kinds[0]}

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {**super().outputs(cloud, id, body), "type": body.get("type", "")}
