"""What many runs in one bucket and project need of Google and of this machine.

    python -m bench.scale --runs 1000

On paper: `outlast up` of one run with the default intervals, and all that its VM asks of the local
cloud, counted by kind; times the runs, beside each published limit, and in dollars. In simulation:
10, 100, 1,000 ... runs of different lengths in one bucket, each with its stack, template, group and
VM, and `outlast list`, `list --json` and `audit` of them: seconds, memory and calls. Exit codes:
0 the calls of `list` do not grow with a run's length, 1 they do, or a command broke, 69 the bench
could not run.
"""

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import limits, planted
from bench.limits import Asked, Measured
from bench.result import Result, command_line
from bench.sites import scratch
from bench.sweep import Measured as Command
from bench.sweep import project, run
from outlast.base.exits import DONE
from outlast.bucket import listed
from outlast.bucket.inventory import ROOT
from outlast.bucket.layout import Layout
from outlast.bucket.store import GcsStore, StoreError
from outlast.bucket.transfer import in_parallel
from outlast.cli import cloud as clouds
from outlast.cli.cloud import LocalCloud
from outlast.cli.errors import OperateError

FAILED, CANNOT = 1, 69
LIST_OF, LIST_SEC = 100, 3.0
"""`list` of so many runs takes at most so long, on a quiet machine."""
SHORT_RUNS = ("outlast:noticeSec", "outlast:stopSec", "outlast:heartbeatSec")
SHORT_RUNS += ("outlast:failureGraceSec", "outlast:backoffSec", "outlast:driverInstallSec")
SHORT_RUNS += ("outlast:checkpointEvery",)
"""Settings of the checkout's stack that are not the defaults."""
LONG_TRAINING = {"epochs": 10_000, "step-ms": 20}
WAIT_SEC, POLL_SEC = 900.0, 0.5
AT_ONCE = 4
SHORT, LONG, ALIKE = 2, 200, 10
"""Commits of short and long runs, and how many of each; all have two attempts."""
COMMITTED = Asked("storage", "HEAD write", limits.WRITE)
DELETED = Asked("storage", "checkpoint", limits.DELETE)
COMPUTE = f"/compute/v1/projects/{clouds.PROJECT}"
TEMPLATES = f"{COMPUTE}/global/instanceTemplates"
GROUPS = f"{COMPUTE}/zones/{planted.ZONE}/instanceGroupManagers"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.scale", __doc__)
    made.add_argument("--runs", type=int, default=1000)
    made.add_argument("--commits", type=int, default=12, help="of the one run that are counted")
    made.add_argument("--state-gib", type=float, default=1.0, help="of a checkpoint, for its cost")
    made.add_argument("--keep", type=Path, metavar="DIR", help="leave what was run there")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    args, result = parser().parse_args(argv), Result("bench.scale", argv)
    try:
        with scratch(args.keep) as work:
            one = one_run(work / "one", args.commits)
            on_paper(result, one, args.runs, args.state_gib)
            rows, grown, broken = simulated(work / "many", args.runs, result)
    except (OperateError, StoreError, OSError) as error:
        print(f"bench.scale: {error}", file=sys.stderr)
        return result.end(args.json, CANNOT)
    result.table(f"list of {ALIKE} short and {ALIKE} long runs", grown)
    result.say(_target(rows))
    same = len({tuple(row[key] for key in CALLS) for row in grown}) == 1
    result.say(f"the calls of list do not grow with a run's length: {'yes' if same else 'NO'}")
    return result.end(args.json, DONE if same and not broken else FAILED)


def on_paper(result: Result, one: Measured, runs: int, state_gib: float) -> None:
    """What so many of these runs use of the limits, and cost."""
    counted = f"{one.commits} commits and {one.heartbeats} heartbeats in {one.seconds:.0f} s"
    result.table(f"Requests of one run, of which {counted} of training", limits.hours(one))
    shares = limits.shares(one, runs)
    result.table(f"Limits at {runs} runs", limits.numbered(shares))
    for page in limits.pages(shares):
        result.say(page)
    result.say(limits.first(shares))
    costs = limits.costs(one, runs, "europe-west4", state_gib)
    result.table(f"Requests and storage of {runs} runs", costs)


