"""A doctor names what would keep an `up` from working, each fault once, with what to do."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.cli import engine, experiments, projects
from outlast.cli import stack as stacks
from outlast.cli.app import cli
from outlast.cli.doctor import examine
from outlast.cli.doctor.examine import Check, Verdict
from outlast.cli.errors import UsageError
from outlast.cloud import credentials, deployer, images, refusals
from tests.localcloud.compute.test_compute import BASE, wait
from tests.localcloud.local_cloud import PROJECT, LocalCloud, make_bucket
from tests.localcloud.scenarios.test_scenario_platform import make_group, ok, put, start

TOKEN = "a-token-that-stays-secret"
DISABLED = "{} has not been used in project 1 before or it is disabled."
POLICY = f"/cloudresourcemanager/v1/projects/{PROJECT}:setOrgPolicy"
GPU = {
    "outlast:machineType": "n1-standard-4",
    "outlast:accelerator": "nvidia-tesla-t4",
    "outlast:acceleratorCount": "1",
    "outlast:image": images.COMMON_GPU,
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    cloud = start(tmp_path_factory.mktemp("platform"))
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


@pytest.fixture
def cloud(
    platform: LocalCloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[LocalCloud]:
    ok(platform, "POST", "/_local/reset")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiments, "settings", lambda: ())  # no project, and no stack
    monkeypatch.setenv(credentials.TOKEN_VARIABLE, TOKEN)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", platform.url)
    monkeypatch.setenv(credentials.ENDPOINT_VARIABLE, f"{platform.url}/iamcredentials/v1/")
    for variable, address in platform.endpoints().items():
        monkeypatch.setenv(variable, address)
    yield platform
    credentials.use_settings({})


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A stack `dev` with more settings."""

    def make(**values: str) -> None:
        base = {"gcp:project": PROJECT, "gcp:zone": examine.ZONE, **values}
        monkeypatch.setattr(examine, "_config", lambda _: (base, set()))
        monkeypatch.setattr(engine, "project_name", lambda: "outlast")
        monkeypatch.setattr(stacks, "take_identity", lambda _: credentials.use_settings({}))

    return make


def bad(stack: str = "") -> list[Check]:
    found = examine.examine(stack, project="" if stack else PROJECT)
    return [one for one in found.checks if one.verdict is not Verdict.OK]


def test_nothing_is_wrong_with_an_empty_project(cloud: LocalCloud) -> None:
    found = examine.examine(project=PROJECT)
    assert bad() == []
    assert found.exit_code == 0
    names = [one.name for one in found.checks]
    assert names[0] == "credentials"
    for part in ("API compute", "permissions", "bucket", "image", "quota of roles", "constraints/"):
        assert any(part in name for name in names), part


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("compute", "/compute/"),
        ("iam", "/iam/"),
        ("cloudresourcemanager", "/cloudresourcemanager/"),
        ("storage", "/storage/"),
    ],
)
def test_a_disabled_api_is_named_once_with_its_command(
    cloud: LocalCloud, api: str, path: str
) -> None:
    cloud.add_fault("before", {"status": 403, "message": DISABLED.format(api)}, path=path, count=0)
    (found,) = bad()
    assert (found.name, found.verdict) == (f"API {api}.googleapis.com", Verdict.PROBLEM)
    assert found.says.endswith(f"gcloud services enable {api}.googleapis.com --project {PROJECT}")


