"""The stack's configuration, read once and checked; what the program then wires.

Keys, types and defaults are declared in Pulumi.yaml and nowhere else. `load` reads the engine's
values, `check` turns them into Settings and needs no engine. Every refusal is a SettingsError: one
sentence with the field, the value and the rule, then what to do; the engine prints it as it is.
"""

import argparse
import difflib
import functools
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
from components import foundation, metadata, reach
from components import labels as label_rules
from outlast.bucket.layout import EXPERIMENT_PATTERN, Layout, Pin
from outlast.cloud import recipe as recipes
from outlast.machines import machines, regions
from outlast.spec import bundle as bundles
from outlast.spec import delivery, identity
from outlast.supervisor.metadata import BadSpec, parse_checkpoint_every

ROOT = Path(__file__).resolve().parents[2]
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

_IMAGE_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_IMAGE = re.compile(
    # The forms that the provider resolves.
    rf"(?:https://(?:www|compute)\.googleapis\.com/compute/[a-z0-9]+/projects/{recipes.PROJECT}/"
    rf"|projects/{recipes.PROJECT}/)?global/images/(?:family/)?{_IMAGE_NAME}"
    rf"|(?:{recipes.PROJECT}/|family/)?{_IMAGE_NAME}"
)
_IMAGE_RULE = (
    "must name an image or an image family, such as"
    " projects/debian-cloud/global/images/family/debian-13"
)
_GS_PATH = re.compile(r"gs://[a-z0-9][-_.a-z0-9]*(?:/(?!\.{1,2}(?:/|$))[^/#'\\\\\s]+)+/?")
_NETWORK = re.compile(
    rf"(?:projects/{recipes.PROJECT}/global/networks/)?[a-z](?:[-a-z0-9]{{0,61}}[a-z0-9])?"
)
_SUBNETWORK = re.compile(
    rf"(?:projects/{recipes.PROJECT}/regions/[-a-z0-9]+/subnetworks/)?"
    r"(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)?"
)
_STACK = re.compile(r"(?:[-_.A-Za-z0-9]+/){0,2}[-_.A-Za-z0-9]+")
_FLAG = re.compile(r"[a-z][-a-z0-9]*")
_LABEL_KEY = re.compile(r"[a-z][_a-z0-9-]{0,62}")
_LABEL_VALUE = re.compile(r"[_a-z0-9-]{0,63}")
_LABELS_LIMIT = 64 - len(label_rules.RESERVED)
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

_OF_A_RUN = ("trainer", "args", "command", "source", "delivery", "init", "rerun", "run", "resume")
"""What a foundation has no use for."""

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
    """Empty where the group is regional."""
    zones: tuple[str, ...]
    """Of a regional group; empty: all of the region's."""
    owner: str
    """`organization/project/stack`: whose the run is."""
    experiment: str
    trainer: str
    args: Mapping[str, metadata.Argument]
    run: str
    content: Mapping[str, Any]
    """What the run's name is made of, unless `outlast:run` gives it another."""
    mutable: Mapping[str, str]
    """Flags that may change in the middle of the run, each with how."""
    resume: int
    on_new_run: str
    """`refuse` or `replace`: what becomes of an open run that another would replace."""
    checkpoint_every: str
    retries_failures: int
    keep_every_steps: int
    trainer_python: str
    processes: int
    command: str
    """JSON of a text or a list of texts; empty where a trainer trains."""
    source: str
    """Folder of the checkout with the command's or the trainer's own files; empty for none."""
    requirements: str
    """File or folder of the checkout, or of the repository; empty for none."""
    delivery: delivery.Delivery
    quiet_sec: int
    limit_run_minutes: int
    mode: str
    machine_type: str
    more_types: tuple[str, ...]
    """By rank after `machine_type`."""
    spot: bool
    restarts: bool
    """Whether the VM stops and boots again where its host is maintained."""
    accelerator: str
    accelerator_count: int
    gpus: int
    """GPUs that the VM must have, attached or of its own."""
    local_ssd: int
    min_cpu_platform: str
    image: str
    recipe: recipes.Recipe | None
    """What the image is baked from; None: it is there."""
    update: str
    """`opportunistic` or `now`: when a changed template reaches a living VM."""
    boot_disk_gb: int
    boot_disk_type: str
    bucket: str
    bucket_mode: str
    """`managed`, made or adopted by its label; or `existing`, somebody else's."""
    soft_delete_days: int
    versioning: bool
    part: str
    """`experiment`, or `foundation`: what several of them share, without a run."""
    foundation: str
    """`organization/project/stack` of the foundation; empty for none."""
    leave_role: str
    """The foundation's; empty where the stack declares its own."""
    reach: reach.Reach
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
    advice: tuple[str, ...]
    """Sentences on what could be better and is no error."""

    @property
    def location(self) -> str:
        """Where the group is; another one is another place."""
        return self.zone or ",".join(self.zones) or self.region

    @property
    def named(self) -> str:
        """The name that the run's content gives it."""
        return identity.name_of(self.content)

    @property
    def git(self) -> str:
        """What the VM is told of the commit that it fetches; empty for none."""
        return self.delivery.git.to_json() if self.delivery.git else ""

    @property
    def prefix(self) -> str:
        """Where the experiment lives in the bucket."""
        return f"experiments/{self.experiment}"

    @property
    def billed(self) -> str:
        """What is paid for beside the machine type, as the attempts' records have it."""
        return identity.canonical_json(
            {
                "spot": self.spot,
                "accelerator": self.accelerator,
                "accelerators": self.accelerator_count,
                "disk": self.boot_disk_type,
                "disk_gb": self.boot_disk_gb,
                "ssds": self.local_ssd,
                "address": self.reach.external_ip,
                "nat": self.reach.isolated and self.reach.nat,
            }
        )

    @property
    def tags(self) -> list[str]:
        """The VMs' network tags: one where a firewall rule is meant for them."""
        return [reach.tag(self.experiment)] if self.reach.tagged else []

    @property
    def health_port(self) -> int:
        """Where a VM is asked for its health; 0 where it is not."""
        return reach.HEALTH_PORT if self.reach.checked else 0

    @property
    def health(self) -> str:
        """As `outlast-health` has it; empty where nobody asks."""
        return f"{self.health_port} {self.reach.health_limit_sec}" if self.reach.checked else ""

    @property
    def foundation_note(self) -> str:
        """The object by which the foundation knows that this experiment stands on it."""
        return foundation.note(self.foundation, self.experiment)

    @property
    def reads(self) -> tuple[str, ...]:
        """What the VM must be allowed to read beside its bucket's `data/` and its own prefix."""
        init = Pin.parse(self.init).path if self.init else ""
        baked = tuple(one.url for one in self.recipe.data) if self.recipe else ()
        below = tuple(f"gs://{self.bucket}/{folder}/" for folder in (self.prefix, "data"))
        besides = [
            path
            for path in ((init,) if init else ()) + baked
            if path.startswith("gs://") and not path.startswith(below)
        ]
        return tuple(dict.fromkeys(self.data_paths + tuple(besides)))


