"""The bench of many runs: what it reckons on paper, and that it measures what it says."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench import limits, planted, scale
from bench.limits import DELETE, LIST, READ, WRITE, Asked, Measured
from outlast.base.exits import DONE
from outlast.bucket import listed
from outlast.bucket.layout import Layout
from outlast.costs import pricing

RUN = "/storage/v1/b/runs/o/experiments/one/0123456789"


def asked(method: str, path: str, name: str | None = None, vm: str | None = "vm") -> dict[str, Any]:
    return {"vm": vm, "method": method, "path": path, "object": name, "count": 3}


def of(what: str, act: str) -> Asked:
    return Asked("storage", what, act)


@pytest.mark.parametrize(
    ("method", "path", "name", "kind"),
    [
        ("GET", "/storage/v1/b/runs/o", None, of("objects", LIST)),
        ("POST", "/upload/storage/v1/b/runs/o", "HEAD", of("HEAD write", WRITE)),
        ("GET", f"/download{RUN}/HEAD", "HEAD", of("HEAD read", READ)),
        ("POST", "/upload/storage/v1/b/runs/o", "attempts/000001/heartbeat.json", None),
        ("DELETE", RUN, "t000001/s000000000010-abc/state", of("checkpoint", DELETE)),
        ("GET", RUN, "STOP-r0.json", of("stop request", READ)),
        ("POST", "/compute/v1/projects/p/g/one/listManagedInstances", None, None),
        ("POST", "/compute/v1/projects/p/g/one/deleteInstances", None, Asked("compute", "", WRITE)),
        ("GET", "/computeMetadata/v1/instance/id", None, Asked("metadata", "", READ)),
    ],
)
def test_requests_have_kinds(method: str, path: str, name: str | None, kind: Asked | None) -> None:
    if path.endswith("listManagedInstances"):
        kind = Asked("compute", "listManagedInstances", READ)
    found = limits.kinds(
        [asked(method, path, name and f"experiments/one/0123456789/{name}")], of_vms=True
    )
    assert found == {kind or of("heartbeat", WRITE): 3}
    assert not limits.kinds([asked(method, path, name, vm=None)], of_vms=True)


@pytest.fixture
def one() -> Measured:
    """Two commits of three objects and four heartbeats in 40 s."""
    steady = Counter({of("HEAD write", WRITE): 2, of("checkpoint", WRITE): 6})
    steady += Counter({of("checkpoint", DELETE): 6, of("heartbeat", WRITE): 4})
    steady += Counter({of("HEAD read", READ): 8, of("log", WRITE): 1})
    boot = Counter({Asked("compute", "listManagedInstances", READ): 2})
    return Measured(Counter(), boot, steady, Counter(), seconds=40.0, kept=3, gib=0.0)


def test_commits_and_heartbeats_count_by_their_intervals_and_the_rest_by_time(
    one: Measured,
) -> None:
    hourly = one.hourly()
    assert hourly[of("checkpoint", WRITE)] == 3 * 720  # one commit in 5 s
    assert hourly[of("HEAD read", READ)] == 2 * 360  # one heartbeat in 10 s
    assert hourly[of("log", WRITE)] == 90
    assert one.hourly(10.0)[of("checkpoint", WRITE)] < 60


def test_limits_are_sorted_by_the_runs_at_which_they_break(one: Measured) -> None:
    rows = limits.shares(one, 1000)
    breaks = [row["holds runs"] for row in rows if row["holds runs"] is not None]
    assert breaks == sorted(breaks) and rows[0]["holds runs"] == 50
    assert limits.first(rows).startswith("breaks first: bucket's policy: conditional bindings")
    by_name = {row["limit"]: row for row in rows}
    accounts = by_name["project: service accounts"]
    assert (accounts["share at 1000"], accounts["holds runs"]) == ("1000%", 100)
    # (1 + 3 + 3) writes and deletions of each of 720 commits, 360 heartbeats, 90 of the log.
    writes = by_name["bucket: writes and deletions a second at first"]
    assert writes["holds runs"] == int(1000 * 3600 / (7 * 720 + 360 + 90))
    assert by_name["Compute: reads a minute, if all boot in the same one"]["holds runs"] == 750
    head = by_name["one object: writes of HEAD a second"]
    assert (head["share at 1000"], head["holds runs"]) == ("20%", None)
    assert all(row["page"] for row in rows)
    assert {row["page"] for row in limits.numbered(rows)} == {
        page.partition(" ")[0] for page in limits.pages(rows)
    }


def test_costs_are_those_of_the_products_prices(one: Measured) -> None:
    first, *_, last = limits.costs(one, 10, "europe-west4", 2.0)
    writes, reads = 4 * 720 + 360 + 90, 720
    month = pricing.requests(writes, reads) * pricing.HOURS_A_MONTH
    assert first["requests $ a month"] == round(10 * month)
    assert last["requests $ a month"] < first["requests $ a month"]
    rate = pricing.storage_gib_month("europe-west4")
    assert rate and first["3 checkpoints of 2 GiB, $ a month"] == round(10 * 3 * 2 * rate)


def test_a_planted_run_is_read_as_one_of_its_length() -> None:
    layout = Layout("experiments/one", "0123456789")
    sizes = []
    for commits in (2, 20):
        store = planted.run(layout, "o/p/s", attempts=2, commits=commits, ended=False)
        records = listed.read(store, "experiments/")
        assert records.runs() == [layout]
        sizes.append((len(records.needed(layout)), len([*store.list("")])))
    assert sizes[0][0] == sizes[1][0] and sizes[0][1] < sizes[1][1]


@pytest.mark.parametrize(
    ("calls", "broken", "code"),
    [((9, 9), [], DONE), ((9, 10), [], scale.FAILED), ((9, 9), ["audit"], scale.FAILED)],
)
def test_calls_that_grow_with_a_runs_length_or_a_command_that_breaks_fail_it(
    calls: tuple[int, int],
    broken: list[str],
    code: int,
    one: Measured,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(scale, "one_run", lambda *_: one)
    grown = [{"what": "list", "storage": n, "compute": 0, "other": 0} for n in calls]
    rows = [{"what": "list", "runs": 100, "s": 2.0}]
    monkeypatch.setattr(scale, "simulated", lambda *_: (rows, grown, broken))
    out = tmp_path / "out.json"
    assert scale.main(["--runs", "100", "--json", str(out)]) == code
    assert "bench.scale --runs 100" in json.loads(out.read_text())["header"]["command"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_and_planted_ones_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert scale.main(["--runs", "12", "--commits", "2", "--json", str(out)]) == DONE
    parts = json.loads(out.read_text())["parts"]
    titles = {part["title"]: part["rows"] for part in parts if isinstance(part, dict)}
    audits = {n: titles[f"{n} planted runs"][-1] for n in (10, 12)}
    # Two more runs: one request for each HEAD, none for their groups, templates and VMs.
    assert audits[12]["storage"] - audits[10]["storage"] == 2
    assert audits[12]["compute"] == audits[10]["compute"] > 0
