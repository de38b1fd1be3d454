"""Builds the rehearsed settings: from a stack's file, the scenario, and the local cloud's pace.

The file is written by people. Only what a rehearsal needs is checked here; a setting with a wrong
value stays as it is, so that the program refuses it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.base.suggest import choices
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.errors import RehearsalError, UsageError
from outlast.cli.rehearsal.scenario import Scenario
from outlast.cloud import credentials

STACK = "dev"
"""The stack that is rehearsed if none is named."""

BASELINE = "-baseline"
LONGEST_BEFORE = 40 - len(BASELINE)
"""Characters that an experiment's name has left for it; `layout.EXPERIMENT_PATTERN` is the rule."""

LOCAL_SETTINGS = {
    "outlast:image": "projects/outlast-rehearsal/global/images/family/outlast",
    "outlast:checkpointEvery": "2s",
    "outlast:noticeSec": "3",
    "outlast:stopSec": "2",
    "outlast:heartbeatSec": "1",
    "outlast:failureGraceSec": "3",
    "outlast:backoffSec": "1",
    "outlast:driverInstallSec": "2",
}
"""The local cloud's image and pace, which every rehearsed stack gets."""
VM_SETTINGS = {
    "outlast:checkpointEvery": "10s",
    "outlast:noticeSec": "20",
    "outlast:stopSec": "30",
    "outlast:heartbeatSec": "5",
    "outlast:failureGraceSec": "20",
    "outlast:backoffSec": "5",
    "outlast:driverInstallSec": "60",
}
"""The pace of machines of QEMU: the platform's grace period, and time for a machine that is
emulated."""
VM_PATIENCE = 10
"""How many times as long as a process tree a QEMU machine may take."""
LOCAL_PLACE = {
    "gcp:project": "outlast-rehearsal",
    "gcp:region": "europe-west4",
    "gcp:zone": "europe-west4-a",
}
"""Zone of the local cloud."""
LONGEST_SEC = 86_400
"""A day, the longest timeout."""
TRAINING_SETTINGS = frozenset({"outlast:trainer", "outlast:args", "outlast:command"})
"""Settings of a scenario about the trainer; a user's stack keeps its own."""


@dataclass(frozen=True)
class Delivery:
    """Files that are put into the local cloud's bucket before the run."""

    bucket: str
    path: str
    """Without slashes at its ends; may be empty."""
    folder: Path

    @classmethod
    def parse(cls, text: str) -> "Delivery":
        """Parses `gs://BUCKET/PATH=FOLDER`. Raises UsageError for another form or a missing
        folder.
        """
        where, separator, name = text.partition("=")
        bucket, _, path = where.removeprefix("gs://").partition("/")
        if not (where.startswith("gs://") and bucket and separator and name):
            raise UsageError(f"--data {text}: must be gs://BUCKET/PATH=FOLDER.")
        folder = Path(name)
        if not os.path.isdir(folder):  # False also for a name that no file system accepts.
            raise UsageError(
                f"--data {text}: {name} is not a folder; give one with the data's files."
            )
        delivery = cls(bucket, path.strip("/"), folder)
        if not delivery.files():
            raise UsageError(f"--data {text}: {name} holds no file; put the data's files into it.")
        return delivery

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def object(self, file: Path) -> str:
        """The name of a file's object."""
        name = file.relative_to(self.folder).as_posix()
        return f"{self.path}/{name}" if self.path else name


