"""What the preview says about a named network, subnetwork and service account."""

from typing import Any

import pytest

from outlast.cloud.compute import CannotAsk, Compute, Missing
from outlast.settings import networks
from tests.settings.test_settings import HERE, check

SHARED = "projects/host-project/global/networks/corp"
PLACED = "projects/host-project/regions/europe-west4/subnetworks/train"
NETWORK = "host-project global/networks/corp"
SUBNETWORK = "host-project regions/europe-west4/subnetworks/train"
OPEN = {"network": "https://x/global/networks/corp", "privateIpGoogleAccess": True}


def refused(monkeypatch: pytest.MonkeyPatch, cloud: dict[str, Any], **values: str) -> list[str]:
    """The sentences about settings in a cloud with these resources, by project and path."""

    def call(self: Compute, method: str, path: str, **_: Any) -> Any:
        answer = cloud.get(f"{self.project} {path}", Missing(404, "no such resource"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Compute, "call", call)
    settings = check({**HERE, **{f"outlast:{key}": value for key, value in values.items()}})
    answers = networks.ask(settings)()
    return [found.refusal or found.warning for found in answers if found != networks.Answer()]


def test_a_missing_default_network_is_refused_with_the_setting_that_helps(monkeypatch):
    (said,) = refused(monkeypatch, {})
    assert said == (
        "outlast:network 'default': project acme-research has no such network (an organization"
        " policy may forbid it); set outlast:network to isolated, or to an existing network"
    )
    default = {"acme-research global/networks/default": {"autoCreateSubnetworks": True}}
    assert refused(monkeypatch, default) == []


@pytest.mark.parametrize(
    ("cloud", "values", "words"),
    [
        ({}, {"network": "nosuchnet"}, ["'nosuchnet': project acme-research has no such network"]),
        ({NETWORK: {}}, {"network": SHARED}, ["set outlast:subnetwork to one in europe-west4"]),
        ({NETWORK: {}, SUBNETWORK: OPEN}, {"network": SHARED, "subnetwork": PLACED}, []),
        (
            {NETWORK: {}},
            {"network": SHARED, "subnetwork": "train"},
            [f"no such subnetwork in europe-west4; one of a shared VPC is named {PLACED}"],
        ),
        (
            {NETWORK: {}, SUBNETWORK: {**OPEN, "privateIpGoogleAccess": False}},
            {"network": SHARED, "subnetwork": PLACED},
            ["has no Private Google Access, so VMs without external addresses would not reach"],
        ),
        (
            {NETWORK: {}, SUBNETWORK: {**OPEN, "privateIpGoogleAccess": False}},
            {"network": SHARED, "subnetwork": PLACED, "nat": "true"},
            [],
        ),
        (
            {NETWORK: {}, SUBNETWORK: {**OPEN, "network": "https://x/global/networks/other"}},
            {"network": SHARED, "subnetwork": PLACED},
            ["is of network other, and outlast:network is"],
        ),
        (
            {NETWORK: {"autoCreateSubnetworks": True}},
            {"network": SHARED, "image": "projects/acme-research/global/images/own"},
            ["projects/host-project/regions/europe-west4/subnetworks/corp': project host-project"],
        ),
        (
            {NETWORK: CannotAsk(403, "403 no"), SUBNETWORK: CannotAsk(0, "no answer")},
            {"network": SHARED, "subnetwork": PLACED},
            ["not looked up (403 no); grant yourself compute.networks.get", "not looked up (no"],
        ),
        (
            {},
            {"network": SHARED, "subnetwork": PLACED.replace("west4", "west1")},
            ["no such network", "is in europe-west1, and the VMs in europe-west4"],
        ),
        ({}, {"network": "isolated", "ipRange": "10.9.0.0/24"}, []),
    ],
)
def test_what_is_looked_up(monkeypatch, cloud, values, words):
    own_image = {"image": "projects/acme-research/global/images/own"}
    found = refused(monkeypatch, cloud, **{**values, **own_image})
    assert len(found) == len(words), found
    assert all(part in said for part, said in zip(words, found, strict=True)), found


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"email": "vm@acme-research.iam.gserviceaccount.com"}, ""),
        ({"disabled": True}, "is disabled; enable it: gcloud iam service-accounts enable vm@"),
        (Missing(404, "none"), "does not exist; see gcloud iam service-accounts list"),
        (
            CannotAsk(403, "403 no"),
            "not looked up (403 no); grant yourself iam.serviceAccounts.get",
        ),
    ],
)
def test_an_existing_service_account_is_looked_up(monkeypatch, answer, words):
    email = "vm@acme-research.iam.gserviceaccount.com"
    cloud = {
        "acme-research global/networks/default": {"autoCreateSubnetworks": True},
        f"- serviceAccounts/{email}": answer,
    }
    said = refused(monkeypatch, cloud, serviceAccount=email)
    assert len(said) == bool(words) and all(words in one for one in said)
