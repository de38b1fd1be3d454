"""Wakes up machines that were stopped in mid-operation, and counts what is still taken from them.

    python -m bench.zombie_matrix

Real VMs of a local cloud: the first of a run is frozen (SIGSTOP of all its processes) at an exact
operation; the group gets another one in its place, which takes the run over; then the first is
thawed and continues where it was. Every write that it sends from the take-over on is noted with the
store's answer. Writes under names that only it can have (its own term's objects and records) may
still be taken: no reader uses them, the sweep removes them; a separate column counts them.

Exit codes: 0 nothing was accepted and every run has the undisturbed result, 1 otherwise, 69 the
bench could not run.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.result import Result, command_line
from bench.sites import (
    GROUPS,
    RUN_SEC,
    ZONE,
    Baseline,
    BenchError,
    CloudSite,
    Job,
    local_cloud,
    read_run,
    scratch,
)
from outlast.base.exits import DONE, State
from outlast.bucket.head import HeadError, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import (
    FolderStore,
    PreconditionFailed,
    Store,
    StoreError,
)
from outlast.cli import cloud as clouds
from outlast.cli.errors import OperateError

FAILED, CANNOT = 1, 69
JOB = Job("dummy", ("--epochs=40", "--eval-every=5"), "100")
POLL_SEC = 0.05
DUE_SEC = 60.0
OWN = ("t000001/", "metrics/t000001/", "attempts/000001/")
"""Names below the run that only the first attempt writes."""


@dataclass(frozen=True)
class Moment:
    """Where the old attempt is stopped."""

    name: str
    pattern: str
    after: bool = False
    """Once the operation has had its effect and before its answer is read."""
    armed_by: str = ""

    def plan(self) -> dict[str, Any]:
        freeze = {"pattern": self.pattern, "after": self.after, "armed_by": self.armed_by}
        return {"operations": True, "freeze": freeze}


RESULT = r"put .*/t000001/result/RESULT\.json"
MOMENTS = (
    Moment("commit: rows", r"put .*/metrics/t000001/"),
    Moment("commit: object", r"put .*/t000001/s[^/]*/arrays"),
    Moment("commit: object", r"put .*/t000001/s[^/]*/arrays", after=True),
    Moment("commit: manifest", r"put .*/t000001/s[^/]*/MANIFEST"),
    Moment("commit: HEAD", r"put .*/HEAD$", armed_by=r"put .*MANIFEST"),
    Moment("commit: HEAD", r"put .*/HEAD$", after=True, armed_by=r"put .*MANIFEST"),
    Moment("delete", r"delete .*/t000001/s"),
    Moment("delete", r"delete .*/t000001/s", after=True),
    Moment("RESULT: file", r"put .*/t000001/result/model"),
    Moment("RESULT", RESULT),
    Moment("RESULT", RESULT, after=True),
    Moment("end: HEAD", r"put .*/HEAD$", armed_by=RESULT),
    Moment("end: HEAD", r"put .*/HEAD$", after=True, armed_by=RESULT),
    Moment("end record", r"put .*/END-r0\.json"),
    Moment("attempt's end record", r"put .*/attempts/000001/end\.json"),
    Moment("heartbeat", r"put .*/attempts/000001/heartbeat\.json", armed_by=r"put .*MANIFEST"),
    Moment("leaving the group", r"call deleteInstances"),
)
THAWS = ("at the take-over", "after its end")


@dataclass(frozen=True)
class Seen:
    """One woken zombie."""

    moment: Moment
    thaw: str
    frozen: bool
    sent: int
    """Writes that it sent from the take-over on."""
    accepted: list[str]
    """Those of names that others read, or deletions, that were accepted: must be none."""
    leftovers: int
    """Accepted under its own names."""
    harmed: list[str]
    """What of the run was not as it must be."""

    @property
    def good(self) -> bool:
        return self.frozen and not self.accepted and not self.harmed


def prove_stale_writes_are_refused(store: Store) -> None:
    """Over a store that let a stale write through this bench would prove nothing."""
    path = "bench/stale-write-probe"
    found = store.put(path, b"there", if_generation_match=0)
    stale: list[tuple[str, Callable[[], Any]]] = [
        ("creation", lambda: store.put(path, b"stale", if_generation_match=0)),
        ("swap", lambda: store.put(path, b"stale", if_generation_match=found.generation - 1)),
        ("deletion", lambda: store.delete(path, generation=found.generation - 1)),
    ]
    for name, write in stale:
        with contextlib.suppress(PreconditionFailed):
            write()
            raise BenchError(f"{store.url}: accepted a stale {name}; nothing can be fenced there")
    if store.get(path)[0] != b"there":
        raise BenchError(f"{store.url}: a refused write left its bytes")
    store.delete(path, generation=found.generation)


class Zombies:
    """Runs on one local cloud, each with a zombie."""

    def __init__(self, cloud: clouds.LocalCloud, site: CloudSite, plans: Path) -> None:
        self._cloud = cloud
        self._site = site
        self._plans = plans

    def wake(self, number: int, moment: Moment, thaw: str, baseline: Baseline) -> Seen:
        layout = Layout(f"experiments/{JOB.trainer}", f"z{number:04d}")
        name = self._site.group(layout)
        plan = self._plans / name
        plan.mkdir(parents=True)
        (plan / "plan.json").write_text(json.dumps(moment.plan()))
        store = self._site.store()
        self._site.raise_group(layout)
        try:
            for _ in _waiting(f"{name} is frozen"):
                if (plan / "fired.json").exists() and self._vms(name):
                    break
            old = (plan / "first-vm").read_text()
            time.sleep(0.6)  # the freeze has been asked for; the probe waits for it as long
            links = {"instances": [f"zones/{ZONE}/instances/{old}"]}
            self._cloud.call("POST", f"{GROUPS}/{name}/abandonInstances", links)
            self._cloud.call("POST", f"{GROUPS}/{name}/resize?size=1")
            taken_at = self._wait_for_successor(store, layout, old, name, ended=False)
            if thaw != THAWS[0]:
                self._wait_for_successor(store, layout, old, name, ended=True)
            self._cloud.act(old, "thaw")
            self._wait_for_successor(store, layout, old, name, ended=True)
            for _ in _waiting(f"{old} goes"):
                if not any(vm["name"] == old and vm["pid"] for vm in self._cloud.vms()):
                    break
            return self._judge(moment, thaw, plan, store, layout, taken_at, baseline)
        except (BenchError, OperateError, HeadError, StoreError) as error:
            return Seen(moment, thaw, (plan / "fired.json").exists(), 0, [], 0, [str(error)])
        finally:
            self._site.drop_group(layout)

    def _vms(self, group: str) -> list[str]:
        return [vm["name"] for vm in self._cloud.vms() if vm["name"].startswith(f"{group}-")]

    def _wait_for_successor(
        self, store: Store, layout: Layout, old: str, group: str, *, ended: bool
    ) -> float:
        """When the successor holds the run or, of an ended one, has come to see that."""
        for _ in _waiting(f"{group}: the successor {'ends' if ended else 'takes over'}"):
            head = read_head(store, layout).head
            others = [name for name in self._vms(group) if name != old]
            if ended and head.state.ended and not others:
                break
            if not ended and (head.term > 1 or (head.state.ended and others)):
                break
        return time.monotonic()

    def _judge(
        self,
        moment: Moment,
        thaw: str,
        plan: Path,
        store: Store,
        layout: Layout,
        taken_at: float,
        baseline: Baseline,
    ) -> Seen:
        lines = [json.loads(line) for line in (plan / "ops.jsonl").read_text().splitlines()]
        late = [op for op in lines if op["at"] > taken_at and _changes(op)]
        taken = [op for op in late if op["fate"] == "accepted"]
        found = read_run(store, layout)
        names = [layout.root + name for name in OWN]
        if found.head.term == 1:  # the end is its own, and a copy of it may be anybody's to write
            names.append(layout.end(0))
        own = [op for op in taken if op["verb"] == "put" and op["path"].startswith(tuple(names))]
        harmed = []
        if found.head.state is not State.DONE:
            harmed.append(f"HEAD is {found.head.state}")
        if found.digest != baseline.digest or found.rows != baseline.rows:
            harmed.append("result or rows are not the undisturbed run's")
        entries = [entry.term for entry in found.head.lineage]
        if entries != sorted(set(entries)):
            harmed.append(f"lineage {entries}")
        for checkpoint in found.head.chain:
            with contextlib.suppress(StoreError):
                store.stat(checkpoint.manifest)
                continue
            harmed.append(f"{checkpoint.path} is gone")
        shared = [f"{op['verb']} {op['path']}" for op in taken if op not in own]
        return Seen(moment, thaw, True, len(late), shared, len(own), harmed)


def _changes(op: dict[str, Any]) -> bool:
    """Whether it was a write; of the group's calls only those that change the group are."""
    return op["verb"] != "call" or op["path"].startswith(("deleteInstances", "resize"))


