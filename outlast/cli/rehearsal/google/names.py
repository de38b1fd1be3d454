"""What a rehearsal on Google is called, and the settings of its stack.

All names are fixed, so that a second call finds what a killed one left, from any machine. A project
has one such rehearsal at a time.
"""

import re
from typing import Any

from outlast.cli.errors import UsageError
from outlast.cli.rehearsal.settings import baseline_of
from outlast.spec.account import account_email

EXPERIMENT = "rehearsal-on-google"
"""The disturbed run's experiment; the baseline's is named after it."""
BASELINE = baseline_of(EXPERIMENT)
LABEL, VALUE = "outlast-rehearsal", "google"
"""The label of everything of it that can have labels."""
PROBE = "outlast-rehearsal-probe"
"""The name of a probe's VM and account, and the start of its other names."""
ROLE = "outlast_rehearsal_on_google"
"""The start of the custom roles' ids, which are derived from the experiment."""

MACHINE_TYPE = "e2-small"
"""The smallest machine type with the memory for numpy and a supervisor, 2 GiB."""
DISK_GB, DISK_TYPE = 10, "pd-balanced"
"""The smallest boot disk. That Google's Debian image fits it is the assumption `image-fits`."""
RUN_MINUTES = 60
"""The run limit of every VM: about four times what a rehearsal needs."""

ARGS = {"epochs": 100, "step-ms": 100}
"""Four minutes of training, which three faults stretch to a quarter of an hour."""
CHECKPOINT_EVERY = "10s"

_PROJECT = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
"""Source: projectId in the discovery document cloudresourcemanager v1 of 7 November 2026."""
_ZONE = re.compile(r"[a-z]+(?:-[a-z]+)+[0-9]+-[a-z]")


def check(project: str, zone: str) -> None:
    """Raises UsageError if one of them cannot be a name of Google's."""
    if not _PROJECT.fullmatch(project):
        raise UsageError(
            f"--project {project!r}: must be a project's id, 6 to 30 lower-case letters, digits and"
            " dashes; gcloud projects list shows it."
        )
    if not _ZONE.fullmatch(zone):
        raise UsageError(f"--zone {zone!r}: must be a zone, such as us-central1-a.")


def region_of(zone: str) -> str:
    """The zone's region."""
    return zone.rpartition("-")[0]


def bucket_of(project: str) -> str:
    """The rehearsal's bucket, which exists as long as anything else of it does."""
    return f"{project}-outlast-rehearsal"


def accounts_of(project: str) -> set[str]:
    """Addresses of the service accounts that a rehearsal creates."""
    experiments = {account_email(each, project) for each in (EXPERIMENT, BASELINE)}
    return {*experiments, f"{PROBE}@{project}.iam.gserviceaccount.com"}


def settings_of(project: str, zone: str, image: str, epochs: int | None) -> dict[str, Any]:
    """The stack's settings, by full key."""
    return {
        "gcp:project": project,
        "gcp:region": region_of(zone),
        "gcp:zone": zone,
        "outlast:experiment": EXPERIMENT,
        "outlast:trainer": "dummy",
        "outlast:args": {**ARGS, **({} if epochs is None else {"epochs": epochs})},
        "outlast:image": image,
        "outlast:machineType": MACHINE_TYPE,
        "outlast:bootDiskGb": DISK_GB,
        "outlast:bootDiskType": DISK_TYPE,
        "outlast:bucket": bucket_of(project),
        "outlast:maxRunMinutes": RUN_MINUTES,
        "outlast:checkpointEvery": CHECKPOINT_EVERY,
        "outlast:labels": {LABEL: VALUE},
    }
