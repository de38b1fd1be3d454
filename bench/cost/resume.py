"""Resumes a training from its newest checkpoint: the files from the store, the state from them, and
the comparison of the two, each timed."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

import outlast
from bench.cost.measures import Stopwatch, arguments, report
from bench.cost.ours import supervisor
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.store import open_store
from outlast.loop import snapshot, state, verify
from outlast.loop.leading import Leading

TIMES = 3


class _Enough(Exception):
    """There is a checkpoint."""


def arrays(count, mb):
    """So many float32 arrays, of that many MB together; each has other numbers."""
    size = max(1, int(mb * 1e6 / 4 / count))
    return {"box": {f"a{i}": np.full(size, i % 97, np.float32) for i in range(count)}}


def save(args, values):
    """A checkpoint of a run that stays open."""
    process = supervisor(args.dir, args.store)
    with contextlib.suppress(_Enough), outlast.train(values, 10**6) as run:
        side = run._side
        assert isinstance(side, Leading)
        for _ in run.steps():
            for item in values["box"].values():
                item += 1
            if run.step > 1:
                while side.session.busy:
                    time.sleep(0.002)
                    side.session.poll()
                process.kill()
                raise _Enough
    process.wait()


def main():
    args = arguments()
    count = int(args.subject)
    values = arrays(count, args.mb)
    save(args, values)
    store, layout = open_store(args.store), Layout("", "")
    fetch, load, check = Stopwatch(), Stopwatch(), Stopwatch()
    for _ in range(TIMES):
        into = Path(tempfile.mkdtemp()) / "restored"
        head_file, reading = HeadFile(store, layout), read_head(store, layout)
        claim = Claim(reading.head.owner, 0, 0, datetime.now(UTC) + timedelta(days=1))
        head_file.take_term(claim, still_member=lambda: True, forbidden_seconds=0)
        committer = Committer(head_file)
        with fetch:
            committer.restore(into)
        for item in values["box"].values():
            item[:] = -1
        with load:
            saved = snapshot.read(into)
            state.restore_all(values, saved.nodes, saved.blobs)
        with check:
            verify.check(values, saved)
        del saved
        shutil.rmtree(into)
    report(fetch=fetch.seconds, load=load.seconds, check=check.seconds)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
