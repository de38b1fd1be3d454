"""Named parts: several trainings of one program as one run, killed at any point."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outlast
from tests.loop import programs

PARTS = ("fold-1", "fold-2", "final")
STEPS = 12
PROGRAM = f"""
import os, random, sys, time
import outlast
from outlast.loop import parts, saving, session, snapshot
from outlast.loop.words import say

current = None

def at(phase):
    '''Wait to be killed, or fail, where the test says.'''
    here = f"{{current}} {{phase}}"
    if os.environ.get("PAUSE") == here:
        print("reached", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
    if os.environ.get("FAIL") == here:
        raise ZeroDivisionError("on purpose")
    if os.environ.get("EXIT") == here:
        sys.exit(int(os.environ.get("CODE", "0")))

def before(module, name, phase, when=lambda *given: True):
    real = getattr(module, name)
    def paused(*given, **named):
        if when(*given):
            at(phase)
        return real(*given, **named)
    setattr(module, name, paused)

before(snapshot, "publish", "snapshot", lambda *given: "snap-" in str(given[1]))
before(parts, "write", "record")
before(session.Session, "complete_part", "completing")
before(saving.Saver, "finish_part", "finishing")
real_complete = session.Session.complete_part
def complete_part(*given):
    real_complete(*given)
    at("completed")
session.Session.complete_part = complete_part
real_finish = parts._finish
def finish(*given):
    global current
    current = "program"
    at("exit")
    return real_finish(*given)
parts._finish = finish

weights = {{"x": 1.0}}

def train(name, steps={STEPS}):
    '''Each begins with the weights that the part before it left.'''
    global current
    current = name
    at("before")
    rng = random.Random(name)
    with outlast.train(
        {{"rng": rng, "weights": weights}}, total=steps, part=name, run_dir=sys.argv[1],
        name="walk", arguments={{}}, checkpoint_every="3",
    ) as run:
        at("begun")
        for step in run.steps():
            at(f"step {{step}}")
            weights["x"] += rng.gauss(0, 1)
            print(name, step, flush=True)
            run.log(x=weights["x"])
            if step % 5 == 0:
                run.eval(x=weights["x"], best="max")
        at("after the loop")
        weights["x"] = round(weights["x"], 6)  # what follows the loop is done again
        if run.done:
            found = run.result("weights.txt").read_text()
            assert found == repr(weights["x"]), (found, weights)
        else:
            run.eval(x=weights["x"])
            run.result("weights.txt").write_text(repr(weights["x"]))
    at("after")
    print("ended", name, run.done, [list(row.values()) for row in run.evals], flush=True)
    return run

"""
THREE = f"for name in {PARTS}:\n    train(name)\n"


class Walk:
    """The program, and its expected result."""

    def __init__(self, folder: Path, lines: str = THREE) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.run_dir = folder / "run"
        self.write(lines)

    def write(self, lines: str) -> None:
        (self.folder / "walk.py").write_text(PROGRAM + lines)

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(self.folder / "walk.py"), str(self.run_dir)]

    def run(self, **more: str) -> subprocess.CompletedProcess[str]:
        return programs.run(self.folder, self.argv, **more)

    def killed(self, where: str, *, supervisor: bool = False, saved: int = 0) -> str:
        """What it printed until it was there, and was killed; its supervisor, too. Before, this
        many of the part's steps are ``saved``."""
        said: list[str] = []
        with programs.started(self.folder, self.argv, PAUSE=where) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "reached\n":
                    break
                said.append(line)
            else:
                pytest.fail(f"never came to {where}: {process.communicate()}")
            programs.wait_for(lambda: self.saved(where.split()[0]) >= saved, process)
            for pid in programs.supervisors(self.folder) if supervisor else ():
                os.kill(pid, signal.SIGKILL)
            process.send_signal(signal.SIGKILL)
        programs.wait_until_alone(self.folder)
        return "".join(said)

    def saved(self, part: str) -> int:
        chain = programs.head(self.run_dir)["chain"]
        steps = [
            entry["step"] - entry.get("before", 0) for entry in chain if entry.get("part") == part
        ]
        return max(steps, default=0)

    def end(self) -> tuple[list[tuple[str, bytes]], list[dict]]:
        """Its result's files, and its rows."""
        assert programs.head(self.run_dir)["state"] == "done"
        rows = outlast.open(str(self.run_dir)).rows()
        return sorted(programs.result_of(self.run_dir).items()), rows


def steps_of(said: str, name: str) -> list[int]:
    """The steps of a part that were made."""
    lines = (line.split() for line in said.splitlines())
    return [int(words[1]) for words in lines if words[0] == name]


def ends_of(said: str) -> list[str]:
    """The results of the parts, done before or now."""
    lines = [line.split(maxsplit=3) for line in said.splitlines() if line.startswith("ended ")]
    return [f"{name} {evals}" for _, name, _, evals in lines]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> tuple[list, list, list[str]]:
    """An undisturbed run: files, rows, and what each part ended with."""
    walk = Walk(tmp_path_factory.mktemp("baseline"))
    done = walk.run()
    assert done.returncode == 0, done.stderr
    return (*walk.end(), ends_of(done.stdout))


def test_the_parts_of_a_program_are_one_run(tmp_path: Path, baseline: tuple) -> None:
    files, rows, ends = baseline
    names = [f"{part}/{name}" for part in PARTS for name in ("metrics.json", "weights.txt")]
    assert sorted(name for name, _ in files) == sorted([*names, "RESULT.json"])
    made = [(part, step) for part in PARTS for step in range(1, STEPS + 1)]
    assert [(row["part"], row["step"]) for row in rows] == made
    assert [end.split()[0] for end in ends] == list(PARTS)
    walk = Walk(tmp_path)
    assert walk.run().returncode == 0
    assert walk.end() == (files, rows)
    run = outlast.open(str(walk.run_dir))
    assert list(run.parts()) == [{"part": part, "step": STEPS, "done": True} for part in PARTS]
    assert (run.result("fold-2") / "weights.txt").read_bytes() == dict(files)["fold-2/weights.txt"]
    assert run.best("final")["part"] == "final"
    table = json.loads(dict(files)["final/metrics.json"])
    mine = [row["x"] for row in run.metrics() if row["part"] == "final"]
    assert mine == table["x"]


PHASES = (
    "before",
    "begun",
    "step 1",
    "snapshot",
    "step 8",
    "after the loop",
    "finishing",
    "record",
    "completing",
    "completed",
    "after",
)
"""Of a part, in the order in which it comes to them."""


@pytest.mark.parametrize("number", range(len(PARTS)))
def test_a_run_killed_in_any_phase_of_a_part_ends_as_undisturbed(
    tmp_path: Path, baseline: tuple, number: int
) -> None:
    """One run that is killed everywhere; each second time, its supervisor with it."""
    walk, part = Walk(tmp_path), PARTS[number]
    lives = [
        walk.killed(
            f"{part} {phase}",
            supervisor=(number + count) % 2 == 0,
            saved={"step 8": 3, "record": STEPS}.get(phase, 0),
        )
        for count, phase in enumerate(PHASES)
    ]
    done = walk.run()
    assert done.returncode == 0, done.stderr
    files, rows, ends = baseline
    assert walk.end() == (files, rows)
    assert ends_of(done.stdout) == ends
    for earlier in PARTS[:number]:
        assert steps_of(lives[0], earlier) == list(range(1, STEPS + 1))
        assert not any(steps_of(life, earlier) for life in lives[1:])
    assert min(steps_of(lives[PHASES.index("after the loop")], part)) > 1, "it resumes"
    assert steps_of(lives[PHASES.index("completing")], part) == [], "its loop was left"
    assert steps_of(done.stdout, part) == [], "it is done"


def test_a_run_killed_after_all_parts_were_done_only_ends(tmp_path: Path, baseline: tuple) -> None:
    walk = Walk(tmp_path)
    for supervisor in (False, True):
        walk.killed("program exit", supervisor=supervisor)
    assert programs.head(walk.run_dir)["state"] == "open"
    done = walk.run()
    assert done.returncode == 0, done.stderr
    assert not any(steps_of(done.stdout, part) for part in PARTS)
    assert (*walk.end(), ends_of(done.stdout)) == baseline
    again = walk.run()
    assert again.returncode == 0 and "this run is done" in again.stderr
    assert again.stdout == ""


SKIPPING = THREE.replace(
    "train(name)",
    """
    weights["x"] = 0.0
    with outlast.train(
        {"rng": random.Random(name), "weights": weights}, total=12, part=name, run_dir=sys.argv[1],
        name="walk", arguments={}, restore_done=False,
    ) as run:
        assert run.done and run.step == 12 and list(run.steps()) == []
        run.eval(x=1.0)
        assert weights["x"] == 0.0, "the state is as the program has made it"
        if name != "fold-2":
            print(name, run.result("weights.txt").read_text(), run.evals[-1]["x"])
""",
)


def test_without_restore_done_only_requested_results_are_read(
    tmp_path: Path, baseline: tuple
) -> None:
    walk = Walk(tmp_path)
    walk.killed("program exit")
    run_dir = walk.run_dir
    chain = programs.head(run_dir)["chain"]
    for entry in chain:  # these are not used
        unused = "result/weights.txt" if "done" in entry["tags"] else "state.json"
        if "done" not in entry["tags"] or entry["part"] == "fold-2":
            assert (run_dir / entry["path"] / unused).exists()
            (run_dir / entry["path"] / unused).write_text("damaged")
    walk.write(SKIPPING)
    left = walk.run()
    files = dict(baseline[0])
    for part in ("fold-1", "final"):
        text = files[f"{part}/weights.txt"].decode()
        assert f"{part} {text} " in left.stdout, left.stderr
    # The result of all is made of each: what is damaged is named, and is not an end.
    assert left.returncode != 0
    assert "the result of part fold-2 cannot be read" in left.stderr
    assert "outlast resume --from fold-2:12" in left.stderr
    assert programs.head(run_dir)["state"] == "open"


# What is not an end, and what is refused.


def test_a_program_that_stops_early_leaves_its_run_open(tmp_path: Path, baseline: tuple) -> None:
    walk = Walk(tmp_path)
    for more, code, said in (
        ({"FAIL": "fold-1 step 5"}, 1, "on purpose"),
        ({"FAIL": "fold-2 before"}, 1, "its program did not reach its end"),
        ({"EXIT": "fold-2 step 5"}, 1, "sys.exit(0) ended the program after step"),
        ({"EXIT": "fold-2 after", "CODE": "3"}, 3, "its program ended with exit code 3"),
    ):
        left = walk.run(**more)
        assert left.returncode == code, left.stderr
        assert said in left.stderr
        programs.wait_until_alone(tmp_path)
        assert programs.head(walk.run_dir)["state"] == "open"
    done = walk.run()
    assert done.returncode == 0, done.stderr
    assert (*walk.end(), ends_of(done.stdout)) == baseline
    assert not steps_of(done.stdout, "fold-1") and not steps_of(done.stdout, "fold-2")


CAUGHT = """
try:
    train("fold-1")
except ZeroDivisionError:
    pass
"""


def test_a_failed_part_is_never_done_even_if_the_program_continues(tmp_path: Path) -> None:
    walk = Walk(tmp_path, CAUGHT)
    left = walk.run(FAIL="fold-1 step 5")
    assert left.returncode == 1, left.stderr
    assert "the run is not done, because its part 'fold-1' is not" in left.stderr
    assert programs.head(walk.run_dir)["state"] == "open"
    walk.write(CAUGHT + "train('fold-2')\n")
    left = walk.run(FAIL="fold-1 step 5")
    assert left.returncode == 1, left.stderr
    assert "part 'fold-2': part 'fold-1' ended before it was done" in left.stderr
    assert programs.head(walk.run_dir)["state"] == "open"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "train('fold-1')\ntrain('fold-2')\ntrain('fold-1')\n",
            "part 'fold-1': this program has already begun a part of that name",
        ),
        ("train('two words')\n", "part 'two words': must be letters, digits"),
        ("train('RESULT.json')\n", "part 'RESULT.json'"),
        (
            "where = {'run_dir': sys.argv[1], 'name': 'walk', 'arguments': {}}\n"
            "with outlast.train({'w': weights}, total=1, part='a', **where):\n"
            "    train('fold-1')\n",
            "part 'fold-1': part 'a' is being trained",
        ),
        ("train('fold-1')\ntrain(None)\n", "without part=: this program has trained parts"),
        (
            "train('fold-1')\ntrain('Fold-1')\n",
            "part 'Fold-1': differs from part 'fold-1' only in upper and lower case",
        ),
        ("train('..')\n", "part '..': must be letters, digits"),
        ("train('a/b')\n", "part 'a/b': must be letters, digits"),
        ("train('fold 1\\n')\n", "must be letters, digits"),
        ("train('f\u00fcnf')\n", "must be letters, digits"),
        ("train('f' * 41)\n", "must be letters, digits"),
        ("train(1)\n", "part 1: must be letters, digits"),
        ("train('')\n", "part '': must be letters, digits"),
        ("train(None)\ntrain('fold-1')\n", "make each of its trainings a part of the run"),
    ],
)
def test_names_are_refused_before_a_second_training(tmp_path: Path, lines: str, said: str) -> None:
    walk = Walk(tmp_path, lines)
    done = walk.run()
    assert done.returncode in (1, 64), done.stderr
    assert said in done.stderr


