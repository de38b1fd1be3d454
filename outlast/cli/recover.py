"""Recovers a stack whose `up` was killed: its lock, and the resources that were being created.

A killed engine leaves its lock, and a note of each resource that it had requested without an
answer. The resource may exist: with a fixed name it blocks the next `up`, and a `destroy` would
leave it. The recovery adds each such resource to the stack's state under the id that it must have;
a refresh then drops those that do not exist, and the next `up` continues with the rest or deletes
it. A killed recovery is completed by the next one.
"""

import json
import os
import socket
import string
import tempfile
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.base.process_tree import is_alive
from outlast.cli import engine
from outlast.cli.errors import EngineError, OperateError

_DYNAMIC = "pulumi-python:dynamic:"
_BAKE = f"{_DYNAMIC}ImageBake"
_GLOBAL = "projects/{project}/global"
_REGION = "projects/{project}/regions/{region}"
IDS = {
    "gcp:compute/firewall:Firewall": f"{_GLOBAL}/firewalls/{{name}}",
    "gcp:compute/healthCheck:HealthCheck": f"{_GLOBAL}/healthChecks/{{name}}",
    "gcp:compute/instanceGroupManager:InstanceGroupManager": (
        "projects/{project}/zones/{zone}/instanceGroupManagers/{name}"
    ),
    "gcp:compute/instanceTemplate:InstanceTemplate": f"{_GLOBAL}/instanceTemplates/{{name}}",
    "gcp:compute/network:Network": f"{_GLOBAL}/networks/{{name}}",
    "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager": (
        f"{_REGION}/instanceGroupManagers/{{name}}"
    ),
    "gcp:compute/router:Router": f"{_REGION}/routers/{{name}}",
    "gcp:compute/routerNat:RouterNat": f"{_REGION}/routers/{{router}}/{{name}}",
    "gcp:compute/subnetwork:Subnetwork": f"{_REGION}/subnetworks/{{name}}",
    "gcp:projects/iAMCustomRole:IAMCustomRole": "projects/{project}/roles/{roleId}",
    "gcp:projects/iAMMember:IAMMember": "{project}/{role}/{member}",
    "gcp:secretmanager/secretIamMember:SecretIamMember": (
        "projects/{project}/secrets/{secretId}/{role}/{member}"
    ),
    "gcp:serviceaccount/account:Account": (
        "projects/{project}/serviceAccounts/{accountId}@{project}.iam.gserviceaccount.com"
    ),
    "gcp:storage/bucket:Bucket": "{name}",
    "gcp:storage/bucketIAMMember:BucketIAMMember": "b/{bucket}/{role}/{member}",
    "gcp:storage/bucketObject:BucketObject": "{bucket}-{name}",
    _BAKE: "{project}/{family}",
}
"""The provider's id, computed from the inputs, of each kind of resource that could be left behind;
a binding with a condition has its title at the end. A test compares the list with what stacks
declare.
"""


class StackBusy(OperateError):
    """Another process, which may be alive, holds the stack's lock."""


@dataclass(frozen=True)
class Recovered:
    """The result of a recovery."""

    unlocked: bool
    taken_up: tuple[str, ...]
    """Logical names of the resources that were being created and are now in the state, if they
    exist.
    """


