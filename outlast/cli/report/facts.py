"""What a report about a run says, read from the bucket once."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outlast.base.codec import format_time
from outlast.base.exits import INFRASTRUCTURE_REASONS
from outlast.bucket import goodput, pages
from outlast.bucket.goodput import Goodput
from outlast.bucket.head import Checkpoint, HeadError
from outlast.bucket.history import Attempt
from outlast.bucket.layout import AttemptStart
from outlast.bucket.parts import own_step
from outlast.bucket.store import StoreError
from outlast.cli import costs, curves, logs, status
from outlast.cli.costs import Costs, Preemptions
from outlast.cli.curves import Curves
from outlast.cli.errors import OperateError, about
from outlast.cli.report import redact
from outlast.cli.runs import BEST, Place
from outlast.cli.status import Status

COUNTERS = frozenset({"epoch", "seconds", "time", "lr", "learning_rate"})
"""Names of numbers that say nothing about how good a model is."""
LOGS_SHOWN = 5
"""Of so many attempts the last lines are read: the newest, and those that failed."""
LINES_SHOWN = 40
LINE_MAX = 400
VALUE_MAX = 300
SETTINGS_MAX = 200
_NO_SETTINGS = frozenset(
    ("args", "before", "billed", "content", "owner", "placement", "resume")
    + ("secret_env", "timeouts")
)
"""Fields of a spec that are shown elsewhere or not at all."""


@dataclass(frozen=True)
class Best:
    """The best checkpoint, as its trainer chose it, with the values of its step."""

    step: int
    """In its part."""
    part: str
    values: Mapping[str, Any]
    """Numbers, the most telling first."""


@dataclass(frozen=True)
class Tail:
    """The last lines of an attempt's output."""

    term: int
    path: str
    """Where all of it is."""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """A run, as a report shows it."""

    name: str
    """Of its experiment, or of its folder."""
    status: Status
    made: datetime
    """When it was read, in server time."""
    goodput: Goodput | None
    """None if the run has no VMs or no attempt."""
    costs: Costs | None
    """None if the run has no VMs."""
    curves: Curves
    best: tuple[Best, ...]
    """Of the run, or of each part that has one."""
    logs: tuple[Tail, ...]
    configuration: Mapping[str, Mapping[str, str]]
    """Tables by their titles, of the newest attempt."""
    problems: tuple[str, ...] = ()
    """What could not be read, a sentence each."""
    part_begins: Mapping[str, int] = field(default_factory=dict)
    """The steps before each part."""

    @property
    def attempts(self) -> Sequence[Attempt]:
        return self.status.history.attempts if self.status.history else ()

    @property
    def interruptions(self) -> int:
        """Attempts that the platform ended."""
        return sum(one.reason in INFRASTRUCTURE_REASONS for one in self.attempts)

    @property
    def steps_lost(self) -> int:
        return sum(one.lost for one in self.attempts)

    @property
    def preemptions(self) -> Preemptions | None:
        """What interruptions cost; None if the run has no VMs, or was not interrupted."""
        found = self.costs.preemptions if self.costs else None
        return found if found and found.count else None

    def as_json(self) -> dict[str, Any]:
        return {
            **self.status.as_json(),
            "experiment": self.name,
            "made": format_time(self.made),
            "best": [{"step": b.step, "part": b.part, "values": dict(b.values)} for b in self.best],
            "interruptions": self.interruptions,
            "steps_lost": self.steps_lost,
            "goodput": self.goodput.as_json() if self.goodput else None,
            "costs": self.costs.as_json() if self.costs else None,
            "configuration": {title: dict(rows) for title, rows in self.configuration.items()},
            "logs": [{"attempt": one.term, "path": one.path} for one in self.logs],
            "problems": list(self.problems),
        }


def read(place: Place) -> Facts:
    """The facts of a run. What cannot be read is named in `problems`; raises OperateError if its
    state cannot be read at all.
    """
    found = status.read(place)
    problems: list[str] = []
    if found.history is None:
        return Facts(_name(place), found, found.now, None, None, Curves(), (), (), {})
    best = _best(place, found, problems)
    lines = _curves(place, found, best, problems)
    return Facts(
        _name(place),
        found,
        found.now,
        goodput.of(found.history, found.now),
        _costs(place, problems),
        lines,
        tuple(
            Best(own_step(one), one.part, _values(lines.kept.get(one.step, {}), lines))
            for one in best
        ),
        tuple(_tails(place, found, problems)),
        configuration(found),
        tuple(problems),
        _part_begins(place, found),
    )


def _name(place: Place) -> str:
    if place.folder is not None:
        return place.folder.resolve().name
    return place.layout.prefix.rpartition("/")[2] or place.name


def _best(place: Place, found: Status, problems: list[str]) -> list[Checkpoint]:
    """The newest best checkpoint of the run, or of each part."""
    assert found.history is not None
    try:
        kept = pages.kept(place.store, place.layout, found.history.head)
    except StoreError as error:
        problems.append(about(place.name, error))
        return []
    problems += kept.lost
    newest = {one.part: one for one in kept.chain if BEST in one.tags}
    return list(newest.values())


