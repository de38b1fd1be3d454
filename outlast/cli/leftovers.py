"""Groups, VMs and templates of a stack that its damaged state no longer knows.

They are found by the labels that every template of a stack has (`outlast.spec.labels`), never by
name alone, so that another stack's are left alone.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from outlast.cli import engine
from outlast.cli.errors import OperateError
from outlast.cloud.compute import Compute, ComputeError, Json
from outlast.spec import labels

_log = logging.getLogger(__name__)

DELETE_SEC = 300.0
"""For so long a deletion is waited for."""


@dataclass(frozen=True)
class Place:
    """Where a stack's resources are, and the labels that they have."""

    project: str
    labels: Mapping[str, str]


def place_of(stack: str) -> Place | None:
    """From the stack's settings; None if they name no project. Raises EngineError."""
    text = engine.run_engine(["config", "--json", "-s", stack], env=os.environ)
    config = {key: entry.get("value") or "" for key, entry in json.loads(text).items()}
    project = config.get("gcp:project") or os.environ.get("GOOGLE_PROJECT", "")
    if not project or config.get("outlast:part") == "foundation":
        return None
    name = stack.rpartition("/")[2]
    own = labels.of_stack(engine.project_name(), name, config.get("outlast:experiment") or name, {})
    return Place(project, own)


def delete(place: Place) -> None:
    """Deletes what has the stack's labels, the groups first, and logs what it was.

    Raises OperateError if it cannot be looked for or deleted: something may still be billed.
    """
    compute = Compute(place.project)
    try:
        for kind, path in _found(compute, place.labels):
            _log.info(f"{kind} {path.rpartition('/')[2]}: the state did not know it; deleted")
            compute.delete(path, limit_sec=DELETE_SEC)  # A group deletes its VMs.
    except ComputeError as error:
        wanted = " AND ".join(f"labels.{key}={value}" for key, value in place.labels.items())
        raise OperateError(
            "what the stack's state may have lost could not be looked for or deleted"
            f" ({error}); see what is left, which may be billed: gcloud compute instances list"
            f" --project {place.project} --filter '{wanted}'"
        ) from None


def _found(compute: Compute, wanted: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Kind and path of each, in an order in which they can be deleted."""
    templates = {
        template["selfLink"]: template
        for template in compute.aggregated("instanceTemplates")
        if _has(template["properties"].get("labels"), wanted)
    }
    own = {_path(link) for link in templates}
    for group in compute.aggregated("instanceGroupManagers"):
        used = [group, *(group.get("versions") or [])]
        if any(_path(one.get("instanceTemplate") or "") in own for one in used):
            yield "group", _path(group["selfLink"])
    for vm in compute.aggregated("instances"):
        if _has(vm.get("labels"), wanted):
            yield "VM", _path(vm["selfLink"])
    for link in templates:
        yield "template", _path(link)


def _has(given: Json | None, wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= (given or {}).items()


def _path(link: str) -> str:
    """A resource's path below its project, without a version."""
    return link.partition("/projects/")[2].partition("/")[2].partition("?")[0]
