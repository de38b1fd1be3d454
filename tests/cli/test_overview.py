"""`outlast list` and `outlast status`: all runs of the buckets at a glance, in few calls."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from outlast.base.exits import Reason, State
from outlast.bucket import inventory
from outlast.bucket.head import End, Head, Move, Phase, read_head
from outlast.bucket.layout import DEVELOPMENT, AttemptEnd, BootRecord, Layout
from outlast.bucket.store import GcsStore, MemoryStore, Operation, Store
from outlast.bucket.transfer import SMALL_READS
from outlast.cli import costs, data, engine, experiments, overview, runs, status
from outlast.cli.app import cli
from outlast.cli.audit import owners
from outlast.cli.errors import OperateError
from outlast.cli.prune import select
from outlast.cli.runs import Place
from outlast.cli.show.status import show_status
from tests.cli.records import heartbeat_record, start_record
from tests.stores import BUCKET, storage_api  # noqa: F401  a fixture

START = datetime(2026, 1, 1, tzinfo=UTC)
RUN = "0123456789"
BILLED = {"spot": True, "disk": "pd-balanced", "disk_gb": 10, "ssds": 0, "address": False}


def layout(experiment: str) -> Layout:
    return Layout(f"experiments/{experiment}", RUN)


def plant(
    store: Store,
    experiment: str,
    *,
    attempts: int = 2,
    state: State = State.OPEN,
    owner: str = "organization/mine/first",
    run: Layout | None = None,
    why: str = "",
) -> Layout:
    """A run whose last attempt works on it, unless it has ended."""
    run = run or layout(experiment)
    for term in range(1, attempts + 1):
        boot = BootRecord(str(term), f"b{term}", "vm", "europe-west4-a", 0, 0, START)
        store.put(run.boot(str(term), f"b{term}"), boot.to_json())
        start = replace(start_record(term, 10 * term, START), spec={"billed": BILLED})
        store.put(run.attempt_start(term), start.to_json())
        row = {"step": 10 * term + 5, "loss": 0.5}
        heartbeat = heartbeat_record(term, 10 * term + 5, START, total=100, row=row)
        store.put(run.heartbeat(term), heartbeat.to_json())
        if term < attempts or state.ended:
            end = AttemptEnd(
                *(term, Reason.PREEMPTED, State.OPEN, 75, 10 * term + 5, None, "", (), 0.0, START)
            )
            store.put(run.attempt_end(term), end.to_json())
    deadline = datetime.now(UTC) + timedelta(days=1)
    end = End(Reason(state.value), None, 9, None, why) if state.ended else None
    head = Head(
        *(owner, 0, 0, attempts, state, end, START, deadline, (), (), 0, 0, None, "n"),
    )
    store.put(run.head, head.to_json())
    return run


class Counted:
    """A store that counts its calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in ("get", "stat", "list", "folders"):
            self.calls[name] += 1
        return found


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The one bucket of this project, whose clock a test may move."""
    store = MemoryStore()
    monkeypatch.setattr(experiments, "buckets", lambda: {"runs": ""})
    monkeypatch.setattr(experiments, "open_bucket", lambda *_: store)
    return store


def states(found: overview.Overview) -> dict[str, str]:
    return {line.status.experiment: str(line.status.state) for line in found.lines}


def test_each_experiments_newest_run_is_listed_open_ones_first(memory: MemoryStore) -> None:
    plant(memory, "b-open")
    plant(memory, "a-done", state=State.DONE)
    memory.put("experiments/c-new/bundles/1.zip", b"x")
    memory.put("experiments/d-boots/0000000000/boots/1-b.json", b"{}")
    memory.put("experiments/e-torn/0000000000/HEAD", b"x")
    found = overview.read()
    assert states(found) == {"b-open": "running", "d-boots": "booting", "a-done": "done"}
    assert found.without == ("c-new",)
    (why,) = found.unread
    assert why.startswith("e-torn: ") and "outlast repair e-torn" in why
    shown = found.lines[0].as_json()
    assert (shown["step"], shown["total"], shown["rate"], shown["left_sec"]) == (25, 100, 1.0, 75)
    assert shown["metrics"] == {"loss": 0.5} and shown["dollars"] > 0
    assert 0 <= shown["silent_sec"] < 30


def test_a_run_that_was_handed_over_is_listed_and_paid_for_where_it_is(memory: MemoryStore) -> None:
    plant(memory, "here")
    for name, phase in (("left", Phase.LEFT), ("leaving", Phase.LEAVING)):
        run = plant(memory, name)
        head = replace(read_head(memory, run).head, move=Move("gs://other", phase))
        memory.put(run.head, head.to_json())
    for found in (overview.read(), overview.read(every=True)):
        assert (states(found), found.without) == ({"here": "running"}, ())
        (why,) = found.unread
        assert "being handed over to gs://other" in why
    counted = costs.count_all()
    assert [one.experiment for one in counted.runs] == ["here"] and len(counted.unread) == 1


def test_every_run_and_only_mine(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(memory, "one")
    older = Layout("experiments/one", "ffffffffff")
    head = memory.get(layout("one").head)[0].replace(b'"2026-01-01', b'"2025-01-01')
    memory.put(older.head, head)
    plant(memory, "other")
    assert [line.status.run for line in overview.read().lines] == [RUN, RUN]
    every = [line.status.run for line in overview.read(every=True).lines]
    assert every == [RUN, "ffffffffff", RUN]
    own = (experiments.Settings("first", "runs", "one"),)
    monkeypatch.setattr(experiments, "settings", lambda: own)
    assert [*states(overview.read(mine=True))] == ["one"]


def test_development_runs_are_found_by_their_own_path_only(memory: MemoryStore) -> None:
    plant(memory, "one")
    newer = Layout("experiments/one", f"{DEVELOPMENT}0123456789")
    plant(memory, "one", run=newer)
    assert [line.status.run for line in overview.read(every=True).lines] == [RUN]
    assert runs.find("gs://runs/experiments/one").layout == layout("one")
    assert runs.find(f"gs://runs/{newer.root}").layout == newer
    assert [run.run for run in costs.count_all().runs] == [RUN]


def test_a_long_run_takes_no_more_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows, checkpoints, logs and results are not looked at."""
    counts = []
    for length in (1, 400):
        counted: Any = Counted(MemoryStore())
        monkeypatch.setattr(experiments, "buckets", lambda: {"runs": ""})
        monkeypatch.setattr(experiments, "open_bucket", lambda *_, store=counted: store)
        run = plant(counted, "long")
        for number in range(length):
            counted.put(run.metrics_piece(1, number), b'{"step": 1}\n')
            counted.put(run.snapshot(1, number, "a") + "model", b"x")
            counted.put(run.log_piece(1, number), b"said\n")
        counted.calls.clear()
        assert len(overview.read().lines) == 1
        counts.append(dict(counted.calls))
    assert counts[0] == counts[1] == {"folders": 1, "list": 3, "get": 6}, counts