def read_config(stack: str) -> dict[str, Any]:
    """The settings of the project's `Pulumi.<stack>.yaml`, by full key. Raises RehearsalError if
    the file cannot be read as a stack's.
    """
    import yaml

    path = engine.project() / f"Pulumi.{stack}.yaml"
    try:
        loaded = yaml.safe_load(path.read_bytes())
    except FileNotFoundError:
        raise RehearsalError(
            f"stack {stack}: {path.name} does not exist; restore it from git."
        ) from None
    except OSError as error:
        raise RehearsalError(f"{path.name}: cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RehearsalError(f"{path.name}: {_not_yaml(error)}; correct the file.") from None
    found = loaded.get("config") if isinstance(loaded, Mapping) else None
    if not isinstance(found, Mapping):
        raise RehearsalError(
            f"{path.name}: has no mapping config, which holds a stack's settings; set them with"
            " pulumi config set."
        )
    for key in found:
        if not isinstance(key, str):
            raise RehearsalError(
                f"{path.name}: config {key!r}: must be a setting's name, such as outlast:trainer;"
                " correct the file."
            )
    return dict(found)


def _not_yaml(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    why = getattr(error, "problem", None) or (str(error).splitlines() or [""])[0]
    why = why or type(error).__name__
    return f"is not YAML ({why}{f', line {mark.line + 1}' if mark else ''})"


def local_settings(*, vm: bool) -> dict[str, str]:
    """The image and the pace of process trees, or of machines of QEMU."""
    return {**LOCAL_SETTINGS, **(VM_SETTINGS if vm else {})}


def read_own(stack: str, *, vm: bool = False) -> dict[str, Any]:
    """The settings of a user's stack for the local cloud, with its project, image and pace. Raises
    UsageError if the stack does not exist or cannot be rehearsed.
    """
    files = engine.project().glob("Pulumi.*.yaml")
    known = sorted(file.stem.removeprefix("Pulumi.") for file in files)
    if stack not in known:
        raise UsageError(
            f"--stack {stack}: there is no Pulumi.{stack}.yaml in {engine.project()}; "
            f"{choices(stack, known)}."
        )
    config = read_config(stack)
    # A rehearsal contacts no outside service, and needs no identity.
    for key in ("outlast:webhook", *credentials.SETTINGS):
        config.pop(key, None)
    if "outlast:webhookSecret" not in config:
        config.pop("outlast:webhookKeySecret", None)
    for key, value in config.items():
        if isinstance(value, Mapping) and "secure" in value:
            raise UsageError(
                f"--stack {stack}: {key} is a secret, which a rehearsal cannot read; "
                "rehearse a stack without it."
            )
    project = config.get("gcp:project") or stack
    config.setdefault("outlast:bucket", f"{project}-outlast")  # As its own paths name it.
    config.setdefault("outlast:experiment", stack)
    return {
        **LOCAL_PLACE,
        **config,
        "gcp:project": LOCAL_PLACE["gcp:project"],
        **local_settings(vm=vm),
    }


def compose(
    settings: Mapping[str, Any], played: Scenario, args: Mapping[str, Any], *, own: bool
) -> dict[str, Any]:
    """The rehearsed settings: the stack's, overridden by the scenario's, then by `args`.

    `own`: the stack is the user's, who wants the own trainer rehearsed. UsageError: the scenario is
    about its own command, or `args` are for a trainer where a command runs.
    """
    added = dict(played.stack)
    if own and added.get("outlast:command") and not settings.get("outlast:command"):
        raise UsageError(
            f"scenario {played.name}: has its own command, so --stack's trainer would not "
            "run; rehearse it without --stack."
        )
    if own:
        added = {key: value for key, value in added.items() if key not in TRAINING_SETTINGS}
    config = {**settings, **added}
    if args and config.get("outlast:command"):
        raise UsageError(
            f"--{next(iter(args))}: is a trainer's flag, but this stack has outlast:command; "
            "leave it out."
        )
    own_args = config.get("outlast:args") or {}
    if isinstance(own_args, Mapping):
        config["outlast:args"] = {**own_args, **args}
    return config


def baseline_of(experiment: str) -> str:
    """The name of the experiment that runs undisturbed beside one."""
    names = (
        experiment[:end].rstrip("-") + BASELINE for end in (LONGEST_BEFORE, LONGEST_BEFORE - 1)
    )
    return next(name for name in names if name != experiment)


def zone_of(config: Mapping[str, Any]) -> str:
    """The zone of the stack's VM, or the first one to be tried."""
    zones = config.get("outlast:zones")
    region = config.get("outlast:region")
    listed = zones[0] if isinstance(zones, list) and zones else ""
    first = listed or (f"{region}-a" if region else "")
    return str(config.get("outlast:zone") or first or config["gcp:zone"])


def place_of(config: Mapping[str, Any]) -> str:
    """The group's location: a zone or a region."""
    if config.get("outlast:zones") or config.get("outlast:region"):
        return zone_of(config).rpartition("-")[0]
    return zone_of(config)


def pace_of(config: Mapping[str, Any]) -> clouds.Pace:
    """The local cloud's pace for the stack's own timeouts."""
    return clouds.Pace(
        notice_sec=_sec(config.get("outlast:noticeSec"), clouds.Pace.notice_sec),
        grace_sec=_sec(config.get("outlast:stopSec"), clouds.Pace.grace_sec),
    )


def _sec(value: Any, otherwise: float) -> float:
    """The value of a setting, which the program checks later."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return seconds if 0 <= seconds <= LONGEST_SEC else otherwise