def recover(
    stack: str | None, *, env: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> Recovered | None:
    """Recovers the stack, or the selected one; None if nothing was wrong. Raises StackBusy if
    another process is working on it.
    """
    of = ["-s", stack] if stack else []
    export = ["stack", "export", *of]
    try:
        exported = engine.run_engine(export, env=env, cwd=cwd)
    except EngineError as error:
        if engine.TORN not in str(error):
            raise
        backend = json.loads(engine.run_engine(["whoami", "--json"], env=env, cwd=cwd))["url"]
        _drop_torn(backend)
        exported = engine.run_engine(export, env=env, cwd=cwd)
    state = json.loads(exported)
    deployment = state.get("deployment") or {}
    pending = deployment.get("pending_operations")
    taken_up = take_up(deployment) if pending else ()
    unread = pending or any(map(_is_unread, deployment.get("resources") or ()))

    def give_back() -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "state.json"
            file.write_text(json.dumps(state))
            engine.run_engine(["stack", "import", *of, "--file", str(file)], env=env, cwd=cwd)

    # Even an unchanged state is imported again: it is the cheapest action that needs the lock.
    unlocked = False
    try:
        give_back()
    except EngineError as error:
        _check_dead(str(error), stack or "")
        engine.run_engine(["cancel", "--yes", *of], env=env, cwd=cwd)
        give_back()
        unlocked = True
    if unread:
        engine.run_engine(["refresh", "--yes", "--skip-preview", *of], env=env, cwd=cwd)
    return Recovered(unlocked, taken_up) if unlocked or unread else None


def take_up(deployment: dict[str, Any]) -> tuple[str, ...]:
    """Moves resources that were being created into the list of resources; returns their names, and
    that of an image that was replacing another.
    """
    resources = deployment.setdefault("resources", [])
    names = []
    for operation in deployment.pop("pending_operations"):
        resource = operation["resource"]
        kind = resource.get("type", "")
        same = [one for one in resources if one["urn"] == resource["urn"] and not one.get("delete")]
        if kind == _BAKE and same and operation["type"] in ("creating", "updating"):
            # Whatever the recipe is then, the next up checks what this bake has left.
            (same[0].get("outputs") or {}).pop("image", None)
            names.append(_name(resource))
            continue
        form = IDS.get(kind)
        if operation["type"] != "creating" or form is None:
            continue
        inputs = resource.get("inputs") or {}
        if any(key and key not in inputs for _, key, _, _ in string.Formatter().parse(form)):
            continue
        id = form.format(**inputs)
        if title := (inputs.get("condition") or {}).get("title"):
            id += f"/{title}"
        found = {**resource, "id": id, "outputs": inputs}
        if same and same[0].get("pendingReplacement"):
            # Deleted already to make room; what depends on it comes later in the list.
            resources[resources.index(same[0])] = found
        else:
            if same:
                found["delete"] = True  # It was replacing one that still exists.
            resources.append(found)
        names.append(_name(resource))
    return tuple(names)


def _name(resource: Mapping[str, Any]) -> str:
    return resource["urn"].rpartition("::")[2]


def _is_unread(resource: Mapping[str, Any]) -> bool:
    """Whether a recovery added it and was killed before the refresh: the cloud's answer always has
    more than the inputs.
    """
    return resource.get("type", "").startswith("gcp:") and resource.get("outputs") == resource.get(
        "inputs"
    )


def _drop_torn(backend: str) -> None:
    """Removes the empty notes that a killed engine leaves beside the files of a folder backend: it
    replaces a file at once, but writes the note on it (`.attrs`) in place, and needs none."""
    if backend.startswith("file://"):
        folder = Path(urllib.parse.unquote(backend.removeprefix("file://"))).expanduser()
        for note in (folder / ".pulumi").rglob("*.attrs"):
            if note.stat().st_size == 0:
                note.unlink(missing_ok=True)


def _check_dead(said: str, stack: str) -> None:
    """Whether the engine's message says that a dead process of this machine holds the lock.

    EngineError: it is something else; StackBusy: the holder may be alive.
    """
    if "locked by" not in said:
        raise EngineError(said)
    holder = engine.LOCK_HOLDER.search(said)
    if holder is None or holder["host"] != socket.gethostname() or is_alive(int(holder["pid"])):
        raise StackBusy(
            f"{f'stack {stack}' if stack else 'the selected stack'}: another process is working on "
            "it; wait for it, or if it is dead run pulumi cancel"
            f"{f' -s {stack}' if stack else ''} ({holder[0] if holder else said})."
        )
