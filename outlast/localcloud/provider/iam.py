"""Service accounts, custom roles and the project's policy."""

from collections.abc import Mapping
from typing import Any

from outlast.localcloud.provider import changes, tables
from outlast.localcloud.provider.kind import (
    Body,
    Inputs,
    Kind,
    Settings,
)
from outlast.localcloud.provider.rest import ProviderError, edit_policy
from outlast.localcloud.provider.storage import (
    CONDITION,
    POLICY_VERSION,
    add_member,
    binding_body,
    imported_binding,
    member_id,
    remove_member,
    with_condition,
)
from outlast.localcloud.provider.tables import (
    PLACE,
    SETTING,
    Block,
    Value,
)

ACCOUNT: tables.Table = {
    "accountId": PLACE,
    "createIgnoreAlreadyExists": SETTING,
    "description": Value("description"),
    "disabled": Value("disabled"),
    "displayName": Value("displayName"),
    "project": PLACE,
}

ROLE: tables.Table = {
    "description": Value("description"),
    "permissions": Value("includedPermissions"),
    "project": PLACE,
    "roleId": PLACE,
    "stage": Value("stage"),
    "title": Value("title"),
}

PROJECT_MEMBER: tables.Table = {
    "condition": Block("condition", CONDITION),
    "member": Value("member"),
    "project": PLACE,
    "role": Value("role"),
}

DEFAULT_STAGE = "GA"


class Account(Kind):
    """A service account."""

    token = "gcp:serviceaccount/account:Account"
    id_form = "projects/{project}/serviceAccounts/{email}"
    table = ACCOUNT
    required = ("accountId",)
    replace_on = frozenset({"accountId", "project"})
    filled_in = ("project",)
    computed = ("email", "member", "name", "uniqueId")

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        described = tables.to_body(
            self.table, {key: inputs.get(key) for key in ("description", "displayName")}
        )
        body = {"accountId": inputs["accountId"], "serviceAccount": described}
        path = f"v1/projects/{inputs['project']}/serviceAccounts"
        made = cloud.iam.call("POST", path, body)
        if inputs.get("disabled"):
            cloud.iam.call("POST", f"v1/{made['name']}:disable", {})
        return made["name"], cloud.iam.call("GET", f"v1/{made['name']}")

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        return cloud.iam.find(f"v1/{id}")

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        changed = [
            key
            for key in ("description", "displayName")
            if list(changes.differences(old.get(key), new.get(key)))
        ]
        if changed:
            account = {key: new.get(key) or "" for key in changed}
            body = {"serviceAccount": account, "updateMask": ",".join(changed)}
            cloud.iam.call("PATCH", f"v1/{id}", body)
        if bool(old.get("disabled")) != bool(new.get("disabled")):
            verb = "disable" if new.get("disabled") else "enable"
            cloud.iam.call("POST", f"v1/{id}:{verb}", {})

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        cloud.iam.remove(f"v1/{id}")

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        return {
            **super().live_inputs(cloud, id, body),
            "accountId": body["email"].partition("@")[0],
            "project": id.split("/")[1],
        }

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {
            "email": body["email"],
            "member": f"serviceAccount:{body['email']}",
            "name": body["name"],
            "uniqueId": body.get("uniqueId", ""),
        }


class IAMCustomRole(Kind):
    """A custom role of a project. A deleted one keeps its id for weeks, so `create` restores it."""

    token = "gcp:projects/iAMCustomRole:IAMCustomRole"
    id_form = "projects/{project}/roles/{roleId}"
    table = ROLE
    required = ("permissions", "roleId", "title")
    replace_on = frozenset({"project", "roleId"})
    filled_in = ("project",)
    computed = ("deleted", "name")
    chosen_by_api = frozenset({"stage"})

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        path = f"v1/projects/{inputs['project']}/roles"
        role = self._body(inputs)
        there = cloud.iam.find(f"{path}/{inputs['roleId']}")
        if there is None:
            made = cloud.iam.call("POST", path, {"roleId": inputs["roleId"], "role": role})
        elif there.get("deleted"):
            cloud.iam.call("POST", f"v1/{there['name']}:undelete", {})
            made = cloud.iam.call("PATCH", f"v1/{there['name']}", role)
        else:
            raise ProviderError(f"role {there['name']}: exists already; delete or import it.")
        return made["name"], made

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        found = cloud.iam.find(f"v1/{id}")
        return None if found is None or found.get("deleted") else found

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        cloud.iam.call("PATCH", f"v1/{id}", self._body(new))

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        cloud.iam.remove(f"v1/{id}")

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        _, project, _, role_id = id.split("/")
        return {**super().live_inputs(cloud, id, body), "project": project, "roleId": role_id}

    def refreshed(self, cloud: Settings, id: str, inputs: Inputs, body: Body) -> Inputs:
        kept = super().refreshed(cloud, id, inputs, body)
        asked = inputs.get("permissions")
        if asked and sorted(asked) == sorted(kept.get("permissions", [])):
            kept["permissions"] = asked  # a set: its order has no meaning
        return kept

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {"deleted": bool(body.get("deleted")), "name": body["name"]}

    def _body(self, inputs: Inputs) -> Body:
        return {"stage": DEFAULT_STAGE, **tables.to_body(self.table, inputs)}


class IAMMember(Kind):
    """One role of one member on a project."""

    token = "gcp:projects/iAMMember:IAMMember"
    table = PROJECT_MEMBER
    required = ("member", "role")
    replace_on = None
    filled_in = ("project",)
    computed = ("etag",)

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        self._edit(cloud, inputs, lambda policy: add_member(policy, inputs))
        id = member_id(inputs["project"], inputs)
        body = self.read(cloud, id, inputs)
        if body is None:
            raise ProviderError(f"binding {id}: is not there after it was written.")
        return id, body

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        return binding_body(self._policy(cloud, state["project"]), state)

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        self._edit(cloud, state, lambda policy: remove_member(policy, state))

    def imported(self, cloud: Settings, id: str) -> tuple[str, Inputs]:
        project, binding = imported_binding(id, "PROJECT")
        inputs = with_condition({**binding, "project": project}, self._policy(cloud, project))
        return member_id(project, inputs), inputs

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        return {**super().live_inputs(cloud, id, body), "project": body["project"]}

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {"etag": body.get("etag", "")}

    def _policy(self, cloud: Settings, project: str) -> dict[str, Any]:
        options = {"options": {"requestedPolicyVersion": POLICY_VERSION}}
        return cloud.resource_manager.call("POST", f"v1/projects/{project}:getIamPolicy", options)

    def _edit(self, cloud: Settings, inputs: Mapping[str, Any], change: Any) -> None:
        project = inputs["project"]
        edit_policy(
            f"{cloud.resource_manager.base}{project}",
            lambda: self._policy(cloud, project),
            lambda policy: cloud.resource_manager.call(
                "POST",
                f"v1/projects/{project}:setIamPolicy",
                {"policy": policy, "updateMask": "bindings,etag,auditConfigs"},
            ),
            change,
        )
