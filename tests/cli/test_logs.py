"""`outlast logs`: the output of every attempt, and the serial port of a VM."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.base.exits import Reason, State
from outlast.bucket.head import End, read_head
from outlast.bucket.layout import AttemptEnd, BootEnd, Layout
from outlast.bucket.store import FolderStore, MemoryStore
from outlast.cli import boots, logs, runs
from outlast.cli.app import cli
from outlast.cli.commands.logs import _Lines
from outlast.cli.errors import OperateError, UsageError
from outlast.cli.polling import Pauses
from outlast.cli.runs import Place
from outlast.cloud.compute import Compute, Group, Missing
from tests.cli.test_overview import layout, plant

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GROUP = Group("p", "zones/europe-west4-a", "first-group")


@pytest.fixture
def place() -> Place:
    store = MemoryStore()
    run = plant(store, "first")
    store.put(run.log_piece(1, 0), b"one\n\x1b[31mred\x1b[0m \xf0\x9f")
    store.put(run.log_piece(1, 1), b"\x98\x80\n10%\r50%\r100%\nlast")
    store.put(run.log_piece(2, 0), b"two\n")
    store.put(run.log_file(2, "events/1"), b"binary")
    return Place("first", store, run, group=GROUP)


@pytest.fixture
def found(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(runs, "find", lambda _: place)
    return place


def outlast(*words: str, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.stdout, done.stderr


def test_the_output_of_any_attempt_is_text_whatever_its_pieces(found: Place) -> None:
    assert outlast("logs", "first") == ("two\n", "")
    shown, _ = outlast("logs", "first", "--attempt", "1")
    assert shown == "one\nred 😀\n100%\nlast\n"
    shown, _ = outlast("logs", "first", "--attempt", "1", "--json")
    first = [json.loads(line) for line in shown.splitlines()]
    assert first[0] == {"attempt": 1, "line": "one"} and len(first) == 4


def test_of_a_progress_bar_only_its_last_state_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _Lines(as_json=False)
    for number in range(1000):
        lines.write(1, f"\r{number} of 1000")
    assert lines._part == "999 of 1000"
    for piece in ("\r", "\n", "next\r", "\rlast\r"):
        lines.write(1, piece)
    lines.close()
    assert capsys.readouterr().out == "999 of 1000\nlast\n"


def test_an_attempt_without_output_and_one_that_is_not_there(place: Place, found: Place) -> None:
    place.store.delete(place.layout.log_piece(2, 0), generation=_generation(place))
    said = "first: attempt 2 has left no output yet; a VM uploads it once a minute\n"
    assert outlast("logs", "first") == ("", said)
    store = place.store
    assert isinstance(store, MemoryStore)
    for number in (0, 1):
        path = place.layout.log_piece(1, number)
        store.delete(path, generation=store.stat(path).generation)
    said = "first: attempt 1 left no output; it ended as preempted\n"
    assert outlast("logs", "first", "--attempt", "1") == ("", said)
    end_run(store, place.layout, State.STOPPED)
    assert outlast("logs", "first") == (
        *("", "first: attempt 2 left no output; it ended as vm-lost\n"),
    )
    with pytest.raises(UsageError, match="first: has no attempt 9; its attempts are 1 to 2"):
        logs.chosen(place, 9)
    new = Place("new", MemoryStore(), layout("new"))
    with pytest.raises(UsageError, match="new: has no attempt yet; outlast logs new --boot"):
        logs.chosen(new, None)


def _generation(place: Place) -> int:
    return place.store.stat(place.layout.log_piece(2, 0)).generation


@dataclass
class Script:
    """What happens in each pause of a command that waits."""

    acts: list[Any]
    slept: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.acts.pop(0)()


def end_run(store: MemoryStore, run: Layout, state: State = State.DONE) -> None:
    head = read_head(store, run).head
    end = End(Reason(state.value), 0, 100, None)
    store.put(run.head, replace(head, state=state, end=end).to_json())


def test_following_goes_from_attempt_to_attempt_until_the_run_ends(place: Place) -> None:
    store, run = place.store, place.layout
    assert isinstance(store, MemoryStore)
    third = [b"three\n", b"more\n"]

    def preempted() -> None:
        store.put(run.log_piece(2, 1), b"goodbye\n")
        plant(store, "first", attempts=3)
        store.put(run.log_piece(3, 0), third[0])

    def done() -> None:
        store.put(run.log_piece(3, 1), third[1])
        end_run(store, run)

    script = Script([lambda: None, lambda: None, preempted, done])
    written: list[tuple[int, str]] = []
    said: list[str] = []
    logs.follow(
        place,
        None,
        lambda term, text: written.append((term, text)),
        said.append,
        Pauses(30, sleep=script),
    )
    assert written == [
        *((2, "two\n"), (2, "goodbye\n"), (3, "three\n"), (3, "more\n")),
    ]
    assert said == ["attempt 2", "attempt 3"]
    assert script.slept == [30, 45, 67.5, 30]  # less often while nothing comes


def test_following_a_run_that_has_ended_prints_all_and_ends(found: Place) -> None:
    store = found.store
    assert isinstance(store, MemoryStore)
    end_run(store, found.layout, State.STOPPED)
    assert outlast("logs", "first", "--follow") == ("two\n", "attempt 2\n")


def test_following_one_attempt_ends_with_it(place: Place) -> None:
    store, run = place.store, place.layout
    end = AttemptEnd(2, Reason.PREEMPTED, State.OPEN, 75, 25, None, "", (), 0.0, NOW)
    script = Script([lambda: store.put(run.attempt_end(2), end.to_json())])
    written: list[str] = []
    pauses = Pauses(30, sleep=script)
    logs.follow(place, 2, lambda _, text: written.append(text), lambda _: None, pauses)
    assert written == ["two\n"] and script.acts == []


def test_pauses_grow_to_two_minutes_and_a_change_makes_them_short_again() -> None:
    slept: list[float] = []
    pauses = Pauses(sleep=slept.append)
    for changed in (*[False] * 6, True, False):
        pauses.wait(changed=changed)
    assert slept == [30, 45, 67.5, 101.25, 120, 120, 30, 45]


def test_the_serial_port_of_the_groups_vm_and_failed_boots(
    place: Place, found: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = BootEnd("7", "b", Reason.SETUP_FAILED, "fetch-bundle", 1, "no\nspace", NOW)
    place.store.put(place.layout.boot_end("7", "b"), end.to_json())
    vm = boots.Vm("vm-x", "9", NOW, "zones/europe-west4-a/instances/vm-x")
    seen = boots.Seen(NOW, 1, vm)
    monkeypatch.setattr(boots, "look", lambda group: seen if group == GROUP else None)
    asked: list[str] = []

    def call(self: Compute, method: str, path: str) -> dict[str, str]:
        asked.append(path)
        if "vm-x" not in path:
            raise Missing(404, "gone")
        return {"contents": "kernel\n", "next": "7"}

    monkeypatch.setattr(Compute, "call", call)
    shown, said = outlast("logs", "first", "--boot")
    assert shown == "kernel\n" and said.splitlines()[1:] == ["serial port of VM vm-x"]
    assert "VM 7 setup-failed in fetch-bundle, exit 1: no space" in said
    assert asked == ["zones/europe-west4-a/instances/vm-x/serialPort?start=0"]
    with pytest.raises(OperateError, match="VM vm no longer exists, and its serial port with it"):
        logs.Serial(place, 1).text()
    monkeypatch.setattr(boots, "look", lambda _: boots.Seen(NOW, 0, None))
    with pytest.raises(OperateError, match="its group has no VM now"):
        logs.Serial(place)
    with pytest.raises(OperateError, match="the output of its attempts is in the bucket"):
        logs.Serial(Place("first", place.store, place.layout))


def test_a_run_in_a_folder_has_logs_if_it_kept_any(tmp_path: Path) -> None:
    run = Layout("", "")
    store = FolderStore(tmp_path / "run")
    store.put(run.log_piece(1, 0), b"hello\n")
    written: list[str] = []
    logs.show(Place("run", store, run, tmp_path), None, lambda _, text: written.append(text))
    assert written == ["hello\n"]
