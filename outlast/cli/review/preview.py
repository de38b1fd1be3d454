"""What a change does, in words: the engine's preview read together with HEAD, prices and rules.

`review` asks the engine and the bucket; everything else here is pure. Nothing is changed anywhere.
"""

import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from outlast.base import exits
from outlast.base.exits import State
from outlast.base.folders import PACKAGE
from outlast.bucket import pages
from outlast.bucket.head import Head, HeadError, HeadLost, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import StoreError, open_store
from outlast.cli import engine
from outlast.cli.errors import EngineError, UsageError
from outlast.cloud.recipe import DISK_TYPE, image_name
from outlast.costs import pricing

RULE_BROKEN = 3
"""Exit code of a review in which a rule is broken."""

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

DROPS_A_DAY = 144
"""Checkpoints that retention drops, as far as a price supposes one: one each ten minutes."""
GIB = 2**30

_WORDS = {
    "create": "created",
    "import": "adopted",
    "update": "updated",
    "replace": "replaced",
    "delete": "deleted",
    "read": "read",
}
_PINNED = {"image": "the image", "maxRunMinutes": "the limit"}


class Then(StrEnum):
    """What becomes of a run."""

    RESTARTS = "restarts"
    RESUMES = "resumes"
    FROM_SCRATCH = "starts from scratch"
    UNTOUCHED = "stays untouched"
    FINISHED = "finished"
    STOPS = "stops"
    UNCLEAR = "unclear"


class NotRead(StrEnum):
    """Why there is no HEAD to look at."""

    ABSENT = "absent"
    """The run has none yet."""
    UNKNOWN = "unknown"
    """The bucket does not say."""


Look = Head | NotRead


@dataclass(frozen=True)
class Step:
    """What the engine would do with one resource."""

    op: str
    type: str
    name: str
    old: Mapping[str, Any] = field(default_factory=dict)
    """Inputs and outputs that it has."""
    new: Mapping[str, Any] = field(default_factory=dict)
    """Inputs that it is to have."""
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


@dataclass(frozen=True)
class RunLine:
    """What becomes of one run, and why."""

    run: str
    then: Then
    why: str
    step: int | None = None
    """Where it goes on, or stands."""

    @property
    def said(self) -> str:
        """`resumes from step 400`, `stays untouched`."""
        at = f" from step {self.step}" if self.step is not None else ""
        return f"{self.then}{at}" if self.then is Then.RESUMES else str(self.then)


@dataclass(frozen=True)
class StackCost:
    """What a stack costs before or after."""

    sum: pricing.Sum
    hours: float
    """How long it may still run."""
    until: str
    most: pricing.Sum
    """`sum` with the dearest of the machine types that the group may choose."""

    @property
    def an_hour(self) -> str:
        return self.sum.said() if self.sum.items else "nothing"

    @property
    def at_the_limit(self) -> str:
        if not self.sum.items:
            return "nothing"
        return f"{self.most.said(self.hours)} ({self.hours:.1f} h, {self.until})"

    def as_json(self) -> dict[str, Any]:
        return {
            "hour": round(self.sum.hour, 6),
            "limit": round(self.most.hour * self.hours, 4),
            "hours": round(self.hours, 2),
            "unknown": list(self.sum.unknown),
            "items": [{"what": item.what, "hour": item.hour} for item in self.sum.items],
        }


@dataclass(frozen=True)
class Broken:
    """A rule that is broken."""

    rule: str
    resource: str
    why: str


@dataclass(frozen=True)
class Review:
    """All that a review shows."""

    stack: str
    runs: tuple[RunLine, ...]
    changes: Mapping[str, tuple[str, ...]]
    """By what is done: the resources, each with what differs."""
    before: StackCost
    after: StackCost
    bakes: tuple[str, ...]
    """What is paid once, for images that are made."""
    storage: tuple[str, ...]
    warnings: tuple[str, ...]
    """The program's and the engine's own."""
    broken: tuple[Broken, ...]
    advice: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return RULE_BROKEN if self.broken else exits.DONE

    def as_json(self) -> dict[str, Any]:
        return {
            "stack": self.stack,
            "runs": [
                {"run": one.run, "then": one.then, "step": one.step, "why": one.why}
                for one in self.runs
            ],
            "changes": {word: list(names) for word, names in self.changes.items()},
            "cost": {
                "pricesOf": pricing.date(),
                "before": self.before.as_json(),
                "after": self.after.as_json(),
                "bakes": list(self.bakes),
                "storage": list(self.storage),
            },
            "warnings": list(self.warnings),
            "broken": [
                {"rule": one.rule, "resource": one.resource, "why": one.why} for one in self.broken
            ],
            "advice": list(self.advice),
            "exitCode": self.exit_code,
        }


