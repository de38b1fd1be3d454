"""Secrets, their versions, and who may read them."""

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from outlast.localcloud.provider import changes, tables
from outlast.localcloud.provider.kind import (
    Body,
    Inputs,
    Kind,
    Settings,
    label_outputs,
    own_labels,
)
from outlast.localcloud.provider.rest import ApiFailure, ProviderError, edit_policy
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

SECRET: tables.Table = {
    "project": PLACE,
    "secretId": PLACE,
    "annotations": Value("annotations"),
    "deletionProtection": SETTING,
    "labels": Value("labels"),
    "replication": Block(
        "replication",
        {
            "auto": Block("automatic", {}),
            "userManaged": Block(
                "userManaged",
                {"replicas": Block("replicas", {"location": Value("location")}, "list")},
            ),
        },
    ),
    "ttl": Value("ttl"),
}

VERSION: tables.Table = {
    "secret": PLACE,
    "deletionPolicy": SETTING,
    "enabled": SETTING,
    "isSecretDataBase64": PLACE,
    "secretData": Value("payload.data"),
}

SECRET_MEMBER: tables.Table = {
    "condition": Block("condition", CONDITION),
    "member": Value("member"),
    "project": PLACE,
    "role": Value("role"),
    "secretId": PLACE,
}


class Secret(Kind):
    """A secret without its values."""

    token = "gcp:secretmanager/secret:Secret"
    id_form = "projects/{project}/secrets/{secretId}"
    table = SECRET
    required = ("secretId", "replication")
    replace_on = frozenset({"project", "replication", "secretId"})
    filled_in = ("project",)
    computed = ("createTime", "effectiveLabels", "name", "pulumiLabels")
    volatile = ("effectiveLabels", "pulumiLabels")

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        body = tables.to_body(self.table, inputs)
        labels = {**body.get("labels", {}), **cloud.labels}
        if labels:
            body["labels"] = labels
        path = f"projects/{inputs['project']}/secrets"
        cloud.secret_manager.call("POST", path, body, {"secretId": inputs["secretId"]})
        id = f"{path}/{inputs['secretId']}"
        return id, cloud.secret_manager.call("GET", id)

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        return cloud.secret_manager.find(id)

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        changed = [
            key
            for key in ("annotations", "labels", "ttl")
            if list(changes.differences(old.get(key), new.get(key)))
        ]
        if not changed:
            return
        body = {key: new[key] for key in changed if new.get(key)}
        if "labels" in changed:
            body["labels"] = {**(new.get("labels") or {}), **cloud.labels}
        cloud.secret_manager.call("PATCH", id, body, {"updateMask": ",".join(changed)})

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        cloud.secret_manager.remove(id)

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        _, project, _, secret_id = id.split("/")
        live = own_labels(super().live_inputs(cloud, id, body))
        return {**live, "project": project, "secretId": secret_id}

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {
            "createTime": body.get("createTime", ""),
            "name": body["name"],
            **label_outputs(body),
        }


