"""A run in a bucket that was preempted three times, as its VMs would have left it."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from outlast.base.exits import Reason, State
from outlast.bucket.head import Checkpoint, DataFingerprint, End, Head, Lineage
from outlast.bucket.layout import AttemptEnd, BootEnd, BootRecord, Layout
from outlast.bucket.store import MemoryStore, Store
from outlast.cli.runs import Place
from outlast.spec.metrics import Last
from tests.cli.records import heartbeat_record, start_record

START = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)
RUN = "02ad602e43"
TOTAL = 3000
BEST = 2700
LOST = 60
BILLED = {"spot": True, "disk": "pd-balanced", "disk_gb": 10, "ssds": 0, "address": False}
ARGUMENTS = {"learning-rate": "0.1", "epochs": "30", "hidden": "512,256"}
VERSIONS = {"python": "3.11.9", "outlast": "0.1.0", "numpy": "2.4.6"}
ATTEMPTS: tuple[tuple[int, int, int, int, int, Reason | None], ...] = (
    # boot, start and end in seconds; first and last step; why it ended
    (0, 60, 1260, 0, 1000, Reason.PREEMPTED),
    (1440, 1500, 2400, 1000, 1760, None),
    (2520, 2580, 3300, 1700, 2300, Reason.PREEMPTED),
    (3540, 3600, 4500, 2300, TOTAL, Reason.DONE),
)


class Clock:
    """A store's clock, which a test sets."""

    seconds = 0.0

    def __call__(self) -> datetime:
        return START + timedelta(seconds=self.seconds)


class Planted:
    """The bucket of one experiment; `texts` stand in every field that a VM writes freely."""

    def __init__(self, store: Store | None = None, *, text: str = "", name: str = "first") -> None:
        self.clock = Clock()
        self.store = store or MemoryStore(clock=self.clock)
        self.layout = Layout(f"experiments/{name}", RUN)
        self.text = text

    @property
    def place(self) -> Place:
        return Place(self.layout.prefix.rpartition("/")[2], self.store, self.layout)

    def put(self, seconds: float, path: str, data: bytes) -> None:
        self.clock.seconds = seconds
        self.store.put(path, data)

    def whole(self) -> "Planted":
        """All of it, up to the end."""
        for term in range(1, len(ATTEMPTS) + 1):
            self.attempt(term)
        self.put(3310, self.layout.boot("9", "b9"), self._boot(9))
        end = BootEnd("9", "b9", Reason.SETUP_FAILED, f"pip {self.text}", 1, self.text, START)
        self.put(3370, self.layout.boot_end("9", "b9"), end.to_json())
        self.head(State.DONE)
        return self

    def _boot(self, vm: int) -> bytes:
        return BootRecord(str(vm), f"b{vm}", "vm", "europe-west4-a", 0, 0, START).to_json()

    def attempt(self, term: int) -> None:
        boot, start, end, first, last, reason = ATTEMPTS[term - 1]
        layout, text = self.layout, self.text
        arguments: dict[str, str] = {**ARGUMENTS, "learning-rate": "0.1" if term < 3 else "0.05"}
        if text:
            arguments[f"flag{text}"] = text
        content = {"trainer": "digits", "arguments": arguments, "source": f"{term // 3:x}" * 12}
        spec = {
            "trainer": "digits",
            "args": arguments,
            "content": content,
            "billed": BILLED,
            "mode": f"survive{text}",
            "checkpoint_every": "auto",
            "secret_env": {"WANDB_API_KEY": "projects/p/secrets/wandb"},
            "timeouts": {"keep": 0},
        }
        record = replace(
            start_record(term, first, START),
            spec=spec,
            versions={**VERSIONS, f"lib{text}": f"1{text}"},
            image=f"projects/p/global/images/outlast-1{text}",
        )
        self.put(boot, layout.boot(str(term), f"b{term}"), self._boot(term))
        self.put(start, layout.attempt_start(term), record.to_json())
        self.put(start + 20, layout.log_piece(term, 0), self.log(term).encode())
        rows = "".join(json.dumps(self.row(step)) + "\n" for step in range(first + 1, last + 1))
        self.put(end, layout.metrics_piece(term, 0), rows.encode())
        row = {"step": last, "loss": 0.5}
        heartbeat = heartbeat_record(term, last, START, total=TOTAL, row=row)
        metrics = {"loss": Last(last, loss(last)), f"name{text}": Last(last, text or "text")}
        heartbeat = replace(heartbeat, metrics=metrics, phase=f"train{text}")
        self.put(end, layout.heartbeat(term), heartbeat.to_json())
        if reason is not None:
            why = AttemptEnd(
                *(term, reason, State.OPEN, 75, last, last, text, (text,), 5.0, START),
                metrics=metrics,
            )
            self.put(end, layout.attempt_end(term), why.to_json())

    def row(self, step: int) -> Mapping[str, Any]:
        found: dict[str, Any] = {"step": step, "loss": loss(step)}
        if step % 100 == 0:
            found |= {"epoch": step // 100, "test_accuracy": accuracy(step)}
        if self.text and step % 100 == 0:
            found |= {f"name{self.text}": 1.0, "words": self.text, "part": self.text}
        return found

    def log(self, term: int) -> str:
        lines = [f"attempt {term}: epoch {n} loss {loss(100 * n + 1):.4f}" for n in range(60)]
        return "\n".join([*lines, self.text, ""])

    def head(self, state: State = State.OPEN, term: int = len(ATTEMPTS)) -> None:
        text = self.text
        end = End(Reason.DONE, 0, TOTAL, None, why=text) if state.ended else None
        step = BEST if term == len(ATTEMPTS) else ATTEMPTS[term][3]
        path = self.layout.snapshot(term, step, "a")
        best = Checkpoint(path, 1, "b3" * 32, term, step, ("best",))
        data = DataFingerprint(f"gs://data/mnist{text}", 1, 1_234_567, "AAAAAA==")
        head = Head(
            owner="organization/mine/first",
            resume=0,
            placement=0,
            term=term,
            state=state,
            end=end,
            started=START,
            deadline=START + timedelta(days=30),
            chain=(best,),
            lineage=tuple(Lineage(n, ATTEMPTS[n - 1][3]) for n in range(1, term + 1)),
            failures=0,
            no_progress=0,
            data=(data,),
            nonce="n",
        )
        self.put(4501, self.layout.head, head.to_json())


def loss(step: int) -> float:
    return 2.3 * math.exp(-step / 700) + 0.08 + 0.05 * math.sin(step * 1.7) * math.exp(-step / 1500)


def accuracy(step: int) -> float:
    return 0.97 - 0.8 * math.exp(-step / 500) - (0.01 if step > BEST else 0.0)
