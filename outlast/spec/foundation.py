"""What several experiments share, read from the outputs of the stack that declares it.

An experiment treats a foundation's outputs as its own settings: `overlay` adds them to its values,
so that every rule applies to them too.
"""

from collections.abc import Mapping
from typing import Any

OUTPUTS = {
    "bucket": "bucket",
    "network": "network",
    "subnetwork": "subnetwork",
    "externalIp": "externalIp",
    "nat": "nat",
}
"""Settings that a foundation decides, by output."""

OWN_ONLY = ("bucketMode", "softDeleteDays", "versioning")
"""Settings for what the foundation declares; an experiment of a foundation must not set them."""

USERS = "foundations"
"""Folder of the bucket where each experiment of a foundation has a note."""


def overlay(
    values: Mapping[str, Any],
    outputs: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    stack: str,
    project: str,
    region: str,
    namespace: str = "outlast",
) -> dict[str, Any]:
    """`values` with what the foundation's `outputs` decide. Raises ValueError with a sentence.

    `project` and `region` are the experiment's; `defaults` those of its settings.
    """
    if outputs.get("part") not in ("foundation", "sweep"):
        raise ValueError(
            f"{namespace}:foundation {stack!r}: declares no foundation; set it to a stack with"
            f" {namespace}:part foundation that has been brought up, or leave it out"
        )
    if outputs["project"] != project:
        raise ValueError(
            f"{namespace}:foundation {stack!r}: is in project {outputs['project']}, the experiment"
            f" in {project}; set gcp:project to that, or declare a foundation in {project}"
        )
    if outputs["subnetwork"] and outputs["region"] != region:
        raise ValueError(
            f"{namespace}:foundation {stack!r}: its subnetwork is in {outputs['region']}, the"
            f" experiment's zone in {region}; set {namespace}:zone to one of {outputs['region']},"
            f" or name a foundation in {region}"
        )
    for key in (*OUTPUTS, *OWN_ONLY):
        if _text(values.get(f"{namespace}:{key}", "")) not in ("", _text(defaults.get(key, ""))):
            raise ValueError(
                f"{namespace}:{key} beside {namespace}:foundation: is the foundation's; leave it"
                f" out, or set it in stack {stack}"
            )
    found = {f"{namespace}:{key}": _text(outputs[name]) for key, name in OUTPUTS.items()}
    found[f"{namespace}:bucketMode"] = "existing"
    image = f"{namespace}:image"
    if outputs["image"] and values.get(image) == defaults.get("image"):
        found[image] = outputs["image"]
    return {**values, **found}


def note(stack: str, experiment: str) -> str:
    """The note by which an experiment says that it uses that stack's foundation."""
    return f"{notes(stack)}{experiment}"


def notes(stack: str) -> str:
    """The folder of all notes, with its slash. `stack`: `organization/project/stack`."""
    _, project, name = stack.split("/")
    return f"{USERS}/{project}-{name}/"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