def _part_begins(place: Place, found: Status) -> dict[str, int]:
    assert found.history is not None
    try:
        parts = pages.parts(place.store, place.layout, found.history.head)
    except (StoreError, HeadError, pages.PageLost):  # A lost page is named with the checkpoints.
        return {}
    return {one.name: one.before for one in parts}


def _curves(place: Place, found: Status, best: Sequence[Checkpoint], problems: list[str]) -> Curves:
    assert found.history is not None
    steps = [one.step for one in best]
    try:
        return curves.read(place.store, place.layout, found.history.head, steps)
    except (StoreError, HeadError, ValueError) as error:
        problems.append(about(place.name, error))
        return Curves()


def _costs(place: Place, problems: list[str]) -> Costs | None:
    if place.folder is not None:
        return None
    try:
        return costs.count(place)
    except OperateError as error:
        problems.append(str(error))
        return None


def _values(row: Mapping[str, Any], lines: Curves) -> dict[str, Any]:
    """The row's numbers: of its evaluation first, which is logged least often, and in it no loss
    and nothing of the training's data."""

    def telling(name: str) -> tuple[bool, bool, bool, int]:
        low = name.lower()
        return low in COUNTERS, low.startswith("train"), "loss" in low, lines.by_name[name].count

    return {name: row[name] for name in sorted(filter(lines.by_name.get, row), key=telling)}


# ---------------------------------------------------------------------------------------------
# Logs


def _tails(place: Place, found: Status, problems: list[str]) -> Iterator[Tail]:
    """Newest first."""
    assert found.history is not None
    attempts = found.history.attempts
    chosen = {one.term for one in attempts[-LOGS_SHOWN:]}
    chosen |= {one.term for one in [one for one in attempts if one.why][-LOGS_SHOWN:]}
    for attempt in reversed(attempts):
        path = f"{place.home}/{place.layout.attempt(attempt.term)}log/"
        if attempt.term not in chosen:
            continue
        try:
            text = logs.Reader(place, attempt.term).tail()
        except OperateError as error:
            problems.append(str(error))
            continue
        # A log may be cut in the middle of a key: it is redacted before it is cut.
        shown = redact.lines(text.splitlines())[-LINES_SHOWN:]
        cut = tuple(line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}…" for line in shown)
        yield Tail(attempt.term, path, cut)


# ---------------------------------------------------------------------------------------------
# Configuration


def configuration(found: Status) -> dict[str, dict[str, str]]:
    """The newest attempt's, in tables; nothing that looks like a secret."""
    book = found.history
    if book is None or not book.starts:
        return {}
    start = book.starts[max(book.starts)]
    data = book.head.data or ()
    tables = {
        "Arguments": _arguments(start.spec),
        "Data": {one.name: f"{one.size:,} bytes, CRC32C {one.crc32c}" for one in data},
        "Machine": _machine(start),
        "Versions": {name: str(text) for name, text in start.versions.items()},
        "Settings": _settings(start.spec),
    }
    return {
        title: {name: _cut(redact.text(text, name)) for name, text in rows.items()}
        for title, rows in tables.items()
        if rows
    }


def _object(value: Any) -> dict[str, Any]:
    """What a VM wrote where an object is expected; empty if it is not one."""
    return value if isinstance(value, dict) else {}


def _arguments(spec: Mapping[str, Any]) -> dict[str, str]:
    """As the trainer got them; of a run in a folder, as its content names them."""
    given = _object(spec.get("args")) or _object(_object(spec.get("content")).get("arguments"))
    return {str(name): _text(value) for name, value in given.items()}


def _machine(start: AttemptStart) -> dict[str, str]:
    billed = _object(start.spec.get("billed"))
    rows = {
        "machine type": start.machine_type.rpartition("/")[2],
        "provisioning": _PROVISIONING.get(str(billed.get("spot")), ""),
        "GPUs": _text(billed.get("accelerator") or ""),
        "zone": start.zone.rpartition("/")[2],
        "image": start.image.rpartition("/")[2],
        "VM": start.instance,
    }
    if rows["GPUs"]:
        rows["GPUs"] = f"{_text(billed.get('accelerators') or 1)} {rows['GPUs']}"
    return {name: text for name, text in rows.items() if text}


_PROVISIONING = {"True": "Spot", "False": "on demand"}


def _settings(spec: Mapping[str, Any]) -> dict[str, str]:
    rows: dict[str, str] = {}
    for name, value in list(spec.items())[:SETTINGS_MAX]:
        if name in _NO_SETTINGS or value in (None, "", [], {}, ()):
            continue
        text = _text(value)
        rows[str(name)] = redact.command(text) if name == "command" else text
    if variables := _object(spec.get("secret_env")):
        rows["from Secret Manager"] = ", ".join(map(str, variables))
    return rows


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return "(not shown)"


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}…"
