"""Buckets, objects, and members of buckets' policies."""

import json
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from outlast.localcloud.provider import changes, tables
from outlast.localcloud.provider.kind import (
    DEFAULTS,
    Body,
    Difference,
    Inputs,
    Kind,
    Settings,
    label_outputs,
    own_labels,
)
from outlast.localcloud.provider.rest import ProviderError, edit_policy
from outlast.localcloud.provider.tables import (
    PLACE,
    SETTING,
    Block,
    Value,
    int64,
)
from outlast.localcloud.provider.values import Asset

POLICY_VERSION = 3

ENABLED: tables.Table = {"enabled": Value("enabled")}

LIFECYCLE_RULE: tables.Table = {
    "action": Block("action", {"storageClass": Value("storageClass"), "type": Value("type")}),
    "condition": Block(
        "condition",
        {
            "age": Value("age"),
            "createdBefore": Value("createdBefore"),
            "daysSinceNoncurrentTime": Value("daysSinceNoncurrentTime"),
            "matchesPrefixes": Value("matchesPrefix"),
            "matchesStorageClasses": Value("matchesStorageClass"),
            "matchesSuffixes": Value("matchesSuffix"),
            "numNewerVersions": Value("numNewerVersions"),
        },
    ),
}

BUCKET: tables.Table = {
    "project": PLACE,
    "forceDestroy": SETTING,
    "name": Value("name"),
    "location": Value("location", str.upper),
    "labels": Value("labels"),
    "lifecycleRules": Block("lifecycle.rule", LIFECYCLE_RULE, "list"),
    "publicAccessPrevention": Value("iamConfiguration.publicAccessPrevention"),
    "encryption": Block("encryption", {"defaultKmsKeyName": Value("defaultKmsKeyName")}),
    "softDeletePolicy": Block(
        "softDeletePolicy", {"retentionDurationSeconds": int64("retentionDurationSeconds")}
    ),
    "storageClass": Value("storageClass"),
    "uniformBucketLevelAccess": Value("iamConfiguration.uniformBucketLevelAccess.enabled"),
    "versioning": Block("versioning", ENABLED),
}

OBJECT: tables.Table = {
    "bucket": PLACE,
    "content": SETTING,
    "source": SETTING,
    "name": Value("name"),
    "cacheControl": Value("cacheControl"),
    "contentDisposition": Value("contentDisposition"),
    "contentEncoding": Value("contentEncoding"),
    "contentLanguage": Value("contentLanguage"),
    "contentType": Value("contentType"),
    "metadata": Value("metadata"),
    "storageClass": Value("storageClass"),
}

CONDITION: tables.Table = {
    "description": Value("description"),
    "expression": Value("expression"),
    "title": Value("title"),
}

BUCKET_MEMBER: tables.Table = {
    "bucket": PLACE,
    "condition": Block("condition", CONDITION),
    "member": Value("member"),
    "role": Value("role"),
}


class Bucket(Kind):
    """A bucket."""

    token = "gcp:storage/bucket:Bucket"
    table = BUCKET
    required = ("location",)
    replace_on = frozenset({"name", "location", "project"})
    filled_in = ("project",)
    auto_named = True
    computed = (
        "effectiveLabels",
        "projectNumber",
        "pulumiLabels",
        "selfLink",
        "timeCreated",
        "updated",
        "url",
    )
    volatile = ("effectiveLabels", "pulumiLabels", "updated")
    chosen_by_api = frozenset(
        {
            "publicAccessPrevention",
            "softDeletePolicy",
            "storageClass",
            "uniformBucketLevelAccess",
            "versioning",
        }
    )

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        body = tables.to_body(self.table, inputs)
        labels = {**body.get("labels", {}), **cloud.labels}
        if labels:
            body["labels"] = labels
        cloud.storage.call("POST", "b", body, {"project": inputs["project"]})
        return inputs["name"], cloud.storage.call("GET", _bucket_path(inputs["name"]))

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        return cloud.storage.find(_bucket_path(id))

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        changed = {
            key: new.get(key)
            for key in {*old, *new} - {DEFAULTS}
            if list(changes.differences(old.get(key), new.get(key)))
        }
        body = tables.to_body(self.table, changed)
        if "labels" in changed:
            # A null removes a label; labels from others stay.
            gone = dict.fromkeys(set(old.get("labels") or {}) - set(new.get("labels") or {}))
            body["labels"] = {**gone, **(new.get("labels") or {})}
        if "lifecycleRules" in changed:
            body["lifecycle"] = {"rule": body.get("lifecycle", {}).get("rule", [])}
        if body:
            cloud.storage.call("PATCH", _bucket_path(id), body)

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        path = _bucket_path(id)
        page: dict[str, Any] = {"versions": "true"}
        while listed := cloud.storage.find(f"{path}/o", page):
            for item in listed.get("items", []):
                if not state.get("forceDestroy"):
                    raise ProviderError(
                        f"bucket {id}: holds objects, such as {item['name']}; "
                        "set forceDestroy to delete them with it."
                    )
                cloud.storage.remove(_object_path(id, item["name"]))
            if not listed.get("nextPageToken"):
                break
            page["pageToken"] = listed["nextPageToken"]
        cloud.storage.remove(path)

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        live = own_labels(super().live_inputs(cloud, id, body))
        return {**live, "project": cloud.project}

    def refreshed(self, cloud: Settings, id: str, inputs: Inputs, body: Body) -> Inputs:
        kept = super().refreshed(cloud, id, inputs, body)
        asked = inputs.get("location", "")
        if asked.upper() == kept.get("location"):
            kept["location"] = asked
        return kept

    def diff(self, old: Inputs, new: Inputs) -> Difference:
        return super().diff(_upper_location(old), _upper_location(new))

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {
            "projectNumber": int(body.get("projectNumber", 0)),
            "selfLink": body.get("selfLink", ""),
            "timeCreated": body.get("timeCreated", ""),
            "updated": body.get("updated", ""),
            "url": f"gs://{id}",
            **label_outputs(body),
        }