def _target(rows: Sequence[dict[str, Any]]) -> str:
    found = [row["s"] for row in rows if row["what"] == "list" and row["runs"] == LIST_OF]
    if not found:
        return f"list of {LIST_OF} runs: not measured"
    met = "yes" if found[0] < LIST_SEC else "no"
    return f"list of {LIST_OF} runs: {found[0]:g} s; under {LIST_SEC:g} s: {met}"


# ---------------------------------------------------------------------------------------------
# One real run


def one_run(folder: Path, commits: int) -> Measured:
    """What the `up` of one run with the default settings, its VM and its stop ask for."""
    config = {**dict.fromkeys(SHORT_RUNS), "outlast:args": LONG_TRAINING}
    folder.mkdir(parents=True)
    with project(folder, guests=True, config=config) as (home, env):
        cloud = _cloud(folder)
        with _counting(cloud) as counted:
            of_vm = partial(_of_vm, counted)
            run("up", ["up", "dev"], home, env)
            by_user = limits.kinds(counted(), of_vms=False)
            store, layout = _the_run(cloud)
            # A commit replaces a checkpoint only once there are as many as are kept.
            _wait(lambda: of_vm()[DELETED] > 0, "has replaced a checkpoint")
            boot, begun = of_vm(), time.monotonic()
            _wait(lambda: (of_vm() - boot)[COMMITTED] >= commits, f"makes {commits} commits")
            steady, took = of_vm() - boot, time.monotonic() - begun
            kept = [*store.list(layout.root)]
            run("stop", ["stop", "dev"], home, env)
            _wait(lambda: not cloud.vms(), "has ended")
            end = of_vm() - steady - boot
        store.close()
    checkpoints = {layout.folder_of(one.path) for one in kept if layout.is_of_snapshot(one.path)}
    size = sum(one.size for one in kept) / 2**30
    measured = Measured(by_user, boot, steady, end, took, len(checkpoints), size)
    if not measured.heartbeats:
        raise OperateError(
            f"in {took:.0f} s of training there was no heartbeat; count more commits"
        )
    return measured


def _of_vm(counted: Callable[[], list[dict[str, Any]]]) -> Counter[Asked]:
    return limits.kinds(counted(), of_vms=True)


def _cloud(folder: Path) -> LocalCloud:
    found = clouds.find(folder / "cloud")
    if found is None:
        raise OperateError("the local cloud has ended")
    return found


@contextmanager
def _counting(cloud: LocalCloud) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Counts the cloud's requests; the function returns those so far."""
    cloud.call("PUT", "/_local/requests")
    try:
        yield partial(cloud.call, "GET", "/_local/requests")
    finally:
        cloud.call("DELETE", "/_local/requests")


def _store(cloud: LocalCloud, bucket: str) -> GcsStore:
    os.environ["STORAGE_EMULATOR_HOST"] = cloud.url
    os.environ.pop("GCE_METADATA_HOST", None)
    return GcsStore(bucket)


def _the_run(cloud: LocalCloud) -> tuple[GcsStore, Layout]:
    """The only bucket of the project, and the only run in it, once it has begun."""
    (bucket,) = cloud.call("GET", f"/storage/v1/b?project={clouds.PROJECT}")["items"]
    store = _store(cloud, bucket["name"])
    found: list[Layout] = []

    def begun() -> bool:
        found[:] = listed.read(store, ROOT).runs()
        return bool(found)

    _wait(begun, "has begun")
    return store, found[0]


def _wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SEC
    while not done():
        if time.monotonic() > deadline:
            raise OperateError(f"in {WAIT_SEC:.0f} s there was no run that {what}")
        time.sleep(POLL_SEC)


# ---------------------------------------------------------------------------------------------
# Many planted ones

CALLS = ("storage", "compute", "other")


