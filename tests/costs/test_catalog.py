"""A price list from the Cloud Billing Catalog: what its SKUs say, and nothing that they do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from outlast.costs import catalog, pricing

DAY = "2026-12-24"
MONTH = 730


def sku(
    description: str,
    dollars: float,
    *regions: str,
    unit: str = "h",
    spot: bool = False,
    **price: Any,
) -> dict[str, Any]:
    """A SKU as the catalog has it (reference of the Cloud Billing API, services.skus.list)."""
    nanos = round(dollars * 1e9)
    amount = {
        "currencyCode": "USD",
        "units": str(nanos // 10**9),
        "nanos": nanos % 10**9,
        **price,
    }
    return {
        "name": f"services/{catalog.COMPUTE}/skus/0000-0000-0000",
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "usageType": "Preemptible" if spot else "OnDemand",
        },
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "pricingExpression": {
                    "usageUnit": unit,
                    "tieredRates": [{"startUsageAmount": 0, "unitPrice": amount}],
                }
            }
        ],
    }


def machine(kind: str, cpu: float, gib: float, *regions: str, spot: bool = False) -> list[Any]:
    before = "Spot Preemptible " if spot else ""
    return [
        sku(f"{before}{kind} Instance Core running in Belgium", cpu, *regions, spot=spot),
        sku(
            f"{before}{kind} Instance Ram running in Belgium",
            gib,
            *regions,
            unit="GiBy.h",
            spot=spot,
        ),
    ]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Keeps a list of these SKUs, as a refresh does."""
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path))
    pricing.prices.cache_clear()

    def keep(*skus: Any, day: str = DAY) -> catalog.Refreshed:
        found = catalog.refreshed(skus, pricing.built_in(), day)
        pricing.keep(found.table)
        return found

    yield keep
    monkeypatch.undo()
    pricing.prices.cache_clear()


def vm(machine_type: str, zone: str, *, spot: bool = True, **more: Any) -> pricing.Sum:
    model = "SPOT" if spot else "STANDARD"
    inputs = {"machineType": machine_type, "scheduling": {"provisioningModel": model}, **more}
    return pricing.vm(inputs, zone)


def test_machines_gpus_disks_and_ssds_have_the_catalogs_prices(use):
    month = "GiBy.mo"
    spot_gpu = "Nvidia L4 GPU attached to Spot Preemptible VMs running in Belgium"
    spot_ssd = "SSD backed Local Storage attached to Spot Preemptible VMs in Belgium"
    found = use(
        *machine("N2", 0.01, 0.002, "europe-west1", spot=True),
        *machine("G2", 0.03, 0.004, "europe-west1", spot=True),
        *machine("N2 Custom", 0.05, 0.006, "europe-west1"),
        sku("Compute optimized Core running in Belgium", 0.07, "europe-west1"),
        sku("Compute optimized Ram running in Belgium", 0.008, "europe-west1", unit="GiBy.h"),
        sku(spot_gpu, 0.25, "europe-west1", spot=True),
        sku("Balanced PD Capacity in Belgium", 0.2, "europe-west1", unit=month),
        sku(spot_ssd, 0.05, "europe-west1", unit=month, spot=True),
        sku("Storage Image", 0.05, "europe-west1", unit=month),
    )
    assert (found.prices, found.regions, found.ambiguous) == (12, 1, 0)
    zone = "europe-west1-b"
    n2 = vm(
        "n2-standard-4",
        zone,
        disks=[{"diskSizeGb": 73, "diskType": "pd-balanced"}, {"type": "SCRATCH"}],
    )
    # 4 x 0.01 + 16 x 0.002 = 0.072; 73 x 0.2 / 730 = 0.02; 375 x 0.05 / 730 = 0.0256849.
    assert n2.hour == pytest.approx(0.072 + 0.02 + 0.0256849, rel=1e-5) and n2.unknown == ()
    # The list's g2-standard, of one middle word, is older: 4 x 0.03 + 16 x 0.004 + 0.25 = 0.434.
    assert vm("g2-standard-4", zone).hour == pytest.approx(0.434)
    # 8 x 0.05 + 16 x 0.006 = 0.496; 4 x 0.07 + 16 x 0.008 = 0.408.
    assert vm("n2-custom-8-16384", zone, spot=False).hour == pytest.approx(0.496)
    assert vm("c2-standard-4", zone, spot=False).hour == pytest.approx(0.408)
    assert pricing.image_gib_month("europe-west1") == 0.05
    assert pricing.date() == DAY
    assert pricing.dates() == f"{DAY} (storage and network of {pricing.built_in()['date']})"


