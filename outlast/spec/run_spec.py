"""A run, from a stack's settings to the VM: one class for both sides of the instance metadata."""

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from outlast.base import names
from outlast.base.codec import checked_json, format_time
from outlast.base.retry import SILENT_SEC
from outlast.protocol import parse_every
from outlast.spec import secrets
from outlast.spec.command_words import QUIET_SEC
from outlast.spec.delivery import BUCKET, Git
from outlast.spec.identity import canonical_json
from outlast.spec.pin import Pin
from outlast.spec.sweep_rules import SweepRules

Argument = bool | int | float | str
"""A value of a trainer's flag in the settings."""
ROOT, OWN = "root", "own"
"""Users that a trainer can run as: `outlast:trainerUser`."""
NO_DEADLINE = datetime(9999, 12, 31, tzinfo=UTC)
NO_STACK = "folder/"
"""What the owner of a run without a stack begins with."""

RUN_PATTERN = re.compile(names.RUN.pattern)


class BadSpec(ValueError):
    """A value of the run's spec is missing or breaks its rule."""


@dataclass(frozen=True)
class Timeouts:
    """Time limits of the supervisor in seconds; settings, so that a rehearsal can be short."""

    heartbeat: float = 10.0
    """Least time between two heartbeats."""
    failure_grace: float = 45.0
    """A failure counts once the machine has kept running for this long."""
    backoff: float = 10.0
    """First wait after a refused or unanswered call; doubles up to sixty times itself."""
    iam_propagation: float = 600.0
    """Time that new permissions may take to spread."""
    silence: float = SILENT_SEC
    """Time without an answer from storage after which an attempt ends; from storage or the metadata
    server, after which a boot leaves the group."""
    successor_silence: float = 600.0
    """A successor without a heartbeat for this long counts as dead."""
    notice: float = 120.0
    """Time from ``instance/preempted`` to the end of the machine."""
    stop: float = 30.0
    """Time from SIGTERM to the end of the machine."""
    stall: float = 1800.0
    """A trainer without a step or tick for this long counts as stuck."""
    keep: float = 0.0
    """Time that the VM stays after the run's end."""
    driver_install: float = 600.0
    """Time that the installation of a GPU driver may take."""
    storage: float = 30.0
    """An upload of a chunk that takes longer is sent again; an answer may take twice as long."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a JSON object; keys that are left out keep their default."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadSpec(
                f"outlast-timeouts {text[:80]!r}: must be a JSON object ({error})"
            ) from None
        if not isinstance(found, dict):
            raise BadSpec(f"outlast-timeouts {text[:80]!r}: must be a JSON object of seconds")
        known = [spec.name for spec in fields(cls)]
        for key, value in found.items():
            if key not in known:
                raise BadSpec(f"outlast-timeouts: {key!r} is not known; known: {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not _is_time(value):
                raise BadSpec(f"outlast-timeouts: {key} is {value!r}, must be seconds, 0 or more")
        return cls(**{key: float(value) for key, value in found.items()})

    def to_json(self) -> str:
        """As `parse` reads it."""
        return canonical_json({one.name: whole(getattr(self, one.name)) for one in fields(self)})


SECONDS_MAX = 1e9
"""More than any timeout, and less than what a system's clock cannot hold."""


