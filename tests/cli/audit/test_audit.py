"""An audit finds what no stack owns, of every kind, and leaves everything else alone."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.base.exits import Reason, State
from outlast.bucket.head import End, Head
from outlast.bucket.layout import Layout
from outlast.bucket.store import Store, open_store
from outlast.cli import engine, experiments
from outlast.cli.app import cli
from outlast.cli.audit import audit, owners
from outlast.cli.audit.audit import Audit
from outlast.cloud import credentials
from outlast.spec import labels
from tests.localcloud.compute.test_compute import BASE, group_body, template_body, wait
from tests.localcloud.local_cloud import PROJECT, LocalCloud, make_bucket
from tests.localcloud.scenarios.test_scenario_platform import ok, start
from tests.log_lines import log_lines

ZONE, REGION = "us-central1-a", "us-central1"
AT_ONCE = timedelta(0)
MANAGED = {"labels": {"managed-by": "outlast", "component": "checkpoint-bucket"}}
RUN = "0123456789"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    cloud = start(tmp_path_factory.mktemp("platform"))
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


@dataclass
class Backend:
    """The states of the backend's stacks."""

    states: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, paths: list[str], pending: bool = False, **outputs: str) -> None:
        resources = [{"type": "x", "id": f"projects/{PROJECT}/{path}"} for path in paths]
        outputs = {"project": PROJECT, **outputs}
        stack = {"type": "pulumi:pulumi:Stack", "outputs": outputs if paths else {}}
        self.states[name] = {
            "deployment": {
                "resources": [stack, *resources],
                "pending_operations": [{"type": "creating"}] if pending else None,
            }
        }

    def read(self) -> tuple[owners.Owner, ...]:
        return tuple(owners.owner_of(name, one, "outlast") for name, one in self.states.items())


