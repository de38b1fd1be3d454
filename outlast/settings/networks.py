"""Looks up, before anything is created, the network, the subnetwork and the service account that a
stack's settings name: a VM of a missing one is never created, and its group keeps trying.

A check without an answer only warns: people with a shared VPC often may use a network that they may
not look up.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial

from outlast.cloud.compute import CannotAsk, Compute, ComputeError, Json
from outlast.settings.asked import Answer, Question, ask_all
from outlast.settings.schema import Settings
from outlast.spec import network_rules

IAM_ENDPOINT = "https://iam.googleapis.com/v1/"
IAM_ENDPOINT_VARIABLE = "GOOGLE_IAM_CUSTOM_ENDPOINT"
_LOCAL_IAM_VARIABLE = "GOOGLE_IAM_BETA_CUSTOM_ENDPOINT"


def ask(settings: Settings) -> Callable[[], list[Answer]]:
    """Asks for all of them at the same time; the returned function waits for the answers."""
    return ask_all(_questions(settings))


def _questions(settings: Settings) -> Iterator[Question]:
    rules = settings.network_rules
    # A foundation's network was looked up, or created, by the foundation.
    if not rules.isolated and not settings.foundation:
        yield f"outlast:network {rules.network!r}", partial(_network, settings)
        if rules.subnetwork:
            about = f"outlast:subnetwork {rules.subnetwork!r}"
            yield about, partial(_subnetwork, settings, rules.subnetwork)
    if settings.service_account:
        yield f"outlast:serviceAccount {settings.service_account!r}", partial(_account, settings)


def _network(settings: Settings) -> Answer:
    rules = settings.network_rules
    project, name = _place(settings, rules.network)
    about = f"outlast:network {rules.network!r}"
    try:
        found = Compute(project).find(f"global/networks/{name}")
    except ComputeError as error:
        return _unknown(about, error, "compute.networks.get")
    if found is None:
        why = f"{about}: project {project} has no such network"
        if name == network_rules.DEFAULT:
            why += " (an organization policy may forbid it)"
        return Answer(f"{why}; set outlast:network to isolated, or to an existing network")
    if rules.subnetwork:
        return Answer()
    if not found.get("autoCreateSubnetworks"):
        return Answer(
            f"{about}: has no subnetwork by itself in each region; set outlast:subnetwork to one"
            f" in {settings.region}: gcloud compute networks subnets list --project {project}"
            f" --network {name}"
        )
    if rules.external_ip:
        return Answer()
    own = f"projects/{project}/regions/{settings.region}/subnetworks/{name}"
    return _subnetwork(settings, own)


def _subnetwork(settings: Settings, path: str) -> Answer:
    rules = settings.network_rules
    project, name = _place(settings, path)
    about = f"outlast:subnetwork {path!r}"
    parts = path.split("/")
    region = parts[3] if len(parts) > 1 else settings.region
    if region != settings.region:
        return Answer(f"{about}: is in {region}, and the VMs in {settings.region}; set another")
    try:
        found = Compute(project).find(f"regions/{region}/subnetworks/{name}")
    except ComputeError as error:
        return _unknown(about, error, "compute.subnetworks.get")
    if found is None:
        host, _ = _place(settings, rules.network)
        full = f"projects/{host}/regions/{region}/subnetworks/{name}"
        hint = f"; one of a shared VPC is named {full}" if host != project else ""
        return Answer(
            f"{about}: project {project} has no such subnetwork in {region}{hint}; see gcloud"
            f" compute networks subnets list --project {host} --regions {region}"
        )
    return Answer(_unfit(settings, about, project, name, found))


def _unfit(settings: Settings, about: str, project: str, name: str, found: Json) -> str:
    """Why VMs cannot work in the subnetwork; empty if they can."""
    rules = settings.network_rules
    network = str(found.get("network") or "")
    if network and network.rpartition("/")[2] != _place(settings, rules.network)[1]:
        return (
            f"{about}: is of network {network.rpartition('/')[2]}, and outlast:network is"
            f" {rules.network!r}; set one of them to fit the other"
        )
    if not (rules.external_ip or rules.nat or found.get("privateIpGoogleAccess")):
        return (
            f"{about}: has no Private Google Access, so VMs without external addresses would not"
            " reach their bucket; enable it: gcloud compute networks subnets update"
            f" {name} --project {project} --region {settings.region}"
            " --enable-private-ip-google-access, or set outlast:nat to true if the network has"
            " a NAT"
        )
    return ""


def _account(settings: Settings) -> Answer:
    email = settings.service_account
    about = f"outlast:serviceAccount {email!r}"
    endpoint = os.environ.get(IAM_ENDPOINT_VARIABLE) or os.environ.get(_LOCAL_IAM_VARIABLE)
    try:
        api = Compute("-", endpoint=endpoint or IAM_ENDPOINT)
        found = api.find(f"serviceAccounts/{email}")
    except ComputeError as error:
        return _unknown(about, error, "iam.serviceAccounts.get")
    if found is None:
        return Answer(f"{about}: does not exist; see gcloud iam service-accounts list")
    if found.get("disabled"):
        return Answer(
            f"{about}: is disabled; enable it: gcloud iam service-accounts enable {email}"
        )
    return Answer()


def _place(settings: Settings, path: str) -> tuple[str, str]:
    """Project and name of a network or subnetwork; a bare name is in the stack's project."""
    name = path.rpartition("/")[2]
    return (path.split("/")[1] if path.startswith("projects/") else settings.project), name


def _unknown(about: str, error: ComputeError, permission: str) -> Answer:
    may_not = isinstance(error, CannotAsk) and error.status == 403
    hint = f"; grant yourself {permission} to have it looked up" if may_not else ""
    return Answer(warning=f"{about}: not looked up ({error}){hint}")
