"""How real programs leave their training on a laptop: a test for each row of the guide's table."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.loop import programs
from tests.stores import BUCKET, storage_api

__all__ = ["storage_api"]

TOTAL = 40
PROGRAM = f"""
import atexit, contextlib, multiprocessing, os, signal, sys, threading, time
import outlast

def body(run, each):
    for step in run.steps():
        counts["steps"] += 1
        run.log(x=step)
        print(step, flush=True)
        each(step)
        time.sleep(float(os.environ.get("PACE", "0")))

def train(each=lambda step: None, loop=body, **more):
    with outlast.train(
        {{"counts": counts}}, **{{"total": {TOTAL}, "run_dir": "run", "arguments": {{}},
        "checkpoint_every": "5", **more}}
    ) as run:
        loop(run, each)
    print("after", flush=True)

def at(number, act):
    return lambda step: act() if step == number else None

def crash():
    raise ZeroDivisionError("on purpose")

counts = {{"steps": 0}}
"""


def argv(tmp_path: Path, lines: str, name: str = "walk.py") -> list[str]:
    """A program that ends with these lines."""
    (tmp_path / name).write_text(f"{PROGRAM}\n{lines}\n")
    return [sys.executable, "-W", "ignore::SyntaxWarning", str(tmp_path / name)]


def end_of(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "run" / "attempts" / "000001" / "end.json").read_text())


# What the program does by itself.


@pytest.mark.parametrize(
    ("act", "code", "said"),
    [
        ("crash()", 1, "ZeroDivisionError: on purpose"),
        ("sys.exit(0)", 1, "sys.exit(0) ended the program after step 12 of 40"),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no such file')", 1, "no such file"),
        ("os._exit(0)", 0, "the same command resumes from step"),
        ("os.abort()", -signal.SIGABRT, "the same command resumes from step"),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL, "the same command resumes from step"),
        ("exec('raise KeyboardInterrupt')", -signal.SIGINT, ""),
    ],
)
def test_a_program_that_leaves_in_the_loop_leaves_its_run_open(
    tmp_path: Path, act: str, code: int, said: str
) -> None:
    left = programs.run(tmp_path, argv(tmp_path, f"train(at(12, lambda: {act}))"))
    assert left.returncode == code, left.stderr
    assert said in left.stderr
    programs.wait_until_alone(tmp_path)
    assert programs.head(tmp_path / "run")["state"] == "open"
    assert programs.newest(tmp_path / "run") > 0, "what was committed is kept"


@pytest.mark.parametrize(
    ("before", "act"),
    [
        ("", "threading.Thread(target=sys.exit).start()"),
        ("atexit.register(os._exit, 3)", "None"),
        ("", "os.fork() or sys.exit(0)"),
        ("", "os.fork() or crash()"),
        ("", "os.fork() or os._exit(0)"),
        ("", "os.fork() or os.kill(os.getpid(), 9)"),
    ],
)
def test_exits_of_threads_and_children_do_not_end_the_training(
    tmp_path: Path, before: str, act: str
) -> None:
    """Threads and children leave alone; and once a training is complete, so does the program."""
    each = f"at(12, lambda: {act})"
    done = programs.run(tmp_path, argv(tmp_path, f"{before}\ntrain({each})"))
    assert "after" in done.stdout, done.stderr
    assert done.returncode == (3 if before else 0)
    head = programs.head(tmp_path / "run")
    assert (head["state"], head["end"]["step"]) == ("done", TOTAL)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes_in_a_step_ends_nothing(tmp_path: Path, method: str) -> None:
    """A function that fails and a worker that is killed are for the program to catch."""
    lines = f"""
