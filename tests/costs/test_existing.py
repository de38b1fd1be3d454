"""What existing resources cost, from what the API says of them."""

import pytest

from outlast.costs import existing, pricing

ZONE = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"
DISK = {"type": f"{ZONE}/diskTypes/pd-balanced", "sizeGb": "100", "zone": ZONE}
VM = {
    "zone": ZONE,
    "machineType": f"{ZONE}/machineTypes/n1-standard-4",
    "scheduling": {"provisioningModel": "SPOT"},
    "disks": [{"source": "boot"}],
    "networkInterfaces": [{"accessConfigs": [{}]}],
    "guestAccelerators": [
        {"acceleratorType": f"{ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}
    ],
}


def test_a_vm_costs_its_machine_gpus_address_and_disks_and_stopped_only_its_disks() -> None:
    disk = existing.of("disk", DISK, {})
    assert disk.hour == pytest.approx(100 * 0.1 / pricing.HOURS_A_MONTH, rel=0.01)
    found = existing.of("VM", VM, {"boot": DISK})
    template = {
        **{"machineType": "n1-standard-4", "scheduling": {"provisioningModel": "SPOT"}},
        "disks": [{"diskType": "pd-balanced", "diskSizeGb": 100}],
        "networkInterfaces": [{"accessConfigs": [{}]}],
        "guestAccelerators": [{"type": "nvidia-tesla-t4", "count": 1}],
    }
    assert found.hour == pytest.approx(pricing.vm(template, "us-central1-a").hour)
    assert found.unknown == ()
    stopped = existing.of("VM", {**VM, "status": "TERMINATED"}, {"boot": DISK})
    assert stopped.hour == disk.hour
    assert existing.of("VM", VM, {}).unknown == ("disk",)


def test_what_is_free_has_no_items_and_what_has_no_price_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert existing.of("template", {}, {}).items == existing.of("router", {}, {}).items == ()
    assert existing.of("router", {"nats": [{}]}, {}).hour == pricing.nat(0).hour > 0
    assert existing.of("address", {}, {}).unknown == ("reserved address",)
    image = {"archiveSizeBytes": str(2**31), "storageLocations": ["us-central1"]}
    assert existing.of("image", image, {}).unknown == ("image of 2.0 GiB",)
    monkeypatch.setattr(pricing, "image_gib_month", lambda region: 0.05)
    hour = existing.of("image", image, {}).hour
    assert hour == pytest.approx(2 * 0.05 / pricing.HOURS_A_MONTH)
    assert existing.stored(2**30, "us-central1").hour * pricing.HOURS_A_MONTH == pytest.approx(0.02)
    assert existing.stored(2**30, "moon").unknown == ("1.00 GiB in a bucket",)
