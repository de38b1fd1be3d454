"""A prune deletes what the rule names, and nothing that an open run or a stack needs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.base.exits import Reason, State
from outlast.bucket import pruning
from outlast.bucket.head import Checkpoint, End, Head, Move, Phase, Wheels, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import MemoryStore, NotFound, Operation, Store, StoreError, open_store
from outlast.cli import engine, experiments
from outlast.cli.app import cli
from outlast.cli.audit import owners
from outlast.cli.errors import UsageError
from outlast.cli.prune import delete, select, show
from outlast.cli.prune.select import Left, Plan, Rule
from outlast.cloud import credentials
from tests.cli.records import start_record
from tests.localcloud.local_cloud import LocalCloud, make_bucket
from tests.localcloud.scenarios.test_scenario_platform import start

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
OLD = timedelta(days=30)
ENDED = frozenset({"done", "failed"})
HOME = "gs://runs/experiments"


@dataclass
class World:
    """One bucket in memory whose time a test sets, and the states of the backend."""

    now: datetime = START
    fail: str = ""
    """The path of an object whose deletion fails."""
    stacks: list[owners.Owner] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryStore(clock=lambda: self.now, around=self._around)

    def _around(self, operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.verb == "delete" and self.fail and operation.path.endswith(self.fail):
            raise StoreError("no answer")
        return act()

    def run(self, experiment: str, run: str, state: State, **of: Any) -> Layout:
        return plant(self.store, experiment, run, state, self.now, **of)

    def up(self, name: str, run: Layout, **more: str) -> None:
        outputs = {"bucket": "runs", "prefix": run.prefix, "runPath": run.root.rstrip("/"), **more}
        stack = {"type": "pulumi:pulumi:Stack", "outputs": outputs}
        self.stacks.append(owners.owner_of(name, {"deployment": {"resources": [stack]}}, "mine"))


def plant(
    store: Store,
    experiment: str,
    run: str,
    state: State,
    now: datetime,
    *,
    owner: str = "organization/mine/dev",
    key: str = "1" * 64,
    parts: bool = False,
    **spec: Any,
) -> Layout:
    """A run with a checkpoint, a result, a log and a record, its bundle and its environment."""
    layout = Layout(f"experiments/{experiment}", run)
    folder = layout.snapshot(1, 10, "a")
    written = store.put(f"{folder}MANIFEST.json", b"{}")
    store.put(f"{folder}model", b"m" * 1000)
    store.put(layout.result_manifest(1), b"result")
    store.put(layout.log_piece(1, 0), b"said")
    bundle = layout.bundle(run.ljust(64, "0"))
    started = replace(start_record(1, 0, now), spec={"bundle": bundle, **spec})
    store.put(layout.attempt_start(1), started.to_json())
    store.put(bundle, b"code")
    store.put(f"{layout.environments}{key}.zip", b"packages")
    end = (
        End(Reason.DONE if state is State.DONE else Reason.LIMIT, None, 10, None)
        if state.ended
        else None
    )
    chain = (Checkpoint(folder, written.generation, "0" * 64, 1, 10, (), "p" if parts else ""),)
    head = Head(
        *(owner, 0, 0, 1, state, end, now, now + 900 * DAY, chain, (), 0, 0, None, "n"),
        wheels=(Wheels(key, "2" * 64),),
    )
    store.put(layout.head, head.to_json())
    return layout


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(experiments, "buckets", lambda: {"runs": ""})
    monkeypatch.setattr(experiments, "open_bucket", lambda *_: found.store)
    monkeypatch.setattr(owners, "read", lambda: tuple(found.stacks))
    monkeypatch.setattr(engine, "project_name", lambda: "mine")
    monkeypatch.setattr(select._Bucket, "location", "us-central1")
    return found


def chosen(world: World, **rule: Any) -> Plan:
    return select.plan(Rule(**{"older": OLD, "states": ENDED, **rule}))


def urls(plan: Plan) -> list[str]:
    return [f"{one.kind} {one.url.removeprefix(HOME)}" for one in plan.items]


def paths(world: World, layout: Layout) -> list[str]:
    return [one.path for one in world.store.list(layout.root)]


def test_old_ended_runs_are_deleted_and_open_young_and_other_ones_stay(world: World) -> None:
    done = world.run("a", "0done", State.DONE)
    failed = world.run("a", "1failed", State.FAILED)
    kept = [
        world.run("a", "2open", State.OPEN),
        world.run("a", "3stopped", State.STOPPED),
        world.run("b", "4theirs", State.DONE, owner="organization/other/dev"),
    ]
    world.now += 40 * DAY
    kept.append(world.run("a", "5young", State.DONE))
    plan = chosen(world)
    assert urls(plan) == ["run /a/0done/", "run /a/1failed/"]
    assert plan.left == (Left(f"{HOME}/b/4theirs/", "belongs to organization/other/dev"),)
    assert plan.size == sum(one.size for d in (done, failed) for one in world.store.list(d.root))
    assert plan.month.startswith("$")
    before = [paths(world, one) for one in kept]
    assert delete.delete(plan.items) == []
    assert paths(world, done) == paths(world, failed) == []
    assert [paths(world, one) for one in kept] == before
    assert chosen(world).items == ()
    # Bundles and environments are only deleted on request.
    assert list(world.store.list("experiments/a/bundles/0done"))


@pytest.mark.parametrize(
    "spec",
    [
        {"init": f"{HOME}/a/0done/t000001/s000000000010-a/#{'0' * 64}"},
        {"data": [f"{HOME}/a/0done/t000001/result/"]},
        {"args": {"teacher": f"{HOME}/a/"}},
    ],
)
def test_what_an_open_run_names_stays(world: World, spec: dict[str, Any]) -> None:
    world.run("a", "0done", State.DONE)
    world.run("a", "1done", State.DONE)
    user = world.run("b", "2open", State.OPEN, **spec)
    world.now += 40 * DAY
    plan = chosen(world)
    needed = ["/a/0done/", "/a/1done/"] if "args" in spec else ["/a/0done/"]
    why = "an open run or a stack needs it"
    assert plan.left == tuple(Left(f"{HOME}{one}", why) for one in needed)
    assert urls(plan) == ([] if "args" in spec else ["run /a/1done/"])
    # What it needs is not known: nothing is safe.
    start_object = world.store.stat(user.attempt_start(1))
    world.store.delete(start_object.path, generation=start_object.generation)
    assert chosen(world).items == ()
    assert "what it needs cannot be read" in chosen(world).left[0].why


@pytest.mark.parametrize("phase", Phase)
def test_a_run_that_was_handed_over_needs_nothing_in_its_old_bucket(
    world: World, phase: Phase
) -> None:
    world.run("a", "0done", State.DONE)
    moved = world.run("b", "1open", State.OPEN)
    head = replace(read_head(world.store, moved).head, move=Move("gs://new", phase))
    world.store.put(moved.head, head.to_json())
    world.now += 40 * DAY
    plan = chosen(world)
    is_left = phase is Phase.LEFT
    assert urls(plan) == (["run /a/0done/"] if is_left else [])
    (left,) = [one for one in plan.left if one.url.startswith(f"{HOME}/b/")]
    assert left.url == f"{HOME}/b/1open/" and "handed over" in left.why.partition(";")[0]
    assert not left.why.startswith("gs://")
    assert not is_left or not delete.delete(plan.items)
    assert world.store.stat(moved.head)


@pytest.mark.parametrize("is_missing", [False, True])
def test_what_an_open_run_in_an_unread_bucket_may_name_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, is_missing: bool
) -> None:
    """A bucket that does not exist has no run."""
    world.run("a", "0done", State.DONE)
    world.now += 40 * DAY
    error: StoreError = NotFound("no such bucket") if is_missing else StoreError("no answer")

    def opened(name: str, stack: str) -> Store:
        if name != "runs":
            raise error
        return world.store

    monkeypatch.setattr(experiments, "buckets", lambda: {"other": "", "runs": ""})
    monkeypatch.setattr(experiments, "open_bucket", opened)
    plan = chosen(world)
    assert plan.unread == (f"gs://other: {error}",)
    assert urls(plan) == (["run /a/0done/"] if is_missing else [])
    left = Left(f"{HOME}/a/0done/", "gs://other cannot be read, and an open run there may need it")
    assert plan.left == (() if is_missing else (left,))


def test_a_bucket_that_cannot_be_read_at_the_second_look_is_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = world.run("a", "0done", State.DONE)
    world.now += 40 * DAY
    opened = iter([world.store])

    def open_bucket(*_: str) -> Store:
        try:
            return next(opened)
        except StopIteration:
            raise StoreError("no answer") from None

    monkeypatch.setattr(experiments, "open_bucket", open_bucket)
    found = CliRunner().invoke(cli, ["prune", "--yes"])
    assert found.exit_code == 1 and "not deleted: gs://runs: no answer" in found.output
    assert world.store.stat(done.head)


def test_the_run_of_a_stack_that_is_up_stays(world: World) -> None:
    run = world.run("a", "0done", State.DONE)
    world.up("organization/mine/a", run)
    world.now += 40 * DAY
    left = Left(f"{HOME}/a/0done/", "its stack is up; destroy that first")
    assert chosen(world).left == (left,)
    assert chosen(world).as_json()["left"] == [{"url": left.url, "why": left.why}]


def test_what_stays_for_one_reason_is_one_line(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"trial-{number}" for number in range(5)]
    for name in names:
        world.up(f"organization/mine/{name}", world.run(name, "0done", State.DONE))
    world.now += 40 * DAY
    show.show_plan(chosen(world))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "stays" in line]
    shown = ", ".join(f"{HOME}/{name}/0done/" for name in names[:3])
    assert line == (
        f"stays: {shown} and 2 more (--json lists them): its stack is up; destroy that first"
    )


def test_a_reason_is_shown_whole_whatever_its_address_and_sentence_hold(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence was split at its first colon: none left the reason empty, two cut it."""
    user = world.run("b", "2open", State.OPEN)
    world.now += 40 * DAY
    start = world.store.stat(user.attempt_start(1))
    world.store.delete(start.path, generation=start.generation)
    show.show_plan(chosen(world, bundles=True))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "stays" in line]
    why = f"{HOME}/b/2open/ is open, and what it needs cannot be read"
    assert line == f"stays: {HOME}/b/: {why}"


