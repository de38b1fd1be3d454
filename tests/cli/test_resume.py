"""`outlast resume` raises the counter past all that held the run and keeps its name; `status` names
a state."""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.head import Checkpoint, End, Head, HeadLost, Result, read_head
from outlast.bucket.layout import AttemptEnd, BootEnd, Layout
from outlast.bucket.standing import Standing
from outlast.bucket.store import MemoryStore, open_store
from outlast.cli import (
    boots,
    engine,
    resume,
    status,
)
from outlast.cli.errors import EngineError, OperateError
from outlast.cli.review.plan import PIN
from outlast.cli.runs import OpenedRun, Place
from outlast.cli.show.status import show_status
from outlast.cli.stack import Deployed
from outlast.cloud.compute import Group
from outlast.spec.metrics import Last
from tests.cli.records import heartbeat_record, start_record

START = datetime(2026, 1, 1, tzinfo=UTC)
LAYOUT = Layout("experiments/dev", "0123456789")
OPEN = Head(
    owner="o/p/s",
    resume=0,
    placement=0,
    term=3,
    state=State.OPEN,
    end=None,
    started=START,
    deadline=START + timedelta(hours=1),
    chain=(),
    lineage=(),
    failures=1,
    no_progress=0,
    data=None,
    nonce="n",
)
FAILED = OPEN.ended(State.FAILED, End(Reason.USER_FAILED, 1, 9, None))
SNAPSHOT = "experiments/dev/0123456789/t000003/s000000000009-0/"
COMMITTED = replace(OPEN, chain=(Checkpoint(SNAPSHOT, 1, "0" * 64, 3, 9, ()),))


@dataclass(frozen=True)
class InMemory(Deployed):
    """A stack whose bucket is in memory."""

    memory: MemoryStore = field(default_factory=MemoryStore)

    def store(self) -> MemoryStore:
        return self.memory


CONTENT = {"trainer": "digits", "arguments": {"epochs": 5}, "source": "a" * 64}
SETTINGS = b"config:\n  outlast:resume: 0 # mine\n"


@dataclass
class Engine:
    """Takes commands; what its preview pins."""

    settings: Path
    named: str = LAYOUT.run
    content: dict[str, Any] = field(default_factory=lambda: CONTENT)
    refuses: str = ""
    commands: list[list[str]] = field(default_factory=list)

    def run(self, args: list[str], *, env: Mapping[str, str]) -> str:
        self.commands.append(args)
        if args[0] == "preview":
            if self.refuses:
                raise EngineError(self.refuses)
            pinned = {"named": self.named, "content": self.content}
            pin = {"type": PIN, "custom": True, "inputs": pinned}
            return json.dumps({"steps": [{"op": "same", "urn": "u::run", "newState": pin}]})
        self.settings.write_text(f"changed by {args}")
        return ""


@pytest.fixture
def asked(monkeypatch, tmp_path) -> Engine:
    """The engine, and a stack's settings."""
    made = Engine(tmp_path / "Pulumi.dev.yaml")
    made.settings.write_bytes(SETTINGS)
    monkeypatch.setattr(engine, "run_engine", made.run)
    monkeypatch.setattr(engine, "project", lambda: tmp_path)
    return made


def stack(head: Head | None, *, counter: int = 0, now: datetime = START) -> InMemory:
    memory = MemoryStore(clock=lambda: now)
    made = InMemory("dev", "b", LAYOUT, counter, "o/p/s", memory=memory)
    if head is not None:
        made.memory.put(LAYOUT.head, head.to_json())
    return made


def place(made: InMemory) -> Place:
    return Place("dev", made.memory, made.layout)


def config(*words: str) -> list[str]:
    return ["config", *words, "-s", "dev"]


PREVIEW = ["preview", "--json", "--show-sames", "-s", "dev"]


@pytest.mark.parametrize(
    ("head", "counter", "expected"),
    [(FAILED, 0, 1), (replace(FAILED, resume=4), 2, 5), (FAILED, 7, 8), (OPEN, 0, 1)],
)
def test_the_counter_goes_past_every_value_that_held_the_run(asked, head, counter, expected):
    before = stack(head, counter=counter)
    done = resume.resume(before)
    assert (done.resume, done.renamed) == (expected, False)
    assert asked.commands == [
        config("set", "outlast:resume", str(expected)),
        config("set", "outlast:run", LAYOUT.run),
        PREVIEW,
        config("rm", "outlast:run"),
    ]
    assert read_head(before.memory, LAYOUT).head == head


def test_a_run_resumes_with_corrected_code_under_its_old_name(asked):
    made = stack(COMMITTED)
    record = replace(start_record(3, 0, START), spec={"content": CONTENT})
    made.memory.put(LAYOUT.attempt_start(3), record.to_json())
    asked.named, asked.content = "abcdefabcd", {**CONTENT, "source": "b" * 64}
    done = resume.resume(made)
    assert asked.commands[-1] == PREVIEW  # outlast:run stays
    assert done.renamed and [str(change) for change in done.changed] == [
        "the code aaaaaaaaaa → bbbbbbbbbb"
    ]