TWO_AT_ONCE = """
import threading

def at(phase):
    if (current, phase) == ("fold-1", "step 2"):
        other = threading.Thread(target=train, args=("fold-2",))
        other.start()
        other.join()

"""
CAUGHT_TWICE = """
train("fold-1")
try:
    train("fold-1")
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("lines", "said", "refused"),
    [
        (TWO_AT_ONCE + "train('fold-1')\n", "part 'fold-1' is being trained", "fold-2"),
        (CAUGHT_TWICE, "has already begun a part of that name", "fold-1"),
    ],
)
def test_a_refused_part_is_missing_even_if_the_program_continues(
    tmp_path: Path, lines: str, said: str, refused: str
) -> None:
    walk = Walk(tmp_path, lines)
    left = walk.run()
    assert said in left.stderr + left.stdout
    assert f"the run is not done, because its part {refused!r} was refused" in left.stderr
    assert left.returncode == 1
    programs.wait_until_alone(tmp_path)
    assert programs.head(walk.run_dir)["state"] == "open"
    walk.write(
        "import threading\nfor name in ('fold-1', 'fold-2'):\n"
        "    one = threading.Thread(target=train, args=(name,))\n"
        "    one.start()\n    one.join()\n"
    )
    done = walk.run()
    assert done.returncode == 0, done.stderr
    assert programs.head(walk.run_dir)["state"] == "done"


RUN_OF_TWO = "train('fold-1')\ntrain('fold-2')\ntrain('final')\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "train('fold-2')\ntrain('fold-1')\ntrain('final')\n",
            "part 'fold-2': the run's parts are fold-1, fold-2, final, and 'fold-1' comes next",
        ),
        (
            "train('fold-1')\ntrain('fold-II')\ntrain('final')\n",
            "part 'fold-II': the run's parts are fold-1, fold-2, final, and 'fold-2' comes next",
        ),
        (
            "train('fold-1')\ntrain('final')\n",
            "part 'final': the run's parts are fold-1, fold-2, final, and 'fold-2' comes next",
        ),
        (
            "train('fold-1')\n",
            "its part 'fold-2' was done in an earlier start but did not begin in",
        ),
        ("train('fold-1')\ntrain('fold-2')\n", "its part 'final' is not done"),
        ("train(None)\n", "without part=: the run has parts (fold-1, fold-2, final)"),
    ],
)
def test_parts_that_do_not_belong_to_the_run_are_refused_by_name(
    tmp_path: Path, lines: str, said: str
) -> None:
    walk = Walk(tmp_path, RUN_OF_TWO)
    walk.killed("final step 8")
    before = programs.head(walk.run_dir)["chain"]
    walk.write(lines)
    left = walk.run()
    assert left.returncode != 0, left.stderr
    assert said in left.stderr
    assert "Traceback" not in left.stderr
    programs.wait_until_alone(tmp_path)
    assert programs.head(walk.run_dir)["state"] == "open"
    assert programs.head(walk.run_dir)["chain"] == before, "nothing is lost"
    walk.write(RUN_OF_TWO)
    assert walk.run().returncode == 0


def test_a_done_part_that_is_left_out_is_missing_at_the_end(tmp_path: Path) -> None:
    walk = Walk(tmp_path, RUN_OF_TWO)
    walk.killed("program exit")
    walk.write("train('fold-1')\n")
    left = walk.run()
    assert left.returncode != 0, left.stderr
    assert (
        "its part 'fold-2' was done in an earlier start but did not begin in this one"
        in left.stderr
    )
    assert programs.head(walk.run_dir)["state"] == "open"
    walk.write(RUN_OF_TWO)
    assert walk.run().returncode == 0


def test_a_run_begun_without_parts_refuses_parts(tmp_path: Path) -> None:
    walk = Walk(tmp_path, "train(None)\n")
    walk.killed("None step 8")
    walk.write("train('fold-1')\n")
    left = walk.run()
    assert left.returncode == 64, left.stderr
    assert "part 'fold-1': the run started without parts" in left.stderr
    assert "Traceback" not in left.stderr


# Stops, and losses between two parts.


@pytest.mark.parametrize("phase", ["step 5", "after the loop", "completed", "after", "before"])
def test_ctrl_c_between_or_in_parts_keeps_all_of_them(
    tmp_path: Path, baseline: tuple, phase: str
) -> None:
    walk = Walk(tmp_path)
    with programs.started(tmp_path, walk.argv, PAUSE=f"fold-2 {phase}") as process:
        assert process.stdout is not None
        while process.stdout.readline() != "reached\n":
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=programs.WAIT_SEC)
    assert process.returncode == (-signal.SIGINT if phase in ("after", "before") else 75), err
    programs.wait_until_alone(tmp_path)
    done = walk.run()
    assert done.returncode == 0, done.stderr
    assert (*walk.end(), ends_of(done.stdout)) == baseline
    assert not steps_of(done.stdout, "fold-1"), err


def test_a_supervisor_that_is_lost_between_two_parts_ends_the_program(
    tmp_path: Path, baseline: tuple
) -> None:
    walk = Walk(
        tmp_path,
        "import subprocess\n"
        + THREE.replace(
            "train(name)",
            """
    train(name)
    if name == "fold-1" and os.environ.get("LOSE"):
        print("ready", flush=True)
        sys.stdin.readline()
""",
        ),
    )
    process = subprocess.Popen(
        walk.argv,
        cwd=tmp_path,
        env=programs.environment(tmp_path, LOSE="1"),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    for pid in programs.supervisors(tmp_path):
        os.kill(pid, signal.SIGKILL)
    _, err = process.communicate("\n", timeout=programs.WAIT_SEC)
    assert process.returncode == 75, err
    assert "Traceback" not in err
    assert walk.run().returncode == 0
    assert walk.end() == baseline[:2]
