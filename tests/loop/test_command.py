"""Any command as a trainer: unmodified scripts, killed, stopped, resumed; real processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast import protocol
from outlast.base import process_tree
from outlast.protocol import Accepted, Committed, Complete, Error, Snapshot, Stop, Tick
from tests.loop import programs
from tests.loop.fake_supervisor import FakeSupervisor

RUNNER = [sys.executable, "-m", "outlast.loop.command"]
EXAMPLES = programs.ROOT / "examples" / "commands"
WAIT_SEC = 90.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SEC
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Whether the process runs: a zombie does not."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


class Place:
    """A command under a supervisor of the test's, as on a VM."""

    def __init__(self, folder: Path, supervisor: FakeSupervisor) -> None:
        self.folder = folder
        self.supervisor = supervisor
        self.temporary = folder
        self.home = folder / "home"
        self.checkpoint = self.home / "checkpoint"
        self.options = ["--home", str(self.home), "--checkpoint-quiet-sec", "0.4"]

    @contextlib.contextmanager
    def running(self, *command: str) -> Iterator["subprocess.Popen[str]"]:
        process = subprocess.Popen(
            [*RUNNER, *self.options, *command],
            cwd=self.folder,
            env={
                **programs.environment(self.temporary),
                protocol.SOCKET_VARIABLE: str(self.supervisor.socket),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=WAIT_SEC)

    def run(self, *command: str) -> tuple[int, str, str]:
        with self.running(*command) as process:
            out, err = process.communicate(timeout=WAIT_SEC)
        return process.returncode, out, err

    def shell(self, line: str) -> tuple[int, str, str]:
        return self.run("--shell", "--", line)

    def commit_only_marks(self) -> None:
        """Otherwise files that are quiet while a busy machine starts `outlast mark` count, too."""
        self.options[-1] = "60"

    def saved(self, index: int = -1) -> dict[str, str]:
        """The files of a committed snapshot."""
        files = self.supervisor.committed[index][1] / "files"
        return {
            path.relative_to(files).as_posix(): path.read_text()
            for path in sorted(files.rglob("*"))
            if path.is_file()
        }

    def result(self) -> dict[str, str]:
        assert self.supervisor.result is not None
        return {
            path.relative_to(self.supervisor.result).as_posix(): path.read_text()
            for path in sorted(self.supervisor.result.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def place(tmp_path: Path, supervisor: FakeSupervisor) -> Place:
    supervisor.every = "auto"
    return Place(tmp_path, supervisor)


# -- What a command finds


def test_folders_variables_and_fields(place: Place) -> None:
    source = place.folder / "source"
    source.mkdir()
    (source / "show.sh").write_text('#!/bin/sh\nenv; pwd; echo args: "$@"; touch writable\n')
    place.options += ["--source", str(source)]
    words = ["{checkpoint}/x", "{result}", "{output_uri}", "{foo}", "{}", '{"a": 1}']
    code, out, err = place.run("--", "./show.sh", *words, "${result}")
    assert code == 0, err
    lines = out.splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    home = place.home
    assert seen["CHECKPOINT_DIR"] == str(home / "checkpoint")
    assert seen["RESULT_DIR"] == str(home / "result")
    assert seen["DATA_DIR"] == str(home / "data")  # there is none: an empty folder
    assert seen["OUTPUT_URI"] == "output"
    assert seen["ATTEMPT"] == "1"
    assert protocol.SOCKET_VARIABLE not in seen and "PYTHONPATH" not in seen
    assert str(home / "source") in lines
    args = [f"{home}/checkpoint/x", f"{home}/result", "output", "{foo}", "{}", '{"a": 1}']
    assert f"args: {' '.join(args)} ${{result}}" in lines
    assert not (source / "writable").exists()


def test_missing_data_is_refused_before_the_command_starts(place: Place) -> None:
    code, out, err = place.shell("echo began; cat {data}")
    assert (code, out) == (64, "")
    assert err.splitlines()[-1].startswith("outlast: command {data}: the run has no data")
    assert place.supervisor.of(Error)[0].kind == "usage"


@pytest.mark.parametrize("name", ["trian.py", "./gone"])
def test_a_missing_program_gives_one_sentence_and_exit_code_64(place: Place, name: str) -> None:
    code, _, err = place.run("--", name)
    assert code == 64
    assert f"command '{name}': no such program on the PATH or in " in err
    assert "Traceback" not in err


def test_a_programs_folder_precedes_the_path(place: Place) -> None:
    programs_dir = place.folder / "venv" / "bin"
    programs_dir.mkdir(parents=True)
    (programs_dir / "python").write_text("#!/bin/sh\necho the user\\'s own, in $VIRTUAL_ENV\n")
    (programs_dir / "python").chmod(0o755)
    place.options += ["--programs", str(programs_dir), "--allow-no-output"]
    code, out, _ = place.run("--", "python", "train.py")
    assert (code, out) == (0, f"the user's own, in {programs_dir.parent}\n")


# -- Snapshots


def test_files_that_stay_unchanged_are_saved_and_restored(place: Place) -> None:
    line = "[ -e $CHECKPOINT_DIR/a ] && { cat $CHECKPOINT_DIR/a | tee $RESULT_DIR/a; exit; }"
    line += "; echo one > $CHECKPOINT_DIR/a; echo half > $CHECKPOINT_DIR/b.tmp; sleep 60"
    with place.running("--shell", "--", line) as process:
        wait_until(lambda: bool(place.supervisor.committed), "no snapshot")
        process.kill()
    assert place.saved() == {"a": "one\n"}
    place.supervisor.resume_from()
    code, out, _ = place.shell(line)
    assert (code, out) == (0, "one\n")
    # A command's step counts its snapshots: nothing is new here.
    assert place.supervisor.of(Complete)[0].step == place.supervisor.step == 1


def test_steps_continue_counting(place: Place) -> None:
    place.commit_only_marks()
    line = "for i in 1 2; do echo $i >> $CHECKPOINT_DIR/a; outlast mark; done"
    assert place.shell(line)[0] == 0
    place.supervisor.resume_from()
    assert place.supervisor.step == 2
    assert place.shell(line)[0] == 0
    assert [snapshot.step for snapshot, _ in place.supervisor.committed] == [1, 2, 3, 4]
    assert place.saved() == {"a": "1\n2\n1\n2\n"}


def test_marks_work_in_a_temporary_folder_with_a_long_name(place: Place) -> None:
    """TMPDIR on a VM, or of a batch system, may be longer than a socket's path."""
    place.temporary = place.folder / ("a-long-name" * 12)
    place.temporary.mkdir()
    assert place.shell("cd /; echo 1 > $CHECKPOINT_DIR/a; outlast mark")[0] == 0
    assert place.saved() == {"a": "1\n"}
    assert not list(place.temporary.rglob("marks.sock"))


def test_a_mark_returns_when_the_copy_is_made(place: Place) -> None:
    """So the command may write over its files at once."""
    line = (
        "for i in 1 2 3; do echo $i > $CHECKPOINT_DIR/a; outlast mark; done; rm $CHECKPOINT_DIR/a"
    )
    assert place.shell(line)[0] == 0
    assert place.saved() == {"a": "3\n"}


def test_a_mark_of_one_folder_saves_only_that_folder(place: Place) -> None:
    line = "cd $CHECKPOINT_DIR; mkdir step-1 step-2; echo 1 > step-1/a; echo 2 > step-2/a"
    code, _, err = place.shell(f"{line}; outlast mark step-2; rm -r step-1 step-2")
    assert code == 0, err
    assert place.saved() == {"step-2/a": "2\n"}


@pytest.mark.parametrize(
    ("mark", "code", "sentence"),
    [
        ("outlast mark /tmp", 64, "/tmp: is not in CHECKPOINT_DIR"),
        ("outlast mark $CHECKPOINT_DIR/gone", 64, "gone: is not a folder"),
        ("outlast mark", 1, "holds no files"),
        ("outlast mark a b", 64, "usage: outlast mark [DIR]"),
    ],
)
def test_a_mark_without_effect_is_reported(
    place: Place, mark: str, code: int, sentence: str
) -> None:
    found, _, err = place.shell(mark)
    assert (found, sentence in err) == (code, True), err


def test_other_subcommands_reach_the_installed_command(place: Place) -> None:
    other = place.folder / "bin"
    other.mkdir()
    (other / "outlast").write_text("#!/bin/sh\necho the other, $1\n")
    (other / "outlast").chmod(0o755)
    place.options.append("--allow-no-output")
    code, out, err = place.shell(f'PATH="$PATH:{other}"; outlast status')
    assert (code, out) == (0, "the other, status\n"), err


def test_the_newest_mark_wins_while_one_copy_is_in_flight(place: Place) -> None:
    """The supervisor is slow with the first mark; each later mark replaces the one before."""
    supervisor = place.supervisor
    held: list[Snapshot] = []

    def hold(fake: FakeSupervisor, snapshot: Snapshot) -> None:
        fake.push(Accepted(snapshot.id))
        fake.keep(snapshot)
        held.append(snapshot)

    supervisor.on_snapshot = hold
    place.commit_only_marks()
    line = "for i in 1 2 3 4 5; do echo $i > $CHECKPOINT_DIR/a; outlast mark; [ $i = 1 ] && "
    line += f"while [ ! -e {place.folder}/first ]; do sleep 0.02; done; done; "
    line += f"touch {place.folder}/marked; sleep 60"
    with place.running("--shell", "--", line):
        wait_until(lambda: bool(held), "no snapshot")
        (place.folder / "first").touch()
        wait_until((place.folder / "marked").exists, "the command waits for an upload")
        assert len(supervisor.of(Snapshot)) == 1
        left = [path.name for path in supervisor.work.iterdir() if path.name.startswith("snap-")]
        assert len(left) == 1  # of four
        supervisor.push(Committed(held[0].id, held[0].step))
        wait_until(lambda: len(held) == 2, "the newest was not handed over")
    assert (held[1].step, place.saved()) == (5, {"a": "5\n"})


def test_files_newer_than_their_complete_file_wait_for_the_next_save(place: Place) -> None:
    line = "cd $CHECKPOINT_DIR; echo 1 > a; touch COMPLETE; while [ ! -e ../go ]; do sleep 0.02; "
    line += "done; echo half > a; sleep 1; echo 2 > a; touch COMPLETE; sleep 60"
    with place.running("--shell", "--", line):
        wait_until(lambda: len(place.supervisor.committed) == 1, "no snapshot")
        (place.home / "go").touch()
        wait_until(lambda: len(place.supervisor.committed) == 2, "no second snapshot")
    assert place.saved(0) == {"COMPLETE": "", "a": "1\n"}
    assert place.saved(1) == {"COMPLETE": "", "a": "2\n"}


def test_quiet_files_do_not_count_once_a_command_marks(place: Place) -> None:
    line = "cd $CHECKPOINT_DIR; echo 1 > a; outlast mark; echo half > a; touch ../half; sleep 60"
    with place.running("--shell", "--", line) as process:
        wait_until((place.home / "half").exists, "the command waits")
        marked = len(place.supervisor.of(Snapshot))
        ticks = len(place.supervisor.of(Tick))
        wait_until(lambda: len(place.supervisor.of(Tick)) >= ticks + 2, "no sign of life")
        process.kill()
    assert len(place.supervisor.committed) == marked and place.saved() == {"a": "1\n"}
    place.supervisor.resume_from()
    place.supervisor.received = []
    with place.running("--shell", "--", "echo new > $CHECKPOINT_DIR/b; sleep 60"):
        # The next attempt knows, too: its first half-written state is none.
        wait_until(lambda: len(place.supervisor.of(Tick)) >= 3, "no sign of life")
        assert not place.supervisor.of(Snapshot)


def test_a_command_that_marks_may_write_files_called_complete(place: Place) -> None:
    place.commit_only_marks()
    line = "cd $CHECKPOINT_DIR; echo 1 > a; outlast mark; echo 2 > a; touch COMPLETE; sleep 0.8"
    assert place.shell(line)[0] == 0
    assert place.saved() == {"a": "1\n"} and len(place.supervisor.committed) == 1


def test_a_file_that_cannot_be_copied_is_reported_and_training_continues(place: Place) -> None:
    """There is no room for snapshots, for example because their folder was removed."""
    line = f"cd $CHECKPOINT_DIR; echo 1 > a; mv {place.supervisor.work} {place.folder}/away; "
    line += f"outlast mark; echo marked $?; mv {place.folder}/away {place.supervisor.work}; "
    line += "outlast mark; echo marked $?"
    code, out, err = place.shell(line)
    assert (code, out) == (0, "marked 1\nmarked 0\n")
    assert "no checkpoint could be made: " in err and "Traceback" not in err
    assert place.saved() == {"a": "1\n"}


def test_a_long_fetch_counts_as_progress(place: Place) -> None:
    """The supervisor fetches; the asking process shows that it is alive, and obeys a stop."""

    def long(asked: protocol.Fetch) -> protocol.Message:
        wait_until(lambda: bool(place.supervisor.of(Tick)), "no connection")
        before = len(place.supervisor.of(Tick))
        wait_until(lambda: len(place.supervisor.of(Tick)) >= before + 2, "no sign of life")
        return protocol.Fetched(str(place.folder))

    place.supervisor.on_fetch = long
    place.options += ["--data", "gs://bucket/rows", "--allow-no-output"]
    code, out, err = place.run("--", "echo", "{data}")
    assert (code, out) == (0, f"{place.folder}\n"), err
    assert place.supervisor.of(Tick)[-1].phase != "start"
    assert "staging" in [tick.phase for tick in place.supervisor.of(Tick)]


def test_a_stop_during_a_fetch_ends_it(place: Place) -> None:
    over = threading.Event()

    def stopping(asked: protocol.Fetch) -> protocol.Message:
        place.supervisor.push(Stop(20.0))
        over.wait(WAIT_SEC)
        return protocol.Fetched(str(place.folder))

    place.supervisor.on_fetch = stopping
    place.options += ["--data", "gs://bucket/rows"]
    code, out, err = place.run("--", "echo", "began")
    over.set()
    assert (code, out) == (75, ""), err


# -- Stops and ends


TRAPS = (
    "trap 'echo saved > \"$CHECKPOINT_DIR/last\"; exit 0' TERM; "
    "touch $CHECKPOINT_DIR/../ready; while :; do sleep 0.05; done"
)


def test_a_script_may_save_on_sigterm(place: Place) -> None:
    """And its exit 0 is not a completion."""
    with place.running("--shell", "--", TRAPS) as process:
        wait_until((place.home / "ready").exists, "the command did not begin")
        place.supervisor.push(Stop(20.0))
        assert process.wait(WAIT_SEC) == 75
    assert not place.supervisor.of(Complete)
    assert place.saved() == {"last": "saved\n"}


def test_a_mark_on_sigterm_is_handed_over(place: Place) -> None:
    line = "cd $CHECKPOINT_DIR; trap 'echo 2 > a; outlast mark; exit 1' TERM; "
    line += "echo 1 > a; outlast mark; touch ../ready; while :; do sleep 0.05; done"
    with place.running("--shell", "--", line) as process:
        wait_until((place.home / "ready").exists, "the command did not begin")
        place.supervisor.push(Stop(20.0))
        assert process.wait(WAIT_SEC) == 75
    assert place.saved() == {"a": "2\n"}


def test_a_file_cut_off_by_a_kill_does_not_become_a_checkpoint(place: Place) -> None:
    line = "echo whole > $CHECKPOINT_DIR/a; while [ ! -e {checkpoint}/../go ]; do sleep 0.02; done;"
    line += "trap '' TERM; touch $CHECKPOINT_DIR/../ready; "
    line += "while :; do echo torn >> $CHECKPOINT_DIR/a; sleep 0.02; done"
    with place.running("--shell", "--", line) as process:
        wait_until(lambda: len(place.supervisor.committed) == 1, "no snapshot")
        (place.home / "go").touch()
        wait_until((place.home / "ready").exists, "the command did not continue")
        place.supervisor.push(Stop(2.0))
        _, err = process.communicate(timeout=WAIT_SEC)
    assert process.returncode == 75
    assert "did not end in time after SIGTERM; it is killed" in err
    assert len(place.supervisor.committed) == 1 and place.saved() == {"a": "whole\n"}


def test_background_processes_hear_the_stop_and_die(place: Place) -> None:
    """In the command's group, in a separate session, and without a living parent."""
    child = "trap '' TERM; echo $$ >> pids; while :; do sleep 0.1; done"
    heard = "trap 'touch heard; exit' TERM; echo $$ >> pids; while :; do sleep 0.1; done"
    line = f'sh -c "{child}" & setsid sh -c "{child}" & (setsid sh -c "{heard}" &) ; wait'
    with place.running("--shell", "--", line.replace("$$", r"\$\$")) as process:
        pids = place.home / "source" / "pids"
        wait_until(
            lambda: pids.exists() and len(pids.read_text().split()) == 3, "they did not begin"
        )
        place.supervisor.push(Stop(4.0))
        assert process.wait(WAIT_SEC) == 75
    assert (place.home / "source" / "heard").exists()
    assert not [pid for pid in pids.read_text().split() if lives(int(pid))]


DAEMON = "env -i /bin/sh -c 'setsid sleep 600 & echo $! > daemon.tmp'; mv daemon.tmp daemon"
"""In a separate session, without its environment and its parent: a trained daemon."""


@pytest.mark.parametrize(
    "line",
    ["setsid sleep 600 & echo $! > $RESULT_DIR/pid", f"{DAEMON}; cp daemon $RESULT_DIR/pid"],
    ids=["session", "daemon"],
)
def test_background_processes_end_with_the_command(place: Place, line: str) -> None:
    code, _, err = place.shell(line)
    assert code == 0, err
    assert not lives(int(place.result()["pid"]))


def test_daemons_are_stopped_and_ended_processes_are_reaped(place: Place) -> None:
    many = "for i in 1 2 3 4 5 6 7 8; do (setsid true &); done; sleep 0.2"
    with place.running("--shell", "--", f"{many}; {DAEMON}; sleep 600") as process:
        found = place.home / "source" / "daemon"
        wait_until(found.exists, "the daemon did not begin")
        daemon = int(found.read_text())
        assert lives(daemon)

        def dead() -> list[int]:
            children = process_tree._children().get(process.pid, {})
            return [pid for pid, state in children.items() if state == "Z"]

        wait_until(lambda: not dead(), "they are not reaped")
        place.supervisor.push(Stop(4.0))
        assert process.wait(WAIT_SEC) == 75
    assert not lives(daemon)


def test_a_killed_runner_ends_its_command(place: Place) -> None:
    line = "setsid sleep 600 & echo $! $$ > pids.tmp; mv pids.tmp pids; wait"
    with place.running("--shell", "--", line) as process:
        pids = place.home / "source" / "pids"
        wait_until(pids.exists, "the command did not begin")
        process.kill()
        process.wait()
        found = [int(pid) for pid in pids.read_text().split()]
        wait_until(lambda: not any(lives(pid) for pid in found), "it lives on")


def test_a_stop_without_time_saves_no_snapshot(place: Place) -> None:
    """The script may save, but there is no time to commit."""
    with place.running("--shell", "--", TRAPS) as process:
        wait_until((place.home / "ready").exists, "the command did not begin")
        place.supervisor.push(Stop(10.0, snapshot=False))
        assert process.wait(WAIT_SEC) == 75
    assert not place.supervisor.of(Snapshot) and not place.supervisor.of(Complete)


def commands_of(runner: int) -> list[int]:
    found = []
    for pid in process_tree._descendants(runner):
        with contextlib.suppress(OSError):  # of others the shell's sleep has just ended
            if os.getpgid(pid) == pid and b"trap" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_signal_to_all_processes_does_not_complete_the_run(place: Place) -> None:
    """A system that goes down tells the command before the supervisor can."""
    with place.running("--shell", "--", TRAPS) as process:
        wait_until((place.home / "ready").exists, "the command did not begin")
        mark = f"{protocol.SOCKET_VARIABLE}={place.supervisor.socket}"
        assert process.pid in process_tree.marked(mark)
        process.send_signal(signal.SIGTERM)
        (command,) = commands_of(process.pid)
        os.kill(command, signal.SIGTERM)
        assert process.wait(WAIT_SEC) == 75
    assert not place.supervisor.of(Complete)
    assert place.saved() == {"last": "saved\n"}


def test_the_files_in_the_result_folder_are_the_result(place: Place) -> None:
    line = "mkdir {result}/sub; echo m > {result}/sub/model; echo '{}' > {result}/metrics.json; "
    line += "ln -s sub/model {result}/best; echo c > {checkpoint}/c"
    code, _, err = place.shell(line)
    assert code == 0, err
    assert place.result() == {"sub/model": "m\n", "metrics.json": "{}\n", "best": "m\n"}
    assert place.saved() == {"c": "c\n"}  # before the result, whose upload may be cut


def test_an_empty_result_folder_gives_the_last_checkpoint(place: Place) -> None:
    code, _, err = place.shell("echo 1 > $CHECKPOINT_DIR/a; echo half > $CHECKPOINT_DIR/b.part")
    assert code == 0
    assert "RESULT_DIR is empty: the files of CHECKPOINT_DIR become the result" in err
    assert place.result() == {"checkpoint/a": "1\n"}


def test_a_script_without_output_is_done_only_if_allowed(place: Place) -> None:
    code, _, err = place.run("--", "true")
    assert code == 1 and not place.supervisor.of(Complete)
    (error,) = place.supervisor.of(Error)
    assert error.kind == "no-output" and error.message.startswith("the command exited with 0 and")
    assert error.message in err
    place.options.append("--allow-no-output")
    code, _, err = place.run("--", "true")
    assert code == 0
    assert "the result holds no file of the command" in err
    assert list(place.result()) == ["metrics.json"]
    assert set(json.loads(place.result()["metrics.json"]).values() and [0]) == {0}


@pytest.mark.parametrize(("end", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("exit 75", 75)])
def test_the_commands_own_exit_code_counts(place: Place, end: str, code: int) -> None:
    found, _, err = place.shell(
        rf"printf ' 10%%\r 90%%\rlast words\n' >&2; echo 1 > $CHECKPOINT_DIR/a; {end}"
    )
    assert found == code, err
    (error,) = place.supervisor.of(Error)
    assert (error.message, error.kind) == ("last words", "trainer")
    assert not place.supervisor.of(Complete)


def test_a_waiting_checkpoint_is_handed_over_after_a_failure(place: Place) -> None:
    held: list[Snapshot] = []

    def slow(fake: FakeSupervisor, snapshot: Snapshot) -> None:
        fake.push(Accepted(snapshot.id))
        fake.keep(snapshot)
        held.append(snapshot)
        if len(held) == 1:
            wait_until((place.home / "failing").exists, "the command waits")
        fake.push(Committed(snapshot.id, snapshot.step))

    place.supervisor.on_snapshot = slow
    line = "cd $CHECKPOINT_DIR; echo 1 > a; outlast mark; sleep 0.3; echo 2 > a; outlast mark; "
    code, _, err = place.shell(f"{line} touch ../failing; exit 1")
    assert code == 1, err
    assert place.saved() == {"a": "2\n"}


def test_output_and_files_are_signs_of_progress(place: Place) -> None:
    """Which the supervisor's limit on stalls is about."""
    with place.running("--shell", "--", "while :; do echo .; sleep 0.2; done"):
        wait_until(lambda: len(place.supervisor.of(Tick)) >= 4, "no sign of life")


def test_a_stuck_command_shows_its_stacks(place: Place) -> None:
    program = "import time, os\nopen(os.environ['RESULT_DIR'] + '/x', 'w').close()\n"
    program += "def somewhere():\n    time.sleep(600)\nsomewhere()\n"
    (place.folder / "stuck.py").write_text(program)
    python = [sys.executable, "-X", "faulthandler", str(place.folder / "stuck.py")]
    with place.running("--", *python) as process:
        wait_until((place.home / "result" / "x").exists, "the command did not begin")
        process.send_signal(signal.SIGABRT)
        _, err = process.communicate(timeout=WAIT_SEC)
    assert "in somewhere" in err
    assert process.returncode != 0


def test_a_lost_supervisor_ends_the_command(place: Place) -> None:
    line = "echo $$ > pid.tmp; mv pid.tmp pid; sleep 600"
    with place.running("--shell", "--", line) as process:
        pid = place.home / "source" / "pid"
        wait_until(pid.exists, "the command did not begin")
        place.supervisor.hang_up()
        _, err = process.communicate(timeout=WAIT_SEC)
    assert process.returncode == 75
    assert err.splitlines()[-1].startswith("outlast: the supervisor has ended")
    assert not lives(int(pid.read_text()))


# -- In a folder, with its own supervisor: scripts that were not written for it


def perceptron(run_dir: Path) -> list[str]:
    script = ["python3", str(EXAMPLES / "perceptron.py"), "--epochs", "20"]
    script += ["--checkpoints", "{checkpoint}", "--output", "{result}/weights.json"]
    return [*RUNNER, "--run-dir", str(run_dir), "--checkpoint-quiet-sec", "0.2", "--", *script]


def test_a_python_script_killed_again_and_again(tmp_path: Path) -> None:
    baseline = programs.run(tmp_path, perceptron(tmp_path / "baseline"))
    assert baseline.returncode == 0, baseline.stderr
    run_dir = tmp_path / "run"
    for least in (1, 2, 3):
        with programs.started(tmp_path, perceptron(run_dir), PACE="0.7") as process:
            programs.wait_for(lambda least=least: programs.newest(run_dir) >= least, process)
            process.kill()
        programs.wait_until_alone(tmp_path)
    done = programs.run(tmp_path, perceptron(run_dir))
    assert done.returncode == 0, done.stderr
    begins = int(done.stdout.splitlines()[0].removeprefix("begins after epoch "))
    assert begins >= 3
    assert programs.result_of(run_dir) == programs.result_of(tmp_path / "baseline")
    assert not (run_dir / "live").exists()


def test_a_shell_loop_that_marks_interrupted_and_killed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    argv = [*RUNNER, "--run-dir", str(run_dir), "--", "sh", str(EXAMPLES / "count.sh")]
    more = {"TOTAL": "12", "PACE": "0.2"}
    code, err = programs.interrupt_at_a_commit(tmp_path, run_dir, argv, **more)
    assert code == 75, err
    assert "stopped; the same command resumes from its last checkpoint" in err
    assert err.splitlines()[-1].endswith(f"resumes from step {programs.newest(run_dir)}")
    assert "Traceback" not in err
    with programs.started(tmp_path, argv, **more) as process:
        before = programs.newest(run_dir)
        programs.wait_for(lambda: programs.newest(run_dir) > before, process)
        process.kill()
    programs.wait_until_alone(tmp_path)
    at = programs.newest(run_dir)
    done = programs.run(tmp_path, argv, TOTAL="12", PACE="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"step {at + 1} of 12"
    assert programs.result_of(run_dir)["count.txt"] == b"counted to 12\n"
    again = programs.run(tmp_path, argv)
    assert (again.returncode, again.stdout) == (0, "") and "done" in again.stderr


def test_data_is_named_by_variable_and_field(tmp_path: Path) -> None:
    """One is its path; of several a folder names each. In a shell line a path is one word."""
    for name in ("it's rows", "more/labels"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
    argv = [*RUNNER, "--allow-no-output", "--data", str(tmp_path / "it's rows"), "--shell", "--"]
    one = programs.run(tmp_path, [*argv, "cat {data}/file; printf ' %s' ${HOME:+home}"])
    assert (one.returncode, one.stdout) == (0, "it's rows home"), one.stderr
    argv += ['cat "$DATA_DIR/it\'s rows/file" {data}/labels/file']
    two = programs.run(tmp_path, [*argv[:6], "--data", "more/labels", *argv[6:]])
    assert (two.returncode, two.stdout) == (0, "it's rowsmore/labels"), two.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 2  # other data is another run


def test_another_command_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    argv = [*RUNNER, "--run-dir", str(tmp_path / "run"), "--allow-no-output", "--"]
    assert programs.run(tmp_path, [*argv, "true"]).returncode == 0
    other = programs.run(tmp_path, [*argv, "false"])
    assert other.returncode == 64
    assert other.stderr.splitlines() == [
        f"outlast: run folder {tmp_path / 'run'}: belongs to another run (another command, or "
        "other data); give another --run-dir, or the command and the data that it was started"
        " with; if you do not need anything in it, remove it"
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--", "trian.py"], "command 'trian.py': no such program on the PATH"),
        (["--", "./gone.py"], "command './gone.py': no such program"),
        (["--", "./plain.py"], "command './plain.py': is not executable; write what runs it"),
        (["--", "./folder"], "command './folder': no such program"),
        (["--", "./text.py"], "is a text without a line #! that says what runs it"),
        (["--", "./other.py"], "its first line names /no/such/python, which does not exist"),
        (["--", "cat", "{data}"], "command {data}: the run has no data; name it"),
        (["--shell", "--", "cat {data}"], "command {data}: the run has no data; name it"),
        (["--data", "a/x", "--data", "b/x", "--", "true"], "another path ends in x too"),
        (["--data", "pipe", "--", "true"], "data pipe: is neither a file nor a folder"),
        (["--data", "gs://", "--", "true"], "data gs://: must be a path of this machine"),
        (
            ["--data", ".", "--", "true"],
            "data .: holds the run's own folder run, and would be othe",
        ),
        (["--data", "", "--", "true"], "--data: '': must be a path; leave it out for none"),
        (["--run-dir", "", "--", "true"], "--run-dir: '': must be a path; leave it out for none"),
        (
            ["--checkpoint-quiet-sec", "0", "--", "true"],
            "--checkpoint-quiet-sec: '0': must be a number of seconds above",
        ),
        (["--data"], "--data: expected one argument"),
        (
            ["--rundir", "x", "--", "true"],
            "--rundir x: is not an option of outlast train; did you mean",
        ),
        (
            ["python", "train.py"],
            "python train.py: is not an option of outlast train; write the comman",
        ),
    ],
)
def test_a_mistyped_command_leaves_the_folder_free_for_the_right_one(
    tmp_path: Path, words: list[str], says: str
) -> None:
    """Which another command would have made its own."""
    for name, text in (
        ("plain.py", "print()\n"),
        ("text.py", "print()\n"),
        ("other.py", "#!/no/such/python\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644 if name == "plain.py" else 0o755)
    for name in ("folder", "a/x", "b/x"):
        (tmp_path / name).mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    done = programs.run(tmp_path, [*RUNNER, "--run-dir", "run", *words])
    assert (done.returncode, done.stdout) == (64, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("outlast: ") and says in line
    assert not (tmp_path / "run").exists()


def test_a_try_without_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    """Its arguments had a typo; a run with a checkpoint stays, under any name."""
    argv = [*RUNNER, "--run-dir", "run", "--shell", "--"]
    failed = programs.run(tmp_path, [*argv, "echo {resutl} > {resutl}; exit 2"])
    assert failed.returncode == 2
    said = failed.stderr.splitlines()
    assert said.count("outlast: command {resutl}: is left as it is; did you mean {result}?") == 1
    line = "echo 1 > {checkpoint}/a; outlast mark; exit 3"
    corrected = programs.run(tmp_path, [*argv, line])
    assert corrected.returncode == 3
    (aside,) = tmp_path.glob("run.*")
    assert f"held another run, without a checkpoint; it is in {aside.name} now" in corrected.stderr
    assert (aside / "attempts/000001/end.json").exists()
    before = programs.head(tmp_path / "run")
    refused = programs.run(tmp_path, [*argv, "exit 0"])
    assert refused.returncode == 64 and "belongs to another run" in refused.stderr
    assert programs.head(tmp_path / "run") == before


def test_a_try_that_still_runs_is_not_replaced(tmp_path: Path) -> None:
    argv = [*RUNNER, "--run-dir", "run", "--shell", "--"]
    with programs.started(tmp_path, [*argv, "touch began; sleep 600"]) as process:
        programs.wait_for((tmp_path / "began").exists, process)
        refused = programs.run(tmp_path, [*argv, "exit 0"])
    assert refused.returncode == 64 and "belongs to another run" in refused.stderr
    assert [path.name for path in tmp_path.glob("run*")] == ["run"]
    programs.wait_until_alone(tmp_path)


def test_an_invalid_folder_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("here first")
    for folder, says in (
        ("afile", f"run folder {tmp_path / 'afile'}: is a file; give a folder"),
        ("afile/run", "run folder afile/run: Not a directory; give another --run-dir"),
    ):
        done = programs.run(tmp_path, [*RUNNER, "--run-dir", folder, "--", "true"])
        assert (done.returncode, done.stderr) == (64, f"outlast: {says}\n")


def test_the_last_line_says_where_the_result_is(tmp_path: Path) -> None:
    argv = [*RUNNER, "--run-dir", "run", "--", "sh", "-c", "echo 1 > {result}/a"]
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0
    last, where = done.stderr.splitlines()[-1].rsplit(" ", 1)
    assert last == "outlast: the run is done; its result is in"
    assert (tmp_path / where / "a").read_text() == "1\n"
    assert "term 1: done at step 0" in done.stderr and "snapshots are" not in done.stderr
    again = programs.run(tmp_path, argv)
    assert again.stderr.splitlines() == [
        f"outlast: this run is done, at step 0; its result is in {where}",
        "outlast: to run the same command again: another --run-dir, or --rerun 1 without one",
    ]


# -- What is said of a run that has no checkpoint, or gets none


SCRATCH = "so the same command starts from scratch"


@pytest.mark.parametrize(
    ("save", "says"),
    [
        ("", f"it had written no checkpoint, {SCRATCH}"),
        (
            "echo 1 > $CHECKPOINT_DIR/a",
            "no checkpoint was complete yet (CHECKPOINT_DIR is once it holds still for 60 s, or "
            f"outlast mark says so), {SCRATCH}",
        ),
        ("echo 1 > $CHECKPOINT_DIR/a; outlast mark", "the same command resumes from its last"),
    ],
)
def test_a_failure_names_the_checkpoint_of_the_next_attempt(
    tmp_path: Path, save: str, says: str
) -> None:
    argv = [
        *RUNNER,
        "--run-dir",
        "run",
        "--checkpoint-quiet-sec",
        "60",
        "--shell",
        "--",
        f"{save}\nexit 3",
    ]
    done = programs.run(tmp_path, argv)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("outlast: the command exited with 3; ")
    assert says in done.stderr
    assert bool(programs.head(tmp_path / "run")["chain"]) == ("mark" in save)


def test_ctrl_c_before_a_complete_checkpoint_is_reported(tmp_path: Path) -> None:
    line = "echo 1 > $CHECKPOINT_DIR/a; touch began; sleep 600"
    argv = [*RUNNER, "--run-dir", "run", "--shell", "--", line]
    with programs.started(tmp_path, argv) as process:
        programs.wait_for((tmp_path / "began").exists, process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SEC)
    assert process.returncode == 75
    assert "outlast: stopped; no checkpoint was complete yet (CHECKPOINT_DIR is once" in err
    assert "resumes" not in err


def test_a_second_save_before_the_first_settled_is_reported_at_once(place: Place) -> None:
    place.options[-1] = "30"
    line = "echo 1 > $CHECKPOINT_DIR/a; sleep 2; echo 2 > $CHECKPOINT_DIR/b; sleep 60"
    with place.running("--shell", "--", line) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.kill()
    assert (
        "outlast: CHECKPOINT_DIR was written to again before it had been unchanged for 30 s; "
        in said
    )
    assert "call outlast mark after each save" in said


def test_a_failure_leaves_the_run_open(tmp_path: Path) -> None:
    line = "[ -e $CHECKPOINT_DIR/a ] && echo 2 > $RESULT_DIR/b && exit 0; "
    line += "echo 1 > $CHECKPOINT_DIR/a; outlast mark; exit 5"
    argv = [*RUNNER, "--run-dir", str(tmp_path / "run"), "--shell", "--", line]
    failed = programs.run(tmp_path, argv)
    assert failed.returncode == 5
    assert "exited with 5; the same command resumes from its last checkpoint" in failed.stderr
    assert programs.run(tmp_path, argv).returncode == 0
