"""What a project must have before anything is created in it, and what Google's refusals mean."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from outlast.cli.errors import RehearsalError
from outlast.cli.rehearsal.google import names
from outlast.cloud import refusals
from outlast.cloud.compute import Compute, ComputeError
from outlast.cloud.project import Project

PERMISSIONS = (
    "compute.disks.create",
    "compute.instanceGroupManagers.create",
    "compute.instanceGroupManagers.delete",
    "compute.instanceTemplates.create",
    "compute.instanceTemplates.delete",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.getSerialPortOutput",
    "compute.instances.simulateMaintenanceEvent",
    "iam.roles.create",
    "iam.roles.delete",
    "iam.serviceAccounts.actAs",
    "iam.serviceAccounts.create",
    "iam.serviceAccounts.delete",
    "resourcemanager.projects.setIamPolicy",
    "storage.buckets.create",
    "storage.buckets.delete",
    "storage.buckets.setIamPolicy",
)
"""Permissions without which a rehearsal would stop halfway, or could not delete what it created.
`roles/owner` has them all."""

MOST_VMS = 3
"""VMs that exist at the same time."""
NEEDS = {
    "INSTANCES": MOST_VMS,
    "IN_USE_ADDRESSES": MOST_VMS,
    "SSD_TOTAL_GB": MOST_VMS * names.DISK_GB,
}
"""What each regional quota needs, but for CPUs. Source: the metrics of `Quota` in the discovery
document compute v1 of 6 November 2026; a balanced disk counts as SSD."""


@contextlib.contextmanager
def asking(project: str) -> Iterator[None]:
    """Turns a refusal of Google's into one sentence that says what to do."""
    try:
        yield
    except ComputeError as error:
        raise RehearsalError(meaning(project, error)) from None


def meaning(project: str, error: ComputeError) -> str:
    """A refusal and what to do about it, in one sentence.

    The texts are Google's own, as public reports quote them; what none of them matches is shown as
    it is.
    """
    said = str(error)
    low = said.lower()
    if error.status == 401:
        return (
            f"project {project}: the credentials are missing or have expired ({said}); run gcloud"
            " auth application-default login, then the same command again."
        )
    if "billing" in low:
        return (
            f"project {project}: has no active billing account ({said}); link one with gcloud"
            f" billing projects link {project} --billing-account ACCOUNT."
        )
    if refusals.is_disabled(said):
        return (
            f"project {project}: an API is disabled ({said}); enable it with gcloud services enable"
            " compute.googleapis.com iam.googleapis.com cloudresourcemanager.googleapis.com"
            f" storage.googleapis.com --project {project}, and wait a few minutes."
        )
    if "constraint" in low:
        return (
            f"project {project}: an organisation policy refuses it ({said}); rehearse in a project"
            " without that policy."
        )
    if "quota" in low:
        return f"project {project}: a quota is too small ({said}); ask for more, or name a --zone."
    if error.status == 404:
        return (
            f"project {project}: does not exist, or this account may not see it ({said}); gcloud"
            " projects list shows yours."
        )
    if error.status == 403:
        return (
            f"project {project}: this account may not do that ({said}); name a project of yours, in"
            " which you have roles/owner."
        )
    if error.status == 0:
        return f"project {project}: Google does not answer ({said}); try again."
    return f"project {project}: {said}."


def check(compute: Compute, project: Project, zone: str) -> None:
    """Checks permissions and quotas; creates nothing. Raises RehearsalError."""
    name = project.project
    with asking(name):
        found = compute.call("GET", "")
        held = project.permissions(PERMISSIONS)
        if compute.find("global/networks/default") is None:
            raise RehearsalError(
                f"project {name}: has no network default, which the rehearsal's VMs use; create it"
                f" with gcloud compute networks create default --project {name}."
            )
        kind = compute.find(f"zones/{zone}/machineTypes/{names.MACHINE_TYPE}")
        region = compute.find(f"regions/{names.region_of(zone)}")
        if kind is None or region is None:
            raise RehearsalError(
                f"--zone {zone}: does not exist or has no {names.MACHINE_TYPE}; gcloud compute"
                " zones list shows the zones."
            )
    missing = [one for one in PERMISSIONS if one not in held]
    if missing:
        raise RehearsalError(
            f"project {name}: this account lacks {', '.join(missing)}; name a project in which you"
            " have roles/owner."
        )
    cpus = MOST_VMS * int(kind["guestCpus"])
    short = [*_short(found, {}, cpus), *_short(region, NEEDS, cpus)]
    if short:
        raise RehearsalError(
            f"project {name}: {'; '.join(short)}; ask for more quota, or name another --zone."
        )


def _short(answer: Mapping[str, Any], needs: Mapping[str, int], cpus: int) -> Iterator[str]:
    """What each quota that is too small lacks, in words."""
    quotas = {str(one["metric"]): one for one in answer.get("quotas") or ()}
    # A region without a grant for preemptible CPUs takes Spot VMs from the standard quota
    # (docs/assumptions.md).
    granted = quotas.get("PREEMPTIBLE_CPUS", {}).get("limit")
    spot = "PREEMPTIBLE_CPUS" if granted else "CPUS"
    for metric, need in {**needs, spot: cpus, "CPUS_ALL_REGIONS": cpus}.items():
        quota = quotas.get(metric)
        if quota and quota["limit"] - quota.get("usage", 0) < need:
            yield (
                f"quota {metric} of {answer.get('name')}: {quota['limit']:g}, of which"
                f" {quota.get('usage', 0):g} are used, must leave {need}"
            )
