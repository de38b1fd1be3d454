"""What the program asks the cloud before it declares anything."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pulumi

from components import labels as label_rules
from outlast.settings.reader import NAMESPACE, SettingsError, bad, first_line
from outlast.settings.schema import Settings


@dataclass(frozen=True)
class FoundBucket:
    """What the look-up of the bucket found."""

    location: str = ""
    """Where it is, or will be; empty where nobody could be asked."""
    adopt: bool = False
    """Whether it is there and ours."""


def look_up(settings: Settings) -> FoundBucket:
    """What the program asks before it declares anything, side by side: whether the code and the
    secrets can be had, and where the bucket is. Raises SettingsError."""
    answers = lambda: []  # noqa: E731
    if settings.delivery.git or settings.secrets:
        from outlast.settings import sources

        answers = sources.ask(settings.delivery.git, settings.secrets)
    found = find_bucket(settings)
    for answer in answers():
        if answer.refusal:
            raise SettingsError(answer.refusal)
        if answer.warning:
            pulumi.log.warn(answer.warning)
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
        pulumi.log.info(f"bucket {settings.bucket}: cannot be looked up ({first_line(error)})")
        return FoundBucket()
    existing = settings.bucket_mode == "existing"
    if found is None:
        if existing:
            raise bad(
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


def read_foundation(name: str) -> Mapping[str, Any]:
    """The outputs of the stack, as a reference to it has them. Raises SettingsError."""
    try:
        found = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": name}).value
    except Exception as error:
        why = first_line(error).rpartition("returned an error: ")[2]
        raise SettingsError(
            f"{NAMESPACE}:foundation {name!r}: cannot be read ({why}); bring that stack up first,"
            " in this backend"
        ) from None
    return found["outputs"]