def test_what_the_program_refuses_leaves_the_settings_as_they_were(asked):
    asked.refuses = "run 0123456789: args.hidden 4 → 8: cannot change in the middle of a run"
    late = stack(OPEN, now=START + timedelta(hours=2))
    with pytest.raises(OperateError, match="cannot change in the middle"):
        resume.resume(late)
    assert asked.settings.read_bytes() == SETTINGS
    assert read_head(late.memory, LAYOUT).head == OPEN


def test_a_done_run_is_not_resumed(asked):
    done = OPEN.ended(State.DONE, End(Reason.DONE, 0, 9, None))
    with pytest.raises(OperateError, match="is done; other args or outlast:rerun"):
        resume.resume(stack(done))
    assert asked.commands == []


def test_a_run_that_no_vm_has_taken_yet_has_nothing_to_resume(asked):
    with pytest.raises(OperateError, match="has not begun yet, .* outlast status dev shows what"):
        resume.resume(stack(None))
    lost = stack(None)
    lost.memory.put(LAYOUT.attempt_start(1), b"{}")
    with pytest.raises(HeadLost):
        resume.resume(lost)
    assert asked.commands == []


def test_after_a_resume_and_an_up_the_run_waits_for_its_vm():
    made = stack(FAILED)
    for counter, state in ((FAILED.resume, "failed"), (FAILED.resume + 1, "waiting")):
        assert status.read(replace(place(made), resume=counter)).state == state


def test_a_run_whose_numbers_are_forged_is_repaired_first(asked):
    made = stack(replace(COMMITTED, resume=999_999_999))
    with pytest.raises(OperateError, match="resume 999999999, .* repair it first: outlast repair"):
        resume.resume(made)
    assert asked.commands == []


def test_an_open_run_past_its_deadline_is_ended_as_expired(asked):
    late = stack(OPEN, now=START + timedelta(hours=2))
    assert status.read(place(late)).state == "expired"
    resume.resume(late)
    head = read_head(late.memory, LAYOUT).head
    assert head.state is State.FAILED
    assert head.end is not None and head.end.reason is Reason.EXPIRED


def test_before_head_a_run_waits_boots_or_never_started():
    waiting = stack(None)
    assert status.read(place(waiting)).state == "waiting"
    waiting.memory.put(LAYOUT.boot("1", "b"), b"{}")
    found = status.read(place(waiting))
    assert (found.state, found.boots) == ("booting", 1)
    end = BootEnd("1", "b", Reason.SETUP_FAILED, "fetch-bundle", 1, "no", START)
    waiting.memory.put(LAYOUT.boot_end("1", "b"), end.to_json())
    found = status.read(place(waiting))
    assert (found.state, found.boots) == ("never-started", 1)
    document = found.as_json()
    assert document["attempts"] == []
    assert document["waits"]["why"] == "1 boot has failed, the last with setup-failed"


def test_an_open_run_shows_the_last_value_of_each_metric_and_the_time_that_is_left(capsys):
    made = stack(replace(OPEN, term=2))
    for term, step, metrics in (
        (1, 40, {"loss": Last(40, 0.5), "val/accuracy": Last(30, 0.875), "note": Last(40, "x")}),
        (2, 36, {"loss": Last(36, None)}),
    ):
        heartbeat = heartbeat_record(term, step, START, total=3636, row={"step": step})
        start = start_record(term, 0 if term == 1 else 35, START)
        made.memory.put(LAYOUT.attempt_start(term), start.to_json())
        made.memory.put(LAYOUT.heartbeat(term), replace(heartbeat, metrics=metrics).to_json())
    found = status.read(place(made))
    document = found.as_json()
    assert document["metrics"] == {"loss": None, "val/accuracy": 0.875, "note": "x"}
    assert document["metric_steps"] == {"loss": 36, "val/accuracy": 30, "note": 40}
    assert document["left_sec"] == 3600
    show_status(found)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    left = ["step", "36", "of", "3636,", "1", "h", "left", "at", "1", "steps/s"]
    assert shown[0][-len(left) :] == left
    assert shown[-3:] == [
        ["loss", "not", "finite"],
        ["note", "x", "at", "step", "40"],
        ["val/accuracy", "0.875", "at", "step", "30"],
    ]


