"""The trainer as a process."""

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outlast.base import process_tree
from outlast.protocol import SOCKET_VARIABLE
from outlast.supervisor.process import (
    CallingTrainer,
    Exited,
    TrainerProcess,
    trainer_argv,
    trainer_environment,
)
from outlast.supervisor.trainer_log import TrainerLog


@contextmanager
def trainer(tmp_path: Path, program: str) -> Iterator[tuple[TrainerProcess, Any]]:
    """A trainer that runs a Python program, and the inbox that its end arrives in."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    process = TrainerProcess(
        [sys.executable, "-c", program],
        folder=tmp_path / "cwd",
        environment=trainer_environment(tmp_path / "socket", tmp_path),
        log=TrainerLog(tmp_path / "trainer.log"),
    )
    process.start(inbox.put)
    try:
        yield process, inbox
    finally:
        process.kill()


def wait_for(path: Path) -> str:
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)
    return path.read_text()


def test_code_log_and_last_lines(tmp_path: Path) -> None:
    program = (
        "import sys, os\n"
        "print('to stdout')\n"
        "sys.stderr.write('10%\\r50%\\r100%\\nlast words')\n"
        "assert os.getcwd().endswith('cwd')\n"
        "sys.exit(3)\n"
    )
    with trainer(tmp_path, program) as (process, inbox):
        assert inbox.get(timeout=60) == Exited(3)
    assert process.last_lines() == ("100%", "last words")
    log = (tmp_path / "trainer.log").read_text()
    assert "to stdout" in log and "last words" in log


def test_the_last_hundred_lines_are_kept(tmp_path: Path) -> None:
    program = "import sys\nfor n in range(1000): print('line', n, file=sys.stderr)\n"
    with trainer(tmp_path, program) as (process, inbox):
        assert inbox.get(timeout=60) == Exited(0)
    lines = process.last_lines()
    assert len(lines) == 100 and lines[-1] == "line 999"


def test_an_endless_line_is_truncated(tmp_path: Path) -> None:
    program = "import sys\nfor n in range(20000): sys.stderr.write(f'\\rstep {n} of 20000')\n"
    with trainer(tmp_path, program) as (process, inbox):
        assert inbox.get(timeout=60) == Exited(0)
    assert process.last_lines() == ("step 19999 of 20000",)


def test_killing_a_trainer_ends_its_children(tmp_path: Path) -> None:
    """A child in a separate session, and one whose parent has ended."""
    pids = tmp_path / "pids"
    program = (
        "import os, subprocess, sys, time\n"
        "code = 'import time; time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
        f"open({str(pids)!r} + '.tmp', 'w').write(str(child.pid))\n"
        f"os.rename({str(pids)!r} + '.tmp', {str(pids)!r})\n"
        "time.sleep(600)\n"
    )
    with trainer(tmp_path, program) as (process, inbox):
        child = int(wait_for(pids))
        process.kill()
        assert inbox.get(timeout=60) == Exited(-signal.SIGKILL)
    mark = f"{process_tree.VARIABLE}={tmp_path / 'socket'}"
    end = time.monotonic() + 20
    while child in process_tree.marked(mark):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_orphan_does_not_outlive_its_trainer(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "code = 'import time; time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
    )
    with trainer(tmp_path, program) as (_, inbox):
        assert inbox.get(timeout=60) == Exited(0)
    mark = f"{process_tree.VARIABLE}={tmp_path / 'socket'}"
    end = time.monotonic() + 20
    while process_tree.marked(mark):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_stuck_trainer_prints_its_stacks(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = (
        "import time\n"
        "def somewhere():\n"
        f"    open({str(ready)!r}, 'w').close()\n"
        "    time.sleep(600)\n"
        "somewhere()\n"
    )
    with trainer(tmp_path, program) as (process, inbox):
        wait_for(ready)
        process.dump_stacks()
        assert inbox.get(timeout=60) == Exited(-signal.SIGABRT)
    assert any("somewhere" in line for line in process.last_lines())


def test_the_bundle_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    environment = trainer_environment(tmp_path / "socket", tmp_path)
    assert environment["PYTHONPATH"] == str(tmp_path)
    assert environment[SOCKET_VARIABLE] == str(tmp_path / "socket")
    assert trainer_argv("digits", ["--epochs=3"]) == [
        sys.executable, "-P", "-m", "outlast.trainers", "digits", "--epochs=3",
    ]  # fmt: skip
    assert trainer_argv("digits", [], python="/opt/conda/bin/python")[0] == "/opt/conda/bin/python"


def test_several_processes_are_started_by_the_launcher():
    argv = trainer_argv("digits", ["--epochs=3"], python="/opt/python", processes=2)
    assert argv[:5] == ["/opt/python", "-P", "-m", "outlast.loop.launch", "2"]
    assert argv[5:] == ["outlast.trainers", "digits", "--epochs=3"]


def test_a_calling_trainer_that_has_died_is_noticed(tmp_path: Path) -> None:
    """Its supervisor is an orphan then."""
    program = (
        "import os, queue\n"
        "from outlast.supervisor.process import CallingTrainer\n"
        "inbox = queue.SimpleQueue()\n"
        "CallingTrainer(os.getppid()).start(inbox.put)\n"
        "print('watching', flush=True)\n"
        "print(inbox.get(timeout=60), flush=True)\n"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            f"child = subprocess.Popen([sys.executable, '-c', {program!r}])\n"
            "time.sleep(600)\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "watching\n"
        parent.kill()
        assert parent.stdout.readline() == "Exited(code=None)\n"


def test_a_calling_trainer_is_never_killed() -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    calling = CallingTrainer(os.getppid())
    calling.start(inbox.put)
    calling.kill()
    assert inbox.get(timeout=60) == Exited(None)