def _upper_location(inputs: Inputs) -> Inputs:
    location = inputs.get("location")
    return {**inputs, "location": location.upper()} if isinstance(location, str) else inputs


class BucketObject(Kind):
    """An object with its content."""

    token = "gcp:storage/bucketObject:BucketObject"
    table = OBJECT
    required = ("bucket",)
    replace_on = frozenset({"bucket", "name"})
    auto_named = True
    computed = (
        "crc32c",
        "generation",
        "md5hash",
        "mediaLink",
        "outputName",
        "selfLink",
    )
    volatile = ("crc32c", "generation", "md5hash", "mediaLink")
    chosen_by_api = frozenset({"contentType", "storageClass"})

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        body = self._upload(cloud, inputs)
        return f"{inputs['bucket']}-{body['name']}", body

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        content = {"content", "source"}
        if any(list(changes.differences(old.get(key), new.get(key))) for key in content):
            self._upload(cloud, new)
        else:
            path = _object_path(new["bucket"], new["name"])
            cloud.storage.call("PUT", path, tables.to_body(self.table, new))

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        if not state.get("bucket") or not state.get("name"):
            raise ProviderError(f"object {id}: cannot be imported; let the program make it.")
        return cloud.storage.find(_object_path(state["bucket"], state["name"]))

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        cloud.storage.remove(_object_path(state["bucket"], state["name"]))

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {
            "crc32c": body.get("crc32c", ""),
            "generation": int(body.get("generation", 0)),
            "md5hash": body.get("md5Hash", ""),
            "mediaLink": body.get("mediaLink", ""),
            "outputName": body["name"],
            "selfLink": body.get("selfLink", ""),
        }

    def refreshed(self, cloud: Settings, id: str, inputs: Inputs, body: Body) -> Inputs:
        kept = super().refreshed(cloud, id, inputs, body)
        return {**kept, "bucket": body["bucket"]}

    def _upload(self, cloud: Settings, inputs: Inputs) -> Body:
        source, content = inputs.get("source"), inputs.get("content")
        if isinstance(source, Asset):
            data = source.read()
        elif isinstance(content, str):
            data = content.encode()
        else:
            raise ProviderError(f"object {inputs['name']}: needs a source or content.")
        described = tables.to_body(self.table, inputs)
        kind = described.setdefault("contentType", "text/plain; charset=utf-8")
        boundary = secrets.token_hex(16)
        head = json.dumps(described).encode()
        parts = (
            b"--%b\r\nContent-Type: application/json\r\n\r\n%b\r\n"
            b"--%b\r\nContent-Type: %b\r\n\r\n%b\r\n--%b--\r\n"
        ) % (boundary.encode(), head, boundary.encode(), kind.encode(), data, boundary.encode())
        # At the root of the host, independent of the API's base address.
        host = urlsplit(cloud.storage.base)
        url = f"{host.scheme}://{host.netloc}/upload/storage/v1/{_bucket_path(inputs['bucket'])}/o"
        query = {"uploadType": "multipart", "name": inputs["name"]}
        return cloud.storage.send(
            "POST", url, parts, f"multipart/related; boundary={boundary}", query
        )


