"""The guard of a foundation: it can be destroyed only if no experiment uses it.

Pickled by reference into a stack's state: this module's path and its classes' names must never
change, or no stack of an older version could be destroyed.
"""

from typing import Any, TypedDict

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource

from outlast.bucket.store import open_store
from outlast.dynamic.host import Provider
from outlast.spec import foundation


class InUse(Exception):
    """Experiments use the foundation."""


class FoundationGuardProvider(Provider):
    """Refuses to delete a foundation while an experiment has a note in the bucket."""

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        replaces = [key for key in ("owner", "bucket") if olds.get(key) != news.get(key)]
        return DiffResult(changes=bool(replaces), replaces=replaces)

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(props["owner"], props)

    def delete(self, _id: str, props: dict[str, Any]) -> None:
        """Raises InUse, so that the engine deletes nothing that the guard depends on."""
        folder = foundation.notes(props["owner"])
        users = [item.path for item in open_store(f"gs://{props['bucket']}").list(folder)]
        if users:
            names = ", ".join(sorted(path.removeprefix(folder) for path in users))
            raise InUse(
                f"foundation {props['owner']}: experiments use it: {names}; destroy them"
                " first. If one no longer exists, delete its note:"
                f" gs://{props['bucket']}/{users[0]}"
            )


class FoundationGuardArgs(TypedDict):
    """Inputs of FoundationGuard."""

    owner: str
    """`organization/project/stack` of the foundation."""
    bucket: str


class FoundationGuard(Resource, name="FoundationGuard"):
    """Depends on the whole foundation, so it is destroyed first, and refuses while experiments have
    notes in the bucket.
    """

    def __init__(
        self, name: str, args: FoundationGuardArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(FoundationGuardProvider(), name, {**args}, opts)