@pytest.fixture
def cloud(platform: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> LocalCloud:
    ok(platform, "POST", "/_local/reset")
    platform.call("DELETE", "/_local/faults")
    monkeypatch.setenv(credentials.TOKEN_VARIABLE, "local")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", platform.url)
    for variable, address in platform.endpoints().items():
        monkeypatch.setenv(variable, address)
    monkeypatch.setattr(engine, "project_name", lambda: "outlast")
    monkeypatch.setattr(experiments, "settings", lambda: ())
    return platform


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    found = Backend()
    monkeypatch.setattr(owners, "read", found.read)
    return found


def insert(cloud: LocalCloud, path: str, body: dict[str, Any]) -> str:
    done = ok(cloud, "POST", f"{BASE}/{path}", body)
    operation = done["selfLink"].partition(f"/projects/{PROJECT}")[2]
    ok(cloud, "POST", f"{BASE}{operation}/wait")
    return f"{path}/{body['name']}"


def make(cloud: LocalCloud, name: str, metadata: dict[str, str] | None = None) -> list[str]:
    """Everything that a stack of this name may have in a project; the paths of all of it."""
    own = labels.of_stack("outlast", name, name, {})
    said = {"description": f"Outlast: something {labels.mark(own)}"}
    items = [{"key": key, "value": value} for key, value in (metadata or {}).items()]
    template = template_body(f"{name}-t", labels=own, metadata={"items": items})
    group = {**group_body(1, f"{name}-t"), "name": f"{name}-g", "baseInstanceName": f"{name}-g"}
    network = f"{BASE}/global/networks/{name}-vpc"
    vpc = {"name": f"{name}-vpc", "autoCreateSubnetworks": False, **said}
    allowed = [{"IPProtocol": "tcp", "ports": ["22"]}]
    check = {"type": "HTTP", "httpHealthCheck": {"port": 8099}}
    paths = [
        insert(cloud, "global/instanceTemplates", template),
        insert(cloud, f"zones/{ZONE}/instanceGroupManagers", group),
        insert(cloud, f"zones/{ZONE}/disks", {"name": f"{name}-d", "labels": own}),
        insert(cloud, f"regions/{REGION}/addresses", {"name": f"{name}-a", "labels": own}),
        insert(
            *(cloud, "global/images"),
            {"name": f"{name}-i", "labels": own, "rawDisk": {"source": "gs://b/o"}},
        ),
        insert(cloud, "global/networks", vpc),
        insert(
            *(cloud, "global/firewalls"),
            {"name": f"{name}-ssh", "network": network, "allowed": allowed, **said},
        ),
        insert(cloud, "global/healthChecks", {"name": f"{name}-check", **check, **said}),
    ]
    accounts = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
    account = {"accountId": f"outlast-{name}", "serviceAccount": said}
    email = ok(cloud, "POST", accounts, account)["email"]
    role = {"roleId": f"outlast_{name}", "role": {**said, "includedPermissions": []}}
    ok(cloud, "POST", f"/iam/v1/projects/{PROJECT}/roles", role)
    wait(lambda: any(vm["status"] == "RUNNING" for vm in vms(cloud, f"{name}-g")))
    return [*paths, f"serviceAccounts/{email}", f"roles/outlast_{name}"]


def vms(cloud: LocalCloud, group: str) -> list[dict[str, Any]]:
    return [one for one in ok(cloud, "GET", "/_local/vms") if one["group"] == group]


def runs(store: Store, name: str, state: State, project: str = "outlast") -> None:
    """A run of an experiment, its bundle and its environment."""
    run = Layout(f"experiments/{name}", RUN)
    now = datetime.now(UTC)
    end = (
        End(Reason.DONE if state is State.DONE else Reason.LIMIT, None, 9, None)
        if state.ended
        else None
    )
    owner = f"organization/{project}/{name}"
    deadline = now + timedelta(days=1)
    head = Head(*(owner, 0, 0, 1, state, end, now, deadline, (), (), 0, 0, None, "n"))
    store.put(run.head, head.to_json())
    store.put(run.bundle("a" * 64), b"code")
    store.put(f"{run.environments}b.zip", b"packages")


def found(least: timedelta = AT_ONCE) -> Audit:
    return audit.read(PROJECT, min_age=least)


def said(of: Audit) -> set[str]:
    return {f"{one.kind} {one.name}" for one in of.findings}


def leaks(name: str, vm: str, bucket: str) -> set[str]:
    home = f"gs://{bucket}/experiments/{name}"
    return {
        *(f"template {name}-t", f"group {name}-g", f"VM {vm}", f"disk {name}-d"),
        *(f"address {name}-a", f"image {name}-i", f"network {name}-vpc"),
        *(f"firewall rule {name}-ssh", f"health check {name}-check", f"role outlast_{name}"),
        f"service account outlast-{name}@{PROJECT}.iam.gserviceaccount.com",
        *(f"bundles {home}/bundles/", f"environments {home}/environments/"),
    }


def live_and_leaked(cloud: LocalCloud, backend: Backend) -> set[str]:
    """A stack that is up, one of another Pulumi project, and what a third has left; the leaks."""
    bucket = make_bucket(cloud, **MANAGED)
    empty = make_bucket(cloud, **MANAGED)
    store = open_store(f"gs://{bucket}")
    runs(store, "live", State.OPEN)
    runs(store, "gone", State.DONE)
    runs(store, "theirs", State.DONE, project="lasting")
    paths = make(cloud, "live")
    backend.add("live", paths, bucket=bucket, prefix="experiments/live")
    other = labels.of_stack("lasting", "two", "two", {})
    insert(cloud, f"zones/{ZONE}/disks", {"name": "theirs", "labels": other})
    make(cloud, "gone")
    (vm,) = vms(cloud, "gone-g")
    return {*leaks("gone", vm["name"], bucket), f"bucket {empty}"}


def test_leaks_of_every_kind_are_found_beside_a_live_stack_and_removed(
    cloud: LocalCloud, backend: Backend
) -> None:
    wanted = live_and_leaked(cloud, backend)
    assert len(wanted) == 14
    first = found()
    assert said(first) == wanted
    assert {one.why for one in first.findings if one.mark} == {
        "this backend has no stack outlast/gone"
    }
    assert first.others == {"lasting": 1}
    assert first.unread == () and first.waiting == ()
    assert first.exit_code == audit.FOUND
    costs = {one.kind: one for one in first.findings}
    assert costs["VM"].cost.hour > 0 and costs["disk"].cost.hour > 0
    assert costs["template"].month == "nothing"
    assert costs["image"].month == "unknown"
    words = log_lines()
    assert audit.remove(first) == ([], [])
    assert len(words) == len(wanted)
    second = found()
    assert said(second) == set() and second.exit_code == 0
    (kept,) = second.kept
    assert "keeps 1 ended runs" in kept
    assert vms(cloud, "live-g") and not vms(cloud, "gone-g")


def test_a_stack_of_the_same_name_in_another_organization_hides_none(
    cloud: LocalCloud, backend: Backend
) -> None:
    wanted = live_and_leaked(cloud, backend)
    other = [f"zones/{ZONE}/disks/other"]
    for name in ("acme/outlast/live", "Acme/outlast/Live"):
        backend.add(name, other, bucket="other", prefix="experiments/live")
    assert said(found()) == wanted


def test_what_an_up_may_be_creating_is_neither_named_nor_removed(
    cloud: LocalCloud, backend: Backend
) -> None:
    live_and_leaked(cloud, backend)
    young = found(timedelta(minutes=60))
    assert said(young) == set() and young.exit_code == 0
    # An account has no time of creation: it is as young as the rest of its stack.
    assert any(one.startswith("service account outlast-gone") for one in young.waiting)
    backend.add("gone", [], pending=True)
    busy = found()
    assert {one.partition(" ")[0] for one in said(busy)} == {"bundles", "environments", "bucket"}
    assert any("outlast recover gone" in one for one in busy.waiting)


def test_what_a_stack_owns_by_the_time_of_the_removal_stays(
    cloud: LocalCloud, backend: Backend
) -> None:
    """An `up` that began after the look."""
    live_and_leaked(cloud, backend)
    first = found()
    paths = [one.path for one in first.findings if one.kind in ("template", "group", "role")]
    home = next(one.path for one in first.findings if one.kind == "bundles")
    bucket = home.split("/")[2]
    backend.add("gone", paths, pending=True, bucket=bucket, prefix="experiments/gone")
    left, failed = audit.remove(first)
    assert failed == []
    assert {one.rpartition(": ")[0] for one in left} == said(first) - {
        next(one for one in said(first) if one.startswith("bucket "))
    }
    assert vms(cloud, "gone-g")


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_bucket_that_is_used_by_the_time_of_the_removal_stays(
    cloud: LocalCloud, backend: Backend, is_ours: bool
) -> None:
    name = make_bucket(cloud, **MANAGED)
    first = found()
    assert said(first) == {f"bucket {name}"}
    if is_ours:
        backend.add("new", [f"zones/{ZONE}/disks/new"], bucket=name, prefix="experiments/new")
        assert audit.remove(first) == ([f"bucket {name}: stack outlast/new uses it now"], [])
    else:  # the first run of a stack of another backend
        runs(open_store(f"gs://{name}"), "new", State.OPEN)
        left, (why,) = audit.remove(first)
        assert left == [] and why.startswith(f"bucket {name}: ") and "not empty" in why
        assert open_store(f"gs://{name}").get(Layout("experiments/new", RUN).head)


def test_an_open_run_of_an_unknown_stack_is_only_removed_on_request(
    cloud: LocalCloud, backend: Backend
) -> None:
    bucket = make_bucket(cloud, **MANAGED)
    runs(open_store(f"gs://{bucket}"), "gone", State.OPEN)
    make(cloud, "gone")
    first = found()
    assert len(first.findings) == 11 and all(one.held for one in first.findings)
    left, failed = audit.remove(first)
    assert len(left) == 11 and failed == []
    assert f"gs://{bucket}/experiments/gone/{RUN}/ is open" in left[0]
    assert audit.remove(first, open_runs=True) == ([], [])
    assert said(found()) == set()


@pytest.mark.parametrize("head", ["none", "ended", "before its resume", "unreadable"])
def test_a_group_of_an_unknown_stack_that_waits_for_its_first_vm_is_only_removed_on_request(
    cloud: LocalCloud, backend: Backend, head: str
) -> None:
    """Another backend's stack may be up, whose run no VM could begin yet: the bucket says nothing
    of it."""
    bucket = make_bucket(cloud, **MANAGED)
    store = open_store(f"gs://{bucket}")
    if head == "unreadable":
        store.put(Layout("experiments/gone", RUN).head, b"{}")
    elif head != "none":
        runs(store, "gone", State.FAILED)
    resume = "1" if head == "before its resume" else "0"
    names = {"bucket": bucket, "prefix": "experiments/gone", "run": RUN, "resume": resume}
    make(cloud, "gone", {f"outlast-{key}": value for key, value in names.items()})
    first = [one for one in found().findings if one.mark]
    assert first and {bool(one.held) for one in first} == {head != "ended"}
    if head in ("none", "before its resume"):
        assert "group gone-g waits for a VM" in first[0].held


def test_a_group_that_may_create_no_vm_any_more_holds_nothing(
    cloud: LocalCloud, backend: Backend
) -> None:
    """Its run never began; it was resized to 0, or its template's time is over."""
    bucket = make_bucket(cloud, **MANAGED)
    names = {"bucket": bucket, "prefix": "experiments/gone", "run": RUN, "resume": "0"}
    make(cloud, "gone", {f"outlast-{key}": value for key, value in names.items()})
    ok(cloud, "POST", f"{BASE}/zones/{ZONE}/instanceGroupManagers/gone-g/resize?size=0")
    wait(lambda: not vms(cloud, "gone-g"))
    assert not [one for one in found().findings if one.held]


def test_what_was_deleted_since_the_look_does_not_fail_the_removal(
    cloud: LocalCloud, backend: Backend
) -> None:
    """Another audit, or a destroy, deletes the same: an account, a role (which Google keeps, marked
    as deleted), a bucket, and the bucket whose policy named the account."""
    make(cloud, "gone")
    bucket = make_bucket(cloud, **MANAGED)
    policy = ok(cloud, "GET", f"/storage/v1/b/{bucket}/iam")
    email = f"outlast-gone@{PROJECT}.iam.gserviceaccount.com"
    binding = {"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{email}"]}
    body = {**policy, "bindings": [*(policy.get("bindings") or ()), binding]}
    ok(cloud, "PUT", f"/storage/v1/b/{bucket}/iam", body)
    first = found()
    kinds = [one.kind for one in first.findings]
    assert {"service account", "role", "bucket", f"bindings in gs://{bucket}:"} <= {*kinds}
    iam = f"/iam/v1/projects/{PROJECT}"
    gone = (
        f"/storage/v1/b/{bucket}",
        f"{iam}/serviceAccounts/{email}",
        f"{iam}/roles/outlast_gone",
    )
    for path in gone:
        assert cloud.call("DELETE", path).status_code < 300
    assert audit.remove(first) == ([], [])


