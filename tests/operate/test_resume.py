"""`outlast resume` raises the counter past all that held the run; `status` names a state."""

import socket
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from outlast.exits import Reason, State
from outlast.layout import Layout
from outlast.operate import engine, resume, status
from outlast.operate.errors import OperateError
from outlast.operate.runs import Place
from outlast.operate.stack import Deployed
from outlast.run.head import End, Head, Result, read_head
from outlast.run.store import MemoryStore
from tests.operate.records import beat_record, start_record

START = datetime(2026, 1, 1, tzinfo=UTC)
LAYOUT = Layout("experiments/dev", "0123456789")
OPEN = Head(
    owner="o/p/s",
    resume=0,
    place=0,
    term=3,
    state=State.OPEN,
    end=None,
    started=START,
    deadline=START + timedelta(hours=1),
    chain=(),
    lineage=(),
    failures=1,
    barren=0,
    data=None,
    nonce="n",
)
FAILED = OPEN.ended(State.FAILED, End(Reason.USER_FAILED, 1, 9, None))


@dataclass(frozen=True)
class InMemory(Deployed):
    """A stack whose bucket is in memory."""

    memory: MemoryStore = field(default_factory=MemoryStore)

    def store(self) -> MemoryStore:
        return self.memory


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    given: list[list[str]] = []
    monkeypatch.setattr(engine, "run_engine", lambda args, *, env: given.append(args) or "")
    return given


def stack(head: Head | None, *, counter: int = 0, now: datetime = START) -> InMemory:
    made = InMemory("dev", "b", LAYOUT, counter, "o/p/s", MemoryStore(clock=lambda: now))
    if head is not None:
        made.memory.put(LAYOUT.head, head.to_json())
    return made


def place(made: InMemory) -> Place:
    return Place("dev", made.memory, made.layout)


@pytest.mark.parametrize(
    ("head", "counter", "expected"),
    [(FAILED, 0, 1), (replace(FAILED, resume=4), 2, 5), (FAILED, 7, 8), (OPEN, 0, 1)],
)
def test_the_counter_goes_past_every_value_that_held_the_run(commands, head, counter, expected):
    before = stack(head, counter=counter)
    assert resume.resume(before).resume == expected
    assert commands == [["config", "set", "outlast:resume", str(expected), "-s", "dev"]]
    assert read_head(before.memory, LAYOUT).head == head


def test_a_done_run_is_not_resumed(commands):
    done = OPEN.ended(State.DONE, End(Reason.DONE, 0, 9, None))
    with pytest.raises(OperateError, match="is done; other args or outlast:rerun"):
        resume.resume(stack(done))
    assert commands == []


def test_an_open_run_past_its_deadline_is_ended_as_expired_first(commands):
    late = stack(OPEN, now=START + timedelta(hours=2))
    assert status.read(place(late)).state == "expired"
    resume.resume(late)
    head = read_head(late.memory, LAYOUT).head
    assert head.state is State.FAILED
    assert head.end is not None and head.end.reason is Reason.EXPIRED


def test_before_head_a_run_waits_or_never_started():
    waiting = stack(None)
    assert status.read(place(waiting)).state == "waiting"
    waiting.memory.put(LAYOUT.boot("1", "b"), b"{}")
    waiting.memory.put(LAYOUT.boot_end("1", "b"), b"{}")
    found = status.read(place(waiting))
    assert (found.state, found.boots) == ("never-started", 1)
    assert found.as_json()["attempts"] == []


def test_an_open_run_shows_its_newest_row():
    made = stack(replace(OPEN, term=1))
    row = {"step": 7, "train_loss": 0.5, "note": "x"}
    beat = beat_record(1, 7, START, total=9, row=row)
    start = start_record(1, 0, START)
    made.memory.put(LAYOUT.attempt_start(1), start.to_json())
    made.memory.put(LAYOUT.beat(1), beat.to_json())
    assert status.read(place(made)).metrics == {"step": 7, "train_loss": 0.5}


def test_a_result_without_the_usual_metrics_is_shown_all_the_same():
    result = Result("experiments/dev/0123456789/t000001/result/", 1, "d")
    made = stack(OPEN.ended(State.DONE, End(Reason.DONE, 0, 9, result)))
    found = status.read(place(made))
    assert (found.state, found.metrics) == ("done", {})
    assert found.result == "memory:/experiments/dev/0123456789/t000001/result/"


def test_a_stopped_local_cloud_is_said_at_once(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    with pytest.raises(OperateError, match="nothing answers there; start the local cloud"):
        Deployed("dev", "b", LAYOUT, 0, "o/p/s").store()


def test_a_garbled_head_is_one_sentence():
    garbled = stack(None)
    garbled.memory.put(LAYOUT.head, b"garbage")
    with pytest.raises(OperateError, match="cannot be read: .*is not JSON"):
        status.read(place(garbled))
