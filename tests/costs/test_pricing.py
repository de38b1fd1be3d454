"""Prices: of the list's own machines right to the cent, of what it does not have unknown."""

import pytest

from outlast.costs import pricing

DISK = {"diskSizeGb": 50, "diskType": "pd-balanced"}


def vm(machine: str, zone: str = "us-central1-a", model: str = "SPOT", **more) -> pricing.Sum:
    return pricing.vm(
        {"machineType": machine, "scheduling": {"provisioningModel": model}, **more}, zone
    )


@pytest.mark.parametrize(
    ("machine", "zone", "model", "hour"),
    [
        # As the source has them for the whole machine type.
        ("e2-standard-2", "us-central1-a", "STANDARD", 0.06701),
        ("e2-highmem-8", "europe-west4-b", "SPOT", 0.1657),
        ("n1-standard-8", "us-east1-b", "STANDARD", 0.38),
        ("n1-standard-96", "europe-west4-a", "SPOT", 2.00808),
        ("n2-highmem-48", "us-west1-a", "STANDARD", 3.14434),
        ("n2-standard-16", "europe-west1-b", "SPOT", 0.12237),
        ("a2-highgpu-1g", "us-central1-a", "STANDARD", 3.673385),
        ("g2-standard-12", "europe-west4-a", "SPOT", 0.21449 + 0.2438),
        ("t2d-standard-60", "us-central1-a", "SPOT", 0.48144),
        ("e2-medium", "us-central1-a", "STANDARD", 0.03350571),
        ("e2-micro", "asia-south1-a", "SPOT", 0.004023),
        ("e2-standard-8", "asia-east1-b", "STANDARD", 0.31036752),
        ("e2-highmem-8", "europe-west3-a", "SPOT", 0.157056),
        ("a2-highgpu-2g", "asia-northeast1-a", "SPOT", 2.54275),
        ("a2-highgpu-1g", "europe-west4-a", "SPOT", 1.44587),
        ("a2-ultragpu-8g", "us-central1-a", "STANDARD", 40.5504),
        ("g2-standard-24", "europe-west3-b", "STANDARD", 2.358054),
        ("g2-standard-32", "asia-southeast1-a", "SPOT", 0.81792),
        ("c3d-standard-8", "us-central1-a", "STANDARD", 0.363072),
        ("c4-standard-4", "us-central1-a", "STANDARD", 0.19767),
        ("n2-custom-8-16384", "us-central1-a", "STANDARD", 0.336528),
    ],
)
def test_a_machine_of_the_list_costs_what_its_source_says(machine, zone, model, hour):
    found = vm(machine, zone, model)
    assert found.unknown == ()
    assert found.hour == pytest.approx(hour, rel=2e-3)


def test_disks_addresses_and_gpus_are_added():
    plain = vm("n1-standard-8", model="STANDARD")
    whole = vm(
        "n1-standard-8",
        model="STANDARD",
        disks=[DISK, {"type": "SCRATCH"}],
        guestAccelerators=[{"type": "projects/p/zones/z/acceleratorTypes/nvidia-tesla-t4"}],
        networkInterfaces=[{"accessConfigs": [{}]}],
    )
    month = (50 * 0.1 + 375 * 0.08) / 730
    assert whole.hour - plain.hour == pytest.approx(month + 0.35 + 0.005)


@pytest.mark.parametrize(
    ("machine", "zone", "unknown"),
    [
        ("e2-standard-2", "africa-south1-a", "e2-standard-2 Spot"),  # a region without prices
        ("e2-highmem-2", "asia-east1-a", "e2-highmem-2 Spot"),  # standard ones known only
        ("n2-custom-8-131072-ext", "us-central1-a", "n2-custom-8-131072-ext Spot"),
        ("n9-standard-2", "us-central1-a", "n9-standard-2 Spot"),  # a family without
        ("n2-custom-8-16384", "us-central1-a", "n2-custom-8-16384 Spot"),
        ("n1-highmem-8", "us-central1-a", "n1-highmem-8 Spot"),  # Spot known of standard only
        ("a3-highgpu-8g", "asia-east1-c", "a3-highgpu-8g Spot"),
        ("what", "us-central1-a", "what Spot"),
    ],
)
def test_an_unknown_price_is_said_and_never_guessed(machine, zone, unknown):
    found = vm(machine, zone, disks=[DISK])
    assert unknown in found.unknown
    assert found.said().startswith("at least $") or found.said() == "unknown"


def test_a_sum_says_its_hours():
    found = pricing.Sum((pricing.Item("a", 2.0), pricing.Item("b", None)))
    assert (found.said(), found.said(24)) == ("at least $2.00", "at least $48.00")
    assert pricing.Sum((pricing.Item("b", None),)).said() == "unknown"


@pytest.mark.parametrize(
    ("amount", "text"), [(0.01234, "$0.0123"), (1.234, "$1.23"), (1234.5, "$1,234"), (0.0, "$0.00")]
)
def test_dollars_are_short(amount, text):
    assert pricing.dollars(amount) == text


def test_the_list_is_dated_and_names_its_sources():
    assert pricing.date() == "2026-11-28"
    assert {"machines", "disks", "network", "storage"} <= set(pricing.prices()["sources"])
    regions = set(pricing.prices()["regions"].values())
    for table in ("machines", "disks"):
        assert set(pricing.prices()[table]) == regions, table
    for table in ("gpus", "local_ssd", "of"):
        assert set(pricing.prices()[table]) <= regions | {"a2-highgpu"}, table


def test_an_older_price_says_so():
    (old, *_) = vm("g2-standard-8", "us-east4-a").items
    assert old.what == "g2-standard-8 Spot, price of March 2025"
    (new, *_) = vm("g2-standard-8", "us-east1-b").items
    assert new.what == "g2-standard-8 Spot"


@pytest.mark.parametrize(
    ("one", "other", "gib"),
    [
        ("us-central1", "northamerica-northeast1", 0.02),
        ("US", "us-east1", 0.02),
        ("europe-west1", "europe-west4", 0.02),
        ("us-east1", "europe-west4", 0.08),
        ("asia-east1", "australia-southeast1", 0.15),
        ("me-west1", "europe-west4", None),
        ("africa-south1", "africa-south1", None),
    ],
)
def test_what_crosses_regions_has_a_price_or_none(one, other, gib):
    assert pricing.transfer_gib(one, other) == gib
    assert pricing.transfer_gib(other, one) == gib


def test_every_region_with_machines_has_its_boot_disk():
    list_ = pricing.prices()
    for region in set(list_["regions"].values()):
        assert "pd-balanced" in list_["disks"][region], region
