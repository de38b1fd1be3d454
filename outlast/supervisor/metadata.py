"""What the machine tells about itself: the metadata server and the spec of the run in it.

Every absolute path of the VM goes through ``rooted``, every call to the metadata server through
``Metadata``. ``Spec`` is the run as the instance template carries it, checked once, at boot.

Errors: MetadataError
        ├── Absent        the key is not set
        ├── Unreachable   no usable answer within the tries
        └── BadSpec       a value of the spec is missing or breaks its rule
"""

import http.client
import json
import os
import platform
import random
import re
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outlast.base.codec import format_time
from outlast.bucket.layout import (
    Pin,
)
from outlast.protocol import parse_every
from outlast.spec import secrets
from outlast.spec.delivery import Git

DEFAULT_HOST = "metadata.google.internal"
ANSWER_TIMEOUT_SEC = 10.0
WAIT_TIMEOUT_SEC = 60
TRIES = 8
TOKEN_SPARE_SEC = 60.0

NO_DEADLINE = datetime(9999, 12, 31, tzinfo=UTC)
NO_STACK = "folder/"
"""What the owner of a run without a stack begins with."""
"""Of a run in a folder."""

RUN_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class MetadataError(Exception):
    """The machine could not tell."""


class Absent(MetadataError):
    """The metadata server knows no such key."""


class Unreachable(MetadataError):
    """The metadata server gave no usable answer."""


class BadSpec(MetadataError):
    """A value of the run's spec is missing or breaks its rule."""


def rooted(path: str) -> Path:
    """An absolute path of the VM, under ``OUTLAST_ROOT`` if that is set."""
    root = os.environ.get("OUTLAST_ROOT", "")
    return Path(root + path) if root else Path(path)


_STARTED_AT = time.monotonic()