def test_many_metrics_with_wild_names_leave_the_status_readable(capsys):
    made = stack(replace(OPEN, term=1))
    row = {"step": 1, "[red]\x1b[31m": 1.0, "a" * 200: 2.0, **{f"m{n}": n for n in range(60)}}
    made.memory.put(LAYOUT.attempt_start(1), start_record(1, 0, START).to_json())
    made.memory.put(LAYOUT.heartbeat(1), heartbeat_record(1, 1, START, total=9, row=row).to_json())
    show_status(status.read(place(made)))
    shown = capsys.readouterr().out
    assert "[red]?[31m" in shown and "and 32 more: --json has them all" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_an_open_run_says_what_its_next_attempt_waits_for(monkeypatch):
    now = START + timedelta(minutes=10)
    made = stack(replace(OPEN, term=1), now=now)
    made.memory.put(LAYOUT.boot("1", "b1"), b"{}")
    made.memory.put(LAYOUT.attempt_start(1), start_record(1, 0, START).to_json())
    seen: list[boots.Seen | None] = [None]
    monkeypatch.setattr(boots, "look", lambda group: seen[0])

    def wait_shown() -> boots.Wait | None:
        return status.read(replace(place(made), group=Group("p", "zones/z", "g"))).wait

    assert wait_shown() is None
    seen[0] = boots.Seen(START, 1, boots.Vm("vm", "1", START))
    assert wait_shown() is None  # the VM of the attempt
    seen[0] = boots.Seen(START, 1, None, (boots.Refusal(now, "STOCKOUT", ""),))
    assert wait_shown() == boots.Wait(
        Standing.WAITING, now, "its group cannot create a VM: STOCKOUT (tries: 1)"
    )
    later = now + timedelta(minutes=1)
    seen[0] = boots.Seen(START, 1, boots.Vm("vm", "2", later))
    found = wait_shown()
    assert found and (found.what, found.since, found.why) == ("booting", later, "VM vm boots")


def test_status_names_what_changed_in_mid_run():
    made = stack(replace(OPEN, term=2))
    first = replace(start_record(1, 0, START), spec={"content": CONTENT})
    content = {**CONTENT, "source": "b" * 64, "arguments": {"epochs": 7}}
    second = replace(start_record(2, 9, START), machine_type="n2-standard-8", image="p/i-2")
    second = replace(second, spec={"content": content, "before": CONTENT})
    for record in (first, second):
        made.memory.put(LAYOUT.attempt_start(record.term), record.to_json())
    attempts = status.read(place(made)).as_json()["attempts"]
    assert [attempt["changed"] for attempt in attempts] == [
        [],
        [
            "machine n2-standard-2 → n2-standard-8",
            "image i → i-2",
            "args.epochs 5 → 7",
            "the code aaaaaaaaaa → bbbbbbbbbb",
        ],
    ]


@pytest.mark.parametrize(
    ("reason", "says"), [(Reason.USER_FAILED, "exited with 127: no python"), (Reason.STOPPED, "")]
)
def test_status_says_what_the_newest_attempt_failed_of(capsys, reason, says):
    made = stack(replace(OPEN, term=1))
    ended = AttemptEnd(
        1, reason, State.FAILED, 127, 0, None, "exited with 127: no python", (), 0.0, START
    )
    for path, record in (
        (LAYOUT.attempt_start(1), start_record(1, 0, START)),
        (LAYOUT.attempt_end(1), ended),
    ):
        made.memory.put(path, record.to_json())
    found = status.read(place(made))
    assert found.as_json()["attempts"][0]["why"] == says
    show_status(found)
    assert (f"attempt 1 {reason}: {says}" in capsys.readouterr().out) == bool(says)


def test_status_names_the_checkpoint_from_which_a_stopped_run_would_resume(capsys):
    made = stack(replace(FAILED, term=1))
    made.memory.put(LAYOUT.attempt_start(1), start_record(1, 0, START).to_json())
    heartbeat = heartbeat_record(1, 9, START, total=100, row={"step": 9})
    made.memory.put(LAYOUT.heartbeat(1), heartbeat.to_json())
    show_status(status.read(place(made)))
    said = "failed (user-failed), step 9 of 100; its newest checkpoint is at step 0\n"
    assert said in capsys.readouterr().out


def test_a_result_without_the_usual_metrics_is_shown_all_the_same():
    result = Result("experiments/dev/0123456789/t000001/result/", 1, "d" * 64)
    made = stack(OPEN.ended(State.DONE, End(Reason.DONE, 0, 9, result)))
    found = status.read(place(made))
    assert (found.state, found.metrics) == ("done", {})
    assert found.result == "memory:/experiments/dev/0123456789/t000001/result/"


def test_a_stopped_local_cloud_is_said_at_once(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    with pytest.raises(OperateError, match="is stopped: nothing answers there; start one"):
        Deployed("dev", "b", LAYOUT, 0, "o/p/s").store()


def test_a_garbled_head_gives_one_sentence_with_the_repair():
    garbled = stack(None)
    garbled.memory.put(LAYOUT.head, b"garbage")
    with pytest.raises(OperateError) as caught:
        status.read(place(garbled))
    said = "dev: memory:/experiments/dev/0123456789/HEAD: is not JSON ("
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("; outlast repair dev repairs it")


def test_damaged_bytes_of_head_are_reported_once_with_the_repair(tmp_path):
    store = open_store(str(tmp_path))
    store.put("HEAD", b"whole")
    (tmp_path / "HEAD").resolve().write_bytes(b"other")
    damaged = Place("./run", store, Layout("", ""), tmp_path)
    for read in (status.read, lambda place: OpenedRun(place).checkpoints()):
        with pytest.raises(OperateError) as caught:
            read(damaged)
        message = str(caught.value)
        assert message.startswith(f"./run: {store.url}/HEAD: has size and CRC32C")
        assert message.endswith("; outlast repair ./run repairs it")
