"""The engine's plan: the steps of its preview, and the run that a stack pins."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outlast.cli.errors import EngineError

PIN = "pulumi-python:dynamic:RunPin"
BAKE = "pulumi-python:dynamic:ImageBake"
GROUPS = (
    "gcp:compute/instanceGroupManager:InstanceGroupManager",
    "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager",
)
TEMPLATES = (
    "gcp:compute/instanceTemplate:InstanceTemplate",
    "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
)
BUCKET = "gcp:storage/bucket:Bucket"
NAT = "gcp:compute/routerNat:RouterNat"


@dataclass(frozen=True)
class Step:
    """What the engine would do to one resource."""

    op: str
    type: str
    name: str
    old: Mapping[str, Any] = field(default_factory=dict)
    """Its current inputs and outputs."""
    new: Mapping[str, Any] = field(default_factory=dict)
    """Its new inputs."""
    differs: tuple[str, ...] = ()
    is_component: bool = False


@dataclass(frozen=True)
class Pin:
    """One run at one resume, as the stack pins it."""

    run: str
    resume: int
    bucket: str
    prefix: str
    zone: str
    limit_minutes: int
    deadline: datetime | None

    @property
    def url(self) -> str:
        return f"gs://{self.bucket}/{self.prefix}/{self.run}"


def plan(text: str) -> list[Step]:
    """Parses the steps of `pulumi preview --json`. Raises EngineError for anything else."""
    try:
        return [_step(entry) for entry in _document(text).get("steps", ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EngineError(
            "pulumi preview: printed something other than its plan; is this pulumi 3.200 or newer?"
        ) from None


FROM_PATH = re.compile(r"using \S+ from \$PATH at ")
"""Begins the engine's warning that it uses a plugin on PATH, which says nothing about the stack."""


def messages(text: str, severity: str) -> tuple[str, ...]:
    """The messages of `pulumi preview --json`, `warning` or `info`, each once, on one line."""
    found = [
        " ".join(one["message"].split()).removeprefix(f"{severity}: ")
        for one in _document(text).get("diagnostics", ())
        if one["severity"] == severity
    ]
    return tuple(one for one in dict.fromkeys(found) if not FROM_PATH.match(one))


def _document(text: str) -> Any:
    # The engine may print text before it.
    return json.loads(text[max(text.find("{\n"), 0) :])


def _step(entry: Mapping[str, Any]) -> Step:
    old, new = entry.get("oldState") or {}, entry.get("newState") or {}
    state = new or old
    inputs_old, inputs_new = old.get("inputs") or {}, new.get("inputs") or {}
    differs = entry.get("diffReasons") or [
        key
        for key in sorted(inputs_old.keys() | inputs_new.keys())
        if inputs_old and inputs_new and inputs_old.get(key) != inputs_new.get(key)
    ]
    return Step(
        op=entry["op"],
        type=str(state.get("type", "")),
        name=entry["urn"].rpartition("::")[2],
        old={**(old.get("outputs") or {}), **inputs_old},
        new=inputs_new,
        differs=tuple(sorted(key for key in differs if not key.startswith("__"))),
        is_component=not state.get("custom", False),
    )


def pins(steps: Sequence[Step]) -> tuple[Pin | None, Pin | None]:
    """The run that the stack has, and the one that it will have."""
    step = next((one for one in steps if one.type == PIN and one.op != "delete"), None)
    gone = next((one for one in steps if one.type == PIN and one.op == "delete"), None)
    if step is None:
        return (_pin(gone.old) if gone else None), None
    before = _pin(step.old) if step.old else None
    if before and step.op in ("same", "update"):
        # A pin's deadline never changes.
        return before, _pin({**step.new, "deadline": step.old.get("deadline")})
    return before, _pin(step.new)


def is_kept(steps: Sequence[Step]) -> bool:
    return any(step.type == PIN and step.op in ("same", "update") for step in steps)


def _pin(values: Mapping[str, Any]) -> Pin:
    return Pin(
        run=str(values.get("run", "")),
        resume=int(values.get("resume") or 0),
        bucket=str(values.get("bucket", "")),
        prefix=str(values.get("prefix", "")),
        zone=str(values.get("zone", "")),
        limit_minutes=int(values.get("maxRunMinutes") or 0),
        deadline=_time(values.get("deadline")),
    )


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None
