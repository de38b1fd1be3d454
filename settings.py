"""The stack's configuration, read once and checked; what the program then wires.

Keys, types and defaults are declared in Pulumi.yaml and nowhere else. `load` reads the engine's
values, `check` turns them into Settings and needs no engine. Every refusal is a SettingsError: one
sentence with the field, the value and the rule, then what to do; the engine prints it as it is.
"""

import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
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
from outlast.layout import EXPERIMENT_PATTERN, Layout, Pin
from outlast.run.metadata import BadSpec, parse_checkpoint_every

ROOT = Path(__file__).resolve().parent
"""The checkout."""

LOCAL_PROJECT = "outlast-rehearsal"
"""The local cloud's project: no real one is touched through the example stack."""

NAMESPACE = "outlast"
LIMIT_RUN_MINUTES = 525_600
"""A year."""

DATA_PATHS_LIMIT = 16
"""The platform takes 20 conditional bindings of one role and member; the bucket's own is one."""

PROCESSES_LIMIT = 256
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
_GS_PATH = re.compile(r"gs://[a-z0-9][-_.a-z0-9]*(?:/(?!\.{1,2}(?:/|$))[^/#'\\\\\s]+)+/?")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_MACHINE = re.compile(r"[a-z][-a-z0-9]*")
_FLAG = re.compile(r"[a-z][-a-z0-9]*")
_LABEL_KEY = re.compile(r"[a-z][_a-z0-9-]{0,62}")
_LABEL_VALUE = re.compile(r"[_a-z0-9-]{0,63}")
_LABELS_LIMIT = 64 - len(label_rules.RESERVED)
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

