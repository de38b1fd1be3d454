"""``outlast.train`` without a supervisor: it starts its own, and every end is a clean one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.loop import LoopError, local
from tests.loop import programs

TOTAL = 60
PROGRAM = f"""
import os, random, sys, time
import outlast

rng, place = random.Random(1), {{"x": 0.0}}
with outlast.train(
    state={{"rng": rng, "place": place}}, total={TOTAL}, run_dir=sys.argv[1],
    arguments={{"speed": sys.argv[2]}}, checkpoint_every="5",
) as run:
    for step in run.steps():
        place["x"] += float(sys.argv[2]) * rng.gauss(0, 1)
        run.log(x=place["x"])
        if step % 20 == 0:
            run.eval(height=place["x"], best="max")
        print(step, flush=True)
        time.sleep(float(os.environ.get("PACE", "0")))
        if os.environ.get("FAIL_AT") == str(step):
            raise ZeroDivisionError("on purpose")
    run.result("place.txt").write_text(repr(place["x"]))
"""


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    program = tmp_path / "walk.py"
    program.write_text(PROGRAM)
    return [sys.executable, str(program), str(tmp_path / "run"), "1.0"]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The result of an undisturbed run."""
    folder = tmp_path_factory.mktemp("baseline")
    program = folder / "walk.py"
    program.write_text(PROGRAM)
    done = programs.run(folder, [sys.executable, str(program), str(folder / "run"), "1.0"])
    assert done.returncode == 0, done.stderr
    return programs.result_of(folder / "run")


def test_ctrl_c_twice_in_a_run_changes_nothing(
    tmp_path: Path, argv: list[str], baseline: dict[str, bytes]
) -> None:
    run_dir = tmp_path / "run"
    for _ in range(2):
        code, err = programs.interrupt_at_a_commit(tmp_path, run_dir, argv, PACE="0.05")
        assert code == 75, err
        assert "Traceback" not in err
        assert f"stopped after step {programs.newest(run_dir)} of {TOTAL}" in err
        assert err.splitlines()[-1].endswith(f"resumes from step {programs.newest(run_dir)}")
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert programs.head(run_dir)["term"] == 3
    assert programs.result_of(run_dir) == baseline
    programs.wait_until_alone(tmp_path)
    assert not list((tmp_path / "tmp").iterdir()), "no socket and no work folder is left"


def test_the_supervisor_has_its_own_session(tmp_path: Path, argv: list[str]) -> None:
    with programs.started(tmp_path, argv, PACE="0.05") as process:
        programs.wait_for(lambda: programs.newest(tmp_path / "run") > 0, process)
        (supervisor,) = programs.supervisors(tmp_path)
        assert os.getsid(supervisor) == supervisor != os.getsid(process.pid)
        process.send_signal(signal.SIGTERM)  # as good as Ctrl-C
        process.communicate(timeout=programs.WAIT_SEC)
    assert process.returncode == 75


def test_a_second_ctrl_c_leaves_at_once(tmp_path: Path, argv: list[str]) -> None:
    with programs.started(tmp_path, argv, PACE="30") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)  # between two steps only
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == 75
    programs.wait_until_alone(tmp_path)


