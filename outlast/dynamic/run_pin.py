"""Pins a run in the stack's state: its deadline, placement and image, and the reasons to refuse it.

Pickled by reference into a stack's state: this module's path and its classes' names must never
change, or no stack of an older version could be destroyed.
"""

import time
from collections.abc import Mapping
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
    UpdateResult,
)

from outlast.base.codec import OtherFormat, format_time
from outlast.base.exits import State
from outlast.bucket.head import Head, Move, Phase, said_of
from outlast.bucket.layout import Layout
from outlast.bucket.standing import PLACEMENTS_MAX, content_of, obstacle
from outlast.bucket.store import NotFound, Store, StoreError, Unavailable, open_briefly, open_store
from outlast.dynamic import boot_image, moved
from outlast.dynamic.host import Provider, failure, say
from outlast.spec import changes

_WHERE = ("bucket", "prefix", "run")

SILENT_SEC = 10.0
"""For so long a bucket that did not answer is not asked again by a check."""

_pinned_before: set[str] = set()
"""Owners whose stack had a pin when this command began."""
_not_checked: dict[str, str] = {}
"""By owner, why the last check could not tell whether a run would be replaced."""
_silent: dict[str, tuple[float, Unavailable]] = {}
"""When a bucket last did not answer a check, and its error."""


@dataclass(frozen=True)
class Pin:
    """What all VMs of a run get, however often they are recreated."""

    deadline: str
    placement: int
    size: int
    """VMs of a new group: 0 if there is nothing left to do."""


class Unreadable(Exception):
    """HEAD exists but is not a HEAD."""


class OtherVersion(Exception):
    """Another version of Outlast wrote HEAD, so this one must not touch the run."""


class GuardNotChecked(Exception):
    """Whether an open run would be replaced is unknown, so nothing is started."""


def pin(head: Head | None, *, resume: int, limit_minutes: int, now: datetime) -> Pin:
    """The pin, from HEAD, of a run that this stack has not pinned before.

    An open run with the same resume count continues: it keeps its deadline and gets the next
    placement, so that a VM of a deleted group can never take the run from a VM of the new group. A
    VM writes HEAD, so the stack's own limit bounds that deadline.
    """
    limit = timedelta(minutes=limit_minutes)
    fresh = _text(now + limit)
    if head is None:
        return Pin(fresh, 0, 1)
    size = 1 if obstacle(head, resume=resume, now=now) is None else 0
    if head.resume == resume and not head.state.ended:
        deadline = min(head.deadline, now + limit)
        if resume == 0:  # a later resume began later than the run
            deadline = min(deadline, min(head.started, now) + limit)
        return Pin(
            _text(deadline), min(head.placement, PLACEMENTS_MAX) + 1, size if deadline > now else 0
        )
    return Pin(fresh, 0, size)


def _text(moment: datetime) -> str:
    return format_time(moment.replace(microsecond=0))  # with four digits of any year


def guard(
    head: Head,
    run: str,
    content: Mapping[str, Any],
    news: dict[str, Any],
    *,
    up: bool,
    now: datetime,
) -> str | None:
    """Why an `up` may not replace HEAD's run by another, or, if it is no longer in a stack, start
    another beside it.

    `content`: what the run's name is made of, as far as it is known.
    """
    if not is_guarded(head, now):
        return None
    differing = changes.between(content, news["content"]) if content else []
    said = "; ".join(
        filter(None, [changes.said(differing), changes.hint(differing, news["content"])])
    )
    why = f" ({said})" if said else ""
    ways = [f"set outlast:onNewRun to replace to give up run {run}"]
    if changes.refusal(differing, news["mutable"]) is None:
        command = f"by outlast resume {_stack(news)}" if up else f"by setting outlast:run to {run}"
        ways.insert(0, f"continue with the change {command}")
    then = "take its place" if up else "start from scratch beside it"
    return (
        f"run {run} is open at step {head.step}, and run {news['run']} would {then}{why}; undo the"
        f" change, or {', or '.join(ways)}"
    )


def is_guarded(head: Head, now: datetime) -> bool:
    """Whether the run is open, within its limit, and has a checkpoint. Replacing any other run
    loses nothing.
    """
    return not head.state.ended and bool(head.chain) and head.deadline > now