def test_bundles_and_environments_that_nothing_uses_go_too(world: World) -> None:
    both = {"bundles": True, "environments": True}
    world.run("a", "0done", State.DONE, key="a" * 64)
    world.now += DAY
    open_run = world.run("a", "1open", State.OPEN, key="b" * 64)
    # A template that no VM has used yet may name what is newer than the newest attempt.
    world.now += DAY
    world.store.put("experiments/a/bundles/newer.zip", b"x")
    world.now += 40 * DAY
    plan = chosen(world, **both)
    done = "0done".ljust(64, "0")
    assert urls(plan) == [
        "run /a/0done/",
        f"bundle /a/bundles/{done}.zip",
        f"environment /a/environments/{'a' * 64}.zip",
    ]
    assert delete.delete(plan.items) == []
    assert world.store.stat(open_run.bundle("1open".ljust(64, "0")))
    world.run("b", "2done", State.DONE)
    bundle = f"experiments/b/bundles/{'2done'.ljust(64, '0')}.zip"
    world.up("organization/mine/elsewhere", Layout("experiments/c", "x"), bundle=bundle)
    world.now += 40 * DAY
    plan = chosen(world, **both, only=frozenset({"b"}))
    assert urls(plan) == ["run /b/2done/", f"environment /b/environments/{'1' * 64}.zip"]
    delete.delete(plan.items)
    world.stacks.clear()
    (left,) = chosen(world, **both).left
    assert left.url == f"{HOME}/b/" and "name the experiment to prune it" in left.why
    plan = chosen(world, **both, only=frozenset({"b"}))
    assert urls(plan) == [f"bundle /b/bundles/{'2done'.ljust(64, '0')}.zip"]