class SecretVersion(Kind):
    """One value of a secret. The SDK that declares it marks it as secret."""

    token = "gcp:secretmanager/secretVersion:SecretVersion"
    table = VERSION
    required = ("secret", "secretData")
    replace_on = frozenset({"isSecretDataBase64", "secret", "secretData"})
    computed = ("createTime", "destroyTime", "name", "version")
    chosen_by_api = frozenset({"enabled"})

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        data = inputs["secretData"]
        if not inputs.get("isSecretDataBase64"):
            data = base64.b64encode(data.encode()).decode()
        path = f"{inputs['secret']}:addVersion"
        made = cloud.secret_manager.call("POST", path, {"payload": {"data": data}})
        if inputs.get("enabled") is False:
            cloud.secret_manager.call("POST", f"{made['name']}:disable", {})
        body = self.read(cloud, made["name"], inputs)
        if body is None:
            raise ProviderError(f"secret version {made['name']}: is not there after it was made.")
        return made["name"], body

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        body = cloud.secret_manager.find(id)
        if body is None or body["state"] == "DESTROYED":
            return None
        if body["state"] == "ENABLED":
            body = {**body, **cloud.secret_manager.call("GET", f"{id}:access")}
        return body

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        if old.get("enabled", True) != new.get("enabled", True):
            verb = "enable" if new.get("enabled", True) else "disable"
            cloud.secret_manager.call("POST", f"{id}:{verb}", {})

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        verb = {"ABANDON": "", "DISABLE": "disable"}.get(state.get("deletionPolicy", ""), "destroy")
        try:
            if verb:
                cloud.secret_manager.call("POST", f"{id}:{verb}", {})
        except ApiFailure as failure:
            if failure.status != 404:
                raise

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        _, project, _, secret, _, _ = id.split("/")
        if project.isdigit() and cloud.project:  # the API names the project by its number
            project = cloud.project
        live: Inputs = {
            "secret": f"projects/{project}/secrets/{secret}",
            "enabled": body["state"] == "ENABLED",
        }
        data = body.get("payload", {}).get("data")
        return live if data is None else {**live, "secretData": base64.b64decode(data).decode()}

    def refreshed(self, cloud: Settings, id: str, inputs: Inputs, body: Body) -> Inputs:
        kept = super().refreshed(cloud, id, inputs, body)
        if inputs.get("isSecretDataBase64"):
            kept["secretData"] = body.get("payload", {}).get("data", inputs["secretData"])
        elif "secretData" in inputs and "payload" not in body:
            kept["secretData"] = inputs["secretData"]
        if "secret" in inputs:
            kept["secret"] = inputs["secret"]  # by the project's name or its number
        return kept

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {
            "createTime": body.get("createTime", ""),
            "destroyTime": body.get("destroyTime", ""),
            "name": body["name"],
            "version": body["name"].rpartition("/")[2],
        }


class SecretIamMember(Kind):
    """One role of one member on a secret."""

    token = "gcp:secretmanager/secretIamMember:SecretIamMember"
    table = SECRET_MEMBER
    required = ("member", "role", "secretId")
    replace_on = None
    filled_in = ("project",)
    computed = ("etag",)

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        self._edit(cloud, inputs, lambda policy: add_member(policy, inputs))
        id = member_id(_secret_path(inputs), inputs)
        body = self.read(cloud, id, inputs)
        if body is None:
            raise ProviderError(f"binding {id}: is not there after it was written.")
        return id, body

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        policy = cloud.secret_manager.find(f"{_secret_path(state)}:getIamPolicy", READ_POLICY)
        found = binding_body(policy, state) if policy else None
        return {**found, "secretId": state["secretId"]} if found else None

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        if cloud.secret_manager.find(_secret_path(state)):
            self._edit(cloud, state, lambda policy: remove_member(policy, state))

    def imported(self, cloud: Settings, id: str) -> tuple[str, Inputs]:
        parent, binding = imported_binding(id, "projects/P/secrets/S")
        _, project, _, secret = parent.split("/")
        inputs: Inputs = {**binding, "project": project, "secretId": secret}
        policy = cloud.secret_manager.find(f"{_secret_path(inputs)}:getIamPolicy", READ_POLICY)
        inputs = with_condition(inputs, policy)
        return member_id(parent, inputs), inputs

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        live = super().live_inputs(cloud, id, body)
        return {**live, "project": body["project"], "secretId": body["secretId"]}

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {"etag": body.get("etag", "")}

    def _edit(self, cloud: Settings, inputs: Mapping[str, Any], change: Any) -> None:
        path = _secret_path(inputs)
        edit_policy(
            cloud.secret_manager.base + path,
            lambda: cloud.secret_manager.call("GET", f"{path}:getIamPolicy", query=READ_POLICY),
            lambda policy: cloud.secret_manager.call(
                "POST", f"{path}:setIamPolicy", {"policy": policy}
            ),
            change,
        )


READ_POLICY = {"options.requestedPolicyVersion": POLICY_VERSION}


def _secret_path(inputs: Mapping[str, Any]) -> str:
    secret = inputs["secretId"].rpartition("/")[2]
    return f"projects/{inputs['project']}/secrets/{quote(secret, safe='')}"