class BucketIAMMember(Kind):
    """One role of one member on a bucket, optionally with a condition."""

    token = "gcp:storage/bucketIAMMember:BucketIAMMember"
    table = BUCKET_MEMBER
    required = ("bucket", "member", "role")
    replace_on = None
    computed = ("etag",)

    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        self._edit(cloud, inputs, lambda policy: add_member(policy, inputs))
        bucket = inputs["bucket"].removeprefix("b/")
        id = member_id(f"b/{bucket}", inputs)
        body = self.read(cloud, id, inputs)
        if body is None:
            raise ProviderError(f"bucket {bucket}: the binding is not there after it was written.")
        return id, body

    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        policy = cloud.storage.find(self._path(state), READ_POLICY)
        return binding_body(policy, state) if policy else None

    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        if cloud.storage.find(_bucket_path(state["bucket"].removeprefix("b/"))):
            self._edit(cloud, state, lambda policy: remove_member(policy, state))

    def imported(self, cloud: Settings, id: str) -> tuple[str, Inputs]:
        parent, binding = imported_binding(id, "b/BUCKET")
        inputs: Inputs = {**binding, "bucket": parent.removeprefix("b/")}
        inputs = with_condition(inputs, cloud.storage.find(self._path(inputs), READ_POLICY))
        return member_id(f"b/{inputs['bucket']}", inputs), inputs

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        return {**super().live_inputs(cloud, id, body), "bucket": body["bucket"]}

    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        return {"etag": body.get("etag", "")}

    def _path(self, inputs: Mapping[str, Any]) -> str:
        return f"{_bucket_path(inputs['bucket'].removeprefix('b/'))}/iam"

    def _edit(self, cloud: Settings, inputs: Mapping[str, Any], change: Any) -> None:
        path = self._path(inputs)
        edit_policy(
            cloud.storage.base + path,
            lambda: cloud.storage.call("GET", path, query=READ_POLICY),
            lambda policy: cloud.storage.call("PUT", path, policy),
            change,
        )


READ_POLICY = {"optionsRequestedPolicyVersion": POLICY_VERSION}


def member_id(parent: str, inputs: Mapping[str, Any]) -> str:
    """The id of one member's binding."""
    title = (inputs.get("condition") or {}).get("title")
    return "/".join(filter(None, (parent, inputs["role"], inputs["member"], title)))


def imported_binding(id: str, parent: str) -> tuple[str, Inputs]:
    """The (parent, inputs) of an import's id: `PARENT ROLE MEMBER [TITLE]`, as in the real
    provider.

    At first `condition` has only a title; `with_condition` adds the rest. Raises ProviderError."""
    given = id.split(" ", 3)
    if len(given) < 3:
        raise ProviderError(f"import {id!r}: must be of the form '{parent} ROLE MEMBER [TITLE]'.")
    inputs: Inputs = {"role": given[1], "member": given[2]}
    if len(given) == 4:
        inputs["condition"] = {"title": given[3]}
    return given[0], inputs


def with_condition(inputs: Inputs, policy: Mapping[str, Any] | None) -> Inputs:
    """The inputs with the whole condition of the binding with the same title."""
    for binding in (policy or {}).get("bindings", []):
        condition = binding.get("condition")
        if (
            binding["role"] == inputs["role"]
            and condition
            and condition.get("title") == inputs.get("condition", {}).get("title")
        ):
            return {**inputs, "condition": tables.from_body(CONDITION, condition)}
    return inputs


def add_member(policy: dict[str, Any], inputs: Mapping[str, Any]) -> bool:
    """Adds the member to the policy; returns False if it has the member already."""
    binding = _binding(policy, inputs)
    if binding is None:
        binding = {"role": inputs["role"], "members": []}
        if inputs.get("condition"):
            binding["condition"] = tables.to_body(CONDITION, inputs["condition"])
            policy["version"] = POLICY_VERSION
        policy.setdefault("bindings", []).append(binding)
    if inputs["member"] in binding["members"]:
        return False
    binding["members"].append(inputs["member"])
    return True


def remove_member(policy: dict[str, Any], inputs: Mapping[str, Any]) -> bool:
    """Removes the member from the policy; returns False if it does not have the member."""
    binding = _binding(policy, inputs)
    if binding is None or inputs["member"] not in binding["members"]:
        return False
    binding["members"].remove(inputs["member"])
    if not binding["members"]:
        policy["bindings"].remove(binding)
    return True


def binding_body(policy: dict[str, Any], inputs: Mapping[str, Any]) -> Body | None:
    """The member's binding in a policy; None if it has none."""
    binding = _binding(policy, inputs)
    if binding is None or inputs["member"] not in binding["members"]:
        return None
    return {
        "bucket": inputs.get("bucket"),
        "project": inputs.get("project"),
        "role": inputs["role"],
        "member": inputs["member"],
        "condition": binding.get("condition"),
        "etag": policy.get("etag", ""),
    }


def _binding(policy: dict[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    wanted = tables.to_body(CONDITION, inputs.get("condition") or {})
    for binding in policy.get("bindings", []):
        found = {key: value for key, value in (binding.get("condition") or {}).items() if value}
        if binding["role"] == inputs["role"] and found == wanted:
            return binding
    return None


def _bucket_path(bucket: str) -> str:
    return f"b/{quote(bucket, safe='')}"


def _object_path(bucket: str, name: str) -> str:
    return f"{_bucket_path(bucket)}/o/{quote(name, safe='')}"