_SET_ELSEWHERE = {
    "checkpoint-every": "set outlast:checkpointEvery",
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
    processes: int
    command: str
    """JSON of a text or a list of texts; empty where a trainer trains."""
    source: str
    """Folder of the checkout with the command's own files; empty for none."""
    requirements: str
    """File of the checkout; empty for none."""
    quiet_sec: int
    limit_run_minutes: int
    machine_type: str
    spot: bool
    image: str
    boot_disk_gb: int
    boot_disk_type: str
    bucket: str
    data_paths: tuple[str, ...]
    """`gs://` paths that the VM may read besides."""
    init: str
    """A pinned checkpoint; empty for none."""
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

    @property
    def reads(self) -> tuple[str, ...]:
        """What the VM must be allowed to read beside its bucket's `data/` and its own prefix."""
        init = Pin.parse(self.init).path if self.init else ""
        own = f"gs://{self.bucket}/{self.prefix}/"
        return self.data_paths + ((init,) if init and not init.startswith(own) else ())


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
        extra = {
            f"{bundles.SOURCE}/{name}": data for name, data in _source(settings.source).items()
        }
        if settings.requirements:
            extra[bundles.USER_REQUIREMENTS] = (ROOT / settings.requirements).read_bytes()
        packed = bundles.build(ROOT, ROOT / ".outlast" / "bundles", extra)
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
    command = _command(read)
    trainer = identity.COMMAND if command else read.text("trainer")
    args = _args(read.mapping("args"))
    run = _run(read, trainer, args, command)
    bucket = _bucket(read, cloud)
    data_paths = _data_paths(read)
    if not command:
        _check_paths(trainer, args, f"gs://{bucket}/", f"experiments/{experiment}/", data_paths)
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
        processes=read.integer("processes", 1, PROCESSES_LIMIT),
        command=command,
        source=read.text("source"),
        requirements=read.text("requirements"),
        quiet_sec=read.integer("quietSec", 1, LIMIT_WAIT_SEC),
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
        bucket=bucket,
        data_paths=data_paths,
        init=_init(read, command),
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

    def array(self, key: str) -> list[Any]:
        value = self._value(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, list):
            raise _bad(key, self._value(key), "must be a list")
        return value

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


def _command(read: _Reader) -> str:
    """The command as JSON, a text for the shell or a list of texts; empty where there is none."""
    text = read.text("command")
    if not text:
        if read.text("source"):
            raise SettingsError(
                f"{NAMESPACE}:source {read.text('source')!r}: is for a command's files; set"
                f" {NAMESPACE}:command too, or leave it out"
            )
        return ""
    command: Any = text
    if text.startswith("["):
        try:
            command = json.loads(text)
        except ValueError:
            command = None
        if not (command and isinstance(command, list) and all(isinstance(w, str) for w in command)):
            raise _bad(
                "command", text, 'a list must be JSON texts, such as ["python3", "train.py"]'
            )
    usual = {"trainer": declared()["trainer"]["default"], "processes": "1", "trainerPython": ""}
    instead = {
        "trainer": "a run has a trainer or a command",
        "processes": "a command starts its own, with torchrun for example",
        "trainerPython": "write the interpreter into the command",
    }
    for key, value in usual.items():
        if read.text(key) != value:
            raise SettingsError(
                f"{NAMESPACE}:{key} {read.text(key)!r} beside {NAMESPACE}:command: {instead[key]};"
                f" leave {NAMESPACE}:{key} out"
            )
    if read.mapping("args"):
        raise SettingsError(
            f"{NAMESPACE}:args beside {NAMESPACE}:command: are a trainer's; write the command's own"
            " into it"
        )
    if re.fullmatch("[0-9]+", read.text("checkpointEvery")):
        raise _bad(
            "checkpointEvery",
            read.text("checkpointEvery"),
            "a command makes no steps; must be auto, or seconds such as 60s, the least time"
            " between two checkpoints",
        )
    return json.dumps(command, ensure_ascii=True, separators=(",", ":"))


def _command_data(command: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """What `{data}` is in a command: all that it may read besides."""
    if "{data}" in command and not paths:
        raise _bad(
            "command",
            "{data}",
            f"the run has no data; set {NAMESPACE}:dataPaths to the data's gs:// paths",
            "without it",
        )
    return paths


def _source(folder: str) -> dict[str, bytes]:
    """The command's own files by name. Raises BundleError."""
    return bundles.source_files(_of_checkout("source", folder)) if folder else {}


def _requirements(read: _Reader) -> str:
    """The digest of the user's requirements; empty where there are none."""
    name = read.text("requirements")
    if not name:
        return ""
    if read.text("trainerPython"):
        raise SettingsError(
            f"{NAMESPACE}:requirements beside {NAMESPACE}:trainerPython: an environment is made of"
            " the one, the other names one that is there; leave one of them out"
        )
    return hashlib.sha256(_of_checkout("requirements", name).read_bytes()).hexdigest()


def _of_checkout(key: str, name: str) -> Path:
    """A file (`requirements`) or a folder (`source`) of the checkout."""
    path = (ROOT / name).resolve()
    kind, found = ("folder", path.is_dir()) if key == "source" else ("file", path.is_file())
    if not found or not path.is_relative_to(ROOT) or path == ROOT:
        raise _bad(key, name, f"must be a {kind} in the checkout", "or leave it empty")
    return path


def _run(read: _Reader, trainer: str, args: Mapping[str, metadata.Argument], command: str) -> str:
    """The run's name, checked by the trainer's own parser even where it is pinned."""
    if command:
        try:
            source = identity.files_digest(_source(read.text("source")))
        except bundles.BundleError as error:
            raise SettingsError(f"{NAMESPACE}:source {error}") from None
        spec = identity.Spec(
            trainer=trainer,
            arguments={"command": json.loads(command)},
            source=source,
            data=_command_data(command, _data_paths(read)),
            rerun=read.integer("rerun", 0),
            requirements=_requirements(read),
        )
        return _pinned(read) or identity.run_id(spec)
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
        pin = Pin.parse(_init(read, command)) if read.text("init") else None
        named = identity.run_id(
            identity.Spec(
                trainer=trainer,
                arguments=arguments,
                init=None if pin is None else {"path": pin.path, "blake3": pin.digest},
                source=identity.source_digest(ROOT / "trainers" / f"{trainer}.py"),
                seed=seed,
                rerun=read.integer("rerun", 0),
                requirements=_requirements(read),
            )
        )
    except identity.IdentityError as error:
        raise SettingsError(
            f"{NAMESPACE}:args of trainer {trainer}: {error}; run python -m trainers {trainer}"
            " --help for the rules"
        ) from None
    return _pinned(read) or named


def _pinned(read: _Reader) -> str:
    pinned = read.text("run")
    if pinned and not identity.RUN_PATTERN.fullmatch(pinned):
        raise _bad("run", pinned, "must be a run's ten digits, 0-9 and a-f", "or leave it empty")
    return pinned


def _bucket(read: _Reader, cloud: str) -> str:
    return _matching(
        "bucket",
        read.text("bucket") or f"{cloud}-outlast",
        _BUCKET,
        "must have 3 to 63 lower-case letters, digits, dashes, underscores and dots, the first"
        " and the last a letter or digit, no two dots in a row",
    )


def _data_paths(read: _Reader) -> tuple[str, ...]:
    paths = read.array("dataPaths")
    for path in paths:
        if not isinstance(path, str) or not _GS_PATH.fullmatch(path):
            raise _bad("dataPaths", path, "must be gs://BUCKET/PATH, an object or a folder")
    if len(paths) > DATA_PATHS_LIMIT:
        raise _bad(
            "dataPaths",
            f"{len(paths)} paths",
            f"at most {DATA_PATHS_LIMIT} are allowed, each is an IAM binding; name a folder above"
            " them",
        )
    return tuple(dict.fromkeys(paths))


def _init(read: _Reader, command: str) -> str:
    text = read.text("init")
    if not text:
        return ""
    if command:
        raise SettingsError(
            f"{NAMESPACE}:init beside {NAMESPACE}:command: is a trainer's; let the command read"
            " the other run's result"
        )
    try:
        pin = Pin.parse(text)
    except ValueError:
        pin = None
    if pin is None or not _GS_PATH.fullmatch(pin.path):
        raise _bad(
            "init",
            text,
            "must be a run's checkpoint in a bucket with its digest, as outlast checkpoints"
            " EXPERIMENT prints it",
            "or leave it empty",
        )
    return str(pin)


def _check_paths(
    trainer: str,
    args: Mapping[str, metadata.Argument],
    bucket: str,
    prefix: str,
    data_paths: Sequence[str],
) -> None:
    """Refuses paths in the trainer's flags that the VM could not read or write. `bucket` is
    `gs://…/`, `prefix` the experiment's below it."""
    dests = {
        option.removeprefix("--"): action.dest
        for action in trainers.load(trainer).parser()._actions
        for option in action.option_strings
    }
    for flag, value in args.items():
        if dests[flag] in ("data", "eval_data") and value != "":
            _check_data(flag, str(value), bucket, prefix, data_paths)
        elif dests[flag] == "model_output_path" and value != "":
            _check_output(flag, str(value), bucket + prefix)


def _check_data(flag: str, path: str, bucket: str, prefix: str, data_paths: Sequence[str]) -> None:
    if not path.startswith("gs://"):
        raise SettingsError(
            f"{NAMESPACE}:args {flag} {path!r}: a VM has no file of this machine; copy it to"
            f" {bucket}data/ (gcloud storage cp --recursive) and give its gs:// path, or leave it"
            " out"
        )
    if not _GS_PATH.fullmatch(path):
        raise _bad(f"args.{flag}", path, "must be gs://BUCKET/PATH, an object or a folder")
    folders = [f"{bucket}data/", bucket + prefix, *(f"{one.rstrip('/')}/" for one in data_paths)]
    if path not in data_paths and not any(f"{path}/".startswith(one) for one in folders):
        raise SettingsError(
            f"{NAMESPACE}:args {flag} {path!r}: the VM may not read it; add it, or a folder above"
            f" it, to {NAMESPACE}:dataPaths, or copy it to {bucket}data/"
        )


def _check_output(flag: str, path: str, own: str) -> None:
    first = path.removeprefix(own).partition("/")[0]
    taken = identity.RUN_PATTERN.fullmatch(first) or first == "bundles"
    if not _GS_PATH.fullmatch(path) or not path.startswith(own) or taken:
        raise SettingsError(
            f"{NAMESPACE}:args {flag} {path!r}: the VM writes only below {own}, and there not into"
            f" a run's folder or bundles/; give a path such as {own}models/first"
        )


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
