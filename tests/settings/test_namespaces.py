"""Misspelt namespaces and keys of settings."""

import pytest

from outlast.settings.errors import SettingsError
from outlast.settings.namespaces import check_names, provider_keys


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("outlastt:machineType", "outlast:machineType"),
        ("outlats:machinetype", "outlast:machineType"),
        ("Outlast:zone", "outlast:zone"),
        ("outlast-x:mine", "outlast:mine"),
        ("gpc:project", "gcp:project"),
        ("gcp:zon", "gcp:zone"),
        ("gcp:impersonateServiceAcount", "gcp:impersonateServiceAccount"),
    ],
)
def test_a_name_that_is_almost_one_is_refused_with_the_right_one(key, meant):
    with pytest.raises(SettingsError, match=rf"^{key}: .*did you mean {meant}\?$"):
        check_names({key: "x", "gcp:project": "acme"}, "mine")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("mine:machineType", ["mine:machineType: Outlast does not read it; did you mean outlast:"]),
        ("mine:zone", ["mine:zone: Outlast does not read it; did you mean outlast:zone?"]),
        ("mine:project", ["mine:project: Outlast does not read it; did you mean gcp:project?"]),
        ("gcp:somethingElseAltogether", ["gcp:somethingElseAltogether: is not a setting of"]),
        ("mine:ownKey", []),
        ("aws:region", []),
        ("pulumi:tags", []),
        ("gcp:accessToken", []),
        ("gcp:computeCustomEndpoint", []),
        ("outlast:whatever", []),
    ],
)
def test_what_may_be_the_programs_own_is_a_warning_or_nothing(key, said):
    found = check_names({key: "x"}, "mine")
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True))


def test_the_providers_keys_are_those_of_its_package():
    assert {"project", "zone", "credentials", "defaultLabels"} <= {*provider_keys()}
