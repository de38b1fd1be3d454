"""Looks things up in the cloud before the program declares anything."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pulumi

from outlast.base.retry import BRIEF, ONCE
from outlast.cloud.compute import ComputeError, Json
from outlast.cloud.project import Project
from outlast.settings import allowances, networks
from outlast.settings.asked import Answer
from outlast.settings.errors import NAMESPACE, SettingsError, bad, first_line
from outlast.settings.schema import Settings
from outlast.spec import labels as label_rules

DAY_SEC = 86_400
TIMEOUT_SEC = 3.0
"""A preview must not wait for a bucket that does not answer."""
FORBIDDEN = 403
PROTECTION = ("softDeleteDays", "versioning")
"""Settings that protect a bucket's content. Outlast only strengthens them, because other stacks
share the bucket.
"""


@dataclass(frozen=True)
class FoundBucket:
    """The result of looking up the bucket."""

    location: str = ""
    """Its location, or the future one; empty if the API did not answer."""
    adopt: bool = False
    """Whether it exists and is ours."""
    leave: tuple[str, ...] = PROTECTION
    """Which settings of PROTECTION an existing bucket keeps unchanged."""


def look_up(settings: Settings) -> FoundBucket:
    """Looks up, in parallel, what `ask` asks, and where the bucket is. Raises SettingsError."""
    answers = ask(settings)
    found = find_bucket(settings)
    for answer in answers():
        if answer.refusal:
            raise SettingsError(answer.refusal)
        if answer.warning:
            pulumi.log.warn(answer.warning)
    return found


def ask(settings: Settings) -> Callable[[], list[Answer]]:
    """Asks, in parallel, whether network, account, code and secrets are available, and what the
    project's policies and quotas allow. The returned function waits for the answers. `outlast
    doctor` asks the same.
    """
    asked = [networks.ask(settings), allowances.ask(settings)]
    if settings.git or settings.secrets:
        from outlast.settings import sources

        asked.append(sources.ask(settings.git, settings.secrets))
    if settings.data_paths:
        from outlast.settings import data_sources

        asked.append(data_sources.ask(settings))
    return lambda: [answer for answers in asked for answer in answers()]


class Log(Protocol):
    """What hears of warnings and advice: the engine, or `outlast doctor`."""

    def warn(self, msg: str) -> None: ...

    def info(self, msg: str) -> None: ...


def find_bucket(
    settings: Settings, *, log: Log = pulumi.log, previews: bool | None = None
) -> FoundBucket:
    """Looks up the bucket: where it is, whether it is ours, and which of its settings stay.
    `previews`: whether nothing is created now; None: as the engine says.

    Raises SettingsError if a bucket of that name is not ours or, with bucketMode existing, if it
    does not exist or lacks uniform access. A bucket is ours if it is in this project and has our
    label. Without credentials or a network nothing is known: a preview only warns, because it
    needs no cloud. `up` asks again for a minute and is then refused, because an unknown bucket must
    not count as a missing one.
    """
    if previews is None:
        previews = pulumi.runtime.is_dry_run()
    patience = ONCE if previews else BRIEF
    try:
        found, of_project = patience(lambda: _bucket(settings), f"bucket {settings.bucket}")
    except ComputeError as error:
        why = f"bucket {settings.bucket}: cannot be looked up ({first_line(error)})"
        if not previews:
            raise SettingsError(
                f"{why}, so whether it exists and whose it is, is unknown; run pulumi up again when"
                " it answers, as an identity that may read it (docs/teams.md#who-outlast-is)"
            ) from None
        log.warn(f"{why}; whether open runs are protected is not checked")
        return FoundBucket()
    existing = settings.bucket_mode == "existing"
    if found is None:
        if existing:
            raise bad(
                "bucket",
                settings.bucket,
                "must exist with bucketMode existing",
                "to one that is",
            )
        return FoundBucket(settings.region)
    if existing:
        _check_existing(settings, found, of_project, log)
    else:
        _check_managed(settings, found, of_project)
    location = str(found.get("location") or "").lower()
    if location not in ("", settings.region):
        log.warn(
            f"bucket {settings.bucket}: is in {location}, the VMs in {settings.region}; everything "
            "that they read and write crosses regions, which is slower and billed"
        )
    leave = PROTECTION if existing else _stronger(settings, found, log)
    return FoundBucket(location, adopt=not existing, leave=leave)


def _bucket(settings: Settings) -> tuple[Json | None, bool | None]:
    """The bucket of that name, None if there is none; and whether the project has it, None if this
    account may not list the project's buckets. Raises ComputeError.
    """
    project = Project(settings.project, timeout_sec=TIMEOUT_SEC)
    of_project: bool | None = False
    try:
        if found := project.bucket(settings.bucket):
            return found, True
    except ComputeError as error:
        if error.status != FORBIDDEN:
            raise
        of_project = None
    return project.any_bucket(settings.bucket), of_project


def _check_existing(settings: Settings, found: Json, of_project: bool | None, log: Log) -> None:
    if not _is_on(found, "iamConfiguration", "uniformBucketLevelAccess"):
        raise SettingsError(
            f"outlast:bucket {settings.bucket!r}: has no uniform bucket-level access, so that a VM"
            " could not be limited to its own prefix; enable it on the bucket, or name another"
        )
    for what, why, remedy in _unusable(found):
        raise SettingsError(
            f"outlast:bucket {settings.bucket!r}: {what}, {why}; {remedy} (gcloud storage buckets"
            " update), or name another"
        )
    if kept := _billed_longer(found):
        log.warn(
            f"bucket {settings.bucket}: has {' and '.join(kept)}, so that every checkpoint that a"
            " run replaces or drops is billed for longer; gcloud storage buckets update turns it"
            " off"
        )
    if of_project is False:
        log.warn(
            f"bucket {settings.bucket}: is in another project than {settings.project}; its owners"
            " can read and change all code, checkpoints and packages in it"
        )


def _unusable(found: Json) -> Iterator[tuple[str, str, str]]:
    """What keeps a run from using a bucket: what it has, why that does not work, and what to do.

    HEAD is overwritten and checkpoints are deleted, which Cloud Storage refuses with 403 under a
    retention policy or a hold (pages "Bucket Lock" and "Object holds"); a bucket whose reader pays
    answers 400 to calls that name no project (page "Requester Pays"). Read in November 2026.
    """
    replaced = "and a run replaces and deletes objects"
    if period := _part(found, "retentionPolicy").get("retentionPeriod"):
        yield f"has a retention policy of {period} s", replaced, "remove it"
    if found.get("defaultEventBasedHold"):
        yield "puts an event-based hold on new objects", replaced, "turn that off"
    if _part(found, "billing").get("requesterPays"):
        yield "lets the requester pay", "and a VM's requests name no project", "turn that off"


def _billed_longer(found: Json) -> list[str]:
    """Features of a bucket that bill objects after they were replaced or deleted, or move them."""
    days = _soft_delete_days(found)
    features = {
        "object versions": _is_on(found, "versioning"),
        f"soft delete of {days:g} days": days > 0,
        "Autoclass": _is_on(found, "autoclass"),
    }
    return [what for what, on in features.items() if on]


def _check_managed(settings: Settings, found: Json, of_project: bool | None) -> None:
    """Bucket names are global and anyone can set labels: a stranger may have created this bucket.
    Code and packages in it run as root.
    """
    where = f"outlast:bucket {settings.bucket!r}"
    if of_project is None:
        raise SettingsError(
            f"{where}: exists, and this account may not list the buckets of project"
            f" {settings.project}, so it could be a stranger's; grant storage.buckets.list,"
            " or set outlast:bucketMode to existing if you trust its owner"
        )
    if not of_project:
        raise SettingsError(
            f"{where}: exists and is not in project {settings.project}; set outlast:bucket to"
            " another name, or outlast:bucketMode to existing if you trust its owner"
        )
    if _part(found, "labels").get("managed-by") != label_rules.MANAGED_BY:
        raise SettingsError(
            f"{where}: exists and has no label managed-by={label_rules.MANAGED_BY}; set"
            " outlast:bucket to another name, set outlast:bucketMode to existing to use it as it"
            " is, or label the bucket to let Outlast keep it"
        )


def _stronger(settings: Settings, found: Json, log: Log) -> tuple[str, ...]:
    """Which settings of PROTECTION are at least as strong in the bucket as in this stack."""
    days = _soft_delete_days(found)
    asked: Mapping[str, tuple[float, float, str]] = {
        "softDeleteDays": (days, settings.soft_delete_days, f"soft delete of {days:g} days"),
        "versioning": (_is_on(found, "versioning"), settings.versioning, "object versions"),
    }
    kept = [what for has, wanted, what in asked.values() if has > wanted]
    if kept:
        log.info(
            f"bucket {settings.bucket}: keeps its {' and '.join(kept)}, which this stack does not"
            " ask for; other stacks may rely on it. gcloud storage buckets update turns it off"
        )
    return tuple(key for key, (has, wanted, _) in asked.items() if has >= wanted)


def _part(found: Json, *names: str) -> Json:
    """An object within a bucket's JSON, empty if a name is missing."""
    for name in names:
        found = found.get(name) or {}
    return found


def _is_on(found: Json, *names: str) -> bool:
    return bool(_part(found, *names).get("enabled"))


def _soft_delete_days(found: Json) -> float:
    seconds = _part(found, "softDeletePolicy").get("retentionDurationSeconds")
    return int(seconds or 0) / DAY_SEC


def read_foundation(name: str) -> Mapping[str, Any]:
    """The outputs of the stack, read by reference. Raises SettingsError."""
    try:
        found = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": name}).value
    except Exception as error:
        why = first_line(error).rpartition("returned an error: ")[2]
        raise SettingsError(
            f"{NAMESPACE}:foundation {name!r}: cannot be read ({why}); bring that stack up first,"
            " in this backend"
        ) from None
    return found["outputs"]