def test_what_the_catalog_does_not_have_keeps_its_date(use):
    before = vm("n1-standard-8", "us-central1-a", spot=False).hour
    use(*machine("N2", 0.01, 0.002, "us-central1", spot=True))
    (item,) = vm("n1-standard-8", "us-central1-a", spot=False).items
    assert item.hour == before
    assert item.what == "n1-standard-8 on demand, price of 2026-11-28"
    (item,) = vm("n2-standard-8", "us-central1-a").items
    assert item.what == "n2-standard-8 Spot"
    # Another region that shared its prices, and one whose prices were older before.
    (item,) = vm("n2-standard-8", "us-east1-b").items
    assert item.what == "n2-standard-8 Spot, price of 2026-11-28"
    (item,) = vm("e2-standard-8", "asia-east1-b").items
    assert item.what.endswith("price of March 2025")


def test_a_whole_a2_gives_way_to_its_parts(use):
    zone = "us-central1-a"
    use(
        *machine("A2", 0.03, 0.004, "us-central1"),
        sku("Nvidia Tesla A100 GPU running in Americas", 2.0, "us-central1"),
    )
    # 12 x 0.03 + 85 x 0.004 + 2 = 2.7; as a Spot VM still as a whole.
    assert vm("a2-highgpu-1g", zone, spot=False).hour == pytest.approx(2.7)
    assert vm("a2-highgpu-1g", zone).hour == pytest.approx(1.293355)


@pytest.mark.parametrize(
    "one",
    [
        sku("N2 Instance Core running in Americas", 0.0, "us-central1", spot=True),
        sku("N2 Instance Core running in Americas", 9.0, "us-central1", unit="GiBy.h"),
        sku("N2 Instance Core running in Americas", 9.0, "us-central1", currencyCode="EUR"),
        sku("N2 Instance Core running in Americas", 9.0, "us-central1"),  # without its memory
        sku("N2 Sole Tenancy Instance Core running in Americas", 9.0, "us-central1"),
        sku("N9 Instance Core running in Americas", 9.0, "us-central1"),
        sku("Commitment v1: Cpu in Americas for 1 Year", 9.0, "us-central1"),
        sku("Regional Balanced PD Capacity", 9.0, "us-central1", unit="GiBy.mo"),
        sku("Reserved Nvidia L4 GPU in Americas", 9.0, "us-central1"),
        {**sku("N2 Instance Core running in Americas", 9.0, "us-central1"), "category": None},
        {**sku("N2 Instance Core running in Americas", 9.0, "us-central1"), "pricingInfo": []},
        {},
    ],
)
def test_a_sku_that_prices_nothing_of_ours_changes_nothing(one):
    found = catalog.refreshed([one], pricing.built_in(), DAY)
    assert found.prices == 0
    for table in ("disks", "gpus", "local_ssd", "storage"):
        assert found.table[table].get("us") == pricing.built_in()[table].get("us")


def test_two_prices_for_one_thing_are_none(use):
    use(
        *machine("N2", 0.01, 0.002, "us-central1"),
        *machine("N2", 0.011, 0.002, "us-central1"),
    )
    (item,) = vm("n2-standard-2", "us-central1-a", spot=False).items
    assert item.what.endswith("price of 2026-11-28")


def test_of_several_tiers_the_highest_price_counts(use):
    tiered = sku("Balanced PD Capacity", 0.0, "us-central1", unit="GiBy.mo")
    rates = tiered["pricingInfo"][0]["pricingExpression"]["tieredRates"]
    price = {"currencyCode": "USD", "units": "1", "nanos": 500_000_000}
    rates.append({"startUsageAmount": 30, "unitPrice": price})
    use(tiered)
    assert pricing.prices()["disks"]["us-central1"]["pd-balanced"] == 1.5


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2, "date": "2030-01-01"}'])
def test_a_kept_list_that_is_none_is_not_used(use, text):
    pricing.kept_file().parent.mkdir(parents=True, exist_ok=True)
    pricing.kept_file().write_text(text)
    pricing.prices.cache_clear()
    assert pricing.prices() == pricing.built_in()


def test_a_newer_outlast_has_a_newer_list(use):
    use(*machine("N2", 0.01, 0.002, "us-central1"), day="2026-11-01")
    assert pricing.date() == str(pricing.built_in()["date"])
    assert json.loads(pricing.kept_file().read_text())["date"] == "2026-11-01"
