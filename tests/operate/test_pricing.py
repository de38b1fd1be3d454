"""Prices: of the list's own machines right to the cent, of what it does not have unknown."""

import pytest

from outlast.operate import pricing

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
        ("e2-standard-2", "asia-east1-a", "e2-standard-2 Spot"),  # a region without prices
        ("n9-standard-2", "us-central1-a", "n9-standard-2 Spot"),  # a family without
        ("n2-custom-8-16384", "us-central1-a", "n2-custom-8-16384 Spot"),
        ("n1-highmem-8", "us-central1-a", "n1-highmem-8 Spot"),  # Spot known of standard only
        ("a2-highgpu-1g", "us-central1-a", "1 nvidia-tesla-a100"),
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
    for table in ("machines", "gpus", "disks", "local_ssd"):
        assert set(pricing.prices()[table]) == regions, table