def test_results_may_be_kept(world: World) -> None:
    done = world.run("a", "0done", State.DONE)
    failed = world.run("a", "1failed", State.FAILED)
    with_parts = world.run("a", "2parts", State.DONE, parts=True)
    world.now += 40 * DAY
    plan = chosen(world, keep_results=True)
    assert urls(plan) == ["checkpoints /a/0done/", "run /a/1failed/"]
    assert plan.left[0].url.endswith(with_parts.root) and "has parts" in plan.left[0].why
    assert plan.items[0].size == 1002
    assert delete.delete(plan.items) == []
    head = read_head(world.store, done).head
    assert head.state is State.DONE and head.chain == ()
    assert world.store.stat(done.result_manifest(1)) and world.store.stat(done.log_piece(1, 0))
    assert list(world.store.list(f"{done.terms}000001/s")) == []
    assert paths(world, failed) == []
    assert chosen(world, keep_results=True).items == ()


@pytest.mark.parametrize("at", ["/HEAD", "/model", "/start.json", "/PRUNING"])
def test_an_interrupted_prune_is_finished_by_the_next(world: World, at: str) -> None:
    """HEAD goes first and attempts last, so that no VM starts the run from scratch."""
    done = world.run("a", "0done", State.DONE)
    world.now += 40 * DAY
    world.fail = at
    (why,) = delete.delete(chosen(world).items)
    assert "no answer; repeat the prune" in why
    left = paths(world, done)
    assert done.pruning in left
    assert (done.head in left) == (at == "/HEAD")
    if at != "/PRUNING":
        assert done.attempt_start(1) in left
    world.fail = ""
    # Also one that the rule would not name any more.
    plan = chosen(world, older=timedelta(days=900) if at != "/HEAD" else OLD)
    assert urls(plan) == ["run /a/0done/"]
    assert delete.delete(plan.items) == []
    assert paths(world, done) == []