MANY = 2 * SMALL_READS


@pytest.mark.parametrize(
    ("read", "together", "calls"),
    [
        # Experiments, what runs have records of, each experiment's runs, and each run's objects.
        (costs.count_all, "list .*[0-9]/|get .*/HEAD", {"list": 4 + 2 * MANY, "get": 6 * MANY}),
        (lambda: inventory.read(experiments.open_bucket("runs")), "get", {"list": 1, "get": MANY}),
        (
            lambda: data.uses_of(experiments.open_bucket("runs")),
            "list .*[0-9]/|stat|get",
            {"list": 1 + MANY, "stat": 2 * MANY, "get": 2 * MANY},
        ),
        (
            lambda: runs.find("gs://runs").layout,
            "list .*[0-9]/|stat",
            {"list": 1 + MANY, "stat": 2 * MANY},
        ),
        # For each run HEAD, and what its newest attempt needs.
        (
            lambda: select.plan(select.Rule(timedelta(0), frozenset({"done"}))),
            "get",
            {"list": 1, "get": 2 * MANY},
        ),
    ],
)
def test_many_runs_are_read_many_at_a_time(
    read: Callable[[], Any],
    together: str,
    calls: dict[str, int],
    memory: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of the calls that match only returns once as many others wait as may be under way."""
    monkeypatch.setattr(memory, "_clock", lambda: START)
    for number in range(MANY):
        plant(memory, f"run-{number:02}")
    monkeypatch.setattr(owners, "read", list)
    monkeypatch.setattr(engine, "project_name", lambda: "mine")
    alone = read()
    barrier = threading.Barrier(SMALL_READS)
    made: list[str] = []

    def around(operation: Operation, act: Callable[[], Any]) -> Any:
        made.append(operation.verb)
        if re.match(together, f"{operation.verb} {operation.path}"):
            barrier.wait(60)
        return act()

    store = memory.view(around)
    store.streams = 8
    monkeypatch.setattr(experiments, "open_bucket", lambda *_: store)
    assert read() == alone
    assert Counter(made) == calls


def requests_of(server: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what the client sends to the server from now on."""
    sent: Counter[str] = Counter()
    send = requests.Session.send

    def counted(self: Any, request: Any, **more: Any) -> Any:
        if request.url.startswith(server):
            kind = "list" if request.url.partition("?")[0].endswith("/o") else "read"
            sent[kind] += 1
        return send(self, request, **more)

    monkeypatch.setattr(requests.Session, "send", counted)
    return sent


def test_a_record_takes_one_request_and_a_thousand_names_one_list(
    bucket: GcsStore,
    storage_api: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With rows, logs and checkpoints that nothing looks at."""
    made = requests.post(
        f"{storage_api}/storage/v1/b?project=outlast-rehearsal", json={"name": "counted"}
    )
    made.raise_for_status()
    monkeypatch.setenv("OUTLAST_BUCKET", "counted")
    store = GcsStore("counted")
    runs = [plant(store, f"run-{number:02}") for number in range(12)]
    for number in range(40):
        store.put(runs[0].metrics_piece(1, number), b"{}")
        store.put(runs[0].log_piece(1, number), b"said")
    store.close()
    sent = requests_of(storage_api, monkeypatch)
    found = overview.read()
    assert len(found.lines) == 12 and not found.unread
    # For each run HEAD and two starts, two heartbeats and one end.
    assert sent["read"] == 12 * 6
    # Experiments; HEADs; boots and blocks; attempts.
    assert sent["list"] == 4


def test_without_a_bucket_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "buckets", dict)
    with pytest.raises(OperateError, match="no experiments: neither OUTLAST_BUCKET nor"):
        overview.read()


@pytest.fixture
def bucket(storage_api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStore]:  # noqa: F811
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.setenv("OUTLAST_BUCKET", BUCKET)
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    store = GcsStore(BUCKET)
    yield store
    store.close()


def outlast(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def ageless(text: str) -> str:
    """Without the seconds since a heartbeat."""
    return re.sub(r"\d+ s ago", "ago", " ".join(text.split()))


def test_the_commands_show_them_whole_in_a_pipe(bucket: GcsStore, tmp_path: Path) -> None:
    name = "a-name-that-is-as-long-as-names-may-get1"
    plant(bucket, name)
    plant(bucket, "b", state=State.STOPPED)
    listed = outlast("list")
    assert ageless(outlast("status")) == ageless(listed)
    head, first, second = listed.splitlines()
    assert head.split() == [
        *("experiment", "run", "state", "step", "steps/s", "left", "heartbeat", "cost")
    ]
    assert first.split()[:6] == [name, RUN, "running", "25", "of", "100"] and "$" in first
    assert second.split()[:4] == ["b", RUN, "stopped", "25"]
    found = json.loads(outlast("list", "--json"))
    assert [one["state"] for one in found] == ["running", "stopped"]
    assert outlast("list", "--mine").startswith("no experiments yet")
    shown = outlast("status", name, "b")
    assert f"{name}: run {RUN} is running, step 25 of 100, 1 min 15 s left at 1 steps/s\n" in shown
    assert f"b: run {RUN} is stopped, step 25 of 100" in shown
    assert [one["experiment"] for one in json.loads(outlast("status", name, "b", "--json"))] == [
        *(name, "b")
    ]
    assert "b: run" in outlast("status", "b", "gone", code=64)


def test_a_pruned_run_says_by_which_comparison(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "rung 20 of sweep lr: acc 0.5 is worse than 0.9, the last of the best 1 among 2 trials"
    plant(memory, "trial", state=State.PRUNED, why=why)
    plant(memory, "other")
    listed = outlast("list").splitlines()
    assert listed[0].split()[-1] == "why" and listed[2].endswith(why)
    assert [one["why"] for one in json.loads(outlast("list", "--json"))] == ["", why]
    place = Place("trial", memory, layout("trial"))
    monkeypatch.setattr(runs, "find", lambda *_, **__: place)
    shown = outlast("status", "trial").splitlines()
    assert shown[0] == f"trial: run {RUN} is pruned, step 25 of 100"
    assert shown[1] == f"pruned: {why}"
    found = json.loads(outlast("status", "trial", "--json"))
    assert (found["state"], found["reason"], found["why"]) == ("pruned", "pruned", why)
    watched = outlast("watch", "trial", code=6)
    assert watched.startswith(f"trial: pruned, step 25 of 100, {why}, loss 0.5")
    refused = CliRunner().invoke(cli, ["fetch", "trial"])
    assert refused.exit_code == 1 and str(refused.exception) == (
        f"trial: the run is pruned at step 0 ({why}) and has no result; outlast fetch --best"
        " fetches its best checkpoint, and outlast resume continues it"
    )


def test_a_silent_vm_is_never_shown_as_running(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(memory, "frozen")
    later = datetime.now(UTC)
    for seconds, state in ((31, "silent"), (601, "lost")):
        monkeypatch.setattr(memory, "now", lambda s=seconds: later + timedelta(seconds=s))
        shown = outlast("list")
        assert state in shown and "running" not in shown
        found = status.read(Place("frozen", memory, layout("frozen")))
        assert found.as_json()["silent_sec"] >= seconds
        assert (found.left is None) == (state == "lost")
        show_status(found)
        shown = capsys.readouterr().out
        assert f"is {state}, step" in shown and f"  {state}  " in shown
        assert "last heartbeat" in shown and "running" not in shown
