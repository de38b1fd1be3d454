"""Managed instance groups of a zone or of a region: the API's calls for them."""

import re
from collections.abc import Callable

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.compute import rules
from outlast.localcloud.compute.calls import (
    TEMPLATE_REFERENCE,
    Call,
    Handler,
    Row,
    aggregated,
    listed,
    place_of,
)
from outlast.localcloud.compute.catalogue import ALL_ZONES, ZONES, region_of
from outlast.localcloud.compute.fleet.model import Group
from outlast.localcloud.compute.links import Json, fingerprint
from outlast.localcloud.compute.platform import Platform

# Fields that a group's answer adds or that are stored elsewhere. A body may contain them, because
# clients send back whole answers.
OUTPUT_FIELDS = (
    *("kind", "id", "creationTimestamp", "selfLink", "zone", "region", "instanceGroup", "status"),
    *("currentActions", "fingerprint", "name", "targetSize", "versions", "instanceTemplate"),
    *("namedPorts", "targetStoppedSize", "targetSuspendedSize"),
)


class Groups:
    """Answers the API's calls for groups."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._fleet = platform.fleet
        self._answers = platform.answers
        self._operations = platform.operations

    def routes(self) -> list[Row]:
        """The routes of these calls."""
        table: list[Row] = [
            (
                *("GET", "aggregated/instanceGroupManagers", self._aggregate_groups),
                "instanceGroupManagers.list",
            ),
        ]
        for place in ("zones/{zone}", "regions/{region}"):
            table += self._routes_of(place)
        return table

    def _routes_of(self, place: str) -> list[Row]:
        group = place + "/instanceGroupManagers"
        named = group + "/{name}"
        unmanaged = place + "/instanceGroups"
        table: list[tuple[str, str, Handler, str]] = [
            ("POST", group, self._insert_group, "create"),
            ("GET", group, self._list_groups, "list"),
            ("GET", named, self._get_group, "get"),
            ("PATCH", named, self._patch_group, "update"),
            ("DELETE", named, self._delete_group, "delete"),
            ("GET", named + "/listErrors", self._list_errors, "get"),
            ("POST", named + "/resize", self._resize, "update"),
            ("POST", named + "/listManagedInstances", self._list_members, "get"),
            ("POST", named + "/deleteInstances", self._delete_members, "update"),
            ("POST", named + "/createInstances", self._create_members, "update"),
            ("POST", named + "/recreateInstances", self._recreate_members, "update"),
            ("POST", named + "/abandonInstances", self._abandon_members, "update"),
            ("POST", named + "/applyUpdatesToInstances", self._update_members, "update"),
        ]
        return [
            *(
                (method, path, handler, f"instanceGroupManagers.{permission}")
                for method, path, handler, permission in table
            ),
            ("GET", unmanaged, self._list_instance_groups, "instanceGroups.list"),
            ("GET", unmanaged + "/{name}", self._get_instance_group, "instanceGroups.get"),
            (
                "POST",
                unmanaged + "/{name}/setNamedPorts",
                self._set_named_ports,
                "instanceGroups.update",
            ),
        ]

    def _group(self, call: Call) -> Group:
        regional = "region" in call.params
        return self._fleet.group(place_of(call), call["name"], regional=regional)

    def _group_operation(
        self, kind: str, group: Group, done: Callable[[], bool] = lambda: True
    ) -> Json:
        self._platform.changed()
        return self._operations.record(kind, group.path, group.id, done)

    def _versions(self, call: Call) -> list[Json] | None:
        """The requested versions of a body, each with its template; None if it names none. Raises
        ApiError."""
        body, region = call.body, call.params.get("region") or region_of(call["zone"])
        if body.get("versions"):
            asked = [dict(version) for version in body["versions"]]
        elif body.get("instanceTemplate"):
            asked = [{"instanceTemplate": body["instanceTemplate"]}]
        else:
            return None
        rules.check_versions(asked)
        for index, version in enumerate(asked):
            field = f"resource.versions[{index}].instanceTemplate"
            reference = str(version.get("instanceTemplate") or "")
            match = TEMPLATE_REFERENCE.fullmatch(reference)
            own = (None, self._platform.project, self._platform.project_number)
            if not match or match["project"] not in own:
                raise rules.invalid(
                    field,
                    reference,
                    "Must be the URL of an instance template of the project.",
                )
            unique = f"?uniqueId={match['id']}" if match["id"] else ""
            template = self._fleet.blueprints.template(match["name"], match["region"] or "")
            if template.region not in ("", region):
                raise rules.invalid(
                    field,
                    reference,
                    f"A regional instance template must be of the group's region {region}.",
                )
            version["instanceTemplate"] = self._answers.link(template.path) + unique
            version["template"] = template.key
            version["template_id"] = match["id"]
        return asked

    async def _insert_group(self, call: Call) -> Json:
        name = rules.check_name("resource.name", call.body.get("name"))
        versions = self._versions(call)
        if not versions:
            raise rules.invalid("resource.versions", "", "An instance template is required.")
        size = call.body.get("targetSize")
        if size is None:
            raise rules.invalid("resource.targetSize", "", "The target size is required.")
        if int(size) < 0:
            raise rules.invalid("resource.targetSize", size, "Must be at least 0.")
        body = {key: value for key, value in call.body.items() if key not in OUTPUT_FIELDS}
        region = call.params.get("region")
        zones = rules.checked_zones(body, region, ZONES[region]) if region else None
        rules.check_group(body, int(size), zones)
        group = self._fleet.add_group(place_of(call), name, body, versions, int(size), zones)
        self._fleet.set_named_ports(group, call.body.get("namedPorts") or [])
        return self._group_operation("insert", group)

    async def _get_group(self, call: Call) -> Json:
        return self._answers.group(self._group(call))

    def _groups_of(self, call: Call) -> list[Group]:
        return [g for g in self._fleet.groups.values() if g.location == place_of(call)]

    async def _list_groups(self, call: Call) -> Json:
        regional = "region" in call.params
        kind = "regionInstanceGroupManagerList" if regional else "instanceGroupManagerList"
        return listed(kind, map(self._answers.group, self._groups_of(call)))

    async def _list_instance_groups(self, call: Call) -> Json:
        kind = "regionInstanceGroupList" if "region" in call.params else "instanceGroupList"
        return listed(kind, map(self._answers.instance_group, self._groups_of(call)))

    async def _patch_group(self, call: Call) -> Json:
        group = self._group(call)
        asked = call.body.get("fingerprint")
        if asked and asked != fingerprint(group.fingerprint):
            raise ApiError(
                412,
                "Supplied fingerprint does not match current instance group manager",
                "conditionNotMet",
            )
        if call.body.get("name") not in (None, group.name):
            raise rules.invalid("resource.name", call.body["name"], "A name cannot be changed.")
        changes = {key: value for key, value in call.body.items() if key not in OUTPUT_FIELDS}
        body = rules.merged(rules.without_nulls(group.body, call.sent), changes)
        zones = group.zones if group.regional else None
        if zones and rules.checked_zones(body, group.location, zones) != zones:
            raise rules.invalid(
                "resource.distributionPolicy.zones", zones, "The zones cannot be changed."
            )
        size = int(call.body.get("targetSize", group.target_size))
        rules.check_group(body, size, zones)
        self._fleet.change_group(group, body, self._versions(call))
        if "namedPorts" in call.body:
            self._fleet.set_named_ports(group, call.body["namedPorts"])
        if "targetSize" in call.body:
            self._fleet.resize(group, int(call.body["targetSize"]))
        return self._group_operation("patch", group)

    async def _delete_group(self, call: Call) -> Json:
        group = self._group(call)
        self._fleet.delete_group(group)
        self._platform.changed()

        def gone() -> bool:
            return self._fleet.groups.get(group.key) is not group

        await self._platform.until(gone)
        return self._group_operation("delete", group, gone)

    async def _resize(self, call: Call) -> Json:
        size = call.query.get("size", "")
        if not re.fullmatch(r"-?\d+", size):
            raise rules.invalid("size", size, "Must be a whole number.")
        group = self._group(call)
        self._fleet.resize(group, int(size))
        return self._group_operation("compute.instanceGroupManagers.resize", group)

    async def _list_members(self, call: Call) -> Json:
        group = self._group(call)
        answers = [self._answers.member(group, member) for member in group.members.values()]
        return {"managedInstances": answers}

    async def _list_errors(self, call: Call) -> Json:
        return {"items": self._answers.group_errors(self._group(call))}

    def _named(self, call: Call, group: Group) -> list[str]:
        """The names of the members that a call names by URL. Raises ApiError."""
        names = []
        lenient = bool(call.body.get("skipInstancesOnValidationError"))
        for reference in call.body.get("instances") or []:
            match = re.fullmatch(r"(?:.*/)?zones/([^/]+)/instances/([^/]+)|([^/]+)", str(reference))
            zone, name = (match[1], match[2] or match[3]) if match else ("", "")
            member = group.members.get(name)
            if zone is not None and zone not in group.zones:
                raise rules.invalid(
                    "instances[]", reference, f"Must be in {' or '.join(group.zones)}."
                )
            if member and zone not in (None, member.zone):
                member = None  # another VM of that name
                name = f"{zone}/{name}"
            if member or not lenient:
                names.append(name)
        if not names and not lenient:
            raise rules.invalid("instances", "", "At least one instance is required.")
        return names

    async def _delete_members(self, call: Call) -> Json:
        group = self._group(call)
        self._fleet.delete_members(group, self._named(call, group))
        return self._group_operation("compute.instanceGroupManagers.deleteInstances", group)

    async def _create_members(self, call: Call) -> Json:
        group = self._group(call)
        asked = call.body.get("instances") or []
        if not asked:
            raise rules.invalid("instances", "", "At least one instance is required.")
        names = []
        for index, instance in enumerate(asked):
            if instance.get("preservedState"):
                raise rules.no_stateful_groups(f"instances[{index}].preservedState")
            name = rules.check_name(f"instances[{index}].name", instance.get("name"))
            if name in names:
                raise rules.invalid(f"instances[{index}].name", name, "Named twice.")
            names.append(name)
        self._fleet.create_members(group, names)
        return self._group_operation("compute.instanceGroupManagers.createInstances", group)

    async def _recreate_members(self, call: Call) -> Json:
        group = self._group(call)
        self._fleet.recreate_members(group, self._named(call, group))
        return self._group_operation("compute.instanceGroupManagers.recreateInstances", group)

    async def _abandon_members(self, call: Call) -> Json:
        group = self._group(call)
        self._fleet.abandon_members(group, self._named(call, group))
        return self._group_operation("compute.instanceGroupManagers.abandonInstances", group)

    async def _update_members(self, call: Call) -> Json:
        group = self._group(call)
        names = None if call.body.get("allInstances") else self._named(call, group)
        minimal = call.body.get("minimalAction") or "NONE"
        most = call.body.get("mostDisruptiveAllowedAction") or "REPLACE"
        self._fleet.update_members(group, names, minimal, most)
        return self._group_operation("compute.instanceGroupManagers.applyUpdatesToInstances", group)

    async def _get_instance_group(self, call: Call) -> Json:
        return self._answers.instance_group(self._group(call))

    async def _set_named_ports(self, call: Call) -> Json:
        group = self._group(call)
        self._fleet.set_named_ports(group, call.body.get("namedPorts") or [])
        return self._group_operation("setNamedPorts", group)

    async def _aggregate_groups(self, call: Call) -> Json:
        groups = list(self._fleet.groups.values())
        places = [f"zones/{zone}" for zone in ALL_ZONES] + [f"regions/{name}" for name in ZONES]
        scopes = {place: [g for g in groups if g.place == place] for place in places}
        kind = "instanceGroupManager"
        return aggregated(kind, "instanceGroupManagers", scopes, self._answers.group)
