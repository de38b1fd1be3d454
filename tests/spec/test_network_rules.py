"""The rules of network, health and foundation, without an engine."""

import pytest

from outlast.spec import foundation, network_rules
from outlast.spec.network_rules import NetworkRules

OPEN = {
    "network": "default",
    "subnetwork": "",
    "external_ip": True,
    "nat": False,
    "health": "off",
    "health_limit_sec": 0,
    "ssh": False,
}
ISOLATED = {"network": "isolated", "external_ip": False}


def reached(**changes) -> NetworkRules:
    return NetworkRules(**{**OPEN, **changes})


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({}, ["a"]),
        (ISOLATED, []),
        ({**ISOLATED, "nat": True}, ["a"]),
        ({"network": "corp", "external_ip": True}, ["a"]),
        ({"network": "corp", "subnetwork": "s", "external_ip": False}, []),
        ({"network": "corp", "external_ip": False, "nat": True}, ["a"]),
    ],
)
def test_accepted(changes, needs):
    assert network_rules.refusal(reached(**changes), needs) is None


@pytest.mark.parametrize(
    ("changes", "needs", "said"),
    [
        ({**ISOLATED, "subnetwork": "s"}, [], "subnetwork 's': an isolated network has its own"),
        ({**ISOLATED, "external_ip": True}, [], "externalIp true: an isolated network has no"),
        ({"nat": True}, [], "nat true: VMs with external addresses need none"),
        (ISOLATED, ["x is fetched"], "Google's APIs only, and x is fetched from the internet; set"),
        ({"network": "corp", "external_ip": False}, ["x"], "network 'corp': its VMs have no ext"),
    ],
)
def test_refused(changes, needs, said):
    assert said in (network_rules.refusal(reached(**changes), needs) or "")


@pytest.mark.parametrize(
    ("image", "stock"),
    [
        ("projects/debian-cloud/global/images/family/debian-13", True),
        ("debian-cloud/debian-13", True),
        ("https://www.googleapis.com/compute/v1/projects/ubuntu-os-cloud/global/images/u", True),
        ("projects/deeplearning-platform-release/global/images/family/common-cu129", True),
        ("projects/acme/global/images/family/outlast", False),
        ("outlast", False),
        ("family/outlast", False),
    ],
)
def test_stock_images(image, stock):
    assert network_rules.is_stock(image) is stock


def test_only_the_default_network_gives_addresses_unasked():
    asked = [
        (network, network_rules.has_address(network, ""))
        for network in ("default", "isolated", "x")
    ]
    assert asked == [("default", True), ("isolated", False), ("x", False)]
    assert network_rules.has_address("x", "true") and not network_rules.has_address(
        "default", "false"
    )


def test_a_vm_is_shown_before_its_supervisor_acts_and_replaced_only_after():
    stall_sec = 1800
    assert network_rules.health_limit_sec("observe", stall_sec) < stall_sec
    repaired = network_rules.health_limit_sec("repair", stall_sec)
    assert repaired == stall_sec + network_rules.REPAIR_MARGIN_SEC
    assert network_rules.health_refusal("repair", repaired, stall_sec) is None
    assert "must be at least 2400" in (
        network_rules.health_refusal("repair", 2399, stall_sec) or ""
    )
    assert network_rules.health_refusal("observe", 5, stall_sec) is None


# -- Foundation

OUTPUTS = {
    "part": "foundation",
    "project": "p",
    "region": "europe-west4",
    "bucket": "shared",
    "network": "projects/p/global/networks/n",
    "subnetwork": "projects/p/regions/europe-west4/subnetworks/s",
    "externalIp": False,
    "nat": True,
    "image": "",
    "leaveRole": "projects/p/roles/outlast_base",
}
DEFAULTS = {"network": "default", "nat": False, "bucketMode": "managed", "image": "stock"}


def overlaid(values=None, outputs=None, **changes):
    given = {"stack": "base", "project": "p", "region": "europe-west4", **changes}
    values = {"outlast:image": "stock", **(values or {})}
    return foundation.overlay(values, {**OUTPUTS, **(outputs or {})}, DEFAULTS, **given)


def test_an_experiment_reads_a_foundation_like_its_own_settings():
    assert overlaid({"outlast:args": "{}"}) == {
        "outlast:args": "{}",
        "outlast:image": "stock",
        "outlast:bucket": "shared",
        "outlast:bucketMode": "existing",
        "outlast:network": OUTPUTS["network"],
        "outlast:subnetwork": OUTPUTS["subnetwork"],
        "outlast:externalIp": "false",
        "outlast:nat": "true",
    }


def test_its_image_counts_where_the_experiment_names_none():
    image = {"image": "projects/p/global/images/family/f"}
    assert overlaid(outputs=image)["outlast:image"] == image["image"]
    assert overlaid({"outlast:image": "own"}, image)["outlast:image"] == "own"


@pytest.mark.parametrize(
    ("values", "changes", "said"),
    [
        ({"outlast:network": "isolated"}, {}, "outlast:network beside outlast:foundation"),
        ({"outlast:versioning": "true"}, {}, "outlast:versioning beside outlast:foundation"),
        ({}, {"outputs": {"part": "experiment"}}, "'base': declares no foundation"),
        ({}, {"project": "q"}, "is in project p, the experiment in q"),
        ({}, {"region": "us-east1"}, "its subnetwork is in europe-west4, the experiment's zone in"),
    ],
)
def test_what_cannot_stand_on_it(values, changes, said):
    with pytest.raises(ValueError, match=said):
        overlaid(values, **changes)


def test_without_a_subnetwork_it_serves_every_region():
    assert overlaid(outputs={"subnetwork": ""}, region="us-east1")["outlast:bucket"] == "shared"


def test_notes_are_kept_apart_by_project_and_stack():
    assert foundation.note("org/outlast/base", "dev") == "foundations/outlast-base/dev"
    assert foundation.notes("org/outlast/base") == "foundations/outlast-base/"
