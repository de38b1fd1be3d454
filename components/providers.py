"""The dynamic providers: what the engine keeps in a stack's state for Outlast itself.

Their classes are pickled by reference, as `components.providers.<class>`: this module's path and
the classes' names never change, or no stack of an older version could be destroyed.
"""

import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict

import pulumi
from google.auth.exceptions import GoogleAuthError
from pulumi.dynamic import (
    CheckFailure,
    CheckResult,
    CreateResult,
    DiffResult,
    Resource,
    ResourceProvider,
    UpdateResult,
)

from outlast.exits import State
from outlast.layout import Layout
from outlast.run.head import Head
from outlast.run.store import NotFound, Store, StoreError, open_store

_KEYS = ("owner", "bucket", "prefix", "run", "resume")
"""Inputs that say which run is pinned; any other one is another pin."""

_said: set[str] = set()


@dataclass(frozen=True)
class Pin:
    """What a run's VMs are told, and what stays the same while they come and go."""

    deadline: str
    place: int
    size: int
    """VMs to start with: 0 where there is nothing left to do."""


class Unreadable(Exception):
    """HEAD is there and is no HEAD of this version."""


def pin(head: Head | None, *, resume: int, limit_minutes: int, now: datetime) -> Pin:
    """The pin of a run that had none in this stack, from its HEAD.

    An open run of the same resume is gone on with: its own deadline, one place further, so that a
    VM of a group that is gone can never come before one of the new group.
    """
    fresh = (now + timedelta(minutes=limit_minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    if head is None:
        return Pin(fresh, 0, 1)
    size = 1 if obstacle(head, resume=resume, now=now) is None else 0
    if head.resume == resume and not head.state.ended:
        return Pin(head.deadline.strftime("%Y-%m-%dT%H:%M:%SZ"), head.place + 1, size)
    return Pin(fresh, 0, size)


def obstacle(head: Head, *, resume: int, now: datetime) -> str | None:
    """Why a VM of this resume would find nothing to do: the rest of a sentence, with the remedy."""
    if head.state is State.DONE:
        return "is done, nothing is started; other args or outlast:rerun make a new run"
    if resume < head.resume:
        return (
            f"is at resume {head.resume} already, nothing is started at {resume}; outlast resume"
            " goes on from there"
        )
    if resume > head.resume:
        return None
    if head.state.ended:
        reason = f" ({head.end.reason})" if head.end else ""
        return f"has ended as {head.state}{reason}, nothing is started; outlast resume reopens it"
    if head.deadline <= now:
        return (
            f"has passed its limit of {head.deadline:%Y-%m-%d %H:%M} UTC, nothing is started;"
            " raise outlast:limitRunMinutes, and outlast resume reopens it"
        )
    return None


def read_head(store: Store, layout: Layout) -> Head | None:
    """The run's HEAD, None without one. Raises StoreError, or Unreadable for other bytes."""
    try:
        data, _ = store.get(layout.head)
    except NotFound:
        return None
    try:
        return Head.from_json(data)
    except ValueError as error:
        raise Unreadable(str(error)) from None


class RunPinProvider(ResourceProvider):
    """Keeps a run's deadline, place and image, and tells what HEAD has against going on."""

    serialize_as_secret_always = False  # it holds no secret, and a readable state is mendable

    def check(self, _olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        """Says what stands against the run, in previews too; refuses another owner's.

        Where the bucket does not answer there is nothing to say; `create` needs the answer and
        fails without.
        """
        failures = []
        try:
            store, layout = _open(news)
            head = read_head(store, layout)
            if head is not None:
                if head.owner != news["owner"]:
                    failures.append(_foreign(head, news))
                else:
                    why = obstacle(head, resume=int(news["resume"]), now=store.now())
                    if why:
                        _say(f"run {news['run']} {why}")
        except Unreadable as error:
            _say(
                f"run {news['run']}: its HEAD cannot be read ({error}), nothing is started;"
                " outlast repair mends it"
            )
        except (StoreError, GoogleAuthError):
            pass
        return CheckResult(news, failures)

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Another run or resume is another pin, another zone another place; the limit and the
        image alone are no difference, they count at the next resume."""
        replaces = [key for key in _KEYS if olds.get(key) != news.get(key)]
        moved = olds.get("zone") != news.get("zone")
        return DiffResult(changes=bool(replaces) or moved, replaces=replaces)

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(
            f"{props['prefix']}/{props['run']}/r{int(props['resume'])}",
            {**props, **asdict(_pin_of(props))},
        )

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """The run moves to another zone: one place further, by the same deadline and image."""
        moved = Pin(
            deadline=olds["deadline"], place=int(olds["place"]) + 1, size=_pin_of(news).size
        )
        return UpdateResult({**news, "image": olds["image"], **asdict(moved)})


class RunPinArgs(TypedDict):
    """Inputs of RunPin; all plain, so that a preview knows them."""

    owner: str
    bucket: str
    prefix: str
    run: str
    resume: int
    zone: str
    image: str
    """The image at the pin's creation is kept; a later one counts at the next resume."""
    limitRunMinutes: int


class RunPin(Resource, name="RunPin"):
    """One run at one resume, pinned in the stack's state.

    Made anew it reads HEAD: an open run of the same resume keeps its deadline and gets HEAD's place
    plus one, any other a new deadline and place 0.
    """

    deadline: pulumi.Output[str]
    """End of the run, RFC 3339 in UTC; no VM lives past it."""

    place: pulumi.Output[int]
    """How often the run has changed its zone."""

    image: pulumi.Output[str]
    """The image that the run began with at this resume, whatever its VMs boot from now."""

    size: pulumi.Output[int]
    """VMs that a new group starts with: 0 for a run that has nothing left to do."""

    def __init__(
        self, name: str, args: RunPinArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        outputs = {"deadline": None, "place": None, "size": None}
        super().__init__(RunPinProvider(), name, {**args, **outputs}, opts)


def _open(props: dict[str, Any]) -> tuple[Store, Layout]:
    return open_store(f"gs://{props['bucket']}"), Layout(props["prefix"], props["run"])


def _pin_of(props: dict[str, Any]) -> Pin:
    store, layout = _open(props)
    resume, limit = int(props["resume"]), int(props["limitRunMinutes"])
    try:
        head = read_head(store, layout)
    except Unreadable:
        fresh = pin(None, resume=resume, limit_minutes=limit, now=store.now())
        return Pin(fresh.deadline, fresh.place, 0)  # a VM would only find the same and leave
    return pin(head, resume=resume, limit_minutes=limit, now=store.now())


def _foreign(head: Head, props: dict[str, Any]) -> CheckFailure:
    return CheckFailure(
        "owner",
        f"run {props['run']} in gs://{props['bucket']}/{props['prefix']}: belongs to {head.owner},"
        f" not to {props['owner']}; choose another outlast:experiment or outlast:bucket",
    )


def _say(sentence: str) -> None:
    """To the engine, which shows a plugin's stderr; once a process, checks being repeated."""
    if sentence not in _said:
        _said.add(sentence)
        print(sentence, file=sys.stderr, flush=True)