@pytest.mark.parametrize("error", [NotFound("gone"), StoreError("no answer")])
def test_a_mark_that_cannot_be_read_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    """Another prune may finish the run between the listing and the look at its mark."""
    done = world.run("a", "0done", State.DONE)
    world.now += 40 * DAY
    world.fail = "/model"
    delete.delete(chosen(world).items)
    get = world.store.get

    def refused(path: str, **how: Any) -> Any:
        if path == done.pruning:
            raise error
        return get(path, **how)

    monkeypatch.setattr(world.store, "get", refused)
    plan = chosen(world)
    assert plan.items == ()
    assert plan.unread == (() if isinstance(error, NotFound) else (f"{HOME}/a/0done/: no answer",))


def test_a_run_that_was_resumed_meanwhile_stays(world: World) -> None:
    done = world.run("a", "0failed", State.FAILED)
    world.now += 40 * DAY
    plan = chosen(world)
    head = read_head(world.store, done).head
    again = replace(head, state=State.OPEN, end=None, resume=1, nonce="m")
    world.store.put(done.head, again.to_json())
    before = paths(world, done)
    (why,) = delete.delete(plan.items)
    assert "was changed meanwhile, so it stays" in why
    assert paths(world, done) == before
    with pytest.raises(pruning.Changed):
        pruning.delete_run(world.store, done, None, 0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: select.age_of("30"), "--older-than '30': must be a number with m, h, d or w"),
        (lambda: select.age_of("9" * 12 + "d"), "--older-than '999999999999d': must be at most"),
        (lambda: select.age_of("9" * 9000 + "m"), "must be at most"),
        (lambda: select.states_of("open"), "--state 'open': must be done, failed, stopped, pruned"),
    ],
)
def test_a_wrong_rule_is_refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        call()


def test_the_command_shows_first_and_deletes_with_yes(world: World) -> None:
    done = world.run("a", "0done", State.DONE)
    world.now += 40 * DAY

    def run(*words: str) -> tuple[int, str]:
        found = CliRunner().invoke(cli, ["prune", *words])
        return found.exit_code, found.output

    code, text = run("--dry-run")
    assert code == 0 and "1 to delete" in text and "a month at list prices of" in text
    code, text = run("--json")
    assert code == 0 and json.loads(text)["items"][0]["kind"] == "run"
    code, text = run()
    assert code != 0 and "no terminal to ask on" in text
    assert world.store.stat(done.head)
    assert run("--yes")[0] == 0
    with pytest.raises(NotFound):
        world.store.stat(done.head)
    assert "nothing to prune by this rule" in run()[1]
    world.run("census", "0done", State.DONE)
    wrong = CliRunner().invoke(cli, ["prune", "cencus"]).exception
    said = "no bucket of this project has it; did you mean census? known are a, census."
    assert said in str(wrong)


PRUNE = """
import sys
from outlast.cli import engine
from outlast.cli.app import main
from outlast.cli.audit import owners

owners.read = lambda: ()
engine.project_name = lambda: "mine"
sys.argv = ["outlast", "prune", "--older-than", "0m", "--yes"]
main()
"""


def test_a_killed_prune_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process, killed while the storage holds its deletions back."""
    cloud: LocalCloud = start(tmp_path)
    try:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
        monkeypatch.setenv(credentials.TOKEN_VARIABLE, "local")
        for variable, address in cloud.endpoints().items():
            monkeypatch.setenv(variable, address)
        store = open_store(f"gs://{make_bucket(cloud, name='runs-1')}")
        now = datetime.now(UTC)
        done = plant(store, "a", "0done", State.DONE, now)
        for number in range(40):
            store.put(done.metrics_piece(1, number), b"{}\n")
        open_run = plant(store, "a", "1open", State.OPEN, now, key="2" * 64)
        before = [one.path for one in store.list(open_run.root)]
        env = {**os.environ, "OUTLAST_BUCKET": "runs-1"}
        command = [sys.executable, "-c", PRUNE]

        held = cloud.add_fault(
            "before", {"stall": True}, method="DELETE", object="metrics/", nth=20, count=0
        )
        killed = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60

        def is_held() -> bool:
            faults = cloud.call("GET", "/_local/faults").json()
            return any(one["fired"] for one in faults if one["id"] == held)

        while not is_held():
            assert killed.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        killed.kill()
        killed.wait()
        cloud.call("DELETE", f"/_local/faults/{held}")
        left = [one.path for one in store.list(done.root)]
        assert done.head not in left and done.attempt_start(1) in left and done.pruning in left

        again = subprocess.run(command, env=env, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        assert "an earlier prune of it was interrupted" in again.stdout
        assert list(store.list(done.root)) == []
        assert [one.path for one in store.list(open_run.root)] == before
    finally:
        assert cloud.stop() == 0
        cloud.http.close()