def read_head(store: Store, layout: Layout) -> Head | None:
    """The run's HEAD, also of one that was handed over; None if it has none. Raises StoreError,
    Unreadable for other bytes, or OtherVersion."""
    try:
        data, _ = store.get(layout.head)
    except NotFound:
        return None
    return _decoded(layout, data)


def _decoded(layout: Layout, data: bytes) -> Head:
    try:
        return Head.from_json(data)
    except OtherFormat as error:
        raise OtherVersion(f"run {layout.run}: {error}") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None


class RunPinProvider(Provider):
    """Keeps a run's deadline, placement and image, and reports why HEAD does not let it
    continue.
    """

    def check(self, olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        """Reports what stops the run, also in previews. Refuses a run of another owner, a run that
        would replace an open one, a change that the run cannot take, and an image that no longer
        exists.

        If the bucket does not answer, it says that the guard was not checked, and `create` fails.
        A run that another version of Outlast has written is refused.
        """
        try:
            failures = self._failures(olds, news)
        except OtherVersion as error:
            failures = [failure("run", str(error))]
        return CheckResult(news, failures)

    def _failures(self, olds: dict[str, Any], news: dict[str, Any]) -> list[CheckFailure]:
        failures = [*_guarded(olds, news), *boot_image.failures(olds, news)]
        try:
            store, layout = _open_briefly(news)
            head = read_head(store, layout)
            if head is not None:
                if head.move is not None:
                    said = said_of(head.move)
                    where = f"gs://{news['bucket']}/{news['prefix']}/{news['run']}"
                    failures.append(failure("bucket", f"{where}: {said}"))
                elif head.owner != news["owner"]:
                    failures.append(_foreign(head, olds, news))
                else:
                    why = obstacle(head, resume=int(news["resume"]), now=store.now())
                    if why:
                        pinned = "; outlast:run names this run" if _pinned(news) else ""
                        say(f"run {news['run']} {why}{pinned}")
                    failures += _unchangeable(store, layout, head, olds, news)
        except Unreadable as error:
            say(
                f"run {news['run']}: its HEAD cannot be read ({error}), nothing is started;"
                " outlast repair repairs it"
            )
        except (StoreError, GoogleAuthError) as error:
            _remember(news["bucket"], error)
        return failures

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Another run or resume makes another pin, another zone another placement. A changed limit
        or image makes no difference until the next resume.
        """
        replaces = [key for key in boot_image.KEYS if olds.get(key) != news.get(key)]
        moved = olds.get("zone") != news.get("zone")
        if not replaces:
            boot_image.check_kept(olds, news)
        boot_image.report(olds, news, fresh=bool(replaces), stack=_stack(news))
        return DiffResult(changes=bool(replaces) or moved, replaces=replaces)

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Raises GuardNotChecked, and StoreError if the bucket does not answer."""
        if why := _not_checked.get(props["owner"]):
            raise GuardNotChecked(f"{why}; run pulumi up again when the bucket answers")
        return CreateResult(
            f"{props['prefix']}/{props['run']}/r{int(props['resume'])}",
            {**props, **asdict(_pin_of(props)), "bootImage": boot_image.path(props)},
        )

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """The run moves to another zone: the next placement, with the same deadline and image."""
        moved = Pin(
            deadline=olds["deadline"], placement=int(olds["placement"]) + 1, size=_pin_of(news).size
        )
        kept = {key: olds[key] for key in ("image", "bootImage")}
        return UpdateResult({**news, **kept, **asdict(moved)})


class RunPinArgs(TypedDict):
    """Inputs of RunPin; all plain, so that a preview knows them."""

    project: str
    owner: str
    bucket: str
    prefix: str
    run: str
    resume: int
    zone: str
    image: pulumi.Input[str]
    """An image or a family. The image that it means when the pin is created is kept; a later one
    applies from the next resume.
    """
    boot: dict[str, Any]
    """What the VMs need of that image: `disk_gb`, `gpus` and `machine_type`; and the image that it
    is baked from, `base` (empty: it is not baked by this stack) and `installs_driver`."""
    maxRunMinutes: int
    content: Mapping[str, Any]
    """What the run's name is made of, unless outlast:run names it."""
    named: str
    """The name that the content gives the run."""
    mutable: Mapping[str, str]
    """Flags that may change in the middle of the run, and how each may change."""
    onNewRun: str
    """`refuse` or `replace`."""


class RunPin(Resource, name="RunPin"):
    """One run at one resume, pinned in the stack's state.

    When it is recreated, it reads HEAD: an open run of the same resume keeps its deadline and gets
    HEAD's placement plus one; any other run gets a new deadline and placement 0.
    """

    deadline: pulumi.Output[str]
    """Deadline of the run, RFC 3339 in UTC; every VM is deleted then."""

    placement: pulumi.Output[int]
    """How often the run has changed its zone."""

    bootImage: pulumi.Output[str]
    """The image that all VMs of the run boot from at this resume, not a family."""

    size: pulumi.Output[int]
    """VMs of a new group: 0 for a run that has nothing left to do."""

    def __init__(
        self, name: str, args: RunPinArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        outputs = {"deadline": None, "placement": None, "size": None, "bootImage": None}
        super().__init__(RunPinProvider(), name, {**args, **outputs}, opts)


def _open(props: dict[str, Any]) -> tuple[Store, Layout]:
    return open_store(f"gs://{props['bucket']}"), Layout(props["prefix"], props["run"])


def _open_briefly(props: dict[str, Any]) -> tuple[Store, Layout]:
    """The same for a check. Raises StoreError."""
    moment, error = _silent.get(props["bucket"], (float("-inf"), None))
    if error is not None and time.monotonic() - moment < SILENT_SEC:
        raise error
    return open_briefly(f"gs://{props['bucket']}"), Layout(props["prefix"], props["run"])


def _remember(bucket: str, error: Exception) -> None:
    """Remembers a bucket that does not answer."""
    if isinstance(error, Unavailable) and _silent.get(bucket, (0.0, None))[1] is not error:
        _silent[bucket] = (time.monotonic(), error)


def _guard_not_checked(run: str, news: dict[str, Any], error: Exception) -> None:
    """Says that the guard was not checked, and makes `create` refuse."""
    _remember(news["bucket"], error)
    why = (
        f"{run}: not checked whether it is open and would be replaced, because"
        f" gs://{news['bucket']} cannot be read ({error})"
    )
    _not_checked[news["owner"]] = why
    say(why)


def _pin_of(props: dict[str, Any]) -> Pin:
    store, layout = _open(props)
    resume, limit = int(props["resume"]), int(props["maxRunMinutes"])
    try:
        head = read_head(store, layout)
        if head is not None and head.move is not None:
            raise Unreadable(said_of(head.move))
    except Unreadable:
        fresh = pin(None, resume=resume, limit_minutes=limit, now=store.now())
        return Pin(fresh.deadline, fresh.placement, 0)  # A VM would find the same and leave.
    now = store.now()
    made = pin(head, resume=resume, limit_minutes=limit, now=now)
    if head is not None and made.size == 0 and obstacle(head, resume=resume, now=now) is None:
        say(
            f"run {props['run']} has run for longer than outlast:maxRunMinutes {limit}; nothing"
            " is started; raise outlast:maxRunMinutes, and outlast resume reopens it"
        )
    return made


def _foreign(head: Head, olds: Mapping[str, Any], news: Mapping[str, Any]) -> CheckFailure:
    return failure("owner", moved.foreign(head.owner, olds, news))


def _stack(props: dict[str, Any]) -> str:
    return str(props["owner"]).rpartition("/")[2]


def _pinned(props: dict[str, Any]) -> bool:
    """Whether outlast:run names the run."""
    return props["named"] != props["run"]


def _guarded(olds: dict[str, Any], news: dict[str, Any]) -> list[CheckFailure]:
    """Guards the pinned run, or else one that an earlier life of the stack has left open in the
    bucket.
    """
    if "run" in olds:
        _pinned_before.add(news["owner"])
    same = all(olds.get(key) == news[key] for key in _WHERE)
    if "run" not in olds:
        # The engine's second check of a replacement has no olds either; the first has reported
        # everything.
        return [] if news["owner"] in _pinned_before else _left_open(news)
    _not_checked.pop(news["owner"], None)
    if same or news["onNewRun"] == "replace":
        return []
    try:
        store, layout = _open_briefly(olds)
        head = read_head(store, layout)
        now = store.now()
        why = _replaced(head, olds, news, now) if head else None
    except Unreadable as error:
        why = (
            f"run {olds['run']} would be replaced by run {news['run']}, and whether it is open"
            f" is unknown, because its HEAD cannot be read ({error}); outlast repair"
            f" {_stack(olds)} repairs it, or set outlast:onNewRun to replace to give up the run"
        )
    except (StoreError, GoogleAuthError) as error:
        why = None  # a preview needs no cloud, and `create` fails without
        _guard_not_checked(f"run {olds['run']}", {**news, "bucket": olds["bucket"]}, error)
    return [failure("run", why)] if why else []


def _replaced(head: Head, olds: dict[str, Any], news: dict[str, Any], now: datetime) -> str | None:
    """Guards the pinned run; reports another place before another run."""
    if head.move is not None:
        now_at = f"gs://{news['bucket']}/{news['prefix']}/{news['run']}"
        if head.move == Move(now_at, Phase.LEFT):
            return None
        return (
            f"run {olds['run']}: {said_of(head.move)}, or set outlast:onNewRun to replace to start"
            " another run"
        )
    elsewhere = moved.causes(olds, news)
    if elsewhere and is_guarded(head, now):
        return moved.left_behind(head.step, olds, news, elsewhere)
    return guard(head, olds["run"], olds.get("content") or {}, news, up=True, now=now)


def _left_open(news: dict[str, Any]) -> list[CheckFailure]:
    """Guards the experiment's runs if the stack has none and would start one; also refuses an
    experiment that holds another owner's runs.
    """
    _not_checked.pop(news["owner"], None)
    try:
        store, layout = _open_briefly(news)
        if read_head(store, layout) is not None:
            return []  # It continues its own run.
        for layout, head in _heads(store, news["prefix"], news["onNewRun"] == "replace"):
            if head.move is not None:
                continue  # its own path says where it is
            if head.owner != news["owner"]:
                return [_foreign(head, {}, {**news, "run": layout.run})]
            if news["onNewRun"] == "replace":
                continue
            content = _recorded_content(store, layout, head) or {}
            why = guard(head, layout.run, content, news, up=False, now=store.now())
            if why:
                return [failure("run", why)]
    except (NotFound, Unreadable):
        pass  # There is no bucket yet; and `_failures` speaks of a HEAD that cannot be read.
    except (StoreError, GoogleAuthError) as error:
        _guard_not_checked(f"experiment {news['prefix'].rpartition('/')[2]}", news, error)
    return []


def _heads(store: Store, prefix: str, gives_up: bool) -> list[tuple[Layout, Head]]:
    """The readable HEADs of an experiment's runs, newest first. Raises OtherVersion, unless the
    stack `gives_up` runs that may be open."""
    found: list[tuple[datetime, Layout, Head]] = []
    for run in store.folders(f"{prefix}/"):
        layout = Layout(prefix, run)
        try:
            data, written = store.get(layout.head)
            found.append((written.updated, layout, _decoded(layout, data)))
        except (NotFound, Unreadable):
            continue
        except OtherVersion as error:
            if not gives_up:
                raise OtherVersion(
                    f"{error}, or set outlast:onNewRun to replace to start another run beside it"
                ) from None
    found.sort(key=lambda one: one[0], reverse=True)
    return [(layout, head) for _, layout, head in found]


def _recorded_content(store: Store, layout: Layout, head: Head) -> Mapping[str, Any] | None:
    """What the run's name was made of when its newest checkpoint was made; None if unknown."""
    return content_of(store, layout, head.chain[-1].term) if head.chain else None


def _unchangeable(
    store: Store, layout: Layout, head: Head, olds: dict[str, Any], news: dict[str, Any]
) -> list[CheckFailure]:
    """The changes that a run named by outlast:run cannot take.

    Compares its content with what the attempt recorded that made its newest checkpoint.
    """
    settled = olds.get("run") == news["run"] and olds.get("content") == news["content"]
    if settled or not head.chain or head.state is State.DONE or not _pinned(news):
        return []
    before = _recorded_content(store, layout, head)
    if before is None:
        return []
    why = changes.refusal(changes.between(before, news["content"]), news["mutable"])
    if why is None:
        return []
    reason = (
        f"run {news['run']}, named by outlast:run, at step {head.step}: {why}; undo the change,"
        " or leave out outlast:run to start another run"
    )
    return [failure("run", reason)]