def _waiting(what: str) -> Iterator[None]:
    """Again and again until the caller breaks; BenchError after a while."""
    until = time.monotonic() + min(DUE_SEC, RUN_SEC)
    while time.monotonic() < until:
        yield
        time.sleep(POLL_SEC)
    raise BenchError(f"{what}: not in {DUE_SEC:.0f} s")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.zombie_matrix", __doc__)
    made.add_argument("--moment", action="append", default=[], help="only those with this name")
    made.add_argument("--parallel", type=int, default=2)
    made.add_argument("--image", type=Path, help="of the VMs; default that of `make setup`")
    made.add_argument("--keep", type=Path, help="folder for plans, logs and the cloud's state")
    return made


def main(argv: Sequence[str]) -> int:
    """Wake a zombie at each moment."""
    args, result = parser().parse_args(argv), Result("bench.zombie_matrix", argv)
    moments = [m for m in MOMENTS if not args.moment or m.name in args.moment]
    cases = [(moment, thaw) for moment in moments for thaw in THAWS]
    try:
        with scratch(args.keep) as work, local_cloud(work, work / "plans", args.image) as cloud:
            site = CloudSite(JOB, cloud, work / "plans")
            prove_stale_writes_are_refused(site.store())
            prove_stale_writes_are_refused(FolderStore(work / "probe"))
            result.say(
                "stale creation, swap and deletion: refused by the cloud's store and the folder's"
            )
            baseline = site.baseline()
            zombies = Zombies(cloud, site, work / "plans")
            with ThreadPoolExecutor(args.parallel) as pool:
                woken = [
                    pool.submit(zombies.wake, number, moment, thaw, baseline)
                    for number, (moment, thaw) in enumerate(cases)
                ]
                seen = [future.result() for future in woken]
    except (BenchError, OperateError) as error:
        print(f"zombie matrix: {error}", file=sys.stderr)
        return CANNOT
    lines = [
        {
            "stopped at": f"{one.moment.name}{', after' if one.moment.after else ''}",
            "woken": one.thaw,
            "stopped": one.frozen,
            "writes sent": one.sent,
            "accepted": len(one.accepted),
            "own leftovers": one.leftovers,
            "run as undisturbed": not one.harmed,
        }
        for one in seen
    ]
    result.table("\nZombie matrix", lines)
    result.say(f"accepted from old attempts: {sum(len(one.accepted) for one in seen)}")
    for one in seen:
        if not one.good:
            result.say(f"{one.moment.name}, {one.thaw}: {one.accepted} {one.harmed}")
    code = DONE if all(one.good for one in seen) else FAILED
    return result.end(args.json, code, lines=lines)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