@dataclass(frozen=True)
class Code:
    """The bundle of this checkout, and where it goes."""

    path: str
    object: str
    sha256: str


@dataclass(frozen=True)
class FoundBucket:
    """What the look-up of the bucket found."""

    location: str = ""
    """Where it is, or will be; empty where nobody could be asked."""
    adopt: bool = False
    """Whether it is there and ours."""


# ---------------------------------------------------------------------------------------------
# What the program calls


def load() -> Settings:
    """The running stack's settings. Raises SettingsError."""
    values = {**pulumi.runtime.config.get_config_env(), **pulumi.runtime.config.CONFIG.get()}
    organization, project = pulumi.get_organization(), pulumi.get_project()
    name = _foundation_name(values, organization, project)
    found = check(
        values,
        organization=organization,
        project=project,
        stack=pulumi.get_stack(),
        environ=os.environ,
        foundation_outputs=_read_foundation(name) if name else None,
    )
    for sentence in found.advice:
        pulumi.log.info(sentence)
    return found


def bundle(settings: Settings) -> Code:
    """Packs the checkout into `.outlast/bundles`. Raises SettingsError."""
    try:
        extra = {
            f"{bundles.SOURCE}/{name}": data for name, data in _source(settings.source).items()
        }
        if settings.delivery.git is None:
            extra |= _required(settings.requirements)
        packed = bundles.build(ROOT, ROOT / ".outlast" / "bundles", extra)
    except bundles.BundleError as error:
        raise SettingsError(str(error)) from None
    name = Layout(settings.prefix, settings.run).bundle(packed.sha256)
    return Code(str(packed.path), name, packed.sha256)


def baked(settings: Settings, code: Code) -> recipes.Baked:
    """The stack's recipe with its files. Raises SettingsError."""
    assert settings.recipe is not None
    try:
        return recipes.read(settings.recipe, ROOT, bundle_sha256=code.sha256)
    except recipes.RecipeError as error:
        raise SettingsError(str(error)) from None


def scripts() -> dict[str, str]:
    """The startup scripts by metadata key, byte for byte."""
    files = {
        "startup-script": "boot.sh",
        "outlast-sh-lib": "lib.sh",
        "outlast-sh-system": "system.sh",
        "outlast-sh-leave": "leave.sh",
        "outlast-sh-ssd": "ssd.sh",
    }
    return {key: (ROOT / "startup" / file).read_bytes().decode() for key, file in files.items()}


