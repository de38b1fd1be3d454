"""Checks, before anything is created, whether the project's organization policies and quotas allow
what a stack declares.

Google refuses each VM that they forbid, and its group tries again without an end. A policy is
looked up where the caller has `orgpolicy.policy.get` (`roles/orgpolicy.policyViewer`); one that
cannot be looked up is left to the group's own message, which `outlast status` shows.

Sources: method projects.getEffectiveOrgPolicy and "Organization policy constraints" (Resource
Manager documentation); quotas of a region and a project: Compute API, discovery document of
revision 20261106; which quota Spot VMs use: "Spot VMs" and "Allocation quotas" (Compute Engine
documentation). All read in November 2026.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from outlast.cloud import images
from outlast.cloud.compute import Compute, ComputeError
from outlast.cloud.refusals import (
    CLOUD_NAT,
    EXTERNAL_IP,
    GUEST_ATTRIBUTES,
    LOCATIONS,
    NO_ACCOUNTS,
    REMEDIES,
    RETENTION,
    SOFT_DELETE,
    TRUSTED_IMAGES,
)
from outlast.machines import machines
from outlast.machines.families import N1_GPUS
from outlast.settings.asked import ANSWER_SEC, Answer, Question, ask_all
from outlast.settings.schema import Settings

ENDPOINT = "https://cloudresourcemanager.googleapis.com/v1/"
ENDPOINT_VARIABLE = "GOOGLE_RESOURCE_MANAGER_CUSTOM_ENDPOINT"
DAY_SEC = 86_400

Policy = Mapping[str, Any]
"""An effective policy as the API gives it."""
Quotas = Mapping[str, float]
"""The limit of each metric."""


def ask(settings: Settings) -> Callable[[], list[Answer]]:
    """Asks about every constraint that concerns the stack, and about the quotas of its VMs. The
    returned function waits for the answers.
    """
    questions: list[Question] = [
        (f"constraints/{name}", partial(_policy, settings, name, broken))
        for name, broken in _constraints(settings)
    ]
    if settings.part == "experiment":
        questions.append((f"quotas of {settings.region}", partial(_quotas, settings)))
    return ask_all(questions)


# ---------------------------------------------------------------------------------------------
# Organization policies


def _constraints(settings: Settings) -> Iterator[tuple[str, Callable[[Policy], str]]]:
    """The constraints that concern the stack, each with what a policy forbids of it, in words."""
    rules, recipe = settings.network_rules, settings.recipe
    if settings.part == "experiment":
        if rules.external_ip:
            yield EXTERNAL_IP, _forbids_addresses
        if owner := images.named_project("" if recipe else settings.image):
            yield TRUSTED_IMAGES, partial(_forbids_images, owner)
        yield LOCATIONS, partial(_forbids_location, settings.region)
        if not settings.service_account:
            yield NO_ACCOUNTS, lambda policy: "new service accounts" if _enforced(policy) else ""
    if recipe:
        yield GUEST_ATTRIBUTES, lambda policy: "the builder's report" if _enforced(policy) else ""
    if rules.isolated and rules.nat:
        yield CLOUD_NAT, lambda policy: "Cloud NAT" if _denies_all(policy) else ""
    if settings.bucket_mode == "managed":
        yield SOFT_DELETE, partial(_forbids_soft_delete, settings.soft_delete_days)
        yield RETENTION, lambda policy: "a bucket without retention" if _allowed(policy) else ""


def _policy(settings: Settings, constraint: str, broken: Callable[[Policy], str]) -> Answer:
    """Whether an effective policy forbids what the stack declares."""
    endpoint = os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT
    body = {"constraint": f"constraints/{constraint}"}
    try:
        policy = Compute(settings.project, endpoint=endpoint).call(
            "POST", ":getEffectiveOrgPolicy", body, timeout_sec=ANSWER_SEC
        )
    except ComputeError:
        return Answer()
    what = broken(policy)
    if not what:
        return Answer()
    why = (
        f"project {settings.project}: its organization policy constraints/{constraint} forbids"
        f" {what}; {REMEDIES[constraint]}"
    )
    # A bucket or an account that exists already is not affected.
    return Answer(warning=why) if constraint in (RETENTION, NO_ACCOUNTS) else Answer(why)


def _enforced(policy: Policy) -> bool:
    return bool((policy.get("booleanPolicy") or {}).get("enforced"))


def _listed(policy: Policy) -> Mapping[str, Any]:
    return policy.get("listPolicy") or {}


def _denies_all(policy: Policy) -> bool:
    return _listed(policy).get("allValues") == "DENY"


def _allowed(policy: Policy) -> list[str]:
    """The values that a policy allows, without `is:`; empty if it limits none."""
    return [str(one).removeprefix("is:") for one in _listed(policy).get("allowedValues") or ()]


def _denied(policy: Policy) -> list[str]:
    return [str(one).removeprefix("is:") for one in _listed(policy).get("deniedValues") or ()]


def _forbids_addresses(policy: Policy) -> str:
    """A policy can only allow single VMs by name, and a group invents the names of its VMs."""
    return "external addresses" if _denies_all(policy) or _allowed(policy) else ""


def _forbids_images(owner: str, policy: Policy) -> str:
    """`under:` values need the project's ancestors, which are not looked up."""
    project, allowed = f"projects/{owner}", _allowed(policy)
    unknown = any(one.startswith("under:") for one in (*allowed, *_denied(policy)))
    if _denies_all(policy) or project in _denied(policy):
        return f"images of {project}"
    if allowed and project not in allowed and not unknown:
        return f"images of {project}"
    return ""


