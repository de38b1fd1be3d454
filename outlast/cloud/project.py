"""A client of what a project has besides Compute: its bucket, service accounts, roles, policy.

Each endpoint comes from the provider's own variable, as in `compute.py`. A call has one try.
"""

import contextlib
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outlast.cloud.compute import ANSWER_TIMEOUT_SEC, ComputeError, Json, Missing, ask_google
from outlast.spec.labels import MANAGED_BY

STORAGE = ("GOOGLE_STORAGE_CUSTOM_ENDPOINT", "https://storage.googleapis.com/storage/v1/")
IAM = ("GOOGLE_IAM_BETA_CUSTOM_ENDPOINT", "https://iam.googleapis.com/v1/")
RESOURCES = (
    "GOOGLE_RESOURCE_MANAGER_CUSTOM_ENDPOINT",
    "https://cloudresourcemanager.googleapis.com/v1/",
)
"""Each API's variable and default endpoint."""

POLICY_VERSION = 3
"""The version of a policy whose bindings have conditions."""
AT_ONCE = 8
"""Objects that are deleted at the same time."""


class Project:
    """One project. Each method raises ComputeError."""

    def __init__(self, project: str, *, timeout_sec: float = ANSWER_TIMEOUT_SEC) -> None:
        self.project = project
        self._timeout_sec = timeout_sec

    # The project and its policy

    def permissions(self, asked: tuple[str, ...]) -> set[str]:
        """Which of these permissions the caller has in the project."""
        path = f"projects/{self.project}:testIamPermissions"
        answer = self._call(RESOURCES, "POST", path, {"permissions": list(asked)})
        return set(answer.get("permissions") or ())

    def policy(self) -> Json:
        """The project's IAM policy."""
        options = {"options": {"requestedPolicyVersion": POLICY_VERSION}}
        return self._call(RESOURCES, "POST", f"projects/{self.project}:getIamPolicy", options)

    def set_policy(self, policy: Mapping[str, Any]) -> None:
        """Replaces the policy; its `etag` refuses a policy that has changed since."""
        body = {"policy": {**policy, "version": POLICY_VERSION}}
        self._call(RESOURCES, "POST", f"projects/{self.project}:setIamPolicy", body)

    # Service accounts and roles

    def accounts(self) -> Iterator[Json]:
        """All service accounts."""
        return self._listed(IAM, f"projects/{self.project}/serviceAccounts", "accounts")

    def create_account(self, account_id: str, title: str) -> str:
        """Creates a service account and returns its address."""
        body = {"accountId": account_id, "serviceAccount": {"displayName": title}}
        path = f"projects/{self.project}/serviceAccounts"
        return str(self._call(IAM, "POST", path, body)["email"])

    def delete_account(self, email: str) -> None:
        """Deletes a service account that may already be gone; its bindings stay in the policies."""
        with contextlib.suppress(Missing):
            self._call(IAM, "DELETE", f"projects/{self.project}/serviceAccounts/{email}")

    def roles(self) -> Iterator[Json]:
        """The custom roles, without deleted ones."""
        for role in self._listed(IAM, f"projects/{self.project}/roles", "roles"):
            if not role.get("deleted"):
                yield role

    def delete_role(self, name: str) -> None:
        """Deletes a custom role that may already be gone. Google keeps its id for weeks, and the
        role, marked as deleted, for a time.
        """
        try:
            self._call(IAM, "DELETE", name)
        except Missing:
            return
        except ComputeError:
            if not self._call(IAM, "GET", name).get("deleted"):
                raise

    # Buckets

    def buckets(self) -> Iterator[Json]:
        """All buckets of the project."""
        return self._listed(STORAGE, "b", "items", {"project": self.project})

    def bucket(self, name: str) -> Json | None:
        """The project's bucket of this name; None if the project has none. Names are global, so a
        bucket of another project may have it.
        """
        query = {"project": self.project, "prefix": name}
        found = self._listed(STORAGE, "b", "items", query)
        return next((one for one in found if one["name"] == name), None)

    def any_bucket(self, name: str) -> Json | None:
        """The bucket of this name, whichever project has it; None if there is none."""
        try:
            return self._call(STORAGE, "GET", f"b/{name}")
        except Missing:
            return None

    def create_bucket(self, body: Mapping[str, Any]) -> None:
        """Creates a bucket."""
        self._call(STORAGE, "POST", f"b?project={self.project}", body)

    def grant(self, bucket: str, binding: Mapping[str, Any]) -> None:
        """Adds a binding to the bucket's policy."""
        policy = self.bucket_policy(bucket)
        bindings = [*(policy.get("bindings") or ()), binding]
        self.set_bucket_policy(bucket, {**policy, "bindings": bindings})

    def bucket_policy(self, bucket: str) -> Json:
        """The bucket's IAM policy."""
        path = f"b/{bucket}/iam?optionsRequestedPolicyVersion={POLICY_VERSION}"
        return self._call(STORAGE, "GET", path)

    def set_bucket_policy(self, bucket: str, policy: Mapping[str, Any]) -> None:
        """Replaces the bucket's policy, like `set_policy`."""
        self._call(STORAGE, "PUT", f"b/{bucket}/iam", {**policy, "version": POLICY_VERSION})

    def has_object(self, bucket: str, path: str, payer: str = "") -> bool:
        """Whether any object's name begins with the path. ``payer``: the project that pays."""
        query = {"prefix": path, "maxResults": "1", **({"userProject": payer} if payer else {})}
        words = urllib.parse.urlencode(query)
        return bool(self._call(STORAGE, "GET", f"b/{bucket}/o?{words}").get("items"))

    def bucket_permissions(
        self, bucket: str, asked: tuple[str, ...], payer: str = ""
    ) -> frozenset[str]:
        """Which of these permissions the caller has on a bucket."""
        query = [("permissions", one) for one in asked]
        query += [("userProject", payer)] if payer else []
        path = f"b/{bucket}/iam/testPermissions?{urllib.parse.urlencode(query)}"
        return frozenset(self._call(STORAGE, "GET", path).get("permissions") or ())

    def delete_bucket(self, name: str) -> None:
        """Deletes an empty bucket that may already be gone. Google refuses one with objects (page
        "Delete bucket" of Cloud Storage's XML API, read on 2026-11-30).
        """
        with contextlib.suppress(Missing):
            self._call(STORAGE, "DELETE", f"b/{name}")

    def empty_bucket(self, name: str) -> None:
        """Deletes everything in a bucket."""
        listed = self._listed(STORAGE, f"b/{name}/o", "items", {"versions": "true"})

        def delete(item: Json) -> None:
            path = f"b/{name}/o/{urllib.parse.quote(item['name'], safe='')}"
            try:
                self._call(STORAGE, "DELETE", f"{path}?generation={item['generation']}")
            except Missing:
                return  # It went by itself.

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(delete, list(listed)):
                pass

    # All of them

    def _listed(
        self, api: tuple[str, str], path: str, key: str, query: Mapping[str, str] | None = None
    ) -> Iterator[Json]:
        """All items of a list, from all its pages."""
        asked = dict(query or {})
        while True:
            words = urllib.parse.urlencode(asked)
            answer = self._call(api, "GET", f"{path}?{words}" if words else path)
            yield from answer.get(key) or ()
            asked["pageToken"] = str(answer.get("nextPageToken") or "")
            if not asked["pageToken"]:
                return

    def _call(
        self,
        api: tuple[str, str],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
    ) -> Json:
        variable, default = api
        base = (os.environ.get(variable) or default).rstrip("/") + "/"
        return ask_google(
            method, base + path, body, what=path.partition("?")[0], timeout_sec=self._timeout_sec
        )


def without_members(policy: Mapping[str, Any], unwanted: Callable[[str, str], bool]) -> Json:
    """The policy without the members that `unwanted`, called with role and member, accepts; a
    binding without members goes too."""
    kept = [
        {
            **binding,
            "members": [one for one in binding["members"] if not unwanted(binding["role"], one)],
        }
        for binding in policy.get("bindings") or ()
    ]
    return {**policy, "bindings": [binding for binding in kept if binding["members"]]}


def managed_bucket(name: str, location: str, labels: Mapping[str, str]) -> Json:
    """The body of a bucket that a stack adopts, with further labels."""
    return {
        "name": name,
        "location": location,
        "labels": {**labels, "managed-by": MANAGED_BY},
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": True},
            "publicAccessPrevention": "enforced",
        },
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
    }