from concurrent.futures import ProcessPoolExecutor, process
def pools():
    context = multiprocessing.get_context({method!r})
    with context.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
        with contextlib.suppress(ValueError):
            pool.map(int, ["none"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        with contextlib.suppress(process.BrokenProcessPool):
            pool.submit(os._exit, 3).result()
if __name__ == "__main__":
    train(at(12, pools))
"""
    done = programs.run(tmp_path, argv(tmp_path, lines))
    assert "after" in done.stdout and done.returncode == 0, done.stderr
    head = programs.head(tmp_path / "run")
    assert (head["state"], head["end"]["step"]) == ("done", TOTAL)


def test_a_program_that_continues_after_an_early_end_resumes_there(tmp_path: Path) -> None:
    command = argv(tmp_path, "train(at(int(os.environ['CUT']), lambda: sys.exit(0)))")
    assert programs.run(tmp_path, command, CUT="12").returncode == 1
    done = programs.run(tmp_path, command, CUT="0")
    assert done.returncode == 0, done.stderr
    assert 1 < int(done.stdout.split()[0]) <= 13
    assert programs.head(tmp_path / "run")["end"]["step"] == TOTAL


def test_the_reason_for_an_early_end_is_shown_and_recorded(tmp_path: Path) -> None:
    loop = "lambda run, each: [run.finish('converged') for step in run.steps() if step == 7]"
    done = programs.run(tmp_path, argv(tmp_path, f"train(loop={loop})"))
    assert done.returncode == 0, done.stderr
    end = programs.head(tmp_path / "run")["end"]
    assert (end["step"], end["why"]) == (7, "converged")
    assert end_of(tmp_path)["message"] == "done at step 7: converged"


# A stop.


@pytest.mark.parametrize(
    "lines",
    [
        "try: body(run, each)\n    except: pass",
        "try: body(run, each)\n    finally: return",
        "try: body(run, each)\n    except SystemExit: sys.exit(0)",
        "with contextlib.suppress(BaseException): body(run, each)",
    ],
)
def test_ctrl_c_that_the_program_swallows_is_interrupted(tmp_path: Path, lines: str) -> None:
    command = argv(tmp_path, f"def swallow(run, each):\n    {lines}\ntrain(loop=swallow)")
    code, err = programs.interrupt_at_a_commit(tmp_path, tmp_path / "run", command, PACE="0.05")
    assert code == 75, err
    assert programs.head(tmp_path / "run")["state"] == "open"
    assert end_of(tmp_path)["reason"] == "interrupted"
    assert programs.run(tmp_path, command).returncode == 0
    assert programs.head(tmp_path / "run")["end"]["step"] == TOTAL


def test_the_first_ctrl_c_is_acknowledged_at_once(tmp_path: Path) -> None:
    end = tmp_path / "end-the-step"
    command = argv(
        tmp_path,
        f"""
def wait():
    while not os.path.exists({str(end)!r}):
        time.sleep(0.01)
train(at(2, wait))""",
    )
    with programs.started(tmp_path, command) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "1\n" and process.stdout.readline() == "2\n"
        process.send_signal(signal.SIGINT)
        line = ""
        while "stopping" not in line:
            line = process.stderr.readline()
            assert line, "the program ended instead"
        end.touch()  # only now is the step over
        assert "stopping after this step; Ctrl-C again leaves at once, without" in line
        assert process.wait(60) == 75
    assert programs.newest(tmp_path / "run") == 2


def test_a_paused_program_is_left_alone(tmp_path: Path) -> None:
    """Ctrl-Z and fg, a closed lid, a debugger."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'outlast.supervisor' in sys.orig_argv:\n"
        "    from outlast.spec import run_spec\n"
        "    defaults = run_spec.Timeouts.__init__.__defaults__\n"
        "    run_spec.Timeouts.__init__.__defaults__ = tuple(\n"
        "        1.0 if value == 1800.0 else value for value in defaults)\n"
    )
    path = f"{tmp_path}{os.pathsep}{programs.ROOT}"
    command = argv(tmp_path, "train()")
    with programs.started(tmp_path, command, PACE="0.1", PYTHONPATH=path) as process:
        programs.wait_for(lambda: programs.newest(tmp_path / "run") > 0, process)
        process.send_signal(signal.SIGSTOP)
        assert process.stderr is not None
        while "may be paused or stuck, and is left alone" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0
    assert programs.head(tmp_path / "run")["state"] == "done"
    assert programs.head(tmp_path / "run")["term"] == 1


def test_a_supervisor_without_a_trainer_takes_no_term(tmp_path: Path) -> None:
    """A run in a bucket that is begun offline, and given up: Ctrl-C, and a kill."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    url = "gs://runs/experiments/e/first"
    command = argv(tmp_path, f"train(run_dir={url!r})")
    more = {"STORAGE_EMULATOR_HOST": nowhere, "OUTLAST_CACHE": str(tmp_path / "cache")}
    for number, code in ((signal.SIGINT, 75), (signal.SIGKILL, -signal.SIGKILL)):
        with programs.started(tmp_path, command, **more) as process:
            programs.wait_for(lambda: bool(programs.supervisors(tmp_path)), process)
            assert process.stderr is not None
            said = [process.stderr.readline(), process.stderr.readline()]
            assert any(line.startswith("outlast: waiting until the run is opened") for line in said)
            assert any("trying again for up to 15 min" in line for line in said)
            process.send_signal(number)
            assert process.wait(20) == code
        programs.wait_until_alone(tmp_path)


@contextlib.contextmanager
def forwarded(port: int, address: str) -> Iterator[None]:
    """Meanwhile, ``port`` is the server at ``address``."""
    host, _, to = address.rpartition("/")[2].partition(":")
    ours, its = (f"Host: {host}:{number}".encode() for number in (port, to))
    threads: list[threading.Thread] = []
    ends: list[socket.socket] = []

    def begin(target: Callable[..., None], *arguments: object) -> None:
        threads.append(threading.Thread(target=target, args=arguments))
        threads[-1].start()

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data.replace(ours, its))  # it answers for its own address alone
            sink.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                here = listener.accept()[0]
                there = socket.create_connection((host, int(to)))
                ends.extend((here, there))
                begin(pump, here, there)
                begin(pump, there, here)

    with socket.create_server(("127.0.0.1", port)) as listener:
        begin(accept)
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for end in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def test_once_the_network_is_back_the_same_command_trains_to_its_end(
    tmp_path: Path, storage_api: str
) -> None:
    """A run in a bucket that was begun offline and given up has left nothing in the way."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"gs://{BUCKET}/experiments/back/first"
    command = argv(tmp_path, f"train(run_dir={url!r})")
    more = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}
    more |= {"OUTLAST_CACHE": str(tmp_path / "cache")}
    with programs.started(tmp_path, command, **more) as process:
        programs.wait_for(lambda: bool(programs.supervisors(tmp_path)), process)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 75
    programs.wait_until_alone(tmp_path)
    with forwarded(port, storage_api):
        done = programs.run(tmp_path, command, **more)
    assert done.returncode == 0 and "term 1: starts from scratch" in done.stderr, done.stderr
    assert f"the run is done; its result is in {url}" in done.stderr


