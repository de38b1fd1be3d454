"""Deletes what exists of a stack in its project and its state has lost, for `outlast destroy`."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from outlast.cli import engine
from outlast.cli.audit import finder
from outlast.cli.audit.finder import Resource
from outlast.cli.errors import OperateError
from outlast.cloud.compute import ComputeError
from outlast.spec import labels

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a stack's resources are, and what they are known by."""

    project: str
    labels: Mapping[str, str]
    bucket: str = ""
    """The stack's bucket, whose policy may name its service account; empty: a foundation's."""

    @property
    def mark(self) -> str:
        return labels.mark(self.labels)


def place_of(stack: str) -> Place | None:
    """From the stack's settings; None if they name no project, or are a foundation's, whose things
    other stacks use. Raises EngineError.
    """
    text = engine.run_engine(["config", "--json", "-s", stack], env=os.environ)
    config = {key: entry.get("value") or "" for key, entry in json.loads(text).items()}
    project = config.get("gcp:project") or os.environ.get("GOOGLE_PROJECT", "")
    if not project or config.get("outlast:part") == "foundation":
        return None
    name = stack.rpartition("/")[2]
    own = labels.of_stack(engine.project_name(), name, config.get("outlast:experiment") or name, {})
    bucket = config.get("outlast:bucket") or f"{project}-outlast"
    return Place(project, own, "" if config.get("outlast:foundation") else bucket)


def delete(place: Place) -> None:
    """Deletes what exists of the stack, and logs what it was.

    Raises OperateError if it cannot be looked for or deleted: something may still be billed. What
    costs nothing (accounts, roles, bindings) is then named in the log.
    """
    try:
        for one in billed(place):
            _delete(one)
    except ComputeError as error:
        wanted = " AND ".join(f"labels.{key}={value}" for key, value in place.labels.items())
        raise OperateError(
            "resources that the stack's state may have lost could not be looked for or deleted"
            f" ({error}); they may be billed; list them with: gcloud compute instances list"
            f" --project {place.project} --filter '{wanted}'"
        ) from None
    try:
        for one in identities(place):
            _delete(one)
    except ComputeError as error:
        _log.warning(
            "service accounts, roles and bindings that the stack's state may have lost, which cost"
            f" nothing, could not be looked for or deleted ({error}); see those whose description"
            f" ends in {place.mark}: gcloud iam service-accounts list --project {place.project}"
        )


def billed(place: Place) -> Iterator[Resource]:
    """Everything in Compute Engine, in an order in which it can be deleted. Raises ComputeError."""
    return finder.billed(place.project, place.mark)


def identities(place: Place) -> Iterator[Resource]:
    """The bindings of the stack's accounts and roles, then these. Raises ComputeError."""
    own = list(finder.principals(place.project, place.mark))
    has_account = any(one.kind == "service account" for one in own)
    buckets = [place.bucket] if place.bucket and has_account else []
    yield from finder.bindings(place.project, buckets, own)
    yield from own


def _delete(one: Resource) -> None:
    _log.info(f"{one.kind} {one.name}: was missing from the state; deleted")
    one.delete()
