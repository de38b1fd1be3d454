"""The stack's configuration, read once and checked; what the program then wires.

Keys, types and defaults are declared in Pulumi.yaml and nowhere else. `load` reads the engine's
values, `check` turns them into Settings and needs no engine. Every refusal is a SettingsError: one
sentence with the field, the value and the rule, then what to do; the engine prints it as it is.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast
from urllib.parse import urlsplit

import pulumi
import yaml

import trainers
from components import labels as label_rules
from components import metadata
from outlast import bundle as bundles
from outlast import identity
from outlast.layout import EXPERIMENT_PATTERN, Layout
from outlast.run.metadata import BadSpec, parse_checkpoint_every

ROOT = Path(__file__).resolve().parent
"""The checkout."""

LOCAL_PROJECT = "outlast-rehearsal"
"""The local cloud's project: no real one is touched through the example stack."""

NAMESPACE = "outlast"
LIMIT_RUN_MINUTES = 525_600
"""A year."""

RESUME_LIMIT = 9999
"""More would not fit into the name of a VM."""

LIMIT_WAIT_SEC = 86_400
"""A day."""

_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]")
_IMAGE_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_IMAGE_PROJECT = r"(?:[a-z0-9][-.a-z0-9]*:)?[a-z][-a-z0-9]*"
_IMAGE = re.compile(
    # The forms that the provider resolves.
    rf"(?:https://(?:www|compute)\.googleapis\.com/compute/[a-z0-9]+/projects/{_IMAGE_PROJECT}/"
    rf"|projects/{_IMAGE_PROJECT}/)?global/images/(?:family/)?{_IMAGE_NAME}"
    rf"|(?:{_IMAGE_PROJECT}/|family/)?{_IMAGE_NAME}"
)
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_MACHINE = re.compile(r"[a-z][-a-z0-9]*")
_FLAG = re.compile(r"[a-z][-a-z0-9]*")
_LABEL_KEY = re.compile(r"[a-z][_a-z0-9-]{0,62}")
_LABEL_VALUE = re.compile(r"[_a-z0-9-]{0,63}")
_LABELS_LIMIT = 64 - len(label_rules.RESERVED)
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

_SET_ELSEWHERE = {
    "checkpoint-every": "set outlast:checkpointEvery",
    "data": "a VM has no file of this machine; leave it out, the trainer brings data of its own",
    "eval-data": "a VM has no file of this machine; leave it out",
    "mode": "leave it out",
    "run-dir": "a VM has a folder of its own; leave it out",
    "help": "leave it out",
}


class SettingsError(pulumi.RunError):
    """Configuration that breaks a rule; the engine prints the message and no traceback."""


@dataclass(frozen=True)
class Settings:
    """The checked configuration of one stack."""

    project: str
    region: str
    zone: str
    owner: str
    """`organization/project/stack`: whose the run is."""
    experiment: str
    trainer: str
    args: Mapping[str, metadata.Argument]
    run: str
    resume: int
    checkpoint_every: str
    retries_failures: int
    keep_every_steps: int
    trainer_python: str
    limit_run_minutes: int
    machine_type: str
    spot: bool
    image: str
    boot_disk_gb: int
    boot_disk_type: str
    bucket: str
    labels: Mapping[str, str]
    """The stack's, with the user's."""
    webhook: str
    notice_sec: int
    waits: str
    """Canonical JSON object of seconds, as the VM reads it."""

    @property
    def prefix(self) -> str:
        """Where the experiment lives in the bucket."""
        return f"experiments/{self.experiment}"


@dataclass(frozen=True)
class Code:
    """The bundle of this checkout, and where it goes."""

    path: str
    object: str
    sha256: str


# ---------------------------------------------------------------------------------------------
# What the program calls


def load() -> Settings:
    """The running stack's settings. Raises SettingsError."""
    return check(
        {**pulumi.runtime.config.get_config_env(), **pulumi.runtime.config.CONFIG.get()},
        organization=pulumi.get_organization(),
        project=pulumi.get_project(),
        stack=pulumi.get_stack(),
        environ=os.environ,
    )


def bundle(settings: Settings) -> Code:
    """Packs the checkout into `.outlast/bundles`. Raises SettingsError."""
    try:
        packed = bundles.build(ROOT, ROOT / ".outlast" / "bundles")
    except bundles.BundleError as error:
        raise SettingsError(str(error)) from None
    name = Layout(settings.prefix, settings.run).bundle(packed.sha256)
    return Code(str(packed.path), name, packed.sha256)


