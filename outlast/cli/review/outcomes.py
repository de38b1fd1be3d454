"""Decides what happens to each run under a plan, from its HEAD. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from outlast.base.exits import State
from outlast.bucket.head import Head
from outlast.bucket.standing import is_expired, obstacle
from outlast.cli.review.plan import GROUPS, PIN, TEMPLATES, Pin, Step

_PINNED = {"image": "the image", "maxRunMinutes": "the limit"}


class Then(StrEnum):
    """What happens to a run."""

    RESTARTS = "restarts"
    RESUMES = "resumes"
    FROM_SCRATCH = "starts from scratch"
    UNTOUCHED = "stays untouched"
    FINISHED = "finished"
    STOPS = "stops"
    UNCLEAR = "unclear"


class NotRead(StrEnum):
    """Why there is no HEAD."""

    ABSENT = "absent"
    """The run has none yet."""
    UNKNOWN = "unknown"
    """The bucket does not answer."""


Look = Head | NotRead


@dataclass(frozen=True)
class RunLine:
    """What happens to one run, and why."""

    run: str
    then: Then
    why: str
    step: int | None = None
    """The step from which it resumes, or at which it is."""

    @property
    def said(self) -> str:
        """`resumes from step 400`, `stays untouched`."""
        at = f" from step {self.step}" if self.step is not None else ""
        return f"{self.then}{at}" if self.then is Then.RESUMES else str(self.then)


def of_runs(
    before: Pin | None,
    after: Pin | None,
    steps: Sequence[Step],
    looks: Mapping[str, Look],
    now: datetime,
) -> list[RunLine]:
    """One line for each run that the plan affects or leaves, the stack's own first."""
    lines = []
    if after is not None:
        head = looks.get(after.run, NotRead.UNKNOWN)
        same = before is not None and (before.run, before.resume) == (after.run, after.resume)
        line = _continues(before, after, steps, head, now) if same else _begins(after, head, now)
        lines.append(line)
    if before is not None and (after is None or after.run != before.run):
        lines.append(_left(before, looks.get(before.run, NotRead.UNKNOWN), kept=after is not None))
    return lines


def _continues(
    before: Pin | None, after: Pin, steps: Sequence[Step], head: Look, now: datetime
) -> RunLine:
    """A run that the stack already has."""
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
    """What changes in a template; for metadata, what the key means for the run."""
    for key in template.differs:
        old, new = template.old.get(key), template.new.get(key)
        if key != "metadata" or not isinstance(old, Mapping) or not isinstance(new, Mapping):
            yield key
            continue
        changed = sorted(one for one in old.keys() | new.keys() if old.get(one) != new.get(one))
        yield from dict.fromkeys(_metadata_word(one) for one in changed)


def _metadata_word(key: str) -> str:
    if key == "startup-script":
        return "startup script"
    return "code" if key.startswith("outlast-bundle") else key.removeprefix("outlast-")


def _later(steps: Sequence[Step]) -> str:
    """Changes that a pinned run applies only when it is reopened."""
    differs = next((one.differs for one in steps if one.type == PIN), ())
    names = [word for key, word in _PINNED.items() if key in differs]
    return f"; {' and '.join(names)} will change at its next resume" if names else ""


def _begins(after: Pin, head: Look, now: datetime) -> RunLine:
    """A run, or a resume of one, that is new in the stack."""
    if head is NotRead.ABSENT:
        return RunLine(after.run, Then.FROM_SCRATCH, "it has no checkpoint yet; step 0", 0)
    if isinstance(head, NotRead):
        return RunLine(
            after.run,
            Then.UNCLEAR,
            f"{after.url} cannot be read from here: it starts from scratch, or resumes from where "
            "its HEAD says",
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
    """A run that the stack gives up."""
    why = "another run takes its place" if kept else "the stack gives it up"
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
    """The outcome of a run with nothing left to do."""
    if not isinstance(head, Head):
        return None
    why = obstacle(head, resume=pin.resume, now=now)
    return RunLine(pin.run, Then.FINISHED, f"it {why}", head.step) if why else None


def has_ended(head: Look | None, now: datetime) -> bool:
    return isinstance(head, Head) and (head.state.ended or is_expired(head, now))


def _at(head: Look) -> tuple[int | None, str]:
    if isinstance(head, Head):
        return head.step, f"from step {head.step}"
    if head is NotRead.ABSENT:
        return 0, "from step 0, because it has no checkpoint yet"
    return None, "from its last checkpoint"
