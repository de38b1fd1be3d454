"""Which resources the stacks of the current backend own, according to their states.

The engine takes a process for each state that it exports. Where a backend is a folder or a bucket,
its files are read instead: an export is the `latest` of a stack's file. What is not as expected
there is left to the engine.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outlast.bucket.store import StoreError, open_store
from outlast.bucket.transfer import SMALL_READS, in_parallel
from outlast.cli import engine
from outlast.cli.errors import NoStack
from outlast.spec import labels

AT_ONCE = 4
"""States that are exported at the same time, each by a process of the engine."""
_FORMAT = 3
"""Of a stack's file, whose states are read here."""
_BAKE = "pulumi-python:dynamic:ImageBake"
_STACK = "pulumi:pulumi:Stack"
_PATH = re.compile(r"projects/(?P<project>[^/]+)/(?P<path>[^?]+)")


@dataclass(frozen=True)
class Owner:
    """One stack, as its state says."""

    project: str
    stack: str
    """Both as labels have them."""
    paths: frozenset[tuple[str, str]]
    """What it owns: the cloud project, and the path below it."""
    cloud: str
    """The Google project that it is up in."""
    bucket: str
    """The bucket of its run or foundation; empty if it is not up."""
    prefix: str
    """Its experiment's folder in the bucket."""
    bundle: str
    text: str
    """Its whole state."""
    bakes: bool
    """Whether it owns the images of its recipe."""
    busy: bool
    """Whether an `up` is creating something, or was killed while it was."""

    @property
    def name(self) -> str:
        return f"{self.project}/{self.stack}"


def read() -> tuple[Owner, ...]:
    """Of every stack in the current backend, of all its projects. Raises EngineError."""
    here = engine.project_name()
    listed = json.loads(engine.run_engine(["stack", "ls", "--all", "--json"], env=os.environ))
    names = [str(one["name"]) for one in listed]
    found = _files(names, here) if len(names) > AT_ONCE else {}
    left = [name for name in names if name not in found]
    exported = in_parallel([partial(_export, name, here) for name in left], AT_ONCE)
    found |= {name: owner for name, owner in zip(left, exported, strict=True) if owner}
    return tuple(found[name] for name in names if name in found)


def owner_of(name: str, state: Mapping[str, Any], here: str) -> Owner:
    """From an exported state. `name`: the stack's, which may lack the project if it is `here`."""
    parts = name.split("/")
    deployment = state.get("deployment") or {}
    resources: Sequence[Mapping[str, Any]] = deployment.get("resources") or ()
    outputs: Mapping[str, Any] = next(
        (one.get("outputs") or {} for one in resources if one.get("type") == _STACK), {}
    )

    def text(key: str) -> str:
        value = outputs.get(key)
        return value if isinstance(value, str) else ""

    return Owner(
        project=labels.sanitise(parts[-2] if len(parts) > 1 else here),
        stack=labels.sanitise(parts[-1]),
        paths=frozenset(path for one in resources for path in _paths(one)),
        cloud=text("project"),
        bucket=text("bucket"),
        prefix=text("prefix"),
        bundle=text("bundle"),
        text=json.dumps(deployment),
        bakes=any(one.get("type") == _BAKE for one in resources),
        busy=bool(deployment.get("pending_operations")),
    )


def _files(names: Sequence[str], here: str) -> dict[str, Owner]:
    """Those whose states can be read from the backend's own files. A parsed state takes a MB, so
    none is kept.
    """
    who = json.loads(engine.run_engine(["whoami", "--json"], env=os.environ))
    backend = str(who.get("url") or "").partition("?")[0]
    read = _reader(backend)
    if read is None:
        return {}

    def owner(name: str) -> Owner | None:
        parts = name.split("/")
        project = parts[-2] if len(parts) > 1 else here
        try:
            file = json.loads(read(f".pulumi/stacks/{project}/{parts[-1]}.json"))
            if file["version"] == _FORMAT:
                return owner_of(name, {"deployment": file["checkpoint"]["latest"]}, here)
        except (OSError, StoreError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return None

    found = in_parallel([partial(owner, name) for name in names], SMALL_READS)
    return {name: one for name, one in zip(names, found, strict=True) if one}


def _reader(backend: str) -> Callable[[str], bytes] | None:
    """Reads a backend's files by their paths; None for other backends."""
    scheme, _, rest = backend.partition("://")
    if scheme == "file":
        folder = Path(rest).expanduser()
        return (lambda path: (folder / path).read_bytes()) if folder.is_absolute() else None
    if scheme == "gs":
        bucket, _, prefix = rest.strip("/").partition("/")
        below = f"{prefix}/" if prefix else ""
        try:
            store = open_store(f"gs://{bucket}")
            next(iter(store.folders(f"{below}.pulumi/")), None)
        except Exception:  # credentials fail in their library's own ways
            return None  # The engine may have others.
        return lambda path: store.get(f"{below}{path}")[0]
    return None


def _export(name: str, here: str) -> Owner | None:
    """None if the stack was removed since it was listed."""
    try:
        text = engine.run_engine(["stack", "export", "-s", name], env=os.environ)
    except NoStack:
        return None
    return owner_of(name, json.loads(text), here)


def _paths(resource: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    outputs = resource.get("outputs") or {}
    for value in (resource.get("id"), outputs.get("selfLink")):
        match = _PATH.search(value) if isinstance(value, str) else None
        if match:
            yield match["project"], match["path"]
