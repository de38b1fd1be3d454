"""Describes what a change does, from the engine's preview, HEAD, prices and rules.

`review` asks the engine and the bucket; nothing is changed anywhere.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from outlast.base import exits
from outlast.bucket.head import Head
from outlast.cli import boots, engine
from outlast.cli.errors import OperateError
from outlast.cli.review import bucket, cost, outcomes, rules
from outlast.cli.review.cost import Sizes, StackCost
from outlast.cli.review.outcomes import Look, NotRead, RunLine, Then
from outlast.cli.review.plan import GROUPS, TEMPLATES, Pin, Step, is_kept, messages, pins, plan
from outlast.cli.review.rules import Broken
from outlast.cli.stack import take_identity
from outlast.cloud.compute import Group
from outlast.costs import pricing

RULE_BROKEN = 3
"""Exit code of a review in which a rule is broken."""
NOT_CHECKED = 4
"""Exit code of a review that could not find out whether an open run would be replaced."""
_WORDS = {
    "create": "created",
    "import": "adopted",
    "update": "updated",
    "replace": "replaced",
    "delete": "deleted",
    "read": "read",
}


@dataclass(frozen=True)
class Review:
    """Everything that a review shows."""

    stack: str
    runs: tuple[RunLine, ...]
    changes: Mapping[str, tuple[str, ...]]
    """The resources by action, each with what differs."""
    before: StackCost
    after: StackCost
    bakes: tuple[str, ...]
    """One-time costs of baking images."""
    storage: tuple[str, ...]
    warnings: tuple[str, ...]
    """Warnings of the program and the engine."""
    broken: tuple[Broken, ...]
    not_checked: tuple[str, ...]
    """Runs of which it is unknown whether they are open and would be replaced."""
    advice: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        if self.broken:
            return RULE_BROKEN
        return NOT_CHECKED if self.not_checked else exits.DONE

    def as_json(self) -> dict[str, Any]:
        return {
            "stack": self.stack,
            "runs": [
                {"run": one.run, "then": one.then, "step": one.step, "why": one.why}
                for one in self.runs
            ],
            "changes": {word: list(names) for word, names in self.changes.items()},
            "cost": {
                "prices_of": pricing.date(),
                "before": self.before.as_json(),
                "after": self.after.as_json(),
                "bakes": list(self.bakes),
                "storage": list(self.storage),
            },
            "warnings": list(self.warnings),
            "broken": [
                {"rule": one.rule, "resource": one.resource, "why": one.why} for one in self.broken
            ],
            "not_checked": list(self.not_checked),
            "advice": list(self.advice),
            "exit_code": self.exit_code,
        }


def review(
    stack: str | None,
    *,
    config: Path | None = None,
    flags: Sequence[str] = (),
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Review:
    """Reviews what `up` would do to the stack, by default the selected one. `config`: the policy
    pack's, for the rules; `flags`: more flags of `pulumi preview`.

    Raises EngineError if the preview itself fails, for example because the program refuses the
    settings, and UsageError if the config is invalid.
    """
    limits = rules.read_config(config) if config else None
    name = stack or engine.run_engine(["stack", "--show-name"], env=env, cwd=cwd).strip()
    take_identity(name)
    command = ["preview", "--json", "--show-sames", "-s", name, *flags]
    text = engine.run_engine(command, env=env, cwd=cwd)
    now = datetime.now().astimezone()
    look = bucket.looking()
    found = of_plan(name, plan(text), look=look, kept=bucket.sizes, now=now, config=limits)
    stuck = boots.stuck(group) if (group := _group(plan(text))) else ""
    advised = [sentence for sentence in messages(text, "info") if sentence.startswith("outlast:")]
    warnings = (*messages(text, "warning"), *filter(None, [stuck]))
    return replace(found, warnings=warnings, advice=(*advised, *found.advice))


def _group(steps: Sequence[Step]) -> Group | None:
    """The group that the stack has now."""
    old = next((one.old for one in steps if one.type in GROUPS and one.old), {})
    place = f"zones/{old['zone']}" if old.get("zone") else f"regions/{old.get('region')}"
    known = {"project", "name"} <= old.keys() and not place.endswith("None")
    return Group(str(old["project"]), place, str(old["name"])) if known else None


def refused(stack: str | None, error: OperateError) -> dict[str, Any]:
    """The JSON of a review that there is not, because of the error."""
    return {"stack": stack or "", "refused": str(error), "exit_code": error.exit_code}


def of_plan(
    stack: str,
    steps: Sequence[Step],
    *,
    look: Callable[[Pin], Look],
    now: datetime,
    kept: Callable[[Pin, Head], Sizes] = lambda pin, head: (),
    config: Any = None,
) -> Review:
    """Reviews a plan; `look` reads a run's HEAD, `kept` the sizes of its checkpoints."""
    before, after = pins(steps)
    looks: dict[str, Look] = {pin.run: look(pin) for pin in (before, after) if pin is not None}
    runs = outcomes.of_runs(before, after, steps, looks, now)
    going = {line.run for line in runs if line.then not in (Then.FINISHED, Then.STOPS)}
    olds = [step for step in steps if step.old and step.op != "create"]
    news = [step for step in steps if step.new and step.op != "delete"]
    running = before is not None and not outcomes.has_ended(looks.get(before.run), now)
    side_before = cost.of_side(
        {step.type: step.old for step in olds} if running else {}, before, looks, now
    )
    side_after = cost.of_side(
        {step.type: step.new for step in news} if after and after.run in going else {},
        after,
        looks,
        now,
        restarts=after is not None and not is_kept(steps),
    )
    broken, allowed = rules.against(news, side_after.most.hour, config)
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
        bakes=tuple(cost.of_bakes(steps)),
        warnings=(),
        storage=(
            *cost.of_storage(news, known[1] if known else (), known[0].run if known else ""),
            *cost.of_usage(
                next((step.new for step in news if step.type in TEMPLATES), None),
                known[1] if known else (),
            ),
        ),
        broken=broken,
        not_checked=tuple(_not_checked(before, after, looks)),
        advice=(*_advice(stack, runs, side_after, news), *allowed),
    )


def _not_checked(before: Pin | None, after: Pin | None, looks: Mapping[str, Look]) -> Iterator[str]:
    """Sentences about a run that would be replaced, or begin, with an unknown HEAD."""
    if after is None or (before and (before.run, before.url) == (after.run, after.url)):
        return
    guarded = before or after
    if looks[guarded.run] is NotRead.UNKNOWN:
        what = "is open and would be replaced" if before else "would leave an open run behind"
        yield (
            f"run {guarded.run}: not checked whether it {what}, because gs://{guarded.bucket}"
            " cannot be read from here; preview again as an identity that may read it"
        )


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
    # The engine plans independent resources in any order, but two previews should read the same.
    return {word: tuple(sorted(groups[word])) for word in order}


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
                f"run {line.run} applies the change at its next VM; outlast:update now does it at"
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
