"""Odd surroundings of a run on a laptop or in a container: it trains, and its end is recorded."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.another_user import needs_python
from tests.loop import programs

OTHER_USER = 54_321
"""A user id without an entry in the list of users."""
PROGRAM = """
import os, signal, sys, time
import outlast

if "handler" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: print("its own handler", flush=True))
state = {"n": {"v": 0}}
with outlast.train(state, 6, run_dir=sys.argv[1], checkpoint_every="1", arguments={}) as run:
    for step in run.steps():
        state["n"]["v"] += step
        run.log(v=state["n"]["v"])
        print("step", step, flush=True)
        time.sleep(float(os.environ.get("PACE", "0")))
    run.result("v.txt").write_text(str(state["n"]["v"]))
"""


@pytest.fixture
def walk(tmp_path: Path) -> list[str]:
    (tmp_path / "walk.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "walk.py"), "run"]


def assert_done(folder: Path) -> None:
    programs.wait_until_alone(folder)
    assert programs.head(folder / "run")["state"] == "done"
    assert programs.result_of(folder / "run")["v.txt"] == b"21"


def closing(*streams: int) -> Callable[[], None]:
    def close() -> None:
        for stream in streams:
            os.close(stream)

    return close


@pytest.mark.parametrize("streams", [(2,), (1, 2), (0, 1, 2)], ids=["stderr", "both", "all"])
def test_closed_streams(tmp_path: Path, walk: list[str], streams: tuple[int, ...]) -> None:
    # A print to a closed stdout does nothing: Python then has no sys.stdout.
    done = subprocess.run(
        walk,
        cwd=tmp_path,
        env=programs.environment(tmp_path),
        preexec_fn=closing(*streams),
        timeout=programs.WAIT_SEC,
        check=False,
    )
    assert done.returncode == 0
    assert_done(tmp_path)


def test_a_read_only_home(tmp_path: Path, walk: list[str]) -> None:
    done = programs.run(tmp_path, walk, HOME="/proc")
    assert done.returncode == 0, done.stderr
    assert_done(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become a user that nothing knows")
def test_a_user_without_a_home_and_an_entry() -> None:
    needs_python()
    # Not below pytest's folder, which only its own user may enter.
    base = Path("/tmp") / f"outlast-someone-{os.getpid()}"
    base.mkdir()
    try:
        folder = base / "of"
        folder.mkdir()
        (folder / "walk.py").write_text(PROGRAM)
        variables = programs.environment(folder)
        variables.pop("HOME", None)
        for path in (folder, folder / "tmp"):
            os.chown(path, OTHER_USER, OTHER_USER)
        done = _as_another_user([sys.executable, str(folder / "walk.py"), "run"], folder, variables)
        assert done.returncode == 0, done.stderr
        assert_done(folder)
        assert (folder / "run" / "HEAD").stat().st_uid == OTHER_USER
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _as_another_user(
    argv: list[str], folder: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=folder,
        env=variables,
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=programs.WAIT_SEC,
        check=False,
    )


def test_a_working_folder_that_has_gone(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(PROGRAM)
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "$1" && rmdir "$1" && exec "$2" "$3" "{tmp_path}/run"'
    done = programs.run(
        tmp_path,
        ["sh", "-c", script, "sh", str(gone), sys.executable, str(tmp_path / "walk.py")],
    )
    assert done.returncode == 0, done.stderr
    assert_done(tmp_path)


def test_an_earlier_signal_handler_does_not_change_a_stop(tmp_path: Path, walk: list[str]) -> None:
    with programs.started(tmp_path, [*walk, "handler"], PACE="0.3") as process:
        programs.wait_for(lambda: programs.newest(tmp_path / "run") > 0, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=programs.WAIT_SEC)
    assert process.returncode == 75, err
    assert programs.head(tmp_path / "run")["state"] == "open"
    done = programs.run(tmp_path, walk)
    assert done.returncode == 0, done.stderr
    assert_done(tmp_path)


def test_a_terminal_that_is_closed_ends_as_interrupted(tmp_path: Path, walk: list[str]) -> None:
    with programs.started(tmp_path, walk, PACE="0.3") as process:
        programs.wait_for(lambda: programs.newest(tmp_path / "run") > 0, process)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=programs.WAIT_SEC)
    programs.wait_until_alone(tmp_path)
    assert programs.head(tmp_path / "run")["state"] == "open"
    end = json.loads((tmp_path / "run" / "attempts" / "000001" / "end.json").read_text())
    assert end["reason"] == "interrupted"
    done = programs.run(tmp_path, walk)
    assert done.returncode == 0, done.stderr
    assert_done(tmp_path)