def simulated(
    folder: Path, runs: int, result: Result
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """The commands on 10, 100, ... and all runs; `list` of short and of long ones; what broke."""
    folder.mkdir(parents=True)
    sizes = [10**power for power in range(1, 10) if 10**power < runs]
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    with project(folder) as (home, env):
        cloud = _cloud(folder)
        many = Many(cloud, home, env)
        for size in (*sizes, runs):
            many.grow(size)
            now = []
            for words in (["list"], ["list", "--json"], ["audit"]):
                try:
                    done, calls = _command(cloud, words, home, env)
                except OperateError as error:
                    result.say(f"broke at {size} runs: {error}")
                    broken.append(" ".join(words))
                    continue
                now.append({"runs": size, "objects": many.objects, **_row(done, calls)})
            result.table(f"{size} planted runs", now)
            rows += now
        grown = []
        for commits in (SHORT, LONG):
            bucket = f"alike-{commits}"
            cloud.make_bucket(bucket, "europe-west4")
            for number in range(ALIKE):
                _plant(_store(cloud, bucket), f"alike-{number}", attempts=2, commits=commits)
            done, calls = _command(cloud, ["list"], home, {**env, "OUTLAST_BUCKET": bucket})
            grown.append({"commits": commits, **_row(done, calls)})
    return rows, grown, broken


def _row(done: Command, calls: Counter[str]) -> dict[str, Any]:
    row = done.row()
    return {key: row[key] for key in ("what", "s", "cpu s", "peak GB")} | {
        name: calls[name] for name in CALLS
    }


def _command(
    cloud: LocalCloud, words: list[str], home: Path, env: dict[str, str]
) -> tuple[Command, Counter[str]]:
    """One command, and its calls by API."""
    with _counting(cloud) as counted:
        done = run(" ".join(words), words, home, env)
        calls: Counter[str] = Counter()
        for one, count in limits.kinds(counted(), of_vms=False).items():
            calls[one.api if one.api in CALLS else "other"] += count
    return done, calls


class Many:
    """Experiments like one that is up, each with a run that a VM works on or has ended."""

    def __init__(self, cloud: LocalCloud, home: Path, env: dict[str, str]) -> None:
        run("up", ["up", "dev"], home, env)
        self._cloud = cloud
        (bucket,) = cloud.call("GET", f"/storage/v1/b?project={clouds.PROJECT}")["items"]
        self._bucket = bucket["name"]
        (self._template,) = cloud.call("GET", TEMPLATES)["items"]
        (self._group,) = cloud.call("GET", GROUPS)["items"]
        backend = Path(env["PULUMI_BACKEND_URL"].removeprefix("file://"))
        (self._state,) = backend.rglob("stacks/*/dev.json")
        run_name = next(
            item["value"]
            for item in self._template["properties"]["metadata"]["items"]
            if item["key"] == "outlast-run"
        )
        self._run = str(run_name)
        self._count = self.objects = 0
        """`objects`: in the bucket."""

    def grow(self, count: int) -> None:
        """Plants runs until there are so many."""
        numbers = range(self._count, count)
        jobs = [partial(self._plant, number) for number in numbers]
        self.objects += sum(in_parallel(jobs, AT_ONCE))
        self._count = count

    def _plant(self, number: int) -> int:
        name = f"many-{number:05}"

        def renamed(body: Any) -> Any:
            text = json.dumps(body).replace(self._template["name"], f"{name}-template")
            return json.loads(re.sub(r"\bdev\b", name, text))

        self._state.with_name(f"{name}.json").write_text(
            json.dumps(renamed(json.loads(self._state.read_text())))
        )
        template = {key: self._template[key] for key in ("name", "properties")}
        self._cloud.call("POST", TEMPLATES, renamed(template))
        kept = ("name", "baseInstanceName", "targetSize", "versions", "updatePolicy")
        self._cloud.call("POST", GROUPS, renamed({key: self._group[key] for key in kept}))
        attempts = 1 + number % 4
        return _plant(
            _store(self._cloud, self._bucket),
            name,
            run_name=self._run,
            attempts=attempts,
            commits=attempts + number % 7,
            ended=number % 10 == 9,
        )


def _plant(
    store: GcsStore,
    name: str,
    *,
    run_name: str = "0123456789",
    attempts: int,
    commits: int,
    ended: bool = False,
) -> int:
    """Puts one run into a bucket; returns the number of its objects."""
    layout = Layout(f"{ROOT}{name}", run_name)
    owner = f"organization/outlast/{name}"
    made = planted.run(layout, owner, attempts=attempts, commits=commits, ended=ended)
    found = [*made.list("")]
    for one in found:
        store.put(one.path, made.get(one.path)[0])
    store.close()
    return len(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