def test_a_vm_that_came_up_after_its_group_was_gone_is_found_and_removed(
    cloud: LocalCloud, backend: Backend
) -> None:
    """As one whose creation was in flight when its stack was destroyed or cancelled."""
    own = labels.of_stack("outlast", "gone", "gone", {})
    late = {
        "name": "late",
        "machineType": f"zones/{ZONE}/machineTypes/e2-standard-2",
        "labels": own,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": "projects/debian-cloud/global/images/family/debian-13"
                },
            }
        ],
        "networkInterfaces": [{"network": "global/networks/default"}],
    }
    insert(cloud, f"zones/{ZONE}/instances", late)
    first = found()
    assert said(first) == {"VM late"} and first.findings[0].cost.hour > 0
    assert audit.remove(first) == ([], [])
    assert said(found()) == set() and not ok(cloud, "GET", "/_local/vms")


@pytest.mark.parametrize("ended", [True, False])
def test_a_vm_that_outlived_its_run_leaves_its_group(
    cloud: LocalCloud, backend: Backend, ended: bool
) -> None:
    bucket = make_bucket(cloud, **MANAGED)
    runs(open_store(f"gs://{bucket}"), "live", State.FAILED if ended else State.OPEN)
    names = {"bucket": bucket, "prefix": "experiments/live", "run": RUN, "resume": "0"}
    paths = make(cloud, "live", {f"outlast-{key}": value for key, value in names.items()})
    backend.add("live", paths, bucket=bucket, prefix="experiments/live")
    first = found()
    if not ended:
        assert said(first) == set()
        return
    (vm,) = vms(cloud, "live-g")
    (finding,) = first.findings
    assert finding.name == vm["name"]
    assert f"outlived its run: experiments/live/{RUN} is failed since" in finding.why
    assert said(found(timedelta(minutes=60))) == set()
    assert audit.remove(first) == ([], [])
    assert not vms(cloud, "live-g")
    assert said(found()) == set()