# Programs that reach outlast.train again.


def test_a_spawned_child_that_imports_the_program_does_not_train(tmp_path: Path) -> None:
    spawn = "multiprocessing.get_context('spawn').Process(target=print)"
    lines = f"def start():\n    child = {spawn}\n    child.start()\n    child.join()\n"
    done = programs.run(tmp_path, argv(tmp_path, f"{lines}\ntrain(at(12, start))"))
    assert done.returncode == 0, done.stderr
    assert "put the training below `if __name__" in done.stderr
    assert "Traceback" not in done.stderr
    head = programs.head(tmp_path / "run")
    assert (head["state"], head["term"], head["end"]["step"]) == ("done", 1, TOTAL)


def test_a_second_training_of_the_same_run_is_refused(tmp_path: Path) -> None:
    done = programs.run(tmp_path, argv(tmp_path, "train()\ntrain()\nprint('twice')"))
    assert done.returncode == 64
    assert "make each of its trainings a part of the run (part='a name')" in done.stderr
    assert "Traceback" not in done.stderr and "twice" not in done.stdout


def test_trainings_with_separate_folders_follow_one_another(tmp_path: Path) -> None:
    lines = "for fold in range(3):\n    counts['steps'] = 0\n    train(run_dir=f'fold{fold}')"
    done = programs.run(tmp_path, argv(tmp_path, lines))
    assert done.returncode == 0, done.stderr
    for fold in range(3):
        assert programs.head(tmp_path / f"fold{fold}")["end"]["step"] == TOTAL


@pytest.mark.parametrize("run_dir", ["run", None])
def test_a_notebook_resumes_after_a_restart_of_its_kernel(
    tmp_path: Path, run_dir: str | None
) -> None:
    lines = (
        "sys.argv = ['/usr/lib/ipykernel_launcher.py', '-f', f'/run/kernel-{os.getpid()}.json']\n"
        f"train(at(int(os.environ['CUT']), lambda: os._exit(9)), run_dir={run_dir!r}, "
        "arguments=None)"
    )
    command = argv(tmp_path, lines)
    folder = tmp_path / "run"
    first = programs.run(tmp_path, command, CUT="25", PACE="0.02")
    assert first.returncode == 9, first.stderr
    programs.wait_until_alone(tmp_path)
    if run_dir is None:
        (folder,) = (tmp_path / "runs").iterdir()
    done = programs.run(tmp_path, command, CUT="0")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 1, "it has resumed"
    assert programs.head(folder)["end"]["step"] == TOTAL


def test_after_an_error_the_supervisor_waits_for_the_commit_in_flight(tmp_path: Path) -> None:
    """Starting the same command again at once would fence it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if 'outlast.supervisor' in sys.orig_argv:\n"
        "    from outlast.bucket import commit\n"
        "    real = commit.Committer.commit\n"
        "    def slow(self, *given, **named):\n"
        "        time.sleep(11)\n"
        "        return real(self, *given, **named)\n"
        "    commit.Committer.commit = slow\n"
    )
    path = f"{tmp_path}{os.pathsep}{programs.ROOT}"
    failed = programs.run(tmp_path, argv(tmp_path, "train(at(12, crash))"), PYTHONPATH=path)
    assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr
    assert "waiting for the last checkpoint to be committed" in failed.stderr
    assert programs.newest(tmp_path / "run") == 5
    assert not programs.supervisors(tmp_path)
