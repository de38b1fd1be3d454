"""Which resources the stacks of the current backend own, according to their states."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from outlast.bucket.transfer import in_parallel
from outlast.cli import engine
from outlast.cli.errors import NoStack
from outlast.spec import labels

AT_ONCE = 4
"""States that are exported at the same time, each by a process of the engine."""
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
    found = in_parallel([partial(_export, name) for name in names], AT_ONCE)
    return tuple(
        owner_of(name, state, here) for name, state in zip(names, found, strict=True) if state
    )


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


def _export(name: str) -> Mapping[str, Any] | None:
    """None if the stack was removed since it was listed."""
    try:
        return json.loads(engine.run_engine(["stack", "export", "-s", name], env=os.environ))
    except NoStack:
        return None


def _paths(resource: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    outputs = resource.get("outputs") or {}
    for value in (resource.get("id"), outputs.get("selfLink")):
        match = _PATH.search(value) if isinstance(value, str) else None
        if match:
            yield match["project"], match["path"]