def test_each_head_is_read_once_however_many_groups_and_vms_are_of_its_run(
    cloud: LocalCloud, backend: Backend
) -> None:
    """And a group whose run has not begun takes no request: the listing says so."""
    bucket = make_bucket(cloud, **MANAGED)
    store = open_store(f"gs://{bucket}")
    for name, state in (("live", State.OPEN), ("over", State.FAILED), ("new", None)):
        if state:
            runs(store, name, state)
        names = {"bucket": bucket, "prefix": f"experiments/{name}", "run": RUN, "resume": "0"}
        paths = make(cloud, name, {f"outlast-{key}": value for key, value in names.items()})
        backend.add(name, paths, bucket=bucket, prefix=f"experiments/{name}")
    cloud.call("PUT", "/_local/requests")
    (finding,) = found().findings
    assert f"outlived its run: experiments/over/{RUN}" in finding.why
    objects = f"/storage/v1/b/{bucket}/o"
    asked = {
        one["path"]: one["count"]
        for one in ok(cloud, "GET", "/_local/requests")
        if one["path"].endswith(objects) or one["object"]
    }
    heads = {f"/download{objects}/experiments/{name}/{RUN}/HEAD": 1 for name in ("live", "over")}
    assert asked == {objects: 1, **heads}


def test_what_cannot_be_looked_at_is_named_and_holds_the_rest(
    cloud: LocalCloud, backend: Backend
) -> None:
    make(cloud, "gone")
    cloud.add_fault("before", {"status": 403}, path="/storage/v1/b.*")
    first = found()
    assert any(one.startswith("buckets: not looked at") for one in first.unread)
    assert all("not everything could be read" in one.held for one in first.findings)
    cloud.add_fault("before", {"status": 403}, path="/compute/.*/firewalls")
    with pytest.raises(audit.OperateError, match="cannot be looked at .*roles/viewer"):
        found()


