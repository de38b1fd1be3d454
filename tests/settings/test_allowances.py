"""What the project's organization policies and quotas say about a stack, before it is created."""

from typing import Any

import pytest

from outlast.cloud import refusals
from outlast.cloud.compute import CannotAsk, Compute
from outlast.settings import allowances
from outlast.settings.schema import Settings
from tests.settings.test_settings import check

GPU_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch):
    """The refusals and warnings for a stack, if the project has these policies and quotas."""

    def asked(
        policies: dict[str, Any],
        *,
        regional: dict[str, float] | None = None,
        overall: dict[str, float] | None = None,
        **values: str,
    ) -> list[str]:
        limits = {"regions/europe-west4": regional or {}, "": overall or {}}

        def call(self: Compute, method: str, path: str, body: Any = None, **_: Any) -> Any:
            if path == ":getEffectiveOrgPolicy":
                policy = policies.get(body["constraint"].removeprefix("constraints/"))
                if policy is None:
                    raise CannotAsk(403, "no")
                return policy
            return {"quotas": [{"metric": m, "limit": n} for m, n in limits[path].items()]}

        monkeypatch.setattr(Compute, "call", call)
        found: Settings = check({f"outlast:{key}": value for key, value in values.items()})
        return [text for one in allowances.ask(found)() if (text := one.refusal or one.warning)]

    return asked


def listed(*allowed: str, denied: tuple[str, ...] = (), all_values: str = "") -> dict[str, Any]:
    values = {"allowedValues": list(allowed), "deniedValues": list(denied)}
    return {"listPolicy": {**values, **({"allValues": all_values} if all_values else {})}}


DENY = listed(all_values="DENY")
ENFORCED = {"booleanPolicy": {"enforced": True}}
RECIPE = '{"packages": ["git"]}'
DEBIAN = "projects/debian-cloud/global/images/family/debian-13"


@pytest.mark.parametrize(
    ("constraint", "policy", "values", "what"),
    [
        (refusals.EXTERNAL_IP, DENY, {}, "external addresses"),
        (refusals.EXTERNAL_IP, listed("projects/p/zones/z/instances/i"), {}, "external addresses"),
        (refusals.EXTERNAL_IP, DENY, {"externalIp": "false", "nat": "true"}, ""),
        (refusals.EXTERNAL_IP, listed(all_values="ALLOW"), {}, ""),
        (refusals.TRUSTED_IMAGES, listed("projects/ours"), {}, "images of projects/debian-cloud"),
        (refusals.TRUSTED_IMAGES, listed("is:projects/debian-cloud"), {}, ""),
        (refusals.TRUSTED_IMAGES, listed("under:organizations/1"), {}, ""),
        (
            refusals.TRUSTED_IMAGES,
            listed(denied=("projects/debian-cloud",)),
            {},
            "images of projects/debian-cloud",
        ),
        (refusals.LOCATIONS, listed("in:us-central1-locations"), {}, "resources in europe-west4"),
        (refusals.LOCATIONS, listed("in:europe-west4-locations"), {}, ""),
        (refusals.LOCATIONS, listed("europe-west4-b"), {}, ""),
        (refusals.LOCATIONS, listed("in:eu-locations"), {}, ""),
        (refusals.GUEST_ATTRIBUTES, ENFORCED, {"imageRecipe": RECIPE}, "the builder's report"),
        (refusals.GUEST_ATTRIBUTES, ENFORCED, {}, ""),
        (refusals.CLOUD_NAT, DENY, {"network": "isolated", "nat": "true"}, "Cloud NAT"),
        (refusals.SOFT_DELETE, listed("604800"), {}, "a bucket with a soft delete of 0 days"),
        (refusals.SOFT_DELETE, listed("604800"), {"softDeleteDays": "7"}, ""),
        (refusals.SOFT_DELETE, listed("604800"), {"bucketMode": "existing", "bucket": "b-1"}, ""),
        (refusals.RETENTION, listed("3600"), {}, "a bucket without retention"),
    ],
)
def test_a_policy_that_forbids_it_is_named_with_the_setting(
    said, constraint: str, policy: Any, values: dict[str, str], what: str
):
    values = {"image": DEBIAN, **values}
    found = said({constraint: policy}, **values)
    if not what:
        assert found == []
        return
    (sentence,) = found
    assert f"constraints/{constraint} forbids {what}; " in sentence
    assert sentence.endswith(refusals.REMEDIES[constraint])