def look_up(settings: Settings) -> FoundBucket:
    """What the program asks before it declares anything, side by side: whether the code can be had,
    and where the bucket is. Raises SettingsError."""
    answer = None
    if settings.delivery.git:
        from outlast.settings import sources

        answer = sources.ask(settings.delivery.git)
    found = find_bucket(settings)
    if answer:
        told = answer()
        if told.refusal:
            raise SettingsError(told.refusal)
        if told.warning:
            pulumi.log.warn(told.warning)
    return found


def find_bucket(settings: Settings) -> FoundBucket:
    """Where the bucket is, and whether it is there with our label.

    Raises SettingsError for a bucket of that name without the label, and for an existing one that
    is not there or has no uniform access. Where nobody can be asked (no credentials, no network)
    nothing is known: a preview needs no cloud, and `up` would fail on the provider's own call,
    which says why.
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
        return FoundBucket()
    existing = settings.bucket_mode == "existing"
    if found is None:
        if existing:
            raise _bad(
                "bucket",
                settings.bucket,
                "with bucketMode existing must be there",
                "to one that is",
            )
        return FoundBucket(settings.region)
    if existing and not found.iam_configuration.uniform_bucket_level_access_enabled:
        raise SettingsError(
            f"outlast:bucket {settings.bucket!r}: has no uniform bucket-level access, so that a VM"
            " could not be limited to its own prefix; enable it on the bucket, or name another"
        )
    if not existing and found.labels.get("managed-by") != label_rules.MANAGED_BY:
        raise SettingsError(
            f"outlast:bucket {settings.bucket!r}: exists and has no label managed-by="
            f"{label_rules.MANAGED_BY}; set outlast:bucket to another name, set outlast:bucketMode"
            " to existing to use it as it is, or label the bucket to let Outlast keep it"
        )
    location = (found.location or "").lower()
    if location not in ("", settings.region):
        pulumi.log.warn(
            f"bucket {settings.bucket}: is in {location}, the VMs in {settings.region}; what they"
            " read and write crosses regions, which is slower and billed"
        )
    return FoundBucket(location, adopt=not existing)


def foundation_outputs(settings: Settings) -> dict[str, Any]:
    """A foundation's outputs that are known beforehand, for `components.foundation.overlay`."""
    chosen = settings.image != declared()["image"]["default"]
    image = settings.image if chosen else ""
    return {
        "part": settings.part,
        "owner": settings.owner,
        "project": settings.project,
        "region": settings.region,
        "externalIp": settings.reach.external_ip,
        "nat": settings.reach.nat,
        "image": settings.recipe.family_path if settings.recipe else image,
    }


def outputs(settings: Settings, code: Code) -> dict[str, Any]:
    """The stack's outputs that are known beforehand."""
    return {
        "experiment": settings.experiment,
        "project": settings.project,
        "owner": settings.owner,
        "run": settings.run,
        "resume": settings.resume,
        "prefix": settings.prefix,
        "runPath": f"{settings.prefix}/{settings.run}",
        "groupZone": settings.zone,
        "zones": list(settings.zones),
        "mode": settings.mode,
        "region": settings.region,
        "bundle": code.object,
        "bundleSha256": code.sha256,
    }


# ---------------------------------------------------------------------------------------------
# Checks


@functools.cache
def declared() -> Mapping[str, Mapping[str, Any]]:
    """The keys that Pulumi.yaml declares, with type, description and default."""
    return yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]


