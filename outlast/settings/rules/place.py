"""Rules for a stack's project, bucket, foundation and labels."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from outlast.cloud import recipe as recipes
from outlast.settings.errors import NAMESPACE, SettingsError, bad
from outlast.settings.keys import Keys, declared, to_camel
from outlast.spec import foundation, network_rules, sweeps
from outlast.spec import labels as label_rules

LOCAL_PROJECT = "outlast-rehearsal"
"""The local cloud's project, so that the example stack never touches a real one."""
EXPERIMENT = "experiment"
"""The part with a run; the other parts are shared by several."""
SWEEP = "sweep"
_STACK = re.compile(r"(?:[-_.A-Za-z0-9]+/){0,2}[-_.A-Za-z0-9]+")
_LABEL_KEY = re.compile(r"[a-z][_a-z0-9-]{0,62}")
_LABEL_VALUE = re.compile(r"[_a-z0-9-]{0,63}")
_LABELS_LIMIT = 64 - len(label_rules.RESERVED)
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_OF_A_RUN = ("trainer", "args", "command", "source", "delivery", "init", "rerun", "run", "resume")
_OF_A_RUN += ("secret_env", "webhook_secret", "webhook_key_secret", "sweep", "budget_dollars")
"""Settings that a foundation must not have."""


def cloud_project(values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    project = str(values.get("gcp:project") or environ.get("GOOGLE_PROJECT", ""))
    if not project:
        raise SettingsError(
            "gcp:project: is not set; run pulumi config set gcp:project with your project's id"
        )
    if not re.fullmatch(recipes.PROJECT, project):
        raise SettingsError(
            f"gcp:project {project!r}: must be a project's id such as acme-research, which is"
            " neither its number nor its display name; set gcp:project (gcloud projects list shows"
            " the ids)"
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


def bucket_of(given: Keys, cloud: str) -> str:
    name = given.bucket or f"{cloud}-outlast"
    if rule := network_rules.bucket_rule(name):
        raise bad("bucket", name, rule)
    return name


def refuse_for_existing(given: Keys) -> None:
    """Refuses options for a bucket that is used as it is: they would have no effect."""
    for key, value in (
        ("softDeleteDays", given.soft_delete_days),
        ("versioning", given.versioning),
    ):
        if value and given.bucket_mode == "existing":
            raise SettingsError(
                f"{NAMESPACE}:{key} {json.dumps(value)!r} beside {NAMESPACE}:bucketMode existing:"
                " such a bucket is used as it is; leave it out, or set it on the bucket"
            )


def check_part(given: Keys) -> None:
    """Refuses settings that a foundation cannot have. A sweep has its trials' settings."""
    if given.part in (EXPERIMENT, SWEEP):
        return
    if given.foundation:
        raise SettingsError(
            f"{NAMESPACE}:foundation beside {NAMESPACE}:part foundation: a foundation cannot use"
            " another; leave out one of them"
        )
    for name in _OF_A_RUN:
        if not given.is_default(name):
            value = getattr(given, name)
            shown = value if isinstance(value, dict) else str(value)
            raise SettingsError(
                f"{NAMESPACE}:{to_camel(name)} {shown!r} beside {NAMESPACE}:part foundation: is a"
                " run's, and a foundation has none; leave it out here, and set it in the experiment"
            )


def check_trial(given: Keys, experiment: str, run: str, outputs: Mapping[str, Any]) -> None:
    """Refuses a sweep's foundation for other experiments than its trials, whose prefix its account
    can write to; a trial's name for others; and a trial that would be another run than it is named
    by. `outputs`: the foundation's; empty for none.
    """
    sweep = outputs.get("sweep", "")
    name, dashes, trial = experiment.partition(sweeps.TRIAL)
    if sweep and (name != sweep or not dashes):
        raise SettingsError(
            f"{NAMESPACE}:foundation {given.foundation!r}: is the sweep {sweep}, whose account"
            f" writes to its trials only; set {NAMESPACE}:foundation to another stack for"
            f" experiment {experiment}, or leave it out"
        )
    if sweep and trial != run:
        raise SettingsError(
            f"{NAMESPACE}:experiment {experiment!r}: is the trial of run {trial}, and the code and"
            f" settings are now those of run {run}; run outlast sweep up again"
        )
    if dashes and not sweep and given.part != SWEEP:
        raise bad("experiment", experiment, "two dashes in a row are for the trials of a sweep")


def foundation_name(values: Mapping[str, Any], organization: str, project: str) -> str:
    """The foundation as organization/project/stack; empty for none."""
    name = str(values.get(f"{NAMESPACE}:foundation", "")).strip()
    if not name:
        return ""
    if not _STACK.fullmatch(name):
        raise bad(
            "foundation", name, "must be a stack's name, or organization/project/stack", "to one"
        )
    return "/".join([organization, project][: 2 - name.count("/")] + [name])


def overlaid(
    given: Keys,
    values: Mapping[str, Any],
    outputs: Mapping[str, Any],
    cloud: str,
    region: str,
) -> dict[str, Any]:
    defaults = {key: entry["default"] for key, entry in declared().items()}
    try:
        return foundation.overlay(
            values, outputs, defaults, stack=given.foundation, project=cloud, region=region
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None


def labels_of(user: Mapping[str, Any]) -> dict[str, str]:
    if len(user) > _LABELS_LIMIT:
        raise bad("labels", f"{len(user)} labels", f"at most {_LABELS_LIMIT} are allowed")
    for key, value in user.items():
        if key in label_rules.RESERVED:
            raise SettingsError(
                f"{NAMESPACE}:labels {key}: is set by Outlast itself; choose another key"
            )
        if not _LABEL_KEY.fullmatch(key):
            raise bad(
                "labels",
                key,
                "a key has at most 63 lower-case letters, digits, dashes and underscores, the first"
                " a letter",
            )
        if not isinstance(value, str):
            raise bad(f"labels.{key}", value, "must be a text, in quotes")
        if not _LABEL_VALUE.fullmatch(value):
            raise bad(
                f"labels.{key}",
                value,
                "a value is a text of at most 63 lower-case letters, digits, dashes and"
                " underscores",
            )
    return dict(user)


def default_labels_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The labels that the provider gives every resource, `gcp:defaultLabels`. Raises SettingsError.

    They are repeated on the VMs and disks, where the provider does not add them itself.
    """
    given = values.get("gcp:defaultLabels") or "{}"
    try:
        found = json.loads(given) if isinstance(given, str) else given
        return {
            str(key): str(value) for key, value in found.items() if key not in label_rules.RESERVED
        }
    except (ValueError, AttributeError):
        raise SettingsError(
            f"gcp:defaultLabels {given!r}: must be an object; set it by its parts: pulumi config"
            " set --path gcp:defaultLabels.NAME VALUE"
        ) from None
