"""Renders the model's objects as the API's JSON, with links of v1; `in_version` adapts them."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from outlast.localcloud.base.clock import to_rfc3339
from outlast.localcloud.compute.fleet.fleet import Fleet
from outlast.localcloud.compute.fleet.model import (
    Group,
    HealthCheck,
    Instance,
    Member,
    Template,
    template_path,
)
from outlast.localcloud.compute.links import Json, Links, fingerprint, fingerprint_of

ACTIONS = (
    *("abandoning", "creating", "creatingWithoutRetries", "deleting", "none", "recreating"),
    *("refreshing", "restarting", "resuming", "starting", "stopping", "suspending", "verifying"),
)


def label_fingerprint(instance: Instance) -> str:
    """The fingerprint of a VM's labels."""
    return fingerprint_of(instance.properties.get("labels") or {})


def tags_fingerprint(instance: Instance) -> str:
    """The fingerprint of a VM's tags."""
    return fingerprint_of((instance.properties.get("tags") or {}).get("items") or [])


class Answers:
    """Renders the objects of one project."""

    def __init__(self, links: Links, fleet: Fleet, address_of: Callable[[Instance], str]) -> None:
        """`address_of` returns the internal address of a VM."""
        self.link = links.link
        """Returns the address of an object in the project."""
        self._head = links.head
        self._address_of = address_of
        self._fleet = fleet

    def template(self, template: Template) -> Json:
        """An instance template."""
        return {
            **self._head(
                "instanceTemplate",
                template.path,
                template.id,
                template.created,
            ),
            **({"region": self.link(f"regions/{template.region}")} if template.region else {}),
            "description": template.description,
            "properties": template.properties,
        }

    def group(self, group: Group) -> Json:
        """A managed group, with all the fields that clients read."""
        members = list(group.members.values())
        actions = Counter(member.action for member in members)
        statuses = Counter(
            instance.status
            for member in members
            if (instance := self._fleet.instances.get(member.instance or ""))
        )
        up_to_date = all(group.has_due(member) for member in members if not member.leaving)
        status: Json = {
            "isStable": self._fleet.is_stable(group),
            "allInstancesConfig": {"effective": True},
            "stateful": {
                "hasStatefulConfig": False,
                "perInstanceConfigs": {"allEffective": True},
            },
            "versionTarget": {"isReached": up_to_date},
            "currentInstanceStatuses": {
                name.lower(): count for name, count in sorted(statuses.items())
            },
        }
        return {
            **self._head("instanceGroupManager", group.path, group.id, group.created),
            **group.body,
            **self._place(group),
            "instanceGroup": self.link(f"{group.place}/instanceGroups/{group.name}"),
            "baseInstanceName": group.base_name,
            "instanceTemplate": group.main["instanceTemplate"],
            "versions": [
                self._version(version, wanted)
                for version, wanted in zip(group.versions, group.wanted(), strict=True)
            ],
            "targetSize": group.target_size,
            "fingerprint": fingerprint(group.fingerprint),
            "currentActions": {action: actions[_screaming(action)] for action in ACTIONS},
            "status": status,
            "updatePolicy": self._update_policy(group),
            "instanceLifecyclePolicy": {
                "defaultActionOnFailure": "REPAIR",
                "forceUpdateOnRepair": "NO",
                "onFailedHealthCheck": "DEFAULT_ACTION",
                **(group.body.get("instanceLifecyclePolicy") or {}),
            },
            "listManagedInstancesResults": group.body.get("listManagedInstancesResults")
            or "PAGELESS",
            "namedPorts": group.named_ports,
            "targetSizePolicy": group.body.get("targetSizePolicy") or {"mode": "INDIVIDUAL"},
            "standbyPolicy": {
                "initialDelaySec": 0,
                "mode": "MANUAL",
                **(group.body.get("standbyPolicy") or {}),
            },
            "targetStoppedSize": 0,
            "targetSuspendedSize": 0,
        }

    def _place(self, group: Group) -> Json:
        """The zone of a group, or its region with the zones and the target shape."""
        if not group.regional:
            return {"zone": self.link(group.place)}
        return {
            "region": self.link(group.place),
            "distributionPolicy": {
                "zones": [{"zone": self.link(f"zones/{zone}")} for zone in group.zones],
                "targetShape": group.shape,
            },
        }

    def _version(self, version: Mapping[str, Any], wanted: int) -> Json:
        answer = {
            "instanceTemplate": version["instanceTemplate"],
            "targetSize": {**(version.get("targetSize") or {}), "calculated": wanted},
        }
        if version.get("name"):
            answer["name"] = version["name"]
        return answer

    def _update_policy(self, group: Group) -> Json:
        policy = {
            "type": "OPPORTUNISTIC",
            "minimalAction": "REPLACE",
            "replacementMethod": "SUBSTITUTE",
            "maxSurge": {"fixed": 1},
            "maxUnavailable": {"fixed": 1},
            **(group.body.get("updatePolicy") or {}),
        }
        for key in ("maxSurge", "maxUnavailable"):
            if key not in (group.body.get("updatePolicy") or {}):
                policy[key] = {"fixed": group.allowed(key)}
            policy[key] = {**policy[key], "calculated": group.allowed(key)}
        if group.regional:
            policy.setdefault("instanceRedistributionType", "PROACTIVE")
        return policy

    def instance_group(self, group: Group) -> Json:
        """The unmanaged side of a managed group."""
        path = f"{group.place}/instanceGroups/{group.name}"
        kind, _, _ = group.place.partition("s/")
        return {
            **self._head("instanceGroup", path, group.id, group.created),
            "description": "This instance group is controlled by Instance Group Manager "
            f"'{group.name}'. To modify instances in this group, use the Instance Group Manager.",
            kind: self.link(group.place),
            "network": self.link("global/networks/default"),
            "size": len(group.members),
            "fingerprint": fingerprint(group.fingerprint),
            "namedPorts": group.named_ports,
        }

    def member(self, group: Group, member: Member) -> Json:
        """A managed instance."""
        instance = self._fleet.instances.get(member.instance or "")
        answer: Json = {
            "name": member.name,
            "instance": self.link(f"zones/{member.zone}/instances/{member.name}"),
            "currentAction": member.action,
            "targetStatus": "DELETED" if member.leaving else "RUNNING",
            "version": {"instanceTemplate": self._template_link(member.template)},
        }
        if member.version:
            answer["version"]["name"] = member.version
        if instance:
            answer["id"] = instance.id
            answer["instanceStatus"] = instance.status
            if instance.deadline is not None:
                answer["scheduling"] = {"terminationTimestamp": to_rfc3339(instance.deadline)}
        if group.health_check:
            check = self._fleet.health_checks[group.health_check]
            answer["instanceHealth"] = [
                {"detailedHealthState": member.health, "healthCheck": self.link(check.path)}
            ]
        if member.errors:
            answer["lastAttempt"] = {"errors": {"errors": member.errors}}
        return answer

    def group_errors(self, group: Group) -> list[Json]:
        """The items of `listErrors`, the newest first."""
        return [
            {
                "timestamp": to_rfc3339(entry["time"]),
                "error": {"code": entry["code"], "message": entry["message"]},
                "instanceActionDetails": {
                    "action": entry["action"],
                    "instance": self.link(f"zones/{entry['zone']}/instances/{entry['member']}"),
                    "version": {"instanceTemplate": self._template_link(entry["template"])},
                },
            }
            for entry in reversed(group.errors)
        ]

    def _template_link(self, key: str) -> str:
        return self.link(template_path(key))

    def health_check(self, check: HealthCheck) -> Json:
        """A health check."""
        answer = {
            **self._head("healthCheck", check.path, check.id, check.created),
            **{key: value for key, value in check.body.items() if key != "name"},
        }
        if check.region:
            answer["region"] = self.link(f"regions/{check.region}")
        return answer

    def instance(self, instance: Instance, service_account: str) -> Json:
        """A VM."""
        zone_path = f"zones/{instance.zone}"
        path = f"{zone_path}/instances/{instance.name}"
        properties = instance.properties
        metadata = {"kind": "compute#metadata", "fingerprint": fingerprint(instance.fingerprint)}
        answer = {
            **self._head("instance", path, instance.id, instance.created),
            **{key: properties[key] for key in ("labels", "description") if key in properties},
            "status": instance.status,
            "zone": self.link(zone_path),
            "machineType": self.link(f"{zone_path}/machineTypes/{properties.get('machineType')}"),
            "cpuPlatform": "Local Cloud",
            "scheduling": instance.scheduling,
            "metadata": {**metadata, "items": properties["metadata"]["items"]},
            "tags": {**(properties.get("tags") or {}), "fingerprint": tags_fingerprint(instance)},
            "disks": [
                {
                    "source": self.link(f"{zone_path}/disks/{_disk_name(instance, disk)}"),
                    **{key: value for key, value in disk.items() if key != "initializeParams"},
                }
                for disk in properties.get("disks") or []
            ],
            "networkInterfaces": [
                {"networkIP": self._address_of(instance), **interface}
                for interface in properties.get("networkInterfaces") or []
            ],
            "serviceAccounts": [
                {**account, "email": service_account}
                for account in properties.get("serviceAccounts") or []
            ],
            "fingerprint": fingerprint(instance.fingerprint),
            "labelFingerprint": label_fingerprint(instance),
            "deletionProtection": False,
            "startRestricted": False,
        }
        if instance.started is not None:
            answer["lastStartTimestamp"] = to_rfc3339(instance.started)
        if instance.stopped is not None:
            answer["lastStopTimestamp"] = to_rfc3339(instance.stopped)
        return answer

    def disks(self, instance: Instance) -> list[Json]:
        """The disks that were created with a VM."""
        zone_path = f"zones/{instance.zone}"
        answers = []
        for disk in instance.properties.get("disks") or []:
            if "source" in disk:
                continue
            index = int(disk["index"])
            parameters = disk.get("initializeParams") or {}
            path = f"{zone_path}/disks/{_disk_name(instance, disk)}"
            disk_type = parameters.get("diskType") or "pd-standard"
            answer = {
                **self._head("disk", path, str(int(instance.id) + 1 + index), instance.created),
                "status": "READY",
                "zone": self.link(zone_path),
                "sizeGb": str(parameters.get("diskSizeGb") or 10),
                "type": self.link(f"{zone_path}/diskTypes/{disk_type.rpartition('/')[2]}"),
                "users": [self.link(f"{zone_path}/instances/{instance.name}")],
                "labels": parameters.get("labels") or {},
                "labelFingerprint": fingerprint(0),
            }
            if parameters.get("sourceImage"):
                answer["sourceImage"] = parameters["sourceImage"]
            answers.append(answer)
        return answers


def _disk_name(instance: Instance, disk: Mapping[str, Any]) -> str:
    index = disk["index"]
    return instance.name if index == 0 else f"{instance.name}-{index}"


def _screaming(name: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in name).upper()