def test_credentials_that_cannot_be_used_end_the_examination(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(credentials.TOKEN_VARIABLE)
    monkeypatch.setenv("GOOGLE_CREDENTIALS", "{no json")
    (found,) = bad()
    assert found.says.startswith("credentials: cannot be used (GOOGLE_CREDENTIALS: no credentials")
    assert "gcloud auth application-default login" in found.says


def test_a_missing_permission_is_named_with_its_step(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
    email = ok(cloud, "POST", accounts, {"accountId": "deployer"})["email"]
    held = [name for names in deployer.STEPS.values() for name in names]
    held.remove("compute.instanceTemplates.create")
    body = {"roleId": "deployer", "role": {"includedPermissions": held}}
    role = ok(cloud, "POST", f"/iam/v1/projects/{PROJECT}/roles", body)["name"]
    projects_ = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    policy = ok(cloud, "POST", f"{projects_}:getIamPolicy", {})
    bindings = [*policy["bindings"], {"role": role, "members": [f"serviceAccount:{email}"]}]
    ok(cloud, "POST", f"{projects_}:setIamPolicy", {"policy": {**policy, "bindings": bindings}})
    monkeypatch.setenv(credentials.IMPERSONATE_VARIABLE, email)
    problems = [one for one in bad() if one.verdict is Verdict.PROBLEM]
    (found,) = problems
    assert found.says.startswith(
        "permission to declare the template: compute.instanceTemplates.create is missing in"
    )


def of_policy(constraint: str, policy: dict[str, Any]) -> Callable[[LocalCloud], Any]:
    body = {"policy": {"constraint": f"constraints/{constraint}", **policy}}
    return lambda cloud: ok(cloud, "POST", POLICY, body)


def missing(path: str) -> Callable[[LocalCloud], Any]:
    return lambda cloud: cloud.add_fault("before", {"status": 404}, path=path, count=0)


def of_quota(metric: str) -> Callable[[LocalCloud], Any]:
    def limit(cloud: LocalCloud) -> None:
        put(cloud, world={"quota": [{"metric": metric, "limit": 0}]})
        make_group(cloud)  # A scenario begins with the first VM.
        wait(lambda: any(of.get("quotas") for of in places(cloud)))

    return limit


def places(cloud: LocalCloud) -> list[dict[str, Any]]:
    """The region, and the project."""
    return [ok(cloud, "GET", f"{BASE}{path}") for path in ("/regions/us-central1", "")]


@pytest.mark.parametrize(
    ("fault", "verdict", "sentence"),
    [
        (
            of_policy(refusals.EXTERNAL_IP, {"listPolicy": {"allValues": "DENY"}}),
            *(Verdict.PROBLEM, "forbids external addresses; set outlast:externalIp to false"),
        ),
        (
            of_policy(refusals.NO_ACCOUNTS, {"booleanPolicy": {"enforced": True}}),
            *(Verdict.WARNING, "forbids new service accounts; set outlast:serviceAccount"),
        ),
        (of_quota("PREEMPTIBLE_CPUS"), Verdict.WARNING, "2 of quota PREEMPTIBLE_CPUS in"),
        (of_quota("CPUS"), Verdict.WARNING, "of quota CPUS in us-central1, whose limit is 0"),
        (
            lambda _: make_bucket(_, name=f"{PROJECT}-outlast"),
            *(Verdict.PROBLEM, "has no label managed-by=outlast; set outlast:bucket"),
        ),
        (missing("/images/"), Verdict.PROBLEM, "there is no such image or image family"),
        (
            missing("/us-central1-a/machineTypes/"),
            *(Verdict.PROBLEM, "us-central1-a does not have it; set outlast:zone to one that has"),
        ),
        (
            missing("/global/networks/default"),
            *(Verdict.PROBLEM, "has no such network"),
        ),
    ],
)
def test_each_fault_of_a_project_is_one_finding(
    cloud: LocalCloud, fault: Callable[[LocalCloud], Any], verdict: Verdict, sentence: str
) -> None:
    fault(cloud)
    (one,) = bad()
    assert one.verdict is verdict
    assert sentence in one.says


def test_a_zone_without_the_gpu_names_those_of_the_region_first(
    cloud: LocalCloud, stack: Callable[..., None]
) -> None:
    stack(**GPU)
    missing("/us-central1-a/acceleratorTypes/")(cloud)
    (found,) = [one for one in bad("dev") if "accelerator" in one.name]
    assert found.verdict is Verdict.PROBLEM
    assert "us-central1-a does not have it; set outlast:zone to" in found.says
    assert "such as us-central1-" in found.says


@pytest.mark.parametrize("metric", ["NVIDIA_T4_GPUS", "GPUS_ALL_REGIONS"])
def test_a_gpu_quota_of_zero_is_named(
    cloud: LocalCloud, stack: Callable[..., None], metric: str
) -> None:
    stack(**GPU)
    of_quota(metric)(cloud)
    assert any(f"of quota {metric}" in one.says for one in bad("dev"))


@pytest.mark.parametrize("limit", ["ACCOUNTS", "ROLES"])
def test_a_full_quota_of_accounts_or_roles_is_named(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(examine, limit, 0)
    (found,) = bad()
    assert "Google's default limit is 0; outlast audit finds those that no stack" in found.says


def test_settings_that_are_refused_do_not_hide_the_rest(
    cloud: LocalCloud, stack: Callable[..., None]
) -> None:
    stack(**{"outlast:machineType": "e2-none"})
    missing("/global/networks/default")(cloud)
    names = [one.name for one in bad("dev")]
    assert names[0] == "settings" and any("network" in name for name in names)


def test_the_steps_are_those_of_the_deployers_role() -> None:
    import re

    file = Path(__file__).parents[3] / "examples" / "roles" / "deployer.yaml"
    found: dict[str, tuple[str, ...]] = {}
    for name, step in re.findall(r"^- (\S+)  # (.+)$", file.read_text(), re.MULTILINE):
        found[step] = (*found.get(step, ()), name)
    assert found == dict(deployer.STEPS)
    assert set(examine._NOT_NEEDED) <= set(found)


def test_the_command_exits_with_three_and_its_json_has_no_token(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_PROJECT", PROJECT)
    done = CliRunner().invoke(cli, ["doctor"])
    assert done.exit_code == 0 and "an up can work" in done.output
    missing("/images/")(cloud)
    done = CliRunner().invoke(cli, ["doctor", "--json"])
    document = json.loads(done.output)
    assert done.exit_code == document["exit_code"] == examine.FOUND
    assert document["by"] == "GOOGLE_PROJECT" and document["project"] == PROJECT
    assert TOKEN not in done.output
    shown = CliRunner().invoke(cli, ["doctor"]).output
    assert "PROBLEM  outlast:image" in shown and "1 to solve before an up can work" in shown


def test_without_any_project_one_sentence_says_how_to_name_it(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in projects.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="--project: neither the settings of a stack here, nor"):
        examine.examine()