Sizes = tuple[int, ...]
"""Bytes of each checkpoint that a run keeps, the newest last."""


def review(
    stack: str | None,
    *,
    config: Path | None = None,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Review:
    """What `up` of the stack would do; the selected one if none is named. `config`: the policy
    pack's, for the rules.

    EngineError: the preview itself fails, as it does where the program refuses the settings.
    UsageError: the config is none.
    """
    limits = read_config(config) if config else None
    name = stack or engine.run_engine(["stack", "--show-name"], env=env, cwd=cwd).strip()
    text = engine.run_engine(["preview", "--json", "--show-sames", "-s", name], env=env, cwd=cwd)
    now = datetime.now().astimezone()
    found = of_plan(name, plan(text), look=_look, kept=_kept, now=now, config=limits)
    advised = [sentence for sentence in told(text, "info") if sentence.startswith("outlast:")]
    return replace(found, warnings=told(text, "warning"), advice=(*advised, *found.advice))


def read_config(path: Path) -> Any:
    """A policy pack's configuration (`rules.Config`). UsageError: it is none."""
    try:
        return _rules().parse(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"--policy-pack-config {path}: {why}; docs/changes.md has an example"
        ) from None


def plan(text: str) -> list[Step]:
    """The steps of `pulumi preview --json`. EngineError: it is something else."""
    try:
        return [_step(entry) for entry in _document(text).get("steps", ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EngineError(
            "pulumi preview: printed something else than its plan; is this pulumi 3.200 or newer?"
        ) from None


def told(text: str, severity: str) -> tuple[str, ...]:
    """What `pulumi preview --json` says besides, `warning` or `info`, each once, in one line."""
    found = [
        " ".join(one["message"].split()).removeprefix(f"{severity}: ")
        for one in _document(text).get("diagnostics", ())
        if one["severity"] == severity
    ]
    return tuple(dict.fromkeys(found))


def _document(text: str) -> Any:
    # Words of the engine may come before it.
    return json.loads(text[max(text.find("{\n"), 0) :])


def of_plan(
    stack: str,
    steps: Sequence[Step],
    *,
    look: Callable[[Pin], Look],
    now: datetime,
    kept: Callable[[Pin, Head], Sizes] = lambda pin, head: (),
    config: Any = None,
) -> Review:
    """The review of a plan; `look` reads a run's HEAD, `kept` how large its checkpoints are."""
    before, after = _pins(steps)
    looks: dict[str, Look] = {pin.run: look(pin) for pin in (before, after) if pin is not None}
    runs = judge(before, after, steps, looks, now)
    going = {line.run for line in runs if line.then not in (Then.FINISHED, Then.STOPS)}
    olds = [step for step in steps if step.old and step.op != "create"]
    news = [step for step in steps if step.new and step.op != "delete"]
    running = before is not None and not _has_ended(looks.get(before.run), now)
    side_before = _side(
        {step.type: step.old for step in olds} if running else {}, before, looks, now
    )
    side_after = _side(
        {step.type: step.new for step in news} if after and after.run in going else {},
        after,
        looks,
        now,
        restarts=after is not None and not _is_kept(steps),
    )
    broken, allowed = _against_rules(news, side_after, config)
    known = next(
        (
            (pin, sizes)
            for pin in (after, before)
            if pin and isinstance(head := looks[pin.run], Head) and (sizes := kept(pin, head))
        ),
        None,
    )
    return Review(
        stack=stack,
        runs=tuple(runs),
        changes=_changes(steps),
        before=side_before,
        after=side_after,
        bakes=tuple(_bakes(steps)),
        warnings=(),
        storage=tuple(_storage(news, known[1] if known else (), known[0].run if known else "")),
        broken=broken,
        advice=(*_advice(stack, runs, side_after, news), *allowed),
    )


def _against_rules(
    news: Sequence[Step], after: StackCost, config: Any
) -> tuple[tuple[Broken, ...], list[str]]:
    """What is broken; and what is advisory only, in words."""
    rules = _rules()
    config = config or rules.Config()
    resources = [
        rules.Resource(step.type, step.name, step.new, step.old)
        for step in news
        if not step.is_component
    ]
    found = rules.check(resources, config.limits)
    why = rules.hour_ceiling(after.most.hour, config.limits)
    if why:
        found.append(rules.Broken(rules.HOUR_CEILING, "", why))
    return (
        tuple(
            Broken(one.rule, one.resource, one.why)
            for one in found
            if config.level(one.rule) == rules.MANDATORY
        ),
        [
            f"{one.rule} {one.resource}".rstrip() + f": {one.why}"
            for one in found
            if config.level(one.rule) == rules.ADVISORY
        ],
    )


# ---------------------------------------------------------------------------------------------
# What becomes of the runs


def judge(
    before: Pin | None,
    after: Pin | None,
    steps: Sequence[Step],
    looks: Mapping[str, Look],
    now: datetime,
) -> list[RunLine]:
    """One line for each run that the plan touches or leaves: the stack's own first."""
    lines = []
    if after is not None:
        head = looks.get(after.run, NotRead.UNKNOWN)
        same = before is not None and (before.run, before.resume) == (after.run, after.resume)
        line = _goes_on(before, after, steps, head, now) if same else _begins(after, head, now)
        lines.append(line)
    if before is not None and (after is None or after.run != before.run):
        lines.append(_left(before, looks.get(before.run, NotRead.UNKNOWN), kept=after is not None))
    return lines


def _goes_on(
    before: Pin | None, after: Pin, steps: Sequence[Step], head: Look, now: datetime
) -> RunLine:
    """A run that the stack has already."""
    ended = _ended(after, head, now)
    if ended:
        return ended
    step, at = _at(head)
    group = next((one for one in steps if one.type in GROUPS), None)
    template = next((one for one in steps if one.type in TEMPLATES), None)
    if group is not None and group.op in ("replace", "create"):
        moved = before is not None and before.zone != after.zone
        where = f" in {after.zone} instead of {before.zone}" if moved and before else ""
        return RunLine(
            after.run,
            Then.RESUMES if step else Then.RESTARTS,
            f"its VM is ended and its group recreated{where}; it resumes {at}",
            step,
        )
    if template is not None and template.op in ("replace", "create", "update"):
        what = ", ".join(_what(template)) or "template"
        policy = (group.new.get("updatePolicy") or {}) if group else {}
        if policy.get("type") == "PROACTIVE":
            return RunLine(
                after.run,
                Then.RESTARTS,
                f"its VM is interrupted at once and recreated ({what}); it resumes {at}",
                step,
            )
        return RunLine(
            after.run,
            Then.UNTOUCHED,
            f"its VM keeps running; the new template ({what}) applies when the VM is next"
            " recreated; it then resumes from its last checkpoint, by now "
            f"{at.removeprefix('from ')}",
            step,
        )
    return RunLine(after.run, Then.UNTOUCHED, f"nothing of its VM changes{_later(steps)}", step)


def _what(template: Step) -> Iterator[str]:
    """What is otherwise in a template; of its metadata, what that is to the run."""
    for key in template.differs:
        old, new = template.old.get(key), template.new.get(key)
        if key != "metadata" or not isinstance(old, Mapping) or not isinstance(new, Mapping):
            yield key
            continue
        changed = sorted(one for one in old.keys() | new.keys() if old.get(one) != new.get(one))
        yield from dict.fromkeys(_metadata_word(one) for one in changed)


def _metadata_word(key: str) -> str:
    if key == "startup-script" or key.startswith("outlast-sh-"):
        return "startup script"
    return "code" if key.startswith("outlast-bundle") else key.removeprefix("outlast-")


def _later(steps: Sequence[Step]) -> str:
    """What a pinned run takes up only when it is reopened."""
    differs = next((one.differs for one in steps if one.type == PIN), ())
    names = [word for key, word in _PINNED.items() if key in differs]
    return f"; {' and '.join(names)} of now counts at its next resume" if names else ""


def _begins(after: Pin, head: Look, now: datetime) -> RunLine:
    """A run, or a resume of one, that the stack did not have."""
    if head is NotRead.ABSENT:
        return RunLine(after.run, Then.FROM_SCRATCH, "it has no checkpoint yet; step 0", 0)
    if isinstance(head, NotRead):
        return RunLine(
            after.run,
            Then.UNCLEAR,
            f"{after.url} cannot be read from here: it starts from scratch, or resumes where its"
            " HEAD says",
        )
    ended = _ended(after, head, now)
    if ended:
        return ended
    step, at = _at(head)
    if after.resume > head.resume:
        how = "open" if head.state is State.OPEN else f"{head.state}"
        return RunLine(
            after.run,
            Then.RESUMES,
            f"it was {how}; resume {after.resume} reopens it, {at}, with a new limit",
            step,
        )
    return RunLine(after.run, Then.RESUMES, f"it is open in the bucket and resumes {at}", step)


def _left(before: Pin, head: Look, *, kept: bool) -> RunLine:
    """A run that the stack lets go of."""
    why = "another run takes its place" if kept else "the stack lets go of it"
    if isinstance(head, Head) and head.state.ended:
        return RunLine(
            before.run,
            Then.FINISHED,
            f"it had ended as {head.state}; its results stay in {before.url}",
            head.step,
        )
    step, _ = _at(head)
    stands = "" if step is None else f" at step {step}"
    return RunLine(
        before.run,
        Then.STOPS,
        f"{why}: its VM is ended{stands}; what it committed stays in {before.url}",
        step,
    )


def _ended(pin: Pin, head: Look, now: datetime) -> RunLine | None:
    """The line of a run with nothing left to do."""
    if not isinstance(head, Head):
        return None
    reason = f" ({head.end.reason})" if head.end and head.end.reason != head.state else ""
    if head.state is State.DONE:
        why = "it is done, nothing is started; other args or outlast:rerun make a new run"
    elif pin.resume > head.resume:
        return None
    elif head.state.ended:
        why = f"it has ended as {head.state}{reason}, nothing is started; outlast resume reopens it"
    elif head.deadline <= now:
        why = (
            f"its limit of {head.deadline:%Y-%m-%d %H:%M} UTC has passed, nothing is started; raise"
            " outlast:maxRunMinutes, and outlast resume reopens it"
        )
    else:
        return None
    return RunLine(pin.run, Then.FINISHED, why, head.step)


def _has_ended(head: Look | None, now: datetime) -> bool:
    return isinstance(head, Head) and (head.state.ended or head.deadline <= now)


def _at(head: Look) -> tuple[int | None, str]:
    if isinstance(head, Head):
        return head.step, f"from step {head.step}"
    if head is NotRead.ABSENT:
        return 0, "from step 0, as it has no checkpoint yet"
    return None, "from its last checkpoint"


# ---------------------------------------------------------------------------------------------
# What it costs


def _side(
    resources: Mapping[str, Mapping[str, Any]],
    pin: Pin | None,
    looks: Mapping[str, Look],
    now: datetime,
    *,
    restarts: bool = False,
) -> StackCost:
    template = next((resources[kind] for kind in TEMPLATES if kind in resources), None)
    group = next((resources[kind] for kind in GROUPS if kind in resources), {})
    if template is None or pin is None:
        return StackCost(pricing.Sum(), 0.0, "", pricing.Sum())
    zone = _zone(group, pin)
    others = [pricing.nat()] if NAT in resources else []
    total = pricing.added([pricing.vm(template, zone), *others])
    most = pricing.added([pricing.dearest(_choices(template, resources), zone), *others])
    head = looks.get(pin.run)
    deadline = pin.deadline
    if restarts and isinstance(head, Head) and head.resume == pin.resume:
        deadline = min(head.deadline, now + timedelta(minutes=pin.limit_minutes))
    elif restarts:
        deadline = None
    if deadline is None:
        return StackCost(total, pin.limit_minutes / 60, "its whole limit", most)
    left = max((deadline - now).total_seconds() / 3600, 0.0)
    return StackCost(total, left, f"until {deadline:%Y-%m-%d %H:%M} UTC", most)


def _choices(
    template: Mapping[str, Any], resources: Mapping[str, Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The template with each machine type that its group may choose."""
    rules = _rules()
    known = [rules.Resource(kind, "", inputs) for kind, inputs in resources.items()]
    own = rules.Resource(rules.TEMPLATES[0], "", template)
    return [one.inputs for one in rules.choices(own, known)]


def _zone(group: Mapping[str, Any], pin: Pin) -> str:
    """A zone of the group; of a regional one any, prices being a region's."""
    if group.get("zone"):
        return str(group["zone"])
    return f"{group['region']}-a" if group.get("region") else pin.zone


def _bakes(steps: Sequence[Step]) -> Iterator[str]:
    """What the builders of images cost that will be made, were each to run to its limit."""
    for step in steps:
        if step.type != BAKE or step.op not in ("create", "replace", "update"):
            continue
        if step.old.get("image") and step.old.get("hash") == step.new["hash"]:
            yield (
                f"image {image_name(step.new['recipe']['family'], step.new['hash'])} is there, and"
                " nothing is baked: what a bake that was killed has left is deleted"
            )
            continue
        recipe, minutes = step.new["recipe"], int(step.new["recipe"]["limit_minutes"])
        disk = {"diskType": DISK_TYPE, "diskSizeGb": int(recipe["disk_gb"])}
        interface = {"accessConfigs": [{}] if step.new.get("external_ip") else []}
        builder = {
            "machineType": recipe["machine_type"],
            "disks": [disk],
            "networkInterfaces": [interface],
        }
        cost = pricing.vm(builder, recipe["zone"])
        most = "" if cost.unknown else "at most "
        yield (
            f"image {image_name(recipe['family'], step.new['hash'])} is baked once: its builder"
            f" ({', '.join(item.what for item in cost.items)}) costs"
            f" {most}{cost.said(minutes / 60)}, by its limit of {minutes} minutes"
        )


def _storage(news: Sequence[Step], sizes: Sizes, run: str) -> list[str]:
    """What the bucket costs; `sizes` of the checkpoints of the `run` that has some."""
    lines = []
    group = next((step.new for step in news if step.type in GROUPS), {})
    region = str(group.get("region") or pricing.region_of(str(group.get("zone", ""))))
    # One that is adopted has two steps: its import and its update.
    for step in {step.name: step for step in news if step.type == BUCKET}.values():
        # An adopted bucket stays where it is, whatever is declared.
        location = str(step.old.get("location") or step.new.get("location", "")).lower()
        rate = pricing.storage_gib_month(location)
        price = "unknown" if rate is None else pricing.dollars(rate)
        lines.append(
            f"bucket {step.new.get('name', step.name)} ({location}): {price} a GiB and month"
        )
        lines.append(_checkpoints(sizes, run, rate))
        soft = step.new.get("softDeletePolicy") or {}
        days = float(soft.get("retentionDurationSeconds") or 0) / 86_400
        if days:
            part = "an unknown price" if rate is None else pricing.dollars(rate * days * 24 / 730)
            lines.append(
                f"soft delete: every GiB that retention drops is billed for {days:g} more days,"
                f" {part} each{_dropped(sizes, rate, days, 'held at a time')}"
            )
        if (step.new.get("versioning") or {}).get("enabled"):
            lines.append(
                "versions: what is overwritten or dropped is billed until somebody deletes it,"
                f" {price} a GiB and month{_dropped(sizes, rate, 1, 'more with each day')}"
            )
        if region and location and location != region and not region.startswith(f"{location}-"):
            gib = pricing.transfer_gib(location, region)
            cost = "at a price that the list does not have"
            if gib is not None:
                cost = f"at most {pricing.dollars(gib)} each"
            lines.append(
                f"the VM is in {region} and the bucket in {location}: reads and writes across"
                f" regions are billed by the GiB, {cost}"
            )
    return lines


def _checkpoints(sizes: Sizes, run: str, rate: float | None) -> str:
    """What the checkpoints of the last run that has some cost to keep."""
    if not sizes:
        return "checkpoints: how large they are is not known before a run's first"
    gib = sum(sizes) / GIB
    month = "" if rate is None else f", {pricing.dollars(gib * rate)} a month"
    return f"checkpoints: run {run} keeps {len(sizes)}, {_amount(gib)} together{month}"


def _dropped(sizes: Sizes, rate: float | None, days: float, how: str) -> str:
    """What is billed of dropped checkpoints, by a stated supposition."""
    if not sizes or rate is None:
        return ""
    gib = sizes[-1] / GIB * DROPS_A_DAY * days
    return (
        f"; with one checkpoint of {_amount(sizes[-1] / GIB)} dropped every 10 minutes,"
        f" {_amount(gib)} {how}, {pricing.dollars(gib * rate)} a month"
    )


def _amount(gib: float) -> str:
    return f"{gib:,.1f} GiB" if gib >= 0.1 else f"{gib * 1024:,.1f} MiB"


# ---------------------------------------------------------------------------------------------
# Further hints


def _advice(
    stack: str, runs: Sequence[RunLine], after: StackCost, news: Sequence[Step]
) -> list[str]:
    advice = []
    for line in runs:
        if line.then is Then.STOPS and line.step:
            advice.append(
                f"run {line.run} is left open at step {line.step}; if its trainer accepts the"
                f" change, outlast resume {stack} continues this run instead"
            )
        if line.then is Then.UNTOUCHED and "new template" in line.why:
            advice.append(
                f"run {line.run} takes the change up at its next VM; outlast:update now does it at"
                " once, and costs the steps since its last checkpoint"
            )
    template = next((step.new for step in news if step.type in TEMPLATES), None)
    if template and after.sum.items:
        scheduling = template.get("scheduling") or {}
        group = next((step.new for step in news if step.type in GROUPS), {})
        if scheduling.get("provisioningModel") != "SPOT" and group.get("zone"):
            spot = pricing.vm(
                {**template, "scheduling": {"provisioningModel": "SPOT"}}, str(group["zone"])
            )
            if not spot.unknown and not after.sum.unknown and spot.hour < after.sum.hour:
                advice.append(f"as a Spot VM it would cost about {spot.said()} an hour")
    if after.sum.unknown:
        advice.append(
            f"no price is known for {', '.join(after.sum.unknown)}; the sums are lower bounds"
        )
    return advice


def _changes(steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for step in steps:
        word = _WORDS.get(step.op)
        if word is None or step.is_component:
            continue
        differs = f" ({', '.join(step.differs)})" if step.differs else ""
        kind = step.type.rpartition(":")[2]
        groups.setdefault(word, []).append(f"{kind} {step.name}{differs}")
    order = [word for word in _WORDS.values() if word in groups]
    # The engine plans what does not hang together in any order; two previews should read alike.
    return {word: tuple(sorted(groups[word])) for word in order}


# ---------------------------------------------------------------------------------------------
# Reading


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


def _pins(steps: Sequence[Step]) -> tuple[Pin | None, Pin | None]:
    """The run that the stack has, and the one that it is to have."""
    step = next((one for one in steps if one.type == PIN and one.op != "delete"), None)
    gone = next((one for one in steps if one.type == PIN and one.op == "delete"), None)
    if step is None:
        return (_pin(gone.old) if gone else None), None
    before = _pin(step.old) if step.old else None
    if before and step.op in ("same", "update"):
        # The deadline is the pin's for ever.
        return before, _pin({**step.new, "deadline": step.old.get("deadline")})
    return before, _pin(step.new)


def _is_kept(steps: Sequence[Step]) -> bool:
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


def _look(pin: Pin) -> Look:
    """The run's HEAD, from its bucket."""
    from google.auth.exceptions import GoogleAuthError

    try:
        return read_head(open_store(f"gs://{pin.bucket}"), Layout(pin.prefix, pin.run)).head
    except HeadLost:
        return NotRead.ABSENT
    except (HeadError, StoreError, GoogleAuthError, ValueError):
        return NotRead.UNKNOWN


def _kept(pin: Pin, head: Head) -> Sizes:
    """How large the run's checkpoints are; nothing if the bucket does not say."""
    from google.auth.exceptions import GoogleAuthError

    try:
        store, layout = open_store(f"gs://{pin.bucket}"), Layout(pin.prefix, pin.run)
        kept = pages.kept(store, layout, head)
        if kept.lost:
            return ()
        sizes: Counter[str] = Counter()
        for item in store.list(layout.terms):
            if place := layout.folder_of(item.path):
                sizes[place[1]] += item.size
        return tuple(sizes[one.path] for one in kept.chain)
    except (StoreError, GoogleAuthError):
        return ()


def _rules() -> ModuleType:
    """`policy/rules.py`, which is a policy pack's folder and no package."""
    name = "outlast_policy_rules"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, PACKAGE / "policy" / "rules.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    return sys.modules[name]