def machine_age_sec() -> float:
    """Seconds since this machine was started; since this process was, if none tells."""
    try:
        return float(rooted("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _STARTED_AT


class Metadata:
    """Client of the metadata server. Safe to share between threads."""

    def __init__(self, base: str | None = None) -> None:
        """``base`` as in ``http://metadata.google.internal/computeMetadata/v1``; by default from
        ``METADATA_BASE``, else ``GCE_METADATA_HOST``, else Google's own name."""
        host = os.environ.get("GCE_METADATA_HOST", DEFAULT_HOST)
        base = base or os.environ.get("METADATA_BASE") or f"http://{host}/computeMetadata/v1"
        self.base = base.rstrip("/")
        # Metadata is on the host's own link: a proxy from the environment never applies.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._token = ""
        self._token_until = 0.0
        self._token_lock = threading.Lock()

    def get(self, path: str, *, tries: int = TRIES) -> str:
        """The value at ``path``, such as ``instance/zone``. Absent for a key that is not set."""
        return self._get(path, {}, timeout_sec=ANSWER_TIMEOUT_SEC, tries=tries)[0]

    def wait_for_change(
        self, path: str, *, last_etag: str, timeout_sec: int = WAIT_TIMEOUT_SEC
    ) -> tuple[str, str]:
        """Value and etag once they differ from ``last_etag`` ("0": at once), or unchanged after
        ``timeout_sec``. One try: the caller loops anyway."""
        query = {
            "wait_for_change": "true",
            "last_etag": last_etag,
            "timeout_sec": str(timeout_sec),
        }
        return self._get(path, query, timeout_sec=timeout_sec + ANSWER_TIMEOUT_SEC, tries=1)

    def attributes(self) -> dict[str, str]:
        """All attributes of the instance."""
        query = {"recursive": "true", "alt": "json"}
        text, _ = self._get(
            "instance/attributes/", query, timeout_sec=ANSWER_TIMEOUT_SEC, tries=TRIES
        )
        try:
            found = json.loads(text)
        except ValueError as error:
            raise Unreachable(f"instance/attributes: the answer is not JSON ({error})") from None
        if not isinstance(found, dict):
            raise Unreachable("instance/attributes: the answer is not a JSON object")
        return {
            str(key): value if isinstance(value, str) else json.dumps(value)
            for key, value in found.items()
        }

    def token(self) -> str:
        """An access token of the VM's service account, kept until shortly before its end."""
        with self._token_lock:
            if time.monotonic() >= self._token_until:
                text = self.get("instance/service-accounts/default/token", tries=3)
                try:
                    body = json.loads(text)
                    self._token = str(body["access_token"])
                    lives_sec = float(body["expires_in"])
                except (ValueError, KeyError, TypeError) as error:
                    raise Unreachable(f"token: the answer makes no sense ({error!r})") from None
                self._token_until = time.monotonic() + max(0.0, lives_sec - TOKEN_SPARE_SEC)
            return self._token

    def email(self) -> str:
        """The address of the VM's service account; EMAIL if it cannot be asked."""
        try:
            return self.get("instance/service-accounts/default/email", tries=1).strip()
        except MetadataError:
            return "EMAIL"

    def forget_token(self) -> None:
        """Ask for a new token next time; after a 401."""
        with self._token_lock:
            self._token_until = 0.0

    def _get(
        self, path: str, query: Mapping[str, str], *, timeout_sec: float, tries: int
    ) -> tuple[str, str]:
        url = f"{self.base}/{path}"
        if query:
            url += "?" + urllib.parse.urlencode(query)
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        problem = ""
        for attempt in range(tries):
            if attempt:
                time.sleep(min(5.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.0))
            try:
                with self._opener.open(request, timeout=timeout_sec) as answer:
                    if answer.headers.get("Metadata-Flavor") != "Google":
                        problem = "the answer does not come from a metadata server"
                        continue
                    return answer.read().decode(), answer.headers.get("ETag", "0")
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    raise Absent(f"metadata key {path}: not set") from None
                problem = f"status {error.code}"
                if error.code not in (429, 500, 502, 503, 504):
                    break
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
        raise Unreachable(f"metadata key {path}: no usable answer from {self.base} ({problem})")


@dataclass(frozen=True)
class Machine:
    """What the machine is, for the records."""

    instance: str
    instance_id: str
    boot_id: str
    zone: str
    machine_type: str
    image: str


def read_machine(metadata: Metadata) -> Machine:
    """This VM, from its metadata server and its kernel."""

    def optional(path: str) -> str:
        try:
            return metadata.get(path)
        except Absent:
            return ""

    try:
        boot_id = rooted("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise MetadataError(f"boot id: cannot be read ({error})") from None
    return Machine(
        instance=metadata.get("instance/name"),
        instance_id=metadata.get("instance/id"),
        boot_id=boot_id,
        zone=metadata.get("instance/zone").rpartition("/")[2],
        machine_type=optional("instance/machine-type").rpartition("/")[2],
        image=optional("instance/image"),
    )


def this_computer() -> Machine:
    """A machine without a metadata server."""
    return Machine(
        instance=socket.gethostname(),
        instance_id="",
        boot_id="",
        zone="",
        machine_type=platform.machine(),
        image="",
    )


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
    def parse(cls, text: str) -> "Timeouts":
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


@dataclass(frozen=True)
class Spec:
    """The run that a machine works on."""

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
    trainer_user: str = "root"
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

    def argv(self) -> list[str]:
        """The trainer's flags, sorted."""
        argv = []
        for flag, value in sorted(self.args.items()):
            if value == "false":
                continue
            # One word: a value may begin with a dash.
            argv.append(f"--{flag}" if value == "true" else f"--{flag}={value}")
        return argv

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


def parse_spec(attributes: Mapping[str, str]) -> Spec:
    """The spec in the instance's attributes; BadSpec with a sentence for the first that is
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
    return Spec(
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


def _parse_trainer_user(text: str) -> str:
    if text not in ("", "root", "own"):
        raise BadSpec(f"metadata key outlast-trainer-user is {text[:80]!r}: must be root or own")
    return text or "root"


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
