"""What `outlast status` shows of a trainer that failed, whenever it did."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.base.exits import INTERRUPTED, Reason, State
from outlast.bucket import history
from outlast.bucket.head import End
from outlast.bucket.layout import AttemptEnd, Layout
from outlast.bucket.store import FolderStore
from outlast.cli import runs, status
from outlast.cli.rehearsal.report import Report
from outlast.cli.rehearsal.show import show_report
from outlast.cli.show.status import show_status
from tests.cli.records import heartbeat_record, start_record
from tests.cli.test_resume import FAILED, LAYOUT, OPEN, START, place, stack
from tests.loop import programs

PROGRAM = """
import sys
import numpy as np
import outlast

def fragile(when):
    if when == sys.argv[1]:
        raise TypeError(f"main() takes 0 positional {when} arguments")

with outlast.train(state={"x": np.zeros(3)}, total=9, run_dir="run", arguments={}) as run:
    fragile("before")
    for step in run.steps():
        if step == 3:
            fragile("within")
    fragile("after")
"""


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    show_status(status.read(runs.find(folder)))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_program_that_raises_has_its_traceback_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    (tmp_path / "walk.py").write_text(PROGRAM)
    done = programs.run(tmp_path, [sys.executable, "walk.py", when])
    assert done.returncode == 1, done.stderr
    programs.wait_until_alone(tmp_path)
    lines = shown(tmp_path / "run", capsys)
    said = f"main() takes 0 positional {when} arguments"
    start = lines.index(f"attempt 1 user-failed: {said}")
    assert lines[start + 1] == "  Traceback (most recent call last):"
    assert f"""    File "{tmp_path / "walk.py"}", line 8, in fragile""" in lines
    assert f"  TypeError: {said}" in lines


def test_a_rehearsal_shows_the_same_and_a_baseline_that_failed_alike_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "walk.py").write_text(PROGRAM)
    assert programs.run(tmp_path, [sys.executable, "walk.py", "within"]).returncode == 1
    programs.wait_until_alone(tmp_path)
    book = history.read(FolderStore(tmp_path / "run", reading=True), Layout("", ""))
    assert book is not None
    capsys.readouterr()
    report = Report("storm", "dev", "0123456789", "failed (user-failed)")
    report.attempts = report.baseline_attempts = book.attempts
    show_report(report)
    lines = capsys.readouterr().out.splitlines()
    said = "main() takes 0 positional within arguments"
    start = lines.index(f"attempt 1 user-failed: {said}")
    assert lines[start + 1] == "  Traceback (most recent call last):"
    assert lines.count(f"  TypeError: {said}") == 1


def test_a_command_that_fails_has_the_end_of_its_stderr_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "old.sh"
    script.write_text("for n in $(seq 30); do echo line $n >&2; done; echo out of eggs >&2; exit 4")
    argv = [sys.executable, "-m", "outlast.cli", "train", "--run-dir", "run", "--", "bash"]
    done = programs.run(tmp_path, [*argv, str(script)])
    assert done.returncode == 4, done.stderr
    programs.wait_until_alone(tmp_path)
    lines = shown(tmp_path / "run", capsys)
    start = next(n for n, line in enumerate(lines) if line.startswith("attempt 1 user-failed:"))
    assert "out of eggs" in lines[start]
    assert lines[start + 1 : start + 11] == [
        *(f"  line {n}" for n in range(22, 31)),
        "  out of eggs",
    ]


def test_a_ctrl_c_while_outlast_train_still_starts_is_one_sentence(tmp_path: Path) -> None:
    ready = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); "
    ready += "os.kill(os.getpid(), signal.SIGINT); os.execv(sys.executable, sys.argv[1:])"
    argv = [sys.executable, "-m", "outlast.cli", "train", "--run-dir", "run", "--", "true"]
    done = programs.run(tmp_path, [sys.executable, "-c", ready, *argv])
    assert done.returncode == INTERRUPTED
    assert done.stderr == "outlast: interrupted before the command began\n"
    assert not (tmp_path / "run").exists()


BUNDLE = f"/tmp/vm/bundle/{'0' * 64}"
TRACE = (
    "Epoch 1",
    "Traceback (most recent call last):",
    f'  File "{BUNDLE}/t.py"',
    '  File "<frozen runpy>", line 1',
    "ValueError: \x1b[31mno",
)


def failed(term: int, reason: Reason, stderr: tuple[str, ...] = TRACE) -> AttemptEnd:
    return AttemptEnd(
        term, reason, State.OPEN, 1, 7, None, f"the trainer exited with {term}", stderr, 0.0, START
    )


def test_each_failed_attempt_is_named_and_the_newest_has_its_traceback(capsys) -> None:
    made = stack(replace(FAILED, term=8))
    for term in range(1, 9):
        made.memory.put(LAYOUT.attempt_start(term), start_record(term, 0, START).to_json())
        reason = Reason.PREEMPTED if term == 8 else Reason.USER_FAILED
        made.memory.put(LAYOUT.attempt_end(term), failed(term, reason).to_json())
    show_status(status.read(place(made)))
    text = capsys.readouterr().out
    lines = text.splitlines()
    start = lines.index("2 earlier attempts failed too")
    assert lines[start + 1 : start + 6] == [
        f"attempt {term} user-failed: the trainer exited with {term}" for term in range(3, 8)
    ]
    assert lines[start + 6 : start + 9] == [
        "  Traceback (most recent call last):",
        '    File "t.py"',
        "  ValueError: ?[31mno",
    ]
    assert "Epoch 1" not in text and "\x1b" not in text


def test_a_long_traceback_is_shown_by_its_ends(capsys) -> None:
    made = stack(replace(FAILED, term=1))
    made.memory.put(LAYOUT.attempt_start(1), start_record(1, 0, START).to_json())
    frames = [f"  frame {n}" for n in range(98)]
    trace = ("Traceback (most recent call last):", *frames, "KeyError: 'a'")
    end = failed(1, Reason.USER_FAILED, trace)
    made.memory.put(LAYOUT.attempt_end(1), end.to_json())
    show_status(status.read(place(made)))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "… 70 lines …" in lines and "frame 13" in lines and "frame 14" not in lines
    assert "KeyError: 'a'" in lines


def test_a_verdict_that_is_held_back_is_shown_with_the_traceback(capsys) -> None:
    made = stack(replace(OPEN, term=1))
    made.memory.put(LAYOUT.attempt_start(1), start_record(1, 0, START).to_json())
    heartbeat = heartbeat_record(1, 7, START, total=9, row={"step": 7})
    heartbeat = replace(
        heartbeat, phase="verdict", failure="the trainer exited with 1", stderr=TRACE
    )
    made.memory.put(LAYOUT.heartbeat(1), heartbeat.to_json())
    found = status.read(place(made))
    assert found.as_json()["attempts"][0]["stderr"] == list(TRACE)
    show_status(found)
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("attempt 1 will fail unless its VM is stopping: the trainer exited with 1")
    assert lines[start + 1] == "  Traceback (most recent call last):"


def test_a_run_that_is_done_names_its_failures_without_tracebacks(capsys) -> None:
    made = stack(replace(OPEN.ended(State.DONE, End(Reason.DONE, 0, 9, None)), term=1))
    made.memory.put(LAYOUT.attempt_start(1), start_record(1, 0, START).to_json())
    made.memory.put(LAYOUT.attempt_end(1), failed(1, Reason.USER_FAILED).to_json())
    show_status(status.read(place(made)))
    text = capsys.readouterr().out
    assert "attempt 1 user-failed: the trainer exited with 1" in text and "Traceback" not in text


def test_sentences_are_wrapped_between_words_on_a_terminal_only(capsys, monkeypatch) -> None:
    made = stack(replace(FAILED, term=1))
    made.memory.put(LAYOUT.attempt_start(1), start_record(1, 0, START).to_json())
    why = "the trainer exited with 1: " + "a long word [list] " * 8
    end = replace(failed(1, Reason.USER_FAILED), message=why.strip())
    made.memory.put(LAYOUT.attempt_end(1), end.to_json())
    found = status.read(place(made))
    show_status(found)
    assert f"attempt 1 user-failed: {why.strip()}\n" in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    show_status(found)
    text = capsys.readouterr().out
    assert f"attempt 1 user-failed: {why.strip()}" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