def test_bindings_of_a_leaked_account_go_before_it(cloud: LocalCloud, backend: Backend) -> None:
    make(cloud, "gone")
    projects = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    policy = ok(cloud, "POST", f"{projects}:getIamPolicy", {})
    email = f"outlast-gone@{PROJECT}.iam.gserviceaccount.com"
    role = f"projects/{PROJECT}/roles/outlast_gone"
    bindings = [*policy["bindings"], {"role": role, "members": [f"serviceAccount:{email}"]}]
    ok(cloud, "POST", f"{projects}:setIamPolicy", {"policy": {**policy, "bindings": bindings}})
    first = found()
    assert f"bindings in the project: {role} of {email}" in said(first)
    assert audit.remove(first) == ([], [])
    assert email not in json.dumps(ok(cloud, "POST", f"{projects}:getIamPolicy", {}))


@pytest.fixture
def command(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    monkeypatch.setenv("GOOGLE_PROJECT", PROJECT)

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["audit", *words])
        return done.exit_code, done.output

    return run


def test_the_command_shows_asks_and_exits_with_three(
    command: Callable[..., tuple[int, str]], cloud: LocalCloud, backend: Backend
) -> None:
    assert command("--min-age", "0") == (0, f"{PROJECT}: no findings\n")
    own = labels.of_stack("outlast", "gone", "gone", {})
    insert(cloud, f"zones/{ZONE}/disks", {"name": "lost", "labels": own})
    code, text = command("--min-age", "0")
    assert code == audit.FOUND
    assert "lost" in text and "this backend has no stack outlast/gone" in text
    assert "1 finding in" in text and "a month at list prices of" in text
    code, text = command("--min-age", "0", "--json")
    document = json.loads(text)
    assert code == document["exit_code"] == audit.FOUND
    assert document["findings"][0]["name"] == "lost" and document["dollars_month"] > 0
    code, text = command("--min-age", "0", "--remove")
    assert code == 2 or "no terminal to ask on" in text
    assert command("--min-age", "0", "--remove", "--yes")[0] == 0
    assert command("--min-age", "0")[0] == 0


def test_a_state_without_outputs_owns_nothing_and_a_name_may_lack_its_project() -> None:
    assert owners.owner_of("one", {}, "Out.last").name == "out-last/one"
    whole = owners.owner_of("organization/other/two", {"deployment": None}, "here")
    assert (whole.name, whole.paths, whole.busy) == ("other/two", frozenset(), False)
    assert replace(whole, busy=True).busy