def scripts() -> dict[str, str]:
    """The startup scripts by metadata key, byte for byte."""
    files = {
        "startup-script": "boot.sh",
        "outlast-sh-lib": "lib.sh",
        "outlast-sh-leave": "leave.sh",
    }
    return {key: (ROOT / "startup" / file).read_bytes().decode() for key, file in files.items()}


def bucket_exists(settings: Settings) -> bool:
    """Whether the bucket is there and has our label: the one look-up that the program makes.

    Raises SettingsError for a bucket of that name without the label. Where nobody can be asked (no
    credentials, no network) the answer is no: a preview needs no cloud, and `up` would fail on the
    provider's own call, which says why.
    """
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import storage

    try:
        client = storage.Client(project=settings.project)
        # No retry: its default of two minutes would hold up every preview without a network.
        found = client.lookup_bucket(settings.bucket, timeout=10, retry=cast(Any, None))
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        pulumi.log.info(f"bucket {settings.bucket}: cannot be looked up ({_first_line(error)})")
        return False
    if found is None:
        return False
    if found.labels.get("managed-by") != label_rules.MANAGED_BY:
        raise SettingsError(
            f"outlast:bucket {settings.bucket!r}: exists and has no label managed-by="
            f"{label_rules.MANAGED_BY}; set outlast:bucket to another name, or label the bucket to"
            " let Outlast keep checkpoints in it"
        )
    return True


def outputs(settings: Settings, code: Code) -> dict[str, Any]:
    """The stack's outputs that are known beforehand."""
    return {
        "experiment": settings.experiment,
        "owner": settings.owner,
        "run": settings.run,
        "resume": settings.resume,
        "prefix": settings.prefix,
        "runPath": f"{settings.prefix}/{settings.run}",
        "groupZone": settings.zone,
        "region": settings.region,
        "image": settings.image,
        "bundle": code.object,
        "bundleSha256": code.sha256,
    }


# ---------------------------------------------------------------------------------------------
# Checks


def declared() -> dict[str, Mapping[str, Any]]:
    """The keys that Pulumi.yaml declares, with type, description and default."""
    return yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]


def check(
    values: Mapping[str, Any],
    *,
    organization: str,
    project: str,
    stack: str,
    environ: Mapping[str, str],
) -> Settings:
    """Settings from the engine's `values` (full key to text). Raises SettingsError."""
    read = _Reader(values, declared())
    read.refuse_unknown()

    cloud = _cloud_project(values, environ)
    zone = read.text("zone") or str(values.get("gcp:zone", ""))
    if not _ZONE.fullmatch(zone):
        raise _bad("zone", zone, "must be a zone such as europe-west4-a", "or set gcp:zone")
    notice_sec = read.integer("noticeSec", 0, LIMIT_WAIT_SEC)
    if cloud != LOCAL_PROJECT and notice_sec not in (0, 120):
        raise _bad("noticeSec", notice_sec, "must be 120 or 0, the platform gives no other")

    experiment = _experiment(read.text("experiment"), stack)
    trainer = read.text("trainer")
    args = _args(read.mapping("args"))
    run = _run(read, trainer, args)
    return Settings(
        project=cloud,
        region=zone.rpartition("-")[0],
        zone=zone,
        owner=f"{organization}/{project}/{stack}",
        experiment=experiment,
        trainer=trainer,
        args=args,
        run=run,
        resume=read.integer("resume", 0, RESUME_LIMIT),
        checkpoint_every=_checkpoint_every(read.text("checkpointEvery")),
        retries_failures=read.integer("retriesFailures", 0),
        keep_every_steps=read.integer("keepEverySteps", 0),
        trainer_python=_interpreter(read.text("trainerPython")),
        limit_run_minutes=read.integer("limitRunMinutes", 1, LIMIT_RUN_MINUTES),
        machine_type=_matching(
            "machineType",
            read.text("machineType"),
            _MACHINE,
            "must be a machine type's bare name such as e2-standard-2",
        ),
        spot=read.boolean("spot"),
        image=_matching(
            "image",
            read.text("image"),
            _IMAGE,
            "must name an image or an image family, such as"
            " projects/debian-cloud/global/images/family/debian-13",
        ),
        boot_disk_gb=read.integer("bootDiskGb", 10, 65_536),
        boot_disk_type=_matching(
            "bootDiskType",
            read.text("bootDiskType"),
            _MACHINE,
            "must be a disk type's bare name such as pd-balanced",
        ),
        bucket=_matching(
            "bucket",
            read.text("bucket") or f"{cloud}-outlast",
            _BUCKET,
            "must have 3 to 63 lower-case letters, digits, dashes, underscores and dots, the first"
            " and the last a letter or digit, no two dots in a row",
        ),
        labels=label_rules.of_stack(project, stack, experiment, _labels(read.mapping("labels"))),
        webhook=_webhook(read.text("webhook")),
        notice_sec=notice_sec,
        waits=_waits(read, notice_sec),
    )


