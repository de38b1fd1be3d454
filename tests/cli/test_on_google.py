"""The rehearsal on Google, against recorded refusals and a local cloud's public API."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.base.exits import Reason, State
from outlast.base.http_client import Answer, RequestFailed, ask
from outlast.bucket.history import History
from outlast.bucket.store import MemoryStore
from outlast.cli.app import cli
from outlast.cli.errors import OperateError, RehearsalError, UsageError
from outlast.cli.rehearsal import scenario
from outlast.cli.rehearsal.google import budget, lease, names, preflight, probes, rehearse
from outlast.cli.rehearsal.google import cloud as clouds
from outlast.cli.rehearsal.google.assumptions import ASSUMPTIONS, OF_THE_RUN, Outcome
from outlast.cli.rehearsal.google.leftovers import Leftovers
from outlast.cli.rehearsal.rehearsal import Watcher
from outlast.cli.rehearsal.seen import Ending, Fault, RunRecord, Seen
from outlast.cloud import compute as api
from outlast.cloud.compute import Compute, ComputeError
from outlast.cloud.project import Project
from tests.cli.test_guarantees import attempt, book, chain, head
from tests.localcloud.local_cloud import PROJECT, FullCloud
from tools import assumptions_table

EVENTS = [
    {"when": {"attempt": 1, "phase": "step", "share": 0.15, "commits": 1}, "do": {"preempt": {}}},
    {"when": {"attempt": 2, "phase": "upload", "share": 0.4}, "do": {"kill": {}}},
]


class Heard(Watcher):
    """Keeps every message."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def of(events: Any = EVENTS, **more: Any) -> scenario.Scenario:
    return scenario.of({"name": "mine", "events": events, **more})


# The budget


def test_the_worst_cost_is_the_price_times_the_run_limit_of_every_vm():
    found = budget.of("us-central1-a", 3)
    hour = 0.5 * 0.02181 + 2 * 0.002924 + 10 * 0.1 / 730 + 0.005
    by_name = {part.what: part.dollars for part in found.parts}
    assert by_name["baseline (60 min of e2-small)"] == pytest.approx(hour)
    assert by_name["run (63 min of e2-small)"] == pytest.approx(hour * 63 / 60)
    assert found.worst == pytest.approx(sum(by_name.values()))
    assert found.worst < 0.5, "a user with 50 cents"


def test_each_probe_costs_less_than_a_cent():
    assert budget.of("us-central1-a", 0, probes_only=True).worst < 0.01


def test_a_rehearsal_above_the_most_is_refused_and_the_amount_that_it_names_is_enough():
    with pytest.raises(
        UsageError, match=r"--max-cost 0.01: the rehearsal costs at most"
    ) as refused:
        budget.of("us-central1-a", 3).check(0.01)
    enough = re.search(r"--max-cost (\d+\.\d+), or", str(refused.value))
    assert enough
    budget.of("us-central1-a", 3).check(float(enough[1]))


def test_an_unknown_price_is_refused_and_not_taken_for_nothing():
    with pytest.raises(UsageError, match="e2-micro on demand .* so the worst cost is unknown"):
        budget.of("africa-south1-a", 3)