def _forbids_location(region: str, policy: Policy) -> str:
    """Values are regions, zones, or groups such as `in:eu-locations`; of the groups, only those of
    one region are known here.
    """
    allowed = [re.sub(r"^in:(.+)-locations$", r"\1", one) for one in _allowed(policy)]
    denied = [re.sub(r"^in:(.+)-locations$", r"\1", one) for one in _denied(policy)]
    if _denies_all(policy) or region in denied:
        return f"resources in {region}"
    known = all(re.fullmatch(r"[a-z]+-[a-z]+[0-9]+(-[a-z])?", one) for one in allowed)
    fits = any(one == region or one.startswith(f"{region}-") for one in allowed)
    return f"resources in {region}" if allowed and known and not fits else ""


def _forbids_soft_delete(days: int, policy: Policy) -> str:
    allowed = _allowed(policy)
    if allowed and str(days * DAY_SEC) not in allowed:
        return f"a bucket with a soft delete of {days} days"
    return ""


# ---------------------------------------------------------------------------------------------
# Quotas


_COMMON_CPUS = frozenset({"e2", "f1", "g1", "n1"})
_OWN_CPUS = frozenset({"a2", "c2", "c2d", "c3", "m3", "n2", "n2d", "t2a", "t2d"})
"""Families by the quota of their CPUs. Newer families have quotas that the Compute API does not
list.
"""


_OF_DISK = {
    "pd-standard": "DISKS_TOTAL_GB",
    "pd-balanced": "SSD_TOTAL_GB",
    "pd-ssd": "SSD_TOTAL_GB",
}
"""The quota of a boot disk by its type."""


@dataclass(frozen=True)
class Need:
    """What one VM takes of a quota."""

    metrics: tuple[str, ...]
    """The first of these that has a limit above 0 counts; otherwise the last that exists."""
    amount: float


def needs(settings: Settings, machine_type: str) -> list[Need]:
    """What one VM of this type needs in its region; only what is surely a quota's."""
    machine = machines.parse(machine_type)
    family = machine.family.partition("-")[0]
    spot = settings.spot
    found = []
    if machine.cpus and (family in _COMMON_CPUS or family in _OWN_CPUS):
        metric = "CPUS" if family in _COMMON_CPUS else f"{family.upper()}_CPUS"
        # A Spot VM takes the preemptible quota once the project has one, else the standard one.
        found.append(Need((*(("PREEMPTIBLE_CPUS",) * spot), metric), machine.cpus))
    rules = machine.rules
    gpu = N1_GPUS.get(settings.accelerator) or (rules.gpu if rules else None)
    count = settings.accelerator_count or machine.gpus
    if gpu and count:
        metric = f"{_model(gpu.name)}_GPUS"
        found.append(Need((*((f"PREEMPTIBLE_{metric}",) * spot), metric), count))
    return found