class _Reader:
    """Typed reading of the engine's texts. The engine has put the defaults in already."""

    def __init__(self, values: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> None:
        prefix = f"{NAMESPACE}:"
        self._values = {
            key.removeprefix(prefix): value
            for key, value in values.items()
            if key.startswith(prefix)
        }
        self._known = known

    def refuse_unknown(self) -> None:
        for key in sorted(self._values):
            if key not in self._known:
                raise SettingsError(
                    f"{NAMESPACE}:{key}: is no setting of Outlast;"
                    f" {_nearest(key, self._known, 'see the list in Pulumi.yaml')}"
                )

    def text(self, key: str) -> str:
        return str(self._value(key)).strip()

    def integer(self, key: str, least: int, most: int | None = None) -> int:
        text = self.text(key)
        rule = f"must be a whole number, {least} or more"
        if most is not None:
            rule = f"must be a whole number from {least} to {most}"
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise _bad(key, text, rule)
        if int(text) < least or (most is not None and int(text) > most):
            raise _bad(key, text, rule)
        return int(text)

    def boolean(self, key: str) -> bool:
        text = self.text(key).lower()
        if text not in ("true", "false"):
            raise _bad(key, text, "must be true or false")
        return text == "true"

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._value(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise _bad(key, value, "must be an object") from None
        if not isinstance(value, dict):
            raise _bad(key, value, "must be an object")
        return value

    def _value(self, key: str) -> Any:
        if key not in self._values:
            raise SettingsError(
                f"{NAMESPACE}:{key}: has no value, though Pulumi.yaml declares a default; run the"
                " program from its checkout, by the pulumi or the outlast command"
            )
        return self._values[key]


def _cloud_project(values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    project = str(values.get("gcp:project") or environ.get("GOOGLE_PROJECT", ""))
    if not project:
        raise SettingsError(
            "gcp:project: is not set; run pulumi config set gcp:project with your project's id"
        )
    if project == LOCAL_PROJECT and not _local_cloud(values, environ):
        raise SettingsError(
            f"gcp:project {project!r}: is the local cloud's project, and no local cloud is set in"
            " this shell; run outlast cloud start and export what it prints, or set gcp:project to"
            " a project of yours"
        )
    return project


def _local_cloud(values: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether both APIs that the program and its VMs need are on this machine."""
    compute = values.get("gcp:computeCustomEndpoint") or environ.get(
        "GOOGLE_COMPUTE_CUSTOM_ENDPOINT", ""
    )
    storage = environ.get("STORAGE_EMULATOR_HOST", "")
    return all(_is_loopback(str(url)) for url in (compute, storage))


def _is_loopback(url: str) -> bool:
    try:
        return urlsplit(url if "//" in url else f"//{url}").hostname in _LOOPBACK
    except ValueError:
        return False


def _experiment(name: str, stack: str) -> str:
    experiment = name or stack
    if not EXPERIMENT_PATTERN.fullmatch(experiment):
        origin = "" if name else " (the stack's name)"
        raise SettingsError(
            f"{NAMESPACE}:experiment {experiment!r}{origin}: must have 1 to 40 lower-case letters,"
            " digits and dashes, the first a letter, the last no dash; set outlast:experiment"
        )
    return experiment


def _args(args: Mapping[str, Any]) -> dict[str, metadata.Argument]:
    checked: dict[str, metadata.Argument] = {}
    for flag, value in args.items():
        if not _FLAG.fullmatch(flag):
            raise _bad(
                "args",
                flag,
                "a flag is written without dashes in front, in lower case with dashes, such as"
                " learning-rate",
            )
        if flag in _SET_ELSEWHERE:
            raise SettingsError(
                f"{NAMESPACE}:args {flag}: is no hyperparameter; {_SET_ELSEWHERE[flag]}"
            )
        if not isinstance(value, bool | int | float | str):
            raise _bad(f"args.{flag}", value, "must be a number, a text or true or false")
        checked[flag] = value
    return checked


def _run(read: _Reader, trainer: str, args: Mapping[str, metadata.Argument]) -> str:
    """The run's name, checked by the trainer's own parser even where it is pinned."""
    known = sorted(trainers.names())
    if trainer not in known:
        raise SettingsError(
            f"{NAMESPACE}:trainer {trainer!r}: is no trainer;"
            f" {_nearest(trainer, known, 'known are ' + ', '.join(known))}"
        )
    module = trainers.load(trainer)
    parser = module.parser()
    flags = {
        option.removeprefix("--")
        for action in parser._actions  # argparse has no public list of them
        for option in action.option_strings
        if option.startswith("--")
    }
    for flag in args:
        if flag not in flags:
            offered = sorted(flags - _SET_ELSEWHERE.keys())
            raise SettingsError(
                f"{NAMESPACE}:args {flag}: is no flag of trainer {trainer};"
                f" {_nearest(flag, offered, 'its flags are ' + ', '.join(offered))}"
            )
    try:
        arguments = identity.arguments(parser, _argv(args))
        seed = arguments.pop("seed", None)
        named = identity.run_id(
            identity.Spec(
                trainer=trainer,
                arguments=arguments,
                source=identity.source_digest(ROOT / "trainers" / f"{trainer}.py"),
                seed=seed,
                rerun=read.integer("rerun", 0),
            )
        )
    except identity.IdentityError as error:
        raise SettingsError(
            f"{NAMESPACE}:args of trainer {trainer}: {error}; run python -m trainers {trainer}"
            " --help for the rules"
        ) from None
    pinned = read.text("run")
    if pinned and not identity.RUN_PATTERN.fullmatch(pinned):
        raise _bad("run", pinned, "must be a run's ten digits, 0-9 and a-f", "or leave it empty")
    return pinned or named


def _argv(args: Mapping[str, metadata.Argument]) -> list[str]:
    """As `outlast.run.metadata.Spec.argv` makes it of the metadata, which is all text: `"true"` and
    `"false"` are a switch there, however they were written here."""
    texts = {flag: metadata.text(value) for flag, value in sorted(args.items())}
    return [
        f"--{flag}" if text == "true" else f"--{flag}={text}"
        for flag, text in texts.items()
        if text != "false"
    ]


def _checkpoint_every(text: str) -> str:
    try:
        return parse_checkpoint_every(text)
    except BadSpec:
        raise _bad(
            "checkpointEvery", text, "must be auto, seconds such as 30s, or steps such as 200"
        ) from None


def _labels(user: Mapping[str, Any]) -> dict[str, str]:
    if len(user) > _LABELS_LIMIT:
        raise _bad("labels", f"{len(user)} labels", f"at most {_LABELS_LIMIT} are allowed")
    for key, value in user.items():
        if key in label_rules.RESERVED:
            raise SettingsError(
                f"{NAMESPACE}:labels {key}: is set by Outlast itself; choose another key"
            )
        if not _LABEL_KEY.fullmatch(key):
            raise _bad(
                "labels",
                key,
                "a key has at most 63 lower-case letters, digits, dashes and underscores, the first"
                " a letter",
            )
        if not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
            raise _bad(
                f"labels.{key}",
                value,
                "a value is a text of at most 63 lower-case letters, digits, dashes and"
                " underscores",
            )
    return dict(user)


def _interpreter(path: str) -> str:
    if path and not PurePosixPath(path).is_absolute():
        raise _bad("trainerPython", path, "must be an absolute path", "or leave it empty")
    return path


def _webhook(url: str) -> str:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        good = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if url and not good:
        raise _bad("webhook", url, "must be an https address", "or leave it empty")
    return url


def _waits(read: _Reader, notice_sec: int) -> str:
    return identity.canonical_json(
        {
            "beat": read.integer("waitBeatSec", 1, LIMIT_WAIT_SEC),
            "verdict": read.integer("waitVerdictSec", 0, LIMIT_WAIT_SEC),
            "backoff": read.integer("waitBackoffSec", 1, LIMIT_WAIT_SEC),
            "iam": read.integer("waitIamSec", 0, LIMIT_WAIT_SEC),
            "silent": read.integer("waitSilentSec", 1, LIMIT_WAIT_SEC),
            "notice": notice_sec,
            "stop": read.integer("stopSec", 0, LIMIT_WAIT_SEC),
            "stall": read.integer("limitStallMinutes", 1, LIMIT_RUN_MINUTES) * 60,
            "keep": 0,
        }
    )


def _matching(key: str, value: str, pattern: re.Pattern[str], rule: str) -> str:
    if not pattern.fullmatch(value):
        raise _bad(key, value, rule)
    return value


def _bad(key: str, value: Any, rule: str, otherwise: str = "") -> SettingsError:
    action = f"set {NAMESPACE}:{key}"
    return SettingsError(
        f"{NAMESPACE}:{key} {value!r}: {rule}; {action}{' ' + otherwise if otherwise else ''}"
    )


def _nearest(word: str, known: Any, otherwise: str) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