@pytest.mark.parametrize(
    ("values", "regional", "overall", "needs"),
    [
        ({}, {"CPUS": 1}, {}, "e2-standard-2 needs 2 of quota CPUS in europe-west4"),
        ({}, {"CPUS": 2}, {}, ""),
        ({}, {}, {}, ""),
        # A preemptible quota counts once there is one; a family's own comes before the general.
        ({}, {"CPUS": 99, "PREEMPTIBLE_CPUS": 1}, {}, "2 of quota PREEMPTIBLE_CPUS"),
        ({}, {"CPUS": 99, "PREEMPTIBLE_CPUS": 0}, {}, ""),
        ({"mode": "dedicated"}, {"CPUS": 99, "PREEMPTIBLE_CPUS": 1}, {}, ""),
        ({"machineType": "n2-standard-8"}, {"CPUS": 99, "N2_CPUS": 4}, {}, "8 of quota N2_CPUS"),
        (
            {"machineType": "c4-standard-8", "bootDiskType": "hyperdisk-balanced"},
            {"CPUS": 1, "PREEMPTIBLE_CPUS": 1},
            {},
            "",
        ),
        (
            {"machineType": "g2-standard-8", "image": GPU_IMAGE},
            {"CPUS": 99, "NVIDIA_L4_GPUS": 0},
            {},
            "1 of quota NVIDIA_L4_GPUS in europe-west4, whose limit is 0",
        ),
        (
            {"machineType": "g2-standard-24", "image": GPU_IMAGE},
            {"PREEMPTIBLE_NVIDIA_L4_GPUS": 1, "NVIDIA_L4_GPUS": 8},
            {},
            "2 of quota PREEMPTIBLE_NVIDIA_L4_GPUS",
        ),
        (
            {"machineType": "g2-standard-8", "image": GPU_IMAGE},
            {"NVIDIA_L4_GPUS": 1},
            {"GPUS_ALL_REGIONS": 0},
            "1 of quota GPUS_ALL_REGIONS, whose limit is 0",
        ),
    ],
)
def test_a_quota_that_holds_no_vm_is_named(said, values, regional, overall, needs: str):
    found = said({}, regional=regional, overall=overall, **values)
    assert bool(found) == bool(needs)
    assert not needs or needs in found[0]


def test_one_machine_type_that_fits_is_enough(said):
    values = {"region": "europe-west4", "machineType": "n2-standard-64"}
    ranked = {**values, "machineTypes": '["n2-standard-2"]'}
    assert len(said({}, regional={"N2_CPUS": 8}, **values)) == 1
    assert said({}, regional={"N2_CPUS": 8}, **ranked) == []


def test_the_quotas_that_a_sweep_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    regional = {
        "N2_CPUS": 24,
        "IN_USE_ADDRESSES": 8,
        "SSD_TOTAL_GB": 500,
        "INSTANCES": 100,
        "INSTANCE_GROUP_MANAGERS": 50,
    }
    overall = {"INSTANCE_TEMPLATES": 10}
    refused = False

    def call(self: Compute, method: str, path: str, body: Any = None, **_: Any) -> Any:
        if refused:
            raise CannotAsk(403, "no")
        limits = overall if path == "" else regional
        return {"quotas": [{"metric": m, "limit": n} for m, n in limits.items()]}

    monkeypatch.setattr(Compute, "call", call)
    settings = check({"outlast:machineType": "n2-standard-4", "outlast:bootDiskGb": "50"})

    def short(at_once: int, groups: int) -> set[str]:
        found = allowances.shortages(settings, at_once=at_once, groups=groups)
        assert found is not None
        return {f"{metric}{where} {limit:g} < {need:g}" for metric, where, limit, need in found}

    assert short(6, 10) == set()
    assert short(9, 10) == {
        "N2_CPUS in europe-west4 24 < 36",
        "IN_USE_ADDRESSES in europe-west4 8 < 9",
    }
    assert short(12, 60) >= {
        "SSD_TOTAL_GB in europe-west4 500 < 600",
        "INSTANCE_GROUP_MANAGERS in europe-west4 50 < 60",
        "INSTANCE_TEMPLATES 10 < 60",
    }
    refused = True
    assert allowances.shortages(settings, at_once=1, groups=1) is None
