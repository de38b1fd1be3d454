"""Records and runs as supervisors leave them, made through the same code without a VM."""

import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from outlast.base.exits import Reason, State
from outlast.bucket import blocks
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import AttemptEnd, AttemptStart, BootRecord, Heartbeat, Layout
from outlast.bucket.store import MemoryStore

BILLED = {"spot": True, "disk": "pd-balanced", "disk_gb": 10, "ssds": 0, "address": False}
ZONE = "europe-west4-a"
STEPS = 10
"""Steps of one checkpoint."""
LINE = b"a line of a trainer's log, as long as many of them are\n"


class Quick:
    """A clock that does not wait."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def now(self) -> datetime:
        return datetime.now(UTC)


def records(layout: Layout, term: int) -> tuple[tuple[str, AttemptStart], tuple[str, Heartbeat]]:
    """Start and heartbeat of an attempt of ten steps, with their paths."""
    now = datetime.now(UTC)
    start = (
        layout.attempt_start(term),
        AttemptStart(
            term=term,
            resume=0,
            placement=0,
            instance="vm",
            instance_id=str(term),
            boot_id="b",
            zone=ZONE,
            machine_type="n2-standard-2",
            image="i",
            trainer="t",
            spec={"billed": BILLED},
            versions={},
            step=10 * (term - 1),
            restored=None,
            time=now,
        ),
    )
    heartbeat = (
        layout.heartbeat(term),
        Heartbeat(
            term=term,
            step=10 * term,
            total=None,
            phase="train",
            rate=1.0,
            committed=10 * term,
            seconds_to_commit=1.0,
            rows=(),
            time=now,
        ),
    )
    return start, heartbeat


def run(layout: Layout, owner: str, *, attempts: int, commits: int, ended: bool) -> MemoryStore:
    """A bucket with one run: each attempt but the last was preempted after its share of the
    commits, each of which had rows and a piece of the trainer's log.
    """
    bucket, now = MemoryStore(), datetime.now(UTC)
    head_file, step = HeadFile(bucket, layout, Quick()), 0
    with tempfile.TemporaryDirectory(prefix="bench-") as work:
        snapshot = Path(work) / "snapshot"
        snapshot.mkdir()
        for term in range(1, attempts + 1):
            boot = BootRecord(str(term), "b", "vm", ZONE, 0, 0, now)
            bucket.put(layout.boot(str(term), "b"), boot.to_json())
            head_file = head_file.fresh()
            head_file.take_term(
                Claim(owner, 0, 0, (now + timedelta(days=1)).replace(microsecond=0))
            )
            committer = Committer(head_file)
            committer.restore(Path(work) / f"restored-{term}")
            (start_path, start), (heartbeat_path, heartbeat) = records(layout, term)
            bucket.put(start_path, replace(start, step=step).to_json())
            blocks.write_missing(bucket, layout, term)
            for number in range(commits * (term - 1) // attempts, commits * term // attempts):
                rows = b"".join(b'{"step":%d,"loss":0.5}\n' % (step + n + 1) for n in range(STEPS))
                step += STEPS
                (snapshot / "state").write_text(str(step))
                committer.commit(snapshot, step=step, rows=rows)
                bucket.put(layout.log_piece(term, number), LINE)
            bucket.put(heartbeat_path, replace(heartbeat, step=step, committed=step).to_json())
            if term < attempts or ended:
                reason = Reason.DONE if term == attempts else Reason.PREEMPTED
                state = State.DONE if term == attempts else State.OPEN
                end = AttemptEnd(term, reason, state, 0, step, step, "", (), 0.0, now)
                bucket.put(layout.attempt_end(term), end.to_json())
        if ended:
            committer.finish(State.DONE, Reason.DONE, exit=0, step=step, result=snapshot)
    return bucket