@dataclass(frozen=True)
class RunSpec:
    """A run as its VM gets it: from a stack's settings, through the instance metadata, to the
    supervisor.

    Each field is a key of the metadata, `outlast-` and its name with dashes. A field that has the
    name of a setting gets that setting's value.
    """

    prefix: str
    run: str
    resume: int
    placement: int
    owner: str
    trainer: str
    deadline: datetime
    args: dict[str, str] = field(default_factory=dict)
    """Flag without dashes to its text; ``true`` a bare flag, ``false`` none. Each has a key."""
    checkpoint_every: str = "auto"
    timeouts: Timeouts = Timeouts()
    retries_failures: int = 0
    keep_every_steps: int = 0
    """Beside the last checkpoints and the best, one each so many steps is kept; 0 for none."""
    trainer_python: str = ""
    """The trainer's interpreter; empty for the supervisor's own."""
    trainer_user: str = ROOT
    """`root`, or `own`: a user without rights."""
    processes: int = 1
    """Processes that train together on this machine."""
    gpus: int = 0
    """GPUs that must answer before anything is trained."""
    mode: str = "survive"
    """As the stack's settings call it, for the records."""
    command: str | tuple[str, ...] | None = None
    """What trains instead of a trainer: a line for the shell, or a program and its arguments."""
    checkpoint_quiet_sec: int = QUIET_SEC
    """A command's checkpoint folder without a change for so long is complete."""
    command_options: dict[str, Any] = field(default_factory=dict)
    """More options of a command's runner, by their flags."""
    data: tuple[str, ...] = ()
    """A command's data: gs:// paths."""
    data_payer: str = ""
    """Project that pays for reading data where a bucket lets the requester pay; empty for none."""
    delivery: str = BUCKET
    """Where the code comes from: `bucket`, `image` or `git`."""
    git: Git | None = None
    """Where the code comes from if it is not in the bundle."""
    bucket: str = ""
    bundle: str = ""
    bundle_sha256: str = ""
    secret_env: dict[str, str] = field(default_factory=dict)
    """Variable of the trainer to the secret that holds its value: names only."""
    webhook: str = ""
    webhook_secret: str = ""
    """Name of the secret that holds the webhook's address; empty for none."""
    sweep_rules: SweepRules | None = None
    """The sweep of which the run is a trial, and when it stops early."""
    webhook_key_secret: str = ""
    """Name of the secret that holds the key of the messages' signature; empty for none."""
    init: str = ""
    """Another run's checkpoint that this one begins with, pinned by its digest; empty for none."""
    model_output_path: str = ""
    """Where a copy of the result goes; empty for none."""
    content: dict[str, Any] = field(default_factory=dict)
    """What the run's name is made of, or would be: it is recorded and decides nothing."""
    billed: dict[str, Any] = field(default_factory=dict)
    """What is paid for beside the machine type: recorded, for `outlast costs`."""
    budget_dollars: float = 0.0
    """Dollars that the run's VMs may cost together; 0 for no budget."""
    hour_prices: dict[str, Any] = field(default_factory=dict)
    """With a budget: what an hour of this VM costs in dollars, by its machine type."""

    @classmethod
    def from_metadata(cls, attributes: Mapping[str, str]) -> Self:
        """The spec in an instance's metadata; BadSpec with a sentence for the first value that is
        missing or wrong."""
        found: dict[str, Any] = {}
        for item in _items():
            if text := attributes.get(item.key, ""):
                found[item.name] = item.form.read(item.key, text)
            elif item.is_required:
                raise BadSpec(
                    f"metadata key {item.key}: missing; the instance template must carry it"
                )
        args = {
            key.removeprefix(_ARGUMENT): value
            for key, value in attributes.items()
            if key.startswith(_ARGUMENT)
        }
        return cls(args=args, model_output_path=args.get("model-output-path", ""), **found)

    def to_metadata(self) -> dict[str, str]:
        """As `from_metadata` reads it: a key whose value is the default is left out, except those
        in _ALWAYS."""
        found = {f"{_ARGUMENT}{flag}": value for flag, value in self.args.items()}
        for item in _items():
            value = getattr(self, item.name)
            if item.is_required or item.name in _ALWAYS or value != item.default:
                found[item.key] = item.form.write(value)
        return found

    def to_json(self) -> dict[str, object]:
        """For the attempt's start record."""
        found = {key: value for key, value in asdict(self).items() if key not in _NOT_RECORDED}
        return {**found, "deadline": format_time(self.deadline)}


def _is_time(seconds: float) -> bool:
    return 0 <= seconds <= SECONDS_MAX  # false for NaN


_ARGUMENT = "outlast-arg-"
_ALWAYS = frozenset(
    ("bundle", "bundle_sha256", "checkpoint_every", "timeouts", "mode", "retries_failures")
    + ("content", "billed")
)
"""Fields that are written even if they have their default."""
_NOT_RECORDED = ("bucket", "prefix", "run", "delivery", "webhook", "webhook_secret")
_NOT_RECORDED += ("webhook_key_secret",)
"""What the record's own path says, and what is only for the VM."""


class Form(NamedTuple):
    """How a value is a text of the metadata."""

    read: Callable[[str, str], Any]
    """From the key and a text that is not empty. Raises BadSpec."""
    write: Callable[[Any], str] = str


class _Item(NamedTuple):
    """A field and its key."""

    name: str
    key: str
    form: Form
    is_required: bool
    default: Any


@functools.cache
def _items() -> list[_Item]:
    """Of every field but the trainer's flags."""
    found = []
    for one in fields(RunSpec):
        if one.name in ("args", "model_output_path"):
            continue
        made = one.default_factory
        default = one.default if made is MISSING else made()
        form = _FORMS.get(one.name) or _FORMS_OF_TYPES[one.type]
        is_required = default is MISSING or one.name == "bucket"
        key = f"outlast-{one.name.replace('_', '-')}"
        found.append(_Item(one.name, key, form, is_required, default))
    return found