def _model(gpu: str) -> str:
    """`NVIDIA_T4` of `nvidia-tesla-t4`: the start of the quota's metric."""
    name = gpu.upper().replace("-TESLA-", "-").replace("-", "_")
    return name.replace("H100_80GB", "H100")


def shortage(wanted: Sequence[Need], quotas: Quotas) -> tuple[str, float, float] | None:
    """The first quota that can never hold one VM: its metric, its limit and what is needed."""
    for need in wanted:
        there = [metric for metric in need.metrics if metric in quotas]
        if not there:
            continue
        metric = next((one for one in there if quotas[one] > 0), there[-1])
        if quotas[metric] < need.amount:
            return metric, quotas[metric], need.amount
    return None


def _quotas(settings: Settings) -> Answer:
    """Whether the limits of region and project hold one VM of any of the stack's types."""
    compute = Compute(settings.project)
    try:
        region = _limits(compute.call("GET", f"regions/{settings.region}"))
        project = _limits(compute.call("GET", ""))
    except ComputeError:
        return Answer()
    short = []
    for name in (settings.machine_type, *settings.machine_types):
        wanted = needs(settings, name)
        gpus = [need.amount for need in wanted if need.metrics[-1].endswith("_GPUS")]
        over_all = [Need(("GPUS_ALL_REGIONS",), gpus[0])] if gpus else []
        found = shortage(wanted, region) or shortage(over_all, project)
        if found is None:
            return Answer()
        metric, limit, amount = found
        where = "" if metric == "GPUS_ALL_REGIONS" else f" in {settings.region}"
        short.append(f"{name} needs {amount:g} of quota {metric}{where}, whose limit is {limit:g}")
    return Answer(
        warning=f"outlast:machineType {settings.machine_type!r}: {', and '.join(short)}; no VM can"
        " be created until the limit is higher: ask for it on the page Quotas of the console, or"
        " choose another machine type or region"
    )


def shortages(
    settings: Settings, *, at_once: int, groups: int
) -> list[tuple[str, str, float, float]] | None:
    """The quotas that cannot hold so many VMs at once, and so many groups with a template each: for
    each its metric, where, its limit and what is needed. None if they cannot be read.
    """
    compute = Compute(settings.project)
    try:
        region = _limits(compute.call("GET", f"regions/{settings.region}"))
        project = _limits(compute.call("GET", ""))
    except ComputeError:
        return None
    vms = needs(settings, settings.machine_type)
    gpus = [need.amount for need in vms if need.metrics[-1].endswith("_GPUS")]
    address = [Need(("IN_USE_ADDRESSES",), 1)] if settings.network_rules.external_ip else []
    of_disk = _OF_DISK.get(settings.boot_disk_type)
    disk = [Need((of_disk,), settings.boot_disk_gb)] if of_disk else []
    managers = "INSTANCE_GROUP_MANAGERS" if settings.zone else "REGIONAL_INSTANCE_GROUP_MANAGERS"
    asked = [
        *((need, at_once, region) for need in (*vms, *address, *disk, Need(("INSTANCES",), 1))),
        *((Need(("GPUS_ALL_REGIONS",), gpu), at_once, project) for gpu in gpus[:1]),
        (Need((managers,), 1), groups, region),
        (Need(("INSTANCE_TEMPLATES",), 1), groups, project),
    ]
    found = []
    for need, times, quotas in asked:
        wanted = Need(need.metrics, need.amount * times)
        if short := shortage([wanted], quotas):
            metric, limit, amount = short
            where = "" if quotas is project else f" in {settings.region}"
            found.append((metric, where, limit, amount))
    return found


def _limits(answer: Mapping[str, Any]) -> Quotas:
    return {str(one["metric"]): float(one["limit"]) for one in answer.get("quotas") or ()}