# What a scenario may ask for


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"world": {"daily_preemption": {"every_sec": 9}}}, "world.daily_preemption"),
        ({"stack": {"outlast:retriesFailures": 1}}, "stack.outlast:retriesFailures"),
        ({"events": [{"when": {"attempt": 1}, "do": {"freeze": {}}}]}, "do.freeze: is not one of"),
        ({"events": [{"when": {"phase": "boot"}, "do": {"kill": {}}}]}, "when.phase boot: cannot"),
        ({"events": [{"when": {"at_sec": 3}, "do": {"kill": {}}}]}, "when.at_sec: cannot be seen"),
        (
            {"events": [{"when": {"attempt": 1}, "do": {"preempt": {"notice_sec": 0}}}]},
            "do.preempt.notice_sec: cannot be set",
        ),
        (
            {"events": [{"when": {"attempt": 1}, "do": {"kill": {}}, "times": 0}]},
            r"events\[0\]: can happen once",
        ),
    ],
)
def test_what_googles_api_cannot_do_is_refused_by_name(change: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        clouds.check(of(**{"events": EVENTS, **change}))


def test_the_default_scenario_can_be_played():
    document = {"name": "storm", "events": EVENTS, "world": {"zones": {}, "iam_delay_sec": 0.0}}
    clouds.check(scenario.of(document))


# The faults


class Calls(Compute):
    """Keeps the calls that change something, and refuses those of one path."""

    def __init__(self, refused: str = "", status: int = 404, why: str = "refused") -> None:
        super().__init__(PROJECT)
        self.made: list[str] = []
        self._refused, self._status, self._why = refused, status, why

    def call(self, method: str, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        self.made.append(f"{method} {path}")
        if self._refused and self._refused in path:
            raise ComputeError(self._status, f"{path}: {self._why}")
        return {}


def running(term: int, step: int, *commits: int) -> History:
    """Attempt `term` is at a step of 90, and HEAD has a checkpoint of each of these terms."""
    attempts = [attempt(n, 0, step, 0, Reason.PREEMPTED) for n in range(1, term)]
    now = replace(attempt(term, 0, step, 0, Reason.DONE), end=None, reason=None)
    opened = head(state=State.OPEN, end=None, chain=chain(*commits))
    return book(head=opened, attempts=(*attempts, now))


def playing(calls: Calls) -> clouds.GoogleCloud:
    project = Project(PROJECT)
    cloud = clouds.GoogleCloud(calls, project, Leftovers(calls, project, "z"))
    cloud.play(of().document, target=names.EXPERIMENT)
    return cloud


def test_events_happen_when_the_bucket_shows_their_moments():
    calls = Calls()
    cloud = playing(calls)
    for seen in (running(1, 10, 1), running(1, 14), running(2, 14), running(1, 14, 1)):
        fresh = playing(quiet := Calls())
        fresh.watch(seen)
        due = seen is not None and seen.attempts[-1].term == 1 and bool(seen.head.chain)
        assert bool(quiet.made) is (due and seen.step >= 0.15 * 90)
    cloud.watch(running(1, 20, 1))
    cloud.watch(running(1, 25, 1))
    assert calls.made == ["POST zones/z/instances/vm/simulateMaintenanceEvent"]
    cloud.watch(running(2, 30, 1))
    assert len(calls.made) == 1
    cloud.watch(running(2, 40, 1))
    assert calls.made[1:] == ["DELETE zones/z/instances/vm"]
    log = cloud.played()["log"]
    assert [(entry["do"], entry["attempt"]) for entry in log] == [("preempt", 1), ("delete", 2)]
    assert log[1]["planned"] == "kill", "Google has no cut without a notice; the report says so"
    assert cloud.played()["waiting"] == []


def test_nothing_happens_to_an_attempt_that_has_ended():
    cloud = playing(calls := Calls())
    ended = running(1, 40, 1)
    cloud.watch(replace(ended, attempts=(attempt(1, 0, 40, 0, Reason.VM_LOST),)))
    cloud.watch(replace(ended, head=head()))
    cloud.watch(None)
    assert calls.made == []


def test_a_refused_fault_counts_as_missed_and_refused_credentials_end_the_rehearsal():
    cloud = playing(Calls(refused="simulateMaintenanceEvent", status=400))
    cloud.watch(running(1, 20, 1))
    assert "refused" in cloud.played()["log"][0]["missed"]
    cloud = playing(Calls(refused="simulateMaintenanceEvent", status=401))
    with pytest.raises(RehearsalError, match="credentials are missing or have expired"):
        cloud.watch(running(1, 20, 1))


# Refusals, as public reports quote Google's answers

BILLING = (
    "This API method requires billing to be enabled. Please enable billing on project #123 by"
    " visiting https://console.developers.google.com/billing/enable?project=123 then retry."
)
BUCKET_BILLING = "The billing account for the owning project is disabled in state absent"
DISABLED = (
    "Compute Engine API has not been used in project 123 before or it is disabled. Enable it by"
    " visiting https://console.developers.google.com/apis/api/compute.googleapis.com then retry."
)
EXPIRED = (
    "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or"
    " other valid authentication credential."
)
STRANGER = "Required 'compute.projects.get' permission for 'projects/theirs-123'"
QUOTAS = [{"metric": "CPUS", "limit": 24.0, "usage": 0.0}]


class Google:
    """Answers of a project in which nothing exists, but for the ones that are set."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "GET /projects/theirs-123": {"name": "theirs-123", "quotas": []},
            "GET /regions/us-central1": {"name": "us-central1", "quotas": QUOTAS},
            "GET /machineTypes/e2-small": {"guestCpus": 2},
            "POST :testIamPermissions": {"permissions": list(preflight.PERMISSIONS)},
            "POST :getIamPolicy": {},
        }
        self.changes: list[str] = []

    def ask(self, url: str, *, what: str, method: str, **_: Any) -> Answer:
        path = url.partition("?")[0]
        for asked, answer in self.answers.items():
            if method == asked.partition(" ")[0] and path.endswith(asked.partition(" ")[2]):
                if isinstance(answer, tuple):
                    status, words = answer
                    raise RequestFailed(status, f"{what}: {status} {words}", words)
                return Answer(what, {}, json.dumps(answer).encode())
        if method != "GET":
            self.changes.append(f"{method} {path}")
        return Answer(what, {}, b"{}")


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    found = Google()
    monkeypatch.setattr(api, "ask", found.ask)
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "t")
    for variable in ("COMPUTE", "STORAGE", "IAM_BETA", "RESOURCE_MANAGER"):
        monkeypatch.delenv(f"GOOGLE_{variable}_CUSTOM_ENDPOINT", raising=False)
    monkeypatch.setattr(rehearse.scenario, "read", lambda *_: of())
    monkeypatch.setattr(rehearse.engine, "find_parts", lambda: None)
    return found


REFUSALS = {
    "no billing account": ("GET /projects/theirs-123", (403, BILLING), "no active billing account"),
    "API disabled": ("GET /projects/theirs-123", (403, DISABLED), "an API is disabled .* enable"),
    "credentials": ("GET /projects/theirs-123", (401, EXPIRED), "run gcloud auth application-def"),
    "another person's": (
        "GET /projects/theirs-123",
        (403, STRANGER),
        "this account may not do that",
    ),
    "no such project": ("GET /projects/theirs-123", (404, "not found"), "does not exist, or this"),
    "silence": ("GET /projects/theirs-123", (0, "no route"), "Google does not answer"),
    "readable only": (
        "POST :testIamPermissions",
        {"permissions": []},
        "lacks compute.disks.create",
    ),
    "quota of zero": (
        "GET /regions/us-central1",
        {"name": "us-central1", "quotas": [{"metric": "CPUS", "limit": 0.0, "usage": 0.0}]},
        "quota CPUS of us-central1: 0, of which 0 are used, must leave 6",
    ),
    "global quota": (
        "GET /projects/theirs-123",
        {"name": "p", "quotas": [{"metric": "CPUS_ALL_REGIONS", "limit": 12.0, "usage": 8.0}]},
        "quota CPUS_ALL_REGIONS of p: 12, of which 8 are used, must leave 6",
    ),
    "no default network": (
        "GET /global/networks/default",
        (404, "not found"),
        "has no network default, which the rehearsal's VMs use",
    ),
    "no such zone": (
        "GET /machineTypes/e2-small",
        (404, "not found"),
        "--zone us-central1-a: does",
    ),
    "a stranger's bucket": (
        "GET /storage/v1/b",
        {"items": [{"name": "theirs-123-outlast-rehearsal", "labels": {}}]},
        "has no label outlast-rehearsal=google",
    ),
    "no billing for a bucket": ("POST /storage/v1/b", (403, BUCKET_BILLING), "no active billing"),
    "the bucket's name is taken": (
        "POST /storage/v1/b",
        (409, "not available"),
        "409 not available",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_explained_before_anything_exists(google: Google, name: str):
    asked, answer, said = REFUSALS[name]
    google.answers[asked] = answer
    with pytest.raises(OperateError, match=said):
        rehearse.rehearse(rehearse.Order("theirs-123"), Heard())
    assert google.changes == []


def test_a_granted_quota_for_preemptible_cpus_is_the_one_that_counts(google: Google):
    spot = {"metric": "PREEMPTIBLE_CPUS", "limit": 2.0, "usage": 0.0}
    google.answers["GET /regions/us-central1"] = {"name": "r", "quotas": [*QUOTAS, spot]}
    with pytest.raises(RehearsalError, match="quota PREEMPTIBLE_CPUS of r: 2"):
        rehearse.rehearse(rehearse.Order("theirs-123"), Heard())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--project"),
        (["--project", "123456"], "must be a project's id"),
        (["--project", "theirs-123", "--zone", "moon"], "must be a zone"),
        (["--project", "theirs-123", "--stack", "prod"], "--stack: is for a rehearsal on this"),
        (["--project", "theirs-123", "--max-cost", "0.01"], "--max-cost 0.01"),
    ],
)
def test_a_call_that_makes_no_sense_asks_google_nothing(
    google: Google, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
):
    monkeypatch.setattr(api, "ask", lambda *_, **__: pytest.fail("a request was sent"))
    done = CliRunner().invoke(cli, ["rehearse", "--on", "google", *words])
    assert said in done.output + str(done.exception)


def test_options_for_google_are_refused_on_this_machine():
    done = CliRunner().invoke(cli, ["rehearse", "--max-cost", "1"])
    assert done.exit_code == 2 and "--max-cost: needs --on google" in done.output


# The lease


def test_a_lease_is_held_by_its_process_alone():
    store = MemoryStore()
    assert lease.read(store) is None
    ours = lease.Holder.ours("token")
    with lease.held(store, ours):
        assert lease.read(store) == ours and lease.running(store, ours)
    assert not lease.running(store, replace(ours, begun="1"))
    elsewhere = replace(ours, host="another", begun="1")
    assert lease.running(store, elsewhere), "it was renewed a moment ago"


def test_a_lease_that_cannot_be_read_has_no_holder():
    store = MemoryStore()
    store.put(lease.OBJECT, b"{]")
    assert lease.read(store) is None


# What a probe's VM says

SAID = {
    **{"python": "3.13", "venv": "ok", "preempted": "FALSE", "known": "200", "granted-sec": "9"},
    **{"absent": "404", "list": "200", "list-all": "403", "other": "403", "end": "0"},
}
OF_A_VM = ("first-boot", "preempted-flag", "absent-object", "own-prefix")


@pytest.mark.parametrize(
    ("change", "failed", "unasked"),
    [
        ({}, (), ()),
        ({"absent": "403"}, ("absent-object",), ()),
        ({"absent": "500"}, (), ("absent-object",)),
        ({"python": "3.14"}, ("first-boot",), ()),
        ({"venv": "failed"}, ("first-boot",), ()),
        ({"preempted": "none"}, ("preempted-flag",), ()),
        ({"other": "200"}, ("own-prefix",), ()),
        ({"known": "403"}, ("own-prefix",), ("absent-object",)),
    ],
)
def test_an_assumption_that_does_not_hold_is_found(change: Any, failed: Any, unasked: Any):
    asked = probes.Probes(Calls(), Project(PROJECT), MemoryStore(), "z", "i", Heard())
    asked._judge_vm({**SAID, **change})
    found = {a.assumption.name: a.outcome for a in asked.answers(with_run=False)}
    for name in OF_A_VM:
        outcome = Outcome.FAILS if name in failed else Outcome.HOLDS
        assert found[name] is (Outcome.UNASKED if name in unasked else outcome), name


@pytest.mark.parametrize(
    ("status", "why", "outcome"),
    [
        (400, "Invalid value for scheduling.preemptionNoticeDuration", Outcome.FAILS),
        (400, "The referenced network resource cannot be found.", Outcome.UNASKED),
        (403, "Constraint constraints/compute.vmExternalIpAccess violated", Outcome.UNASKED),
        (503, "no capacity for a Spot VM with a notice", Outcome.UNASKED),
    ],
)
def test_a_refusal_speaks_against_an_assumption_if_it_names_its_fields(
    status: int, why: str, outcome: Outcome
):
    calls = Calls("instances", status, why)
    asked = probes.Probes(calls, Project(PROJECT), MemoryStore(), "z", "i", Heard())
    with pytest.raises(ComputeError):
        asked._accepted("spot-notice", "zones/z/instances", {}, ("notice",))
    found = {a.assumption.name: a.outcome for a in asked.answers(with_run=False)}
    assert found["spot-notice"] is outcome


def test_a_vm_that_says_nothing_answers_nothing():
    asked = probes.Probes(Calls(), Project(PROJECT), MemoryStore(), "z", "i", Heard())
    asked._judge_vm({})
    found = {a.assumption.name: a.outcome for a in asked.answers(with_run=True)}
    assert set(found.values()) == {Outcome.UNASKED}


@pytest.mark.parametrize(
    ("attempts", "sizes", "failed", "unasked"),
    [
        ((Reason.PREEMPTED, Reason.INTERRUPTED, Reason.DONE), {"a": 0}, (), ()),
        (
            (Reason.INTERRUPTED, Reason.VM_LOST, Reason.DONE),
            {"a": 1},
            ("simulated-preemption", "leaving"),
            (),
        ),
        ((Reason.DONE,), {"a": 0}, (), ("simulated-preemption", "deleted-vm")),
    ],
)
def test_the_run_answers_three_assumptions(
    attempts: Any, sizes: dict[str, int], failed: Any, unasked: Any
):
    made = tuple(attempt(n, 0, 9, 0, reason) for n, reason in enumerate(attempts, 1))
    seen = Seen(
        Ending("done"),
        RunRecord(book(attempts=made)),
        faults=[Fault("preempt", attempt=1), Fault("delete", attempt=2)],
        sizes=sizes,
    )
    asked = probes.Probes(Calls(), Project(PROJECT), MemoryStore(), "z", "i", Heard())
    asked.ask_run(seen)
    found = {a.assumption.name: a.outcome for a in asked.answers(with_run=True)}
    for name in OF_THE_RUN:
        outcome = Outcome.FAILS if name in failed else Outcome.HOLDS
        assert found[name] is (Outcome.UNASKED if name in unasked else outcome), name


# The page


def test_the_page_and_the_code_list_the_same_probes():
    page = assumptions_table.PAGE.read_text()
    listed = re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.M)
    assert listed == list(ASSUMPTIONS)
    assert assumptions_table.written(page) == page, "run python tools/assumptions_table.py"


# A local cloud's public API


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullCloud]:
    cloud = FullCloud(tmp_path_factory.mktemp("google") / "state")
    yield cloud
    cloud.stop()
    cloud.http.close()


@pytest.fixture
def shell(local: FullCloud, monkeypatch: pytest.MonkeyPatch) -> FullCloud:
    """The cloud, empty, with this process in a shell that leads to it."""
    local.ok("POST", "/_local/reset")
    local.ok("POST", "/_local/switches", dict.fromkeys(WRONG, False))
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "local")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", local.url)
    for variable, address in local.endpoints().items():
        monkeypatch.setenv(variable, address)
    monkeypatch.setattr(rehearse.scenario, "read", lambda *_: of())
    monkeypatch.setattr(rehearse.engine, "find_parts", lambda: None)
    monkeypatch.setattr(probes, "GROUP_LIMIT_SEC", 6.0)
    monkeypatch.setattr(probes, "WATCH_SEC", 1.0)
    monkeypatch.setattr(probes, "POLL_SEC", 0.2)
    monkeypatch.setattr("outlast.cli.rehearsal.google.leftovers.SETTLE_SEC", 0.1)
    return local


WRONG = ("absent_forbidden", "vms_hold_template")
"""Switches that make Google's part other than Outlast assumes."""
ORDER = rehearse.Order(PROJECT, probes_only=True)


def left(cloud: FullCloud) -> dict[str, Any]:
    found = cloud.ok("GET", "/_local/audit")
    return {kind: there for kind, there in found.items() if there and kind != "deleted_roles"}


def test_each_assumption_holds_but_the_two_that_are_wrong_here_and_nothing_is_left(
    shell: FullCloud,
):
    heard = Heard()
    shell.ok("POST", "/_local/switches", dict.fromkeys(WRONG, True))
    report = rehearse.rehearse(ORDER, heard)
    outcomes = {answer.assumption.name: answer.outcome for answer in report.answers}
    assert list(outcomes) == [name for name in ASSUMPTIONS if name not in OF_THE_RUN]
    wrong = {name: outcome for name, outcome in outcomes.items() if outcome is not Outcome.HOLDS}
    assert wrong == dict.fromkeys(("absent-object", "old-template"), Outcome.FAILS), heard.lines
    assert heard.lines[0].startswith("costs at most $0.0")
    document = json.dumps(report.as_json())
    assert PROJECT not in document, "the report may be attached to a public issue"
    assert left(shell) == {}


def test_credentials_that_expire_midway_leave_what_a_second_call_deletes(
    shell: FullCloud, monkeypatch: pytest.MonkeyPatch
):
    expired: list[str] = []

    def later(url: str, **how: Any) -> Answer:
        if expired or "instanceGroupManagers" in url and how["method"] == "PATCH":
            expired.append(url)
            raise RequestFailed(401, f"{how['what']}: 401 {EXPIRED}", EXPIRED)
        return ask(url, **how)

    dead = replace(lease.Holder.ours(""), begun="1")
    monkeypatch.setattr(lease.Holder, "ours", lambda token: dead)
    monkeypatch.setattr(api, "ask", later)
    with pytest.raises(RehearsalError, match="run gcloud auth application-default login"):
        rehearse.rehearse(ORDER, Heard())
    assert {"buckets", "groups", "templates", "vms"} <= left(shell).keys()
    monkeypatch.setattr(api, "ask", ask)
    heard = Heard()
    rehearse.clean_up(ORDER, heard)
    assert left(shell) == {}
    assert heard.lines[0].startswith(
        "an earlier rehearsal left groups outlast-rehearsal-probe-group"
    )
    heard.lines.clear()
    rehearse.clean_up(ORDER, heard)
    assert heard.lines == [f"project {PROJECT}: nothing of a rehearsal exists"]


def test_a_clean_up_outlasts_a_network_that_fails(
    shell: FullCloud, monkeypatch: pytest.MonkeyPatch
):
    google = rehearse._Google(ORDER, Heard())
    google.cloud.make_bucket(names.bucket_of(PROJECT), "us-central1")
    failures = iter([503, 0])

    def flaky(url: str, **how: Any) -> Answer:
        if "instanceTemplates" in url and (status := next(failures, None)) is not None:
            raise RequestFailed(status, f"{how['what']}: no answer")
        return ask(url, **how)

    monkeypatch.setattr(api, "ask", flaky)
    rehearse.clean_up(ORDER, Heard())
    assert left(shell) == {} and next(failures, None) is None


def test_a_running_rehearsal_is_left_alone_and_so_is_what_is_not_a_rehearsals(shell: FullCloud):
    google = rehearse._Google(ORDER, Heard())
    vm = {
        "name": names.PROBE,
        "machineType": "zones/us-central1-a/machineTypes/e2-micro",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": ORDER.image}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
    }
    google.compute.order("POST", "zones/us-central1-a/instances", vm, limit_sec=60)
    with google.taken("token"), pytest.raises(RehearsalError, match="is rehearsing in it"):
        rehearse.clean_up(ORDER, Heard())
    assert left(shell)["vms"] == [names.PROBE], "it has no label"
