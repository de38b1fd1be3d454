"""Saves a state with outlast.train, restores it, and times a loop of steps.

The supervisor is started as outlast.loop starts it, but for its store. Each save is waited for, and
a second after it, because HEAD is written at most once a second; the wait is in no figure.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import outlast
from bench.cost.measures import (
    Stopwatch,
    arguments,
    change,
    forget_peak,
    report,
    resident_mb,
    state,
)
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.store import open_store
from outlast.loop import snapshot
from outlast.loop.leading import Leading
from outlast.protocol import SOCKET_VARIABLE

REST_SEC = 1.1
STEP_SEC = 0.001
LOOP_STEPS = 1200
"""In one turn: over a second, so that what is done once a second is in each."""
LOOP_TURNS = 8
SELDOM = 10
"""A step that costs so many times the usual did something that the others do not."""


class _Enough(Exception):
    """All saves are made."""


def supervisor(folder: Path, store: str, *, every: int = 1) -> subprocess.Popen[bytes]:
    """Started for a training that hands over a snapshot each so many steps."""
    socket = Path(tempfile.mkdtemp()) / "s"
    os.environ[SOCKET_VARIABLE] = str(socket)
    command = [sys.executable, str(Path(__file__).with_name("supervisor.py")), "folder"]
    command += ["--run-dir", str(folder), "--socket", str(socket)]
    command += ["--trainer", "cost", "--run", "cost", "--checkpoint-every", str(every)]
    environment = {**os.environ, "STORE": store, "COUNTS": str(folder / "requests")}
    folder.mkdir(parents=True, exist_ok=True)
    log = (folder / "supervisor.log").open("ab")
    return subprocess.Popen(command, env=environment, stderr=log, start_new_session=True)


def requests_of(folder: Path) -> int:
    path = folder / "requests"
    text = path.read_text() if path.exists() else ""
    return int(text or 0)


def save(args, arrays):
    """[blocked], [commit], memory, requests and objects of so many saves."""
    blocked, commits, counts = [], [], []
    wrote: list[float] = []
    original = snapshot.write

    def write(*arguments, **named):
        wrote.append(time.perf_counter())
        return original(*arguments, **named)

    process = supervisor(args.dir, args.store)
    base = base_supervisor = 0.0
    # Two saves more than are counted: the first find no file whose pages are there already.
    run = outlast.train({"arrays": arrays}, 10**6)
    with contextlib.suppress(_Enough), run:
        snapshot.write = write
        base = forget_peak()
        base_supervisor = forget_peak(str(process.pid))
        ended, before, peak_supervisor = 0.0, 0, 0.0
        side = run._side
        assert isinstance(side, Leading)
        for step in run.steps():
            begun = time.perf_counter()
            if step > 1 and len(wrote) >= 1:
                blocked.append(begun - ended)
                while side.session.busy:
                    time.sleep(0.002)
                    side.session.poll()
                commits.append(time.perf_counter() - ended)
            peak_supervisor = resident_mb(str(process.pid))
            if len(blocked) >= args.saves + 2:
                process.kill()  # the run stays open, so that it can be restored
                raise _Enough
            time.sleep(REST_SEC)  # what was replaced is deleted meanwhile
            before, sent = requests_of(args.dir), before
            counts.append(before - sent)
            change(arrays)
            ended = time.perf_counter()
    peak = resident_mb()
    process.wait()
    snapshot.write = original
    return {
        "blocked": blocked[2:],
        "blocked first": blocked[:1],
        "commit": commits[2:],
        "memory": peak - base,
        "memory beside": peak_supervisor - base_supervisor,
        "requests": counts[3:],
    }


def restore(store_url: str, times: int) -> dict[str, object]:
    """Seconds of each restore of the newest checkpoint, as the supervisor does it at its start;
    the run was ended by then, so that a higher resume takes it."""
    store, layout, watch = open_store(store_url), Layout("", ""), Stopwatch()
    objects = 0
    for _ in range(times):
        head_file = HeadFile(store, layout)
        reading = read_head(store, layout)
        into = Path(tempfile.mkdtemp()) / "restored"
        objects = len(list(store.list(reading.head.chain[-1].path)))
        claim = Claim(reading.head.owner, 0, 0, datetime.now(UTC) + timedelta(days=1))
        head_file.take_term(claim, still_member=lambda: True, forbidden_seconds=0)
        committer = Committer(head_file)
        with watch:
            committer.restore(into)
        shutil.rmtree(into)
    return {"restore": watch.seconds, "objects": objects}


def loop():
    """[bare], [ours]: processor seconds that each step of 1 ms takes beside its work, by turns."""
    found = {"bare": [], "ours": []}
    folder = Path(tempfile.mkdtemp())
    total = LOOP_STEPS * LOOP_TURNS + 3
    process = supervisor(folder, str(folder), every=10 * total)
    with outlast.train({"n": {"n": 1}}, total) as run:
        steps = run.steps()
        for _ in range(3):  # what the first step changes is proved: saved, restored, compared
            next(steps)
        for _ in range(LOOP_TURNS):
            found["bare"].append(spin(iter(range(1, LOOP_STEPS + 1)), None))
            found["ours"].append(spin(steps, run))
        for _ in steps:
            pass
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    return found


def spin(steps, run):
    """The processor time of this thread for a step beside its work: what most steps take, and the
    step's share of what comes once in a while, as the sign of life each second does.

    Not in it is the time that another process had the processor.
    """
    spent, since = [], time.perf_counter()
    for _ in range(LOOP_STEPS):
        begun = time.thread_time()
        step = next(steps)
        cost = time.thread_time() - begun
        at = time.perf_counter()
        while time.perf_counter() - at < STEP_SEC:
            pass
        begun = time.thread_time()
        if run is not None:
            run.log(loss=1.0 / step)
        spent.append(cost + time.thread_time() - begun)
    passed = time.perf_counter() - since
    usual = statistics.median(spent)
    seldom = sum(cost - usual for cost in spent if cost > SELDOM * usual)
    return usual + seldom / passed * STEP_SEC


def main():
    args = arguments()
    if args.subject == "loop":
        report(**loop())
        return
    arrays = state(args.mb)
    found = save(args, arrays)
    del arrays
    report(**found, **restore(args.store, 3))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