def check(
    values: Mapping[str, Any],
    *,
    organization: str,
    project: str,
    stack: str,
    environ: Mapping[str, str],
    foundation_outputs: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from the engine's `values` (full key to text), and the outputs of the stack that
    `outlast:foundation` names. Raises SettingsError."""
    read = _Reader(values, declared())
    read.refuse_unknown()

    cloud = _cloud_project(values, environ)
    location = _location(read, values)
    if foundation_outputs is not None:
        read = _Reader(
            _overlaid(read, values, foundation_outputs, cloud, location.region), declared()
        )
    choice, machine = _machine(read, regional=not location.zone)
    notice_sec = read.integer("noticeSec", 0, LIMIT_WAIT_SEC)
    if cloud != LOCAL_PROJECT and notice_sec not in (0, 120):
        raise _bad("noticeSec", notice_sec, "must be 120 or 0, the platform gives no other")

    experiment = _experiment(read.text("experiment"), stack)
    delivered = _delivery(read, cloud)
    command = _command(read)
    trainer = identity.COMMAND if command else read.text("trainer")
    args = _args(read.mapping("args"))
    is_own = not command and bool(delivered.git or read.text("source"))
    content = _content(read, trainer, args, command, delivered.git)
    bucket = _bucket(read, cloud)
    network = _reach(read, delivered.git)
    data_paths = _data_paths(read)
    if not command:
        dests = _dests(args if is_own else trainers.load(trainer).parser())
        _check_paths(dests, args, f"gs://{bucket}/", f"experiments/{experiment}/", data_paths)
    return Settings(
        project=cloud,
        region=location.region,
        zone=location.zone,
        zones=location.zones,
        owner=f"{organization}/{project}/{stack}",
        experiment=experiment,
        trainer=trainer,
        args=args,
        run=_pinned(read) or identity.name_of(content),
        content=content,
        mutable={} if command or is_own else trainers.mutable(trainer),
        resume=read.integer("resume", 0, RESUME_LIMIT),
        on_new_run=read.choice("onNewRun", "refuse", "replace"),
        checkpoint_every=_checkpoint_every(read.text("checkpointEvery")),
        retries_failures=read.integer("retriesFailures", 0),
        keep_every_steps=read.integer("keepEverySteps", 0),
        trainer_python=_interpreter(read.text("trainerPython")),
        processes=read.integer("processes", 1, PROCESSES_LIMIT),
        command=command,
        source=read.text("source"),
        requirements=read.text("requirements"),
        delivery=delivered,
        quiet_sec=read.integer("quietSec", 1, LIMIT_WAIT_SEC),
        limit_run_minutes=read.integer("limitRunMinutes", 1, LIMIT_RUN_MINUTES),
        mode=choice.mode,
        machine_type=choice.machine_type,
        more_types=choice.more_types,
        spot=machine.spot,
        restarts=machine.restarts,
        accelerator=choice.accelerator,
        accelerator_count=choice.accelerator_count,
        gpus=machine.gpus,
        local_ssd=choice.local_ssd,
        min_cpu_platform=choice.min_cpu_platform,
        recipe=_recipe(read, cloud, location, network),
        image=_matching("image", read.text("image"), _IMAGE, _IMAGE_RULE),
        update=read.choice("update", "opportunistic", "now"),
        boot_disk_gb=read.integer("bootDiskGb", 10, 65_536),
        boot_disk_type=choice.disk_type,
        bucket=bucket,
        bucket_mode=read.choice("bucketMode", "managed", "existing"),
        soft_delete_days=_soft_delete_days(read),
        versioning=_versioning(read),
        part=_part(read),
        foundation=_foundation_name(values, organization, project),
        leave_role=(foundation_outputs or {}).get("leaveRole", ""),
        reach=network,
        data_paths=data_paths,
        init=_init(read, command),
        labels=label_rules.of_stack(project, stack, experiment, _labels(read.mapping("labels"))),
        webhook=_webhook(read.text("webhook")),
        notice_sec=notice_sec,
        waits=_waits(read, notice_sec, spot=machine.spot),
        advice=(*machine.advice, *_slips(command)),
    )


def _recipe(
    read: "_Reader", project: str, location: regions.Location, network: reach.Reach
) -> recipes.Recipe | None:
    """What the stack's image is baked from; None for none."""
    given = read.mapping("imageRecipe")
    if not given:
        return None
    zone = location.zone or (*location.zones, "")[0]
    try:
        recipe = recipes.check(given, base=read.text("image"), project=project, zone=zone)
    except recipes.RecipeError as error:
        raise SettingsError(str(error)) from None
    why = recipes.network_refusal(
        recipe,
        project=project,
        region=location.region,
        network=network.network,
        subnetwork=network.subnetwork,
        internet=network.internet,
    )
    if why:
        raise SettingsError(why)
    try:
        regions.check_zone("imageRecipe.zone", recipe.zone, _unlisted(read))
        machines.check_builder(
            "imageRecipe.machineType", recipe.machine_type, recipes.DISK_TYPE, _unlisted(read)
        )
    except machines.MachineError as error:
        raise SettingsError(str(error)) from None
    _matching(
        "imageRecipe.base" if given.get("base") else "image", recipe.base, _IMAGE, _IMAGE_RULE
    )
    if read.text("delivery") == delivery.IMAGE and not recipe.trainers:
        raise SettingsError(
            f"{NAMESPACE}:delivery 'image' beside {NAMESPACE}:imageRecipe without trainers: the"
            " image that is baked would not hold the code; add trainers true to the recipe, or set"
            f" {NAMESPACE}:delivery bucket"
        )
    return recipe


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
        text = self._plain(key)
        if _holds(text, dict) or (_holds(text, list) and key != "command"):
            raise _bad(key, text, "must be a text")
        return text

    def integer(self, key: str, least: int, most: int | None = None) -> int:
        text = self._plain(key)
        rule = f"must be a whole number, {least} or more"
        if most is not None:
            rule = f"must be a whole number from {least} to {most}"
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise _bad(key, text, rule)
        if int(text) < least or (most is not None and int(text) > most):
            raise _bad(key, text, rule)
        return int(text)

    def boolean(self, key: str) -> bool:
        text = self._plain(key).lower()
        if text not in ("true", "false"):
            raise _bad(key, text, "must be true or false")
        return text == "true"

    def choice(self, key: str, *known: str) -> str:
        text = self._plain(key)
        if text not in known:
            rule = f"must be {machines.either([one for one in known if one])}"
            raise _bad(key, text, rule, "or leave it empty" if "" in known else "")
        return text

    def array(self, key: str) -> list[Any]:
        value = self._value(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, list):
            how = f"by its items: pulumi config set --path '{NAMESPACE}:{key}[0]' VALUE"
            raise _bad(key, self._value(key), "must be a list", how)
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._value(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, dict):
            how = f"by its parts: pulumi config set --path {NAMESPACE}:{key}.NAME VALUE"
            raise _bad(key, self._value(key), "must be an object", how)
        return value

    def _plain(self, key: str) -> str:
        return str(self._value(key)).strip()

    def _value(self, key: str) -> Any:
        if key not in self._values:
            raise SettingsError(
                f"{NAMESPACE}:{key}: has no value, though Pulumi.yaml declares a default; run the"
                " program from its checkout, by the pulumi or the outlast command"
            )
        return self._values[key]


def _holds(text: str, kind: type) -> bool:
    """Whether the engine has made the text of a list or of an object."""
    try:
        return text.startswith(("[", "{")) and isinstance(json.loads(text), kind)
    except ValueError:
        return False


def _cloud_project(values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    project = str(values.get("gcp:project") or environ.get("GOOGLE_PROJECT", ""))
    if not project:
        raise SettingsError(
            "gcp:project: is not set; run pulumi config set gcp:project with your project's id"
        )
    if not re.fullmatch(rf"{recipes.PROJECT}|[0-9]+", project):
        raise SettingsError(
            f"gcp:project {project!r}: must be a project's id such as acme-research, which is not"
            " its display name; set gcp:project (gcloud projects list shows the ids)"
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


def _slips(command: str) -> list[str]:
    """Sentences on words in braces that look like a mistyped field of the command."""
    if "{" not in command:
        return []
    from outlast.loop.command.runner import Command

    words = json.loads(command)
    made = Command(line=words) if isinstance(words, str) else Command(argv=tuple(words))
    return [f"{NAMESPACE}:{said}" for said in made.near_misses()]


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


def _delivery(read: _Reader, cloud: str) -> delivery.Delivery:
    texts = ["delivery", "gitUrl", "gitCommit", "gitPath", "gitRef", "gitSecret", "requirements"]
    try:
        return delivery.check(
            {key: read.text(key) for key in texts},
            read.array("gitHostKeys"),
            project=cloud,
            source=read.text("source"),
        )
    except delivery.DeliveryError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None


def _source(folder: str) -> dict[str, bytes]:
    """The command's or the trainer's own files by name. Raises BundleError."""
    return bundles.source_files(_of_checkout("source", folder)) if folder else {}


def _required(name: str) -> dict[str, bytes]:
    """What the user's packages are made of, by names in the bundle. Raises BundleError."""
    if not name:
        return {}
    place = _of_checkout("requirements", name)
    if place.is_file():
        if not bundles.may_leave(place, ROOT):
            raise bundles.BundleError(
                f"{name}: is a key, or a file that git ignores, and these leave no machine; name"
                " another"
            )
        return {bundles.USER_REQUIREMENTS: place.read_bytes()}
    files = bundles.source_files(place)
    if not {"pyproject.toml", "requirements.txt"} & files.keys():
        raise bundles.BundleError(
            f"{name}: holds neither pyproject.toml nor requirements.txt; set"
            f" {NAMESPACE}:requirements to a folder that does, or to a file"
        )
    return {f"{bundles.PACKAGE}/{file}": data for file, data in files.items()}


def _requirements(read: _Reader, git: delivery.Git | None) -> str:
    """The digest of the user's requirements, or their name in the commit; empty for none."""
    name = read.text("requirements")
    if not name:
        return ""
    if read.text("trainerPython"):
        raise SettingsError(
            f"{NAMESPACE}:requirements beside {NAMESPACE}:trainerPython: an environment is made of"
            " the one, the other names one that is there; leave one of them out"
        )
    if git is not None:
        return git.requirements
    try:
        return identity.files_digest(_required(name))
    except bundles.BundleError as error:
        raise SettingsError(f"{NAMESPACE}:requirements {error}") from None


def _of_checkout(key: str, name: str) -> Path:
    """A folder of the checkout, or (`requirements`) a file."""
    path = bundles.inside(ROOT, name)
    of_files = key == "requirements"
    if path is None or bundles.is_hidden(path, ROOT) or not (of_files or path.is_dir()):
        kind = "file or a folder" if of_files else "folder"
        rule = f"must be a {kind} in the checkout, and none that is hidden"
        raise _bad(key, name, rule, "or leave it empty")
    return path


def _content(
    read: _Reader,
    trainer: str,
    args: Mapping[str, metadata.Argument],
    command: str,
    git: delivery.Git | None,
) -> dict[str, Any]:
    """What names the run, checked by the trainer's own parser even where it is pinned. A trainer
    that is none of the checkout's is not run here: its flags count as they are written."""
    pin = Pin.parse(_init(read, command)) if read.text("init") else None
    init = None if pin is None else {"path": pin.path, "blake3": pin.digest}
    if command or git or read.text("source"):
        try:
            source = git.source if git else identity.files_digest(_source(read.text("source")))
        except bundles.BundleError as error:
            raise SettingsError(f"{NAMESPACE}:source {error}") from None
        spec = identity.Spec(
            trainer=trainer if command else _own_module(trainer),
            arguments={"command": json.loads(command)} if command else {"argv": _argv(args)},
            source=source,
            data=_command_data(command, _data_paths(read)) if command else (),
            init=init,
            rerun=read.integer("rerun", 0),
            requirements=_requirements(read, git),
        )
        return identity.content(spec)
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
        return identity.content(
            identity.Spec(
                trainer=trainer,
                arguments=arguments,
                init=init,
                source=identity.source_digest(ROOT / "trainers" / f"{trainer}.py"),
                seed=seed,
                rerun=read.integer("rerun", 0),
                requirements=_requirements(read, git),
            )
        )
    except identity.IdentityError as error:
        raise SettingsError(
            f"{NAMESPACE}:args of trainer {trainer}: {error}; run python -m trainers {trainer}"
            " --help for the rules"
        ) from None


def _own_module(name: str) -> str:
    try:
        return delivery.check_module(name)
    except delivery.DeliveryError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None


def _pinned(read: _Reader) -> str:
    pinned = read.text("run")
    if pinned and not identity.RUN_PATTERN.fullmatch(pinned):
        raise _bad("run", pinned, "must be a run's ten digits, 0-9 and a-f", "or leave it empty")
    return pinned


def _bucket(read: _Reader, cloud: str) -> str:
    name = read.text("bucket") or f"{cloud}-outlast"
    if rule := reach.bucket_rule(name):
        raise _bad("bucket", name, rule)
    return name


def _soft_delete_days(read: _Reader) -> int:
    days = read.integer("softDeleteDays", 0, 90)
    if days not in reach.SOFT_DELETE_DAYS:
        raise _bad("softDeleteDays", days, "must be 0, or 7 to 90 as the platform takes")
    if days:
        _refuse_of_managed(read, "softDeleteDays")
    return days


def _versioning(read: _Reader) -> bool:
    kept = read.boolean("versioning")
    if kept:
        _refuse_of_managed(read, "versioning")
    return kept


def _refuse_of_managed(read: _Reader, key: str) -> None:
    """An option of a bucket that is not changed would do nothing."""
    if read.text("bucketMode") == "existing":
        raise SettingsError(
            f"{NAMESPACE}:{key} {read.text(key)!r} beside {NAMESPACE}:bucketMode existing: somebody"
            " else's bucket is used as it is; leave it out, or set it on the bucket"
        )


def _part(read: _Reader) -> str:
    part = read.choice("part", "experiment", "foundation")
    if part == "foundation" and read.text("foundation"):
        raise SettingsError(
            f"{NAMESPACE}:foundation beside {NAMESPACE}:part foundation: a foundation stands on no"
            " other; leave one of them out"
        )
    if part == "foundation":
        known = declared()
        for key in _OF_A_RUN:
            default = known[key]["default"]
            given = read.text(key) if isinstance(default, str | int) else read.mapping(key)
            if given != (str(default) if isinstance(default, int) else default):
                raise SettingsError(
                    f"{NAMESPACE}:{key} {given!r} beside {NAMESPACE}:part foundation: is a run's,"
                    " and a foundation has none; leave it out here, and set it in the experiment"
                )
    return part


def _foundation_name(values: Mapping[str, Any], organization: str, project: str) -> str:
    """The foundation as the engine names a stack; empty for none."""
    name = str(values.get(f"{NAMESPACE}:foundation", "")).strip()
    if not name:
        return ""
    if not _STACK.fullmatch(name):
        raise _bad(
            "foundation", name, "must be a stack's name, or organization/project/stack", "to one"
        )
    return "/".join([organization, project][: 2 - name.count("/")] + [name])


def _read_foundation(name: str) -> Mapping[str, Any]:
    """The outputs of the stack, as a reference to it has them. Raises SettingsError."""
    try:
        found = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": name}).value
    except Exception as error:
        why = _first_line(error).rpartition("returned an error: ")[2]
        raise SettingsError(
            f"{NAMESPACE}:foundation {name!r}: cannot be read ({why}); bring that stack up first,"
            " in this backend"
        ) from None
    return found["outputs"]


def _overlaid(
    read: _Reader,
    values: Mapping[str, Any],
    outputs: Mapping[str, Any],
    cloud: str,
    region: str,
) -> dict[str, Any]:
    defaults = {key: entry["default"] for key, entry in declared().items()}
    try:
        return foundation.overlay(
            values, outputs, defaults, stack=read.text("foundation"), project=cloud, region=region
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _reach(read: _Reader, git: delivery.Git | None) -> reach.Reach:
    """The network and who may come in. Raises SettingsError for what cannot be."""
    network = _matching(
        "network",
        read.text("network"),
        _NETWORK,
        "must be default, isolated or the name of an existing network",
    )
    stall_sec = read.integer("limitStallMinutes", 1, LIMIT_RUN_MINUTES) * 60
    health = read.choice("health", *reach.HEALTH_MODES)
    asked_sec = read.integer("healthLimitSec", 0, LIMIT_WAIT_SEC)
    if asked_sec and health == reach.OFF:
        raise SettingsError(
            f"{NAMESPACE}:healthLimitSec {asked_sec} beside {NAMESPACE}:health off: nobody asks for"
            f" the VM's health; leave it out, or set {NAMESPACE}:health to observe or repair"
        )
    found = reach.Reach(
        network=network,
        subnetwork=_matching(
            "subnetwork",
            read.text("subnetwork"),
            _SUBNETWORK,
            "must be the name of a subnetwork in the zone's region",
        ),
        external_ip=reach.has_address(network, _yes_no("externalIp", read)),
        nat=read.boolean("nat"),
        health=health,
        health_limit_sec=asked_sec or reach.health_limit_sec(health, stall_sec),
        ssh=read.choice("ssh", *reach.SSH_MODES) != "",
    )
    why = reach.refusal(found, _needs_internet(read, git))
    if why and (base := read.text("foundation")):
        why += f"; the network is set in stack {base}"
    why = why or reach.health_refusal(health, found.health_limit_sec, stall_sec)
    if why:
        raise SettingsError(f"{NAMESPACE}:{why}")
    return found


def _yes_no(key: str, read: _Reader) -> str:
    """`true`, `false` or empty."""
    text = read.text(key).lower()
    if text not in ("true", "false", ""):
        raise _bad(key, text, "must be true or false", "or leave it empty")
    return text


def _needs_internet(read: _Reader, git: delivery.Git | None) -> list[str]:
    """What a boot fetches from elsewhere than Google's APIs, in words."""
    if read.text("part") == "foundation":
        return []
    needs = []
    if git is not None:
        needs.append(f"the trainer is fetched from {git.url}")
    if reach.is_stock(read.text("image")) and not read.mapping("imageRecipe"):
        needs.append(f"a VM of the stock image {read.text('image')} installs its packages")
    if read.text("delivery") == delivery.GIT:
        needs.append(f"a VM fetches the code from {read.text('gitUrl').rpartition('@')[2]}")
    packages = git.requirements if git is not None else read.text("requirements")
    if packages:
        needs.append(f"what {packages} names is installed")
    return needs


def _data_paths(read: _Reader) -> tuple[str, ...]:
    paths = read.array("dataPaths")
    for path in paths:
        if not isinstance(path, str) or not _GS_PATH.fullmatch(path):
            raise _bad("dataPaths", path, "must be gs://BUCKET/PATH, an object or a folder")
        if "*" in path:
            raise _bad(
                "dataPaths",
                path,
                "takes no wildcards, a folder means all that is below it",
                "to the folder",
            )
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


def _dests(flags: argparse.ArgumentParser | Mapping[str, Any]) -> dict[str, str]:
    """What each flag sets, as its parser says, or as its name does where nobody can be asked."""
    if not isinstance(flags, argparse.ArgumentParser):
        return {flag: flag.replace("-", "_") for flag in flags}
    return {
        option.removeprefix("--"): action.dest
        for action in flags._actions
        for option in action.option_strings
    }


def _check_paths(
    dests: Mapping[str, str],
    args: Mapping[str, metadata.Argument],
    bucket: str,
    prefix: str,
    data_paths: Sequence[str],
) -> None:
    """Refuses paths in the trainer's flags that the VM could not read or write. `bucket` is
    `gs://…/`, `prefix` the experiment's below it."""
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
    taken = identity.RUN_PATTERN.fullmatch(first) or first in ("bundles", "environments")
    if not _GS_PATH.fullmatch(path) or not path.startswith(own) or taken:
        raise SettingsError(
            f"{NAMESPACE}:args {flag} {path!r}: the VM writes only below {own}, and there not into"
            f" a run's folder, bundles/ or environments/; give a path such as {own}models/first"
        )


def _argv(args: Mapping[str, metadata.Argument]) -> list[str]:
    """As `outlast.supervisor.metadata.Spec.argv` makes it of the metadata, which is all text:
    `"true"` and `"false"` are a switch there, however they were written here."""
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
        if not isinstance(value, str):
            raise _bad(f"labels.{key}", value, "must be a text, in quotes")
        if not _LABEL_VALUE.fullmatch(value):
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
        raise _bad(
            "webhook", _without_password(url), "must be an https address", "or leave it empty"
        )
    if "@" in urlsplit(url).netloc:
        raise _bad(
            "webhook",
            _without_password(url),
            "must hold no user or password, they would be read in the stack's state and in the VM's"
            " metadata",
            "to an address that needs none",
        )
    return url


def _without_password(url: str) -> str:
    return re.sub(r"//[^/?#]*@", "//…@", url)


def _waits(read: _Reader, notice_sec: int, *, spot: bool) -> str:
    return identity.canonical_json(
        {
            "beat": read.integer("waitBeatSec", 1, LIMIT_WAIT_SEC),
            "verdict": read.integer("waitVerdictSec", 0, LIMIT_WAIT_SEC),
            "backoff": read.integer("waitBackoffSec", 1, LIMIT_WAIT_SEC),
            "iam": read.integer("waitIamSec", 0, LIMIT_WAIT_SEC),
            "silent": read.integer("waitSilentSec", 1, LIMIT_WAIT_SEC),
            "notice": notice_sec,
            "stop": read.integer("stopSec", 0, LIMIT_WAIT_SEC) or machines.stop_sec(spot=spot),
            "stall": read.integer("limitStallMinutes", 1, LIMIT_RUN_MINUTES) * 60,
            "driver": read.integer("waitDriverSec", 0, LIMIT_WAIT_SEC),
            "store": read.integer("waitStoreSec", 1, LIMIT_WAIT_SEC),
            "keep": _keep_minutes(read) * 60,
        }
    )


def _keep_minutes(read: _Reader) -> int:
    """How long the VM stays after the run's end."""
    minutes = read.integer("keepMinutes", 1, LIMIT_RUN_MINUTES)
    if read.choice("onEnd", "delete", "keep") != "keep":
        return 0
    limit = read.integer("limitRunMinutes", 1, LIMIT_RUN_MINUTES)
    if minutes >= limit:
        raise _bad(
            "keepMinutes",
            minutes,
            f"is not below {NAMESPACE}:limitRunMinutes {limit}, and no VM outlives the run's limit",
            "lower, or outlast:limitRunMinutes higher",
        )
    return minutes


def _location(read: _Reader, values: Mapping[str, Any]) -> regions.Location:
    """Zonal or regional."""
    region, zone = (str(values.get(f"gcp:{key}", "")) for key in ("region", "zone"))
    try:
        regions.check_engine(region, zone, _unlisted(read))
        return regions.locate(
            read.text("zone"),
            read.text("region"),
            [str(one) for one in read.array("zones")],
            default=zone,
            unlisted=_unlisted(read),
        )
    except machines.MachineError as error:
        raise SettingsError(str(error)) from None


def _unlisted(read: _Reader) -> tuple[str, ...]:
    """Regions, zones and machine types that are newer than Outlast's lists."""
    rule = "must be a region, a zone or a machine type, such as europe-west4"
    return tuple(
        _matching("unlisted", str(one), recipes.MACHINE, rule) for one in read.array("unlisted")
    )


def _machine(read: _Reader, *, regional: bool) -> tuple[machines.Choice, machines.Checked]:
    """What is asked for, and what follows from it."""
    rule = "must be a machine type's bare name such as e2-standard-2"
    more = [str(one) for one in read.array("machineTypes")]
    choice = machines.Choice(
        mode=read.text("mode"),
        provisioning=read.text("provisioning"),
        machine_type=_matching("machineType", read.text("machineType"), recipes.MACHINE, rule),
        more_types=tuple(_matching("machineTypes", one, recipes.MACHINE, rule) for one in more),
        accelerator=read.text("accelerator"),
        accelerator_count=read.integer("acceleratorCount", 0, machines.MOST_GPUS),
        local_ssd=read.integer("localSsd", 0, machines.MOST_SSDS),
        min_cpu_platform=read.text("minCpuPlatform"),
        disk_type=_matching(
            "bootDiskType",
            read.text("bootDiskType"),
            recipes.MACHINE,
            "must be a disk type's bare name such as pd-balanced",
        ),
        regional=regional,
        retries_failures=read.integer("retriesFailures", 0),
        image=read.text("image"),
        unlisted=_unlisted(read),
    )
    try:
        return choice, machines.check(choice)
    except machines.MachineError as error:
        raise SettingsError(str(error)) from None


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