def test_ctrl_c_saves_the_step_even_if_its_output_is_unread(
    tmp_path: Path, argv: list[str], baseline: dict[str, bytes]
) -> None:
    """As with ``train.py 2>&1 | tee log``: the terminal's Ctrl-C ends the reader as well."""
    run_dir = tmp_path / "run"
    code = f"import os, sys; os.dup2(os.open('{tmp_path}/out', os.O_CREAT | os.O_WRONLY), 1); "
    code += f"sys.argv[:] = {argv[1:]!r}; exec(open(sys.argv[0]).read())"
    with programs.started(tmp_path, [sys.executable, "-c", code], PACE="0.05") as process:
        programs.wait_for(lambda: programs.newest(run_dir) > 0, process)
        assert process.stderr is not None
        process.stderr.close()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=programs.WAIT_SEC)
        process.stderr = None
        made = int((tmp_path / "out").read_text().split()[-1])
    programs.wait_until_alone(tmp_path)
    assert process.returncode == 75
    assert programs.newest(run_dir) == made
    done = programs.run(tmp_path, [sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert programs.result_of(run_dir) == baseline


def test_a_killed_trainer_loses_only_what_was_not_committed(
    tmp_path: Path, argv: list[str], baseline: dict[str, bytes]
) -> None:
    run_dir = tmp_path / "run"
    with programs.started(tmp_path, argv, PACE="0.05") as process:
        programs.wait_for(lambda: programs.newest(run_dir) > 0, process)
        process.kill()
    programs.wait_until_alone(tmp_path)
    assert not list((tmp_path / "tmp").iterdir())
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 5
    assert programs.result_of(run_dir) == baseline


def test_a_killed_supervisor_ends_the_trainer_with_a_sentence(
    tmp_path: Path, argv: list[str], baseline: dict[str, bytes]
) -> None:
    run_dir = tmp_path / "run"
    with programs.started(tmp_path, argv, PACE="0.05") as process:
        programs.wait_for(lambda: programs.newest(run_dir) > 0, process)
        (supervisor,) = programs.supervisors(tmp_path)
        os.kill(supervisor, signal.SIGKILL)
        _, err = process.communicate(timeout=programs.WAIT_SEC)
    assert process.returncode == 75, err
    assert err.strip().splitlines()[-1].startswith("outlast: the supervisor has ended")
    assert "Traceback" not in err
    assert programs.run(tmp_path, argv).returncode == 0
    assert programs.result_of(run_dir) == baseline


def test_an_error_leaves_the_run_open_for_the_corrected_program(
    tmp_path: Path, argv: list[str], baseline: dict[str, bytes]
) -> None:
    run_dir = tmp_path / "run"
    failed = programs.run(tmp_path, argv, FAIL_AT="12")
    assert failed.returncode == 1 and "ZeroDivisionError: on purpose" in failed.stderr
    assert "Traceback" in failed.stderr and f"{argv[1]}" in failed.stderr
    assert programs.head(run_dir)["state"] == "open"
    with pytest.raises(LoopError, match="the run there is open and has no result"):
        local.finished_result(run_dir)
    assert programs.run(tmp_path, argv).returncode == 0
    assert programs.result_of(run_dir) == baseline


def test_a_finished_run_is_kept_as_it_is(tmp_path: Path, argv: list[str]) -> None:
    run_dir = tmp_path / "run"
    assert programs.run(tmp_path, argv).returncode == 0
    before = programs.head(run_dir)
    again = programs.run(tmp_path, argv)
    assert again.returncode == 0 and not again.stdout
    (line,) = again.stderr.splitlines()
    assert line.startswith(f"outlast: this run is done, at step {TOTAL}; its result is in")
    assert (Path(line.rsplit(" ", 1)[1]) / "place.txt").exists()
    other = programs.run(tmp_path, [*argv[:-1], "2.0"])
    assert other.returncode == 64 and "Traceback" not in other.stderr
    assert f"run folder {run_dir}: belongs to another run (other flags, or" in other.stderr
    assert "give another --run-dir, or the flags that it was started with" in other.stderr
    assert programs.head(run_dir) == before


def test_a_run_dir_that_is_a_file_is_reported(tmp_path: Path, argv: list[str]) -> None:
    (tmp_path / "run").write_text("here first")
    refused = programs.run(tmp_path, argv)
    assert refused.returncode == 64
    assert refused.stderr == f"outlast: run folder {tmp_path / 'run'}: is a file; give a folder\n"
    assert not list((tmp_path / "tmp").iterdir())


def test_the_same_command_gives_the_same_name(tmp_path: Path) -> None:
    source = tmp_path / "t.py"
    source.write_text("x = 1\n")
    name = local.run_name("t", {"seed": 1}, source)
    source.write_text("x = 1  # a remark\n")
    assert local.run_name("t", {"seed": 1}, source) == name
    assert local.run_name("t", {"seed": 2}, source) != name
    source.write_text("x = 2\n")
    assert local.run_name("t", {"seed": 1}, source) != name


def test_the_supervisor_imports_nothing_from_its_working_folder(tmp_path: Path) -> None:
    """The folder may be a download's, and a module in it may have the name of any that we need."""
    script, strange = tmp_path / "own" / "train.py", tmp_path / "strange"
    script.parent.mkdir()
    script.write_text(
        "import outlast\n"
        "state = {'n': 0}\n"
        f"with outlast.train({{'s': state}}, 3, run_dir={str(tmp_path / 'run')!r}) as run:\n"
        "    for step in run.steps():\n"
        "        state['n'] += 1\n"
    )
    strange.mkdir()
    for name in ("queue", "argparse", "blake3", "outlast", "json"):
        mark = tmp_path / f"imported-{name}"
        (strange / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\nraise SystemExit(9)\n")
    env = {**os.environ, "PYTHONPATH": str(Path(local.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=strange, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("imported-*")) == []


def _head(path: object, digest: object = "0" * 64) -> bytes:
    return json.dumps(
        {"state": "done", "end": {"result": {"path": path, "digest": digest}}}
    ).encode()


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (_head("/etc"), "end.result.path '/etc': must be a relative path"),
        (_head("../other/t000001/result/"), "end.result.path .*must be a relative path"),
        (_head("a/../../x/"), "end.result.path .*must be a relative path"),
        (_head("t000001/result/", "../x"), "end.result.digest .*must be 64 hexadecimal digits"),
        (_head("t000001/result/", 5), "end.result.digest .*must be 64 hexadecimal digits"),
        (b'{"state":' + b"[" * 50_000, "its HEAD cannot be read"),
        (b"[]", "its HEAD cannot be read"),
        (b"\xff", "its HEAD cannot be read"),
        (b'{"state":"done","end":{"result":5}}', "its HEAD cannot be read"),
    ],
)
def test_a_foreign_head_names_no_other_folder(tmp_path: Path, head: bytes, said: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/HEAD").write_bytes(head)
    with pytest.raises(LoopError, match=said):
        local.finished_result(tmp_path / "run")


EARLY = """
import os, signal, sys, time
import outlast
from outlast.loop import local

options = local.Options(run_dir=sys.argv[1], name="early", arguments={}, source=__file__)
with local.starting(options):
    (_, early), = local._early
    if sys.argv[2] == "killed at once":
        os.kill(os.getpid(), signal.SIGKILL)
    early.wait_for_socket(60)
    print(early._process.pid, early.socket_path, os.path.exists(sys.argv[1]), flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "fails":
        raise SystemExit(64)
    named = {"name": "early", "arguments": {}, "source": __file__}
    with outlast.train({"n": [0]}, 3, run_dir=sys.argv[1], **named) as run:
        print(run._side._connection.supervisor._process.pid, flush=True)
        for step in run.steps():
            pass
"""


def early(tmp_path: Path, ending: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "early.py"
    program.write_text(EARLY)
    return programs.run(tmp_path, [sys.executable, str(program), str(tmp_path / "run"), ending])


def test_a_supervisor_that_was_started_early_is_the_trainings(tmp_path: Path) -> None:
    done = early(tmp_path, "trains")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    pid, socket_path, run_existed = first.split()
    assert pid == second and run_existed == "False"
    assert not Path(socket_path).parent.exists()
    head = json.loads((tmp_path / "run" / "HEAD").read_bytes())
    assert (head["state"], head["term"]) == ("done", 1)


@pytest.mark.parametrize("ending", ["fails", "killed", "killed at once"])
def test_a_supervisor_whose_training_never_begins_ends_and_leaves_no_run(
    tmp_path: Path, ending: str
) -> None:
    done = early(tmp_path, ending)
    assert done.returncode == (64 if ending == "fails" else -signal.SIGKILL), done.stderr
    programs.wait_until_alone(tmp_path)
    assert not (tmp_path / "run").exists()
    if ending == "fails":
        assert not Path(done.stdout.split()[1]).parent.exists()
