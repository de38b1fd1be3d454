"""`outlast wait` and `outlast watch`: they read until runs have ended, and say how."""

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from outlast.base.exits import Reason, State
from outlast.bucket.head import End, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.standing import Standing
from outlast.bucket.store import FolderStore, MemoryStore, Unavailable
from outlast.cli import endpoint, polling, runs, watching
from outlast.cli.app import cli
from outlast.cli.errors import CloudError, OperateError
from outlast.cli.polling import Pauses
from outlast.cli.runs import Place
from tests.cli.test_logs import Script, end_run
from tests.cli.test_overview import layout, plant


@pytest.fixture(autouse=True)
def _no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(endpoint.VARIABLE, raising=False)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def place(store: MemoryStore, name: str, **how: object) -> Place:
    plant(store, name, **how)  # type: ignore[arg-type]
    return Place(name, store, layout(name))


@pytest.mark.parametrize(
    ("state", "code"),
    [(State.DONE, 0), (State.STOPPED, 4), (State.FAILED, 3), (State.PRUNED, 6)],
)
def test_the_exit_code_says_how_it_ended(store: MemoryStore, state: State, code: int) -> None:
    run = place(store, "first")
    script = Script([lambda: None, lambda: _end(store, run, state)])
    seen = list(watching.rounds([run], Pauses(30, sleep=script)))
    assert [str(lines[0].status.state) for lines in seen] == ["running", "running", state]
    assert watching.exit_code(seen[-1]) == code
    assert script.slept == [30, 45]  # nothing has changed at the second look


def _end(store: MemoryStore, run: Place, state: State) -> None:
    reasons = {State.FAILED: Reason.USER_FAILED}
    head = read_head(store, run.layout).head
    end = End(reasons.get(state) or Reason(state.value), 0, 100, None)
    store.put(run.layout.head, replace(head, state=state, end=end).to_json())


def test_every_state_in_which_a_run_has_ended_has_its_code() -> None:
    assert set(watching.EXITS) == {one for one in Standing if one.ended}


def test_the_first_that_is_not_done_decides(store: MemoryStore) -> None:
    both = [place(store, "a", state=State.DONE), place(store, "b", state=State.STOPPED)]
    (lines,) = watching.rounds(both, Pauses(1, sleep=Script([])))
    assert watching.exit_code(lines) == 4


def test_it_gives_up_in_time_and_names_what_it_waited_for(store: MemoryStore) -> None:
    now = iter([0.0, 30.0, 61.0])
    looks = watching.rounds(
        [place(store, "first")],
        Pauses(1, sleep=lambda _: None),
        limit_sec=60,
        clock=lambda: next(now),
    )
    with pytest.raises(watching.TimedOut, match="not ended in 1 min: first is running") as caught:
        list(looks)
    assert caught.value.exit_code == 124


def test_a_bucket_that_does_not_answer_for_a_while_is_asked_again(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = place(store, "first")
    get = store.get

    def broken(*_: object, **__: object) -> None:
        raise Unavailable("no answer")

    def on() -> None:
        monkeypatch.setattr(store, "get", get)
        end_run(store, run.layout)

    script = Script([lambda: monkeypatch.setattr(store, "get", broken), lambda: None, on])
    assert len(list(watching.rounds([run], Pauses(1, sleep=script)))) == 2
    monkeypatch.setattr(store, "get", broken)
    with pytest.raises(OperateError, match="no answer"):
        next(watching.rounds([run], Pauses(1, sleep=Script([]))))


def test_a_local_cloud_that_is_stopped_ends_the_wait_at_once(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        monkeypatch.setenv(endpoint.VARIABLE, "http://127.0.0.1:9")

    looks = watching.rounds([place(store, "first")], Pauses(1, sleep=Script([stop])))
    with pytest.raises(CloudError, match="is stopped"):
        list(looks)


def test_the_commands_in_a_pipe(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = place(store, "first")

    def sleep(seconds: float) -> None:
        assert seconds == 30
        end_run(store, run.layout)

    monkeypatch.setattr(runs, "find", lambda _: run)
    monkeypatch.setattr(polling, "time", SimpleNamespace(sleep=sleep))  # other threads sleep, too
    done = CliRunner().invoke(cli, ["wait", "first", "--timeout-minutes", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["state"] == "done"
    first, second = done.stderr.splitlines()
    assert first.startswith(
        "first: running, step 25 of 100, 1 min 15 s left at 1 steps/s, loss 0.5, "
    )
    assert second.startswith("first: done, step 25 of 100, loss 0.5, ")

    plant(store, "first")
    watched = CliRunner().invoke(cli, ["watch", "first"])
    assert (watched.exit_code, watched.stdout) == (0, done.stderr)
    plant(store, "first")
    watched = CliRunner().invoke(cli, ["watch", "first", "--json"])
    states = [json.loads(line)["state"] for line in watched.stdout.splitlines()]
    assert states == ["running", "done"]


def test_on_a_terminal_there_is_a_bar_and_ctrl_c_says_how_to_continue(tmp_path: Path) -> None:
    """Without colours if NO_COLOR is set; the exit code is Ctrl-C's."""
    plant_in_folder(tmp_path / "run")
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="200", NO_COLOR="1")
        command = [sys.executable, "-m", "outlast.cli", "watch", str(tmp_path / "run")]
        os.execv(sys.executable, command)
    written = b""
    interrupted = False
    try:
        while block := os.read(terminal, 65536):
            written += block
            if b"step 25 of 100" in written and not interrupted:
                interrupted = True
                os.kill(child, signal.SIGINT)
    except OSError:  # Linux says so at the end of a terminal
        pass
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    text = written.decode()
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert "━" in text and "again: outlast watch " in text
    assert "\x1b[3" not in text and "Traceback" not in text


def plant_in_folder(folder: Path) -> None:
    """A run in a folder, with an attempt that works on it."""
    plant(FolderStore(folder), "run", run=Layout("", ""), owner="folder/run/abc")


def test_a_wait_that_times_out_is_one_sentence(tmp_path: Path) -> None:
    plant_in_folder(tmp_path / "run")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "outlast.cli", "wait", str(tmp_path / "run")),
            *("--timeout-minutes", "0.0001"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 124 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("outlast: not ended in 0.0001 min: ")