def _read_count(key: str, text: str, least: int = 0) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise BadSpec(f"metadata key {key} is {text!r}: must be a whole number, {least} or more")
    return int(text)


def _read_dollars(key: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise BadSpec(f"metadata key {key} is {text!r}: must be a number of dollars, 0 or more")
    return found


def _read_run(key: str, text: str) -> str:
    if not RUN_PATTERN.fullmatch(text):
        raise BadSpec(f"metadata key {key} is {text!r}: must match {RUN_PATTERN.pattern}")
    return text


def _read_prefix(key: str, text: str) -> str:
    if text.startswith("/") or text.endswith("/"):
        raise BadSpec(f"metadata key {key} is {text!r}: no slash at either end")
    return text


def _read_trainer_user(key: str, text: str) -> str:
    if text not in (ROOT, OWN):
        raise BadSpec(f"metadata key {key} is {text[:80]!r}: must be root or own")
    return text


def _read_by(read: Callable[[str], Any]) -> Callable[[str, str], Any]:
    """With a function that begins its ValueError's sentence with the key's last part."""

    def reading(key: str, text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise BadSpec(f"metadata key outlast-{error}") from None

    return reading


def _read_command(key: str, text: str) -> str | tuple[str, ...]:
    """JSON: a text is a line for the shell, a list of texts a program and its arguments."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, str) and found.strip():
        return found
    if isinstance(found, list) and found and all(isinstance(word, str) for word in found):
        return tuple(found)
    raise BadSpec(
        f"metadata key {key} is {text[:80]!r}: must be JSON, a text for the shell or a list of"
        " texts"
    )


def _read_object(key: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadSpec(f"metadata key {key} is {text[:80]!r}: must be a JSON object")
    try:
        return checked_json(found, f"metadata key {key}")
    except ValueError as error:
        raise BadSpec(str(error)) from None


def _read_time(key: str, text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise BadSpec(
            f"metadata key {key} is {text!r}: must be a UTC time such as 2026-11-27T23:59:59Z"
        ) from None


_FROM_1 = Form(lambda key, text: _read_count(key, text, 1))
_FORMS_OF_TYPES: dict[Any, Form] = {
    str: Form(lambda key, text: text),
    int: Form(_read_count),
    float: Form(lambda key, text: _read_dollars(key, text), lambda value: str(whole(value))),
    dict[str, Any]: Form(_read_object, canonical_json),
    tuple[str, ...]: Form(lambda key, text: tuple(text.split()), " ".join),
}
_FORMS = {
    "checkpoint_every": Form(lambda key, text: parse_checkpoint_every(text)),
    "checkpoint_quiet_sec": _FROM_1,
    "command": Form(_read_command, canonical_json),
    "deadline": Form(_read_time, format_time),
    "git": Form(_read_by(Git.from_json), Git.to_json),
    "init": Form(_read_by(lambda text: str(Pin.parse(text)))),
    "prefix": Form(_read_prefix),
    "processes": _FROM_1,
    "run": Form(_read_run),
    "secret_env": Form(_read_by(secrets.from_json), secrets.to_json),
    "sweep_rules": Form(_read_by(SweepRules.from_json), SweepRules.to_json),
    "timeouts": Form(lambda key, text: Timeouts.parse(text), Timeouts.to_json),
    "trainer_user": Form(_read_trainer_user),
}
"""Of fields that have more rules than their type."""


def parse_checkpoint_every(text: str) -> str:
    """``auto``, seconds such as ``30s``, or steps such as ``200``; empty means ``auto``."""
    text = text or RunSpec.checkpoint_every
    try:
        parse_every(text)
    except ValueError as error:
        raise BadSpec(str(error)) from None
    return text


def argv(args: Mapping[str, str]) -> list[str]:
    """Flags without dashes and their texts as a command line, sorted: `true` is a bare flag,
    `false` none."""
    # One word: a value may begin with a dash.
    return [
        f"--{flag}" if value == "true" else f"--{flag}={value}"
        for flag, value in sorted(args.items())
        if value != "false"
    ]


def texts_of(args: Mapping[str, Argument]) -> dict[str, str]:
    """A trainer's flags as the metadata has them. A switch that is off is a flag that is not
    there."""
    return {flag: flag_text(value) for flag, value in args.items() if value is not False}


def flag_text(value: Argument) -> str:
    """A flag's value as the supervisor reads it; `true` is a bare flag."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def whole(value: float) -> float | int:
    """A whole number as an integer, as settings have them."""
    return int(value) if float(value).is_integer() else value
