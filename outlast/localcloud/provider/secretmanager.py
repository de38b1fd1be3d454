"""Members of secrets' policies."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from outlast.localcloud.provider import tables
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
    Block,
    Value,
)

SECRET_MEMBER: tables.Table = {
    "condition": Block("condition", CONDITION),
    "member": Value("member"),
    "project": PLACE,
    "role": Value("role"),
    "secretId": PLACE,
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
