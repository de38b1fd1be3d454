"""Instance templates and managed instance groups."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from outlast.localcloud.provider import changes, tables
from outlast.localcloud.provider.kind import (
    DEFAULTS,
    Body,
    Inputs,
    Kind,
    Settings,
    label_outputs,
    own_labels,
)
from outlast.localcloud.provider.tables import (
    PLACE,
    SETTING,
    Block,
    Value,
    entries,
    int64,
)

DURATION: tables.Table = {"seconds": int64("seconds"), "nanos": Value("nanos")}

DISK: tables.Table = {
    "architecture": Value("architecture"),
    "autoDelete": Value("autoDelete"),
    "boot": Value("boot"),
    "deviceName": Value("deviceName"),
    "diskEncryptionKey": Block("diskEncryptionKey", {"kmsKeySelfLink": Value("kmsKeyName")}),
    "diskName": Value("initializeParams.diskName"),
    "diskSizeGb": int64("initializeParams.diskSizeGb"),
    "diskType": Value("initializeParams.diskType"),
    "interface": Value("interface"),
    "labels": Value("initializeParams.labels"),
    "mode": Value("mode"),
    "provisionedIops": int64("initializeParams.provisionedIops"),
    "provisionedThroughput": int64("initializeParams.provisionedThroughput"),
    "resourcePolicies": Value("initializeParams.resourcePolicies"),
    "source": Value("source"),
    "sourceImage": Value("initializeParams.sourceImage"),
    "type": Value("type"),
}

NETWORK_INTERFACE: tables.Table = {
    "accessConfigs": Block(
        "accessConfigs",
        {"natIp": Value("natIP"), "networkTier": Value("networkTier")},
        "list",
        {"type": "ONE_TO_ONE_NAT"},
    ),
    "network": Value("network"),
    "networkIp": Value("networkIP"),
    "nicType": Value("nicType"),
    "queueCount": Value("queueCount"),
    "stackType": Value("stackType"),
    "subnetwork": Value("subnetwork"),
}

SCHEDULING: tables.Table = {
    "automaticRestart": Value("automaticRestart"),
    "hostErrorTimeoutSeconds": Value("hostErrorTimeoutSeconds"),
    "instanceTerminationAction": Value("instanceTerminationAction"),
    "localSsdRecoveryTimeouts": Block("localSsdRecoveryTimeout", DURATION, "object"),
    "maxRunDuration": Block("maxRunDuration", DURATION),
    "minNodeCpus": Value("minNodeCpus"),
    "onHostMaintenance": Value("onHostMaintenance"),
    "onInstanceStopAction": Block(
        "onInstanceStopAction", {"discardLocalSsd": Value("discardLocalSsd")}
    ),
    "preemptible": Value("preemptible"),
    "preemptionNoticeDuration": Block("preemptionNoticeDuration", DURATION),
    "provisioningModel": Value("provisioningModel"),
    "terminationTime": Value("terminationTime"),
}

TEMPLATE: tables.Table = {
    "project": PLACE,
    "region": PLACE,
    "name": Value("name"),
    "description": Value("description"),
    "advancedMachineFeatures": Block(
        "properties.advancedMachineFeatures",
        {
            "enableNestedVirtualization": Value("enableNestedVirtualization"),
            "threadsPerCore": Value("threadsPerCore"),
            "visibleCoreCount": Value("visibleCoreCount"),
        },
    ),
    "canIpForward": Value("properties.canIpForward"),
    "disks": Block("properties.disks", DISK, "list"),
    "guestAccelerators": Block(
        "properties.guestAccelerators",
        {"count": Value("acceleratorCount"), "type": Value("acceleratorType")},
        "list",
    ),
    "instanceDescription": Value("properties.description"),
    "labels": Value("properties.labels"),
    "machineType": Value("properties.machineType"),
    "metadata": entries("properties.metadata.items"),
    "resourcePolicies": Value("properties.resourcePolicies"),
    "minCpuPlatform": Value("properties.minCpuPlatform"),
    "networkInterfaces": Block("properties.networkInterfaces", NETWORK_INTERFACE, "list"),
    "reservationAffinity": Block(
        "properties.reservationAffinity",
        {"type": Value("consumeReservationType")},
    ),
    "scheduling": Block("properties.scheduling", SCHEDULING),
    "serviceAccount": Block(
        "properties.serviceAccounts",
        {"email": Value("email"), "scopes": Value("scopes")},
        "only",
    ),
    "confidentialInstanceConfig": Block(
        "properties.confidentialInstanceConfig",
        {
            "confidentialInstanceType": Value("confidentialInstanceType"),
            "enableConfidentialCompute": Value("enableConfidentialCompute"),
        },
    ),
    "resourceManagerTags": Value("properties.resourceManagerTags"),
    "shieldedInstanceConfig": Block(
        "properties.shieldedInstanceConfig",
        {
            "enableIntegrityMonitoring": Value("enableIntegrityMonitoring"),
            "enableSecureBoot": Value("enableSecureBoot"),
            "enableVtpm": Value("enableVtpm"),
        },
    ),
    "tags": Value("properties.tags.items"),
}

UPDATE_POLICY: tables.Table = {
    "maxSurgeFixed": Value("maxSurge.fixed"),
    "maxSurgePercent": Value("maxSurge.percent"),
    "maxUnavailableFixed": Value("maxUnavailable.fixed"),
    "maxUnavailablePercent": Value("maxUnavailable.percent"),
    "minReadySec": Value("minReadySec"),
    "minimalAction": Value("minimalAction"),
    "mostDisruptiveAllowedAction": Value("mostDisruptiveAllowedAction"),
    "replacementMethod": Value("replacementMethod"),
    "type": Value("type"),
}

GROUP: tables.Table = {
    "project": PLACE,
    "zone": PLACE,
    "name": Value("name"),
    "baseInstanceName": Value("baseInstanceName"),
    "description": Value("description"),
    "allInstancesConfig": Block(
        "allInstancesConfig",
        {"labels": Value("properties.labels"), "metadata": Value("properties.metadata")},
    ),
    "autoHealingPolicies": Block(
        "autoHealingPolicies",
        {"healthCheck": Value("healthCheck"), "initialDelaySec": Value("initialDelaySec")},
        "only",
    ),
    "instanceLifecyclePolicy": Block(
        "instanceLifecyclePolicy",
        {
            "defaultActionOnFailure": Value("defaultActionOnFailure"),
            "forceUpdateOnRepair": Value("forceUpdateOnRepair"),
            "onFailedHealthCheck": Value("onFailedHealthCheck"),
            "onRepair": Block("onRepair", {"allowChangingZone": Value("allowChangingZone")}),
        },
    ),
    "listManagedInstancesResults": Value("listManagedInstancesResults"),
    "namedPorts": Block("namedPorts", {"name": Value("name"), "port": Value("port")}, "list"),
    "standbyPolicy": Block(
        "standbyPolicy", {"initialDelaySec": Value("initialDelaySec"), "mode": Value("mode")}
    ),
    "targetPools": Value("targetPools"),
    "targetSize": Value("targetSize"),
    "updatePolicy": Block("updatePolicy", UPDATE_POLICY),
    "versions": Block(
        "versions",
        {
            "instanceTemplate": Value("instanceTemplate"),
            "name": Value("name"),
            "targetSize": Block(
                "targetSize", {"fixed": Value("fixed"), "percent": Value("percent")}
            ),
        },
        "list",
    ),
    "waitForInstances": SETTING,
    "waitForInstancesStatus": SETTING,
}

REGION_GROUP: tables.Table = {
    **{key: field for key, field in GROUP.items() if key != "zone"},
    "region": PLACE,
    "distributionPolicyTargetShape": Value("distributionPolicy.targetShape"),
    "distributionPolicyZones": Value(
        "distributionPolicy.zones",
        lambda zones: [{"zone": f"zones/{zone.rpartition('/')[2]}"} for zone in zones],
        lambda zones: [entry["zone"].rpartition("/")[2] for entry in zones],
    ),
    "instanceFlexibilityPolicy": Value(
        "instanceFlexibilityPolicy.instanceSelections",
        lambda policy: {
            selection["name"]: {key: value for key, value in selection.items() if key != "name"}
            for selection in policy["instanceSelections"]
        },
        lambda selections: {
            "instanceSelections": [{"name": name, **one} for name, one in selections.items()]
        },
    ),
    "updatePolicy": Block(
        "updatePolicy",
        {**UPDATE_POLICY, "instanceRedistributionType": Value("instanceRedistributionType")},
    ),
}

WHOLE_PATH = re.compile(r"^(https?:|projects/|global/|zones/|regions/)")


class InstanceTemplate(Kind):
    """A global template, which the API cannot change."""

    token = "gcp:compute/instanceTemplate:InstanceTemplate"
    id_form = "projects/{project}/global/instanceTemplates/{name}"
    table = TEMPLATE
    required = ("machineType", "disks")
    replace_on = None
    filled_in = ("project",)
    auto_named = True
    computed = (
        "creationTimestamp",
        "effectiveLabels",
        "metadataFingerprint",
        "numericId",
        "pulumiLabels",
        "selfLink",
        "selfLinkUnique",
        "tagsFingerprint",
    )

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        body = tables.to_body(self.table, inputs)
        properties = body["properties"]
        labels = {**properties.get("labels", {}), **cloud.labels}
        if labels:
            properties["labels"] = labels
        for interface in properties.get("networkInterfaces", []):
            network = interface.get("network")
            if network and not WHOLE_PATH.match(network):
                interface["network"] = f"projects/{inputs['project']}/global/networks/{network}"
        path = f"projects/{inputs['project']}/global/instanceTemplates"
        operation = cloud.compute.operate("POST", path, body)
        # By number: another template could take the name at any time.
        made = cloud.compute.call("GET", f"{path}/{operation['targetId']}", query=FULL)
        return f"{path}/{made['name']}", made

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        base, _, name = id.rpartition("/")
        return cloud.compute.find(f"{base}/{state.get('numericId') or name}", query=FULL)

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        cloud.compute.destroy(id)

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        return own_labels({**super().live_inputs(cloud, id, body), "project": id.split("/")[1]})

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        properties = body.get("properties", {})
        link = body["selfLink"]
        return {
            "creationTimestamp": body.get("creationTimestamp", ""),
            "metadataFingerprint": properties.get("metadata", {}).get("fingerprint", ""),
            "numericId": str(body["id"]),
            "selfLink": link,
            "selfLinkUnique": f"{link}?uniqueId={body['id']}",
            "tagsFingerprint": properties.get("tags", {}).get("fingerprint", ""),
            **label_outputs(properties),
        }


FULL = {"view": "FULL"}


class InstanceGroupManager(Kind):
    """A zonal managed instance group."""

    token = "gcp:compute/instanceGroupManager:InstanceGroupManager"
    id_form = "projects/{project}/zones/{zone}/instanceGroupManagers/{name}"
    table = GROUP
    required = ("baseInstanceName", "versions")
    place: ClassVar[str] = "zone"
    replace_on = frozenset({"name", "baseInstanceName", "zone", "project", "description"})
    filled_in = ("project", "zone")
    auto_named = True
    computed = (
        "creationTimestamp",
        "fingerprint",
        "instanceGroup",
        "instanceGroupManagerId",
        "operation",
        "selfLink",
        "statuses",
    )
    volatile = ("fingerprint", "operation", "statuses")
    chosen_by_api = frozenset(
        {
            "description",
            "instanceLifecyclePolicy",
            "instanceLifecyclePolicy.onFailedHealthCheck",
            "listManagedInstancesResults",
            "standbyPolicy",
            "targetSize",
            "updatePolicy",
        }
    )

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        body = _by_number({"targetSize": 0, **tables.to_body(self.table, inputs)})
        path = f"projects/{inputs['project']}/{self.place}s/{inputs[self.place]}"
        path += "/instanceGroupManagers"
        cloud.compute.operate("POST", path, body)
        id = f"{path}/{inputs['name']}"
        return id, cloud.compute.call("GET", id)

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        return cloud.compute.find(id)

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        changed = {
            key
            for key in {*old, *new} - {"targetSize", DEFAULTS}
            if list(changes.differences(old.get(key), new.get(key)))
        }
        if "namedPorts" in changed:
            ports = tables.to_body(self.table, {"namedPorts": new.get("namedPorts") or []})
            path = id.replace("/instanceGroupManagers/", "/instanceGroups/")
            cloud.compute.operate("POST", f"{path}/setNamedPorts", ports)
        changed -= {"namedPorts"}
        body = tables.to_body(self.table, {key: new.get(key) for key in changed})
        if "autoHealingPolicies" in changed:
            body.setdefault("autoHealingPolicies", [])  # removed: the group drops its check
        if body:
            live = cloud.compute.call("GET", id)
            patch = {**_by_number(body), "fingerprint": live["fingerprint"]}
            cloud.compute.operate("PATCH", id, patch)
        size = new.get("targetSize")
        if size is not None and size != old.get("targetSize"):
            cloud.compute.operate("POST", f"{id}/resize", size=size)

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        cloud.compute.destroy(id)

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        _, project, _, place, _, _ = id.split("/")
        return {**super().live_inputs(cloud, id, body), "project": project, self.place: place}

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {
            "creationTimestamp": body.get("creationTimestamp", ""),
            "fingerprint": body.get("fingerprint", ""),
            "instanceGroup": body.get("instanceGroup", ""),
            "instanceGroupManagerId": int(body.get("id", 0)),
            "operation": "",
            "selfLink": body.get("selfLink", ""),
            "statuses": [{"isStable": bool(body.get("status", {}).get("isStable"))}],
        }


class RegionInstanceGroupManager(InstanceGroupManager):
    """A managed instance group over the zones of a region."""

    token = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
    id_form = "projects/{project}/regions/{region}/instanceGroupManagers/{name}"
    table = REGION_GROUP
    place = "region"
    replace_on = frozenset(
        {"name", "baseInstanceName", "region", "project", "description", "distributionPolicyZones"}
    )
    filled_in = ("project", "region")
    chosen_by_api = InstanceGroupManager.chosen_by_api | {
        "distributionPolicyTargetShape",
        "distributionPolicyZones",
    }


def _by_number(body: Body) -> Body:
    """Names templates by number instead of name, if the URL has both (`…?uniqueId=`)."""
    for version in body.get("versions", []):
        url = version.get("instanceTemplate", "")
        unique = changes.UNIQUE_TEMPLATE.search(url)
        if unique:
            version["instanceTemplate"] = url[: unique.start()] + unique[2]
    return body
