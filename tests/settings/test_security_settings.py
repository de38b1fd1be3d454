"""Keys, tags, Shielded and Confidential VM, labels by default, and the range of a network."""

import json

import pytest

from outlast.settings.errors import SettingsError
from tests.settings.test_settings import HERE, check

KEY = "projects/keys/locations/europe-west4/keyRings/ring/cryptoKeys/train"


def of(**values: str):
    return check({**HERE, **{f"outlast:{key}": value for key, value in values.items()}})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kmsKey": "train"}, "must be a key's full name"),
        ({"kmsKey": KEY.replace("europe-west4", "us-east1")}, "is in us-east1, and the disks and"),
        ({"kmsKey": KEY.replace("europe-west4", "global")}, "is in global, and the disks and"),
        (
            {"kmsKey": KEY, "imageRecipe": '{"packages": ["jq"]}'},
            "would not be encrypted with the key",
        ),
        ({"confidentialVm": "sev"}, "must be"),
        ({"confidentialVm": "SEV"}, "machine type e2-standard-2 does not have it; n2d, c2d, c3d"),
        (
            {"confidentialVm": "TDX", "machineType": "n2d-standard-2"},
            "n2d-standard-2 does not have it; c3 do",
        ),
        ({"resourceTags": '{"team": "vision"}'}, "must be tagKeys/NUMBER with tagValues/NUMBER"),
        ({"ipRange": "10.1.0.0/16"}, "only the stack's own network has it"),
        ({"ipRange": "10.1.0.1/16", "network": "isolated"}, "host bits are 0"),
        ({"ipRange": "10.1.0.0/30", "network": "isolated"}, "from /8 to /29"),
        ({"ipRange": "fd00::/64", "network": "isolated"}, "must be an IPv4 range"),
        ({"serviceAccount": "me@example.org"}, "must be a service account's address"),
    ],
)
def test_refused(values, words):
    with pytest.raises(SettingsError, match="outlast:") as refused:
        of(**values)
    assert words in str(refused.value)


def test_a_confidential_vm_is_never_moved():
    found = of(confidentialVm="SEV", machineType="n2d-standard-2", mode="dedicated")
    assert found.restarts
    newer = of(
        confidentialVm="SEV", machineType="n9d-standard-2", allowUnlisted='["n9d-standard-2"]'
    )
    assert newer.confidential_vm == "SEV"


def test_a_key_of_any_place_may_encrypt_the_disk_beside_an_existing_bucket():
    key = KEY.replace("europe-west4", "global")
    assert of(kmsKey=key, bucketMode="existing").kms_key == key


def test_the_providers_default_labels_are_the_vms_too_and_ours_go_first():
    values = {**HERE, "outlast:labels": '{"team": "blue"}'}
    values["gcp:defaultLabels"] = json.dumps({"team": "red", "cost-centre": "7", "stack": "x"})
    found = check(values).labels
    assert (found["team"], found["cost-centre"]) == ("blue", "7")
    assert found["stack"] == check(HERE).labels["stack"]
    with pytest.raises(SettingsError, match="gcp:defaultLabels .* must be an object"):
        check({**HERE, "gcp:defaultLabels": "team"})
