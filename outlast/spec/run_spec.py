"""A run, from a stack's settings to the VM: one class for both sides of the instance metadata."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Self

from outlast.base.codec import format_time
from outlast.protocol import parse_every
from outlast.spec import secrets
from outlast.spec.delivery import BUCKET, Git
from outlast.spec.identity import canonical_json
from outlast.spec.pin import Pin

Argument = bool | int | float | str
"""A value of a trainer's flag in the settings."""
ROOT, OWN = "root", "own"
"""Users that a trainer can run as: `outlast:trainerUser`."""
NO_DEADLINE = datetime(9999, 12, 31, tzinfo=UTC)
NO_STACK = "folder/"
"""What the owner of a run without a stack begins with."""

RUN_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


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
        except ValueError as error:
            raise BadSpec(
                f"outlast-timeouts {text[:80]!r}: must be a JSON object ({error})"
            ) from None
        if not isinstance(found, dict):
            raise BadSpec(f"outlast-timeouts {text[:80]!r}: must be a JSON object of seconds")
        known = [spec.name for spec in fields(cls)]
        for key, value in found.items():
            if key not in known:
                raise BadSpec(f"outlast-timeouts: {key!r} is not known; known: {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise BadSpec(f"outlast-timeouts: {key} is {value!r}, must be seconds, 0 or more")
        return cls(**{key: float(value) for key, value in found.items()})

    def to_json(self) -> str:
        """As `parse` reads it."""
        return canonical_json({one.name: whole(getattr(self, one.name)) for one in fields(self)})


@dataclass(frozen=True)
class RunSpec:
    """A run as its VM gets it: from a stack's settings, through the instance metadata, to the
    supervisor."""

    prefix: str
    run: str
    resume: int
    placement: int
    owner: str
    trainer: str
    deadline: datetime
    args: dict[str, str] = field(default_factory=dict)
    """Flag without dashes to its text; ``true`` a bare flag, ``false`` none."""
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
    quiet_sec: float = 10.0
    """A command's checkpoint folder that held still for so long is complete."""
    command_options: dict[str, Any] = field(default_factory=dict)
    """More options of a command's runner, by their flags."""
    data: tuple[str, ...] = ()
    """A command's data: gs:// paths."""
    delivery: str = BUCKET
    """Where the code comes from: `bucket`, `image` or `git`."""
    git: Git | None = None
    """Where the code comes from that is none of the bundle's."""
    bucket: str = ""
    bundle: str = ""
    bundle_sha256: str = ""
    secret_env: dict[str, str] = field(default_factory=dict)
    """Variable of the trainer to the secret that holds its value: names only."""
    webhook: str = ""
    webhook_secret: str = ""
    """Name of the secret that holds the webhook's address; empty for none."""
    init: str = ""
    """Another run's checkpoint that this one begins with, pinned by its digest; empty for none."""
    model_output_path: str = ""
    """Where a copy of the result goes besides; empty for nowhere."""
    content: dict[str, Any] = field(default_factory=dict)
    """What the run's name is made of, or would be: it is recorded and decides nothing."""
    billed: dict[str, Any] = field(default_factory=dict)
    """What is paid for beside the machine type: recorded, for `outlast costs`."""

    @classmethod
    def from_metadata(cls, attributes: Mapping[str, str]) -> Self:
        """The spec in an instance's metadata; BadSpec with a sentence for the first value that is
        missing or wrong."""

        def text(key: str) -> str:
            value = attributes.get(key, "")
            if not value:
                raise BadSpec(f"metadata key {key}: missing; the instance template must carry it")
            return value

        def count(key: str, default: str | None = None) -> int:
            value = attributes.get(key, "") or (default if default is not None else text(key))
            if not re.fullmatch(r"[0-9]{1,9}", value):
                raise BadSpec(f"metadata key {key} is {value!r}: must be a whole number, 0 or more")
            return int(value)

        run = text("outlast-run")
        if not RUN_PATTERN.fullmatch(run):
            raise BadSpec(f"metadata key outlast-run is {run!r}: must match {RUN_PATTERN.pattern}")
        prefix = text("outlast-prefix")
        if prefix.startswith("/") or prefix.endswith("/"):
            raise BadSpec(f"metadata key outlast-prefix is {prefix!r}: no slash at either end")
        return cls(
            bucket=text("outlast-bucket"),
            prefix=prefix,
            run=run,
            resume=count("outlast-resume"),
            placement=count("outlast-placement"),
            owner=text("outlast-owner"),
            trainer=text("outlast-trainer"),
            deadline=_parse_time("outlast-deadline", text("outlast-deadline")),
            args={
                key.removeprefix("outlast-arg-"): value
                for key, value in attributes.items()
                if key.startswith("outlast-arg-")
            },
            checkpoint_every=parse_checkpoint_every(attributes.get("outlast-checkpoint-every", "")),
            timeouts=Timeouts.parse(attributes.get("outlast-timeouts", "") or "{}"),
            retries_failures=count("outlast-retries-failures", "0"),
            keep_every_steps=count("outlast-keep-every-steps", "0"),
            trainer_python=attributes.get("outlast-trainer-python", ""),
            trainer_user=_parse_trainer_user(attributes.get("outlast-trainer-user", "")),
            processes=max(1, count("outlast-processes", "1")),
            gpus=count("outlast-gpus", "0"),
            mode=attributes.get("outlast-mode", "") or "survive",
            command=_parse_command(attributes.get("outlast-command", "")),
            quiet_sec=max(1, count("outlast-checkpoint-quiet-sec", "10")),
            command_options=_parse_object(attributes, "outlast-command-options"),
            data=tuple(attributes.get("outlast-data", "").split()),
            delivery=attributes.get("outlast-delivery", "") or BUCKET,
            git=_parse_git(attributes.get("outlast-git", "")),
            bundle=attributes.get("outlast-bundle", ""),
            bundle_sha256=attributes.get("outlast-bundle-sha256", ""),
            secret_env=_parse_secret_env(attributes.get("outlast-secret-env", "")),
            webhook=attributes.get("outlast-webhook", ""),
            webhook_secret=attributes.get("outlast-webhook-secret", ""),
            init=_parse_init(attributes.get("outlast-init", "")),
            model_output_path=attributes.get("outlast-arg-model-output-path", ""),
            content=_parse_object(attributes, "outlast-content"),
            billed=_parse_object(attributes, "outlast-billed"),
        )

    def to_metadata(self) -> dict[str, str]:
        """As `from_metadata` reads it: a key whose value is the default is left out, unless the
        startup script needs it."""
        items = {
            "outlast-bucket": self.bucket,
            "outlast-prefix": self.prefix,
            "outlast-run": self.run,
            "outlast-resume": str(self.resume),
            "outlast-placement": str(self.placement),
            "outlast-owner": self.owner,
            "outlast-bundle": self.bundle,
            "outlast-bundle-sha256": self.bundle_sha256,
            "outlast-trainer": self.trainer,
            "outlast-deadline": format_time(self.deadline),
            "outlast-checkpoint-every": self.checkpoint_every,
            "outlast-timeouts": self.timeouts.to_json(),
            "outlast-mode": self.mode,
            "outlast-retries-failures": str(self.retries_failures),
            "outlast-content": canonical_json(self.content),
            "outlast-billed": canonical_json(self.billed),
        }
        items |= {f"outlast-arg-{flag}": value for flag, value in self.args.items()}
        return items | {key: text for key, text in self._chosen().items() if text}

    def _chosen(self) -> dict[str, str]:
        """What only some runs have; empty texts for the rest."""
        found = {
            "outlast-keep-every-steps": str(self.keep_every_steps or ""),
            "outlast-trainer-python": self.trainer_python,
            "outlast-trainer-user": "" if self.trainer_user == ROOT else self.trainer_user,
            "outlast-gpus": str(self.gpus or ""),
            "outlast-processes": str(self.processes) if self.processes > 1 else "",
            "outlast-delivery": "" if self.delivery == BUCKET else self.delivery,
            "outlast-git": self.git.to_json() if self.git else "",
            "outlast-init": self.init,
            "outlast-secret-env": secrets.to_json(self.secret_env) if self.secret_env else "",
            "outlast-webhook-secret": self.webhook_secret,
            "outlast-webhook": self.webhook,
        }
        if self.command is not None:
            found["outlast-command"] = canonical_json(self.command)
            found["outlast-checkpoint-quiet-sec"] = _number(self.quiet_sec)
            if self.command_options:
                found["outlast-command-options"] = canonical_json(self.command_options)
            found["outlast-data"] = " ".join(self.data)
        return found

    def argv(self) -> list[str]:
        """The trainer's flags, sorted."""
        return argv(self.args)

    def to_json(self) -> dict[str, object]:
        """For the attempt's start record."""
        return {
            "owner": self.owner,
            "trainer": self.trainer,
            "args": self.args,
            "resume": self.resume,
            "placement": self.placement,
            "deadline": format_time(self.deadline),
            "checkpoint_every": self.checkpoint_every,
            "retries_failures": self.retries_failures,
            "keep_every_steps": self.keep_every_steps,
            "trainer_python": self.trainer_python,
            "trainer_user": self.trainer_user,
            "processes": self.processes,
            "gpus": self.gpus,
            "mode": self.mode,
            "init": self.init,
            "model_output_path": self.model_output_path,
            "command": self.command,
            "quiet_sec": self.quiet_sec,
            "command_options": self.command_options,
            "secret_env": self.secret_env,
            "git": None if self.git is None else asdict(self.git),
            "data": self.data,
            "timeouts": {spec.name: getattr(self.timeouts, spec.name) for spec in fields(Timeouts)},
            "bundle": self.bundle,
            "bundle_sha256": self.bundle_sha256,
            "content": self.content,
            "billed": self.billed,
        }


def _parse_trainer_user(text: str) -> str:
    if text not in ("", ROOT, OWN):
        raise BadSpec(f"metadata key outlast-trainer-user is {text[:80]!r}: must be root or own")
    return text or ROOT


def _parse_init(text: str) -> str:
    """A pinned checkpoint, or nothing."""
    try:
        return str(Pin.parse(text)) if text else ""
    except ValueError as error:
        raise BadSpec(f"metadata key outlast-{error}") from None


def parse_checkpoint_every(text: str) -> str:
    """``auto``, seconds such as ``30s``, or steps such as ``200``; empty means ``auto``."""
    text = text or "auto"
    try:
        parse_every(text)
    except ValueError as error:
        raise BadSpec(str(error)) from None
    return text


def _parse_command(text: str) -> str | tuple[str, ...] | None:
    """JSON: a text is a line for the shell, a list of texts a program and its arguments."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, str) and found.strip():
        return found
    if isinstance(found, list) and found and all(isinstance(word, str) for word in found):
        return tuple(found)
    raise BadSpec(
        f"metadata key outlast-command is {text[:80]!r}: must be JSON, a text for the shell or a "
        "list of texts"
    )


def _parse_git(text: str) -> Git | None:
    try:
        return Git.from_json(text) if text else None
    except ValueError as error:
        raise BadSpec(f"metadata key outlast-{error}") from None


def _parse_secret_env(text: str) -> dict[str, str]:
    try:
        return secrets.from_json(text)
    except ValueError as error:
        raise BadSpec(f"metadata key outlast-{error}") from None


def _parse_object(attributes: Mapping[str, str], key: str) -> dict[str, Any]:
    text = attributes.get(key, "")
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    raise BadSpec(f"metadata key {key} is {text[:80]!r}: must be a JSON object")


def _parse_time(key: str, text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise BadSpec(
            f"metadata key {key} is {text!r}: must be a UTC time such as 2026-11-27T23:59:59Z"
        ) from None


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


def _number(value: float) -> str:
    return str(whole(float(value)))
