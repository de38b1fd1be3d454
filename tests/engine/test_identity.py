"""A stack whose settings name a service account to impersonate, under the real engine."""

import pytest

from outlast.cli import cloud as clouds
from tests.engine.conftest import Project
from tests.engine.test_preview import stack as stack  # a fixture

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def test_program_provider_and_dynamic_providers_are_the_impersonated_account(stack: Project):
    accounts = f"/iam/v1/projects/{clouds.PROJECT}/serviceAccounts"
    email = stack.cloud.call("POST", accounts, {"accountId": "deployer"})["email"]
    stack.pulumi("config", "set", "-s", "dev", "gcp:impersonateServiceAccount", email)

    stack.cloud.make_bucket(f"{clouds.PROJECT}-outlast", "europe-west4")

    said = stack.pulumi("preview", "-s", "dev")
    # The program, and the provider of the run's pin: the bucket refuses both.
    assert "whether open runs are protected is not checked" in said, said
    assert "experiment dev: not checked whether it is open" in said, said
    assert "cannot be looked up" in stack.up(fails=True)

    member = f"serviceAccount:{email}"
    policy = {"bindings": [{"role": "roles/owner", "members": [member]}]}
    project = f"/cloudresourcemanager/v1/projects/{clouds.PROJECT}"
    stack.cloud.call("POST", f"{project}:setIamPolicy", {"policy": policy})
    assert "not checked" not in stack.pulumi("preview", "-s", "dev")
