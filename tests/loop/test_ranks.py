"""Plain processes that train as ranks of one run: one step to stop at, one death for all."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.loop import LoopError, StateError, launch, ranks
from tests.loop import programs

TOTAL = 40
PROGRAM = f"""
import errno, os, random, sys, time
import outlast
from outlast.loop import ranks, snapshot

if "HANG" in os.environ:
    ranks.NOTICE_SEC = 0.3
rank = int(os.environ["RANK"])
if os.environ.get("FULL", "").startswith(f"{{rank}} "):
    written, left = snapshot.write, [2]
    name = os.environ["FULL"].split()[1]
    def write(folder, saved, **named):
        written(folder, saved, **named)
        if saved.step and folder.name.startswith(name) and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
    snapshot.write = write
rng, own, place = random.Random(1), random.Random(100 + rank), {{"x": 0.0}}
share = {{"position": 0, "sum": 0.0}}
with outlast.train(
    state={{"rng": rng, "place": place}}, rank_state={{"own": own, "share": share}},
    total=int(os.environ.get("TOTAL_" + str(rank), "{TOTAL}")), run_dir=sys.argv[1],
    arguments={{}}, checkpoint_every="3",
) as run:
    assert (run.rank, run.world_size) == (rank, int(os.environ["WORLD_SIZE"]))
    for step in run.steps():
        if os.environ.get("HANG") == f"{{rank}} {{step}}":
            print("hangs", flush=True)
            time.sleep(600)
        if os.environ.get("FAIL") == f"{{rank}} {{step}}":
            raise ZeroDivisionError("on purpose")
        if os.environ.get("LEAVE") == f"{{rank}} {{step}}":
            break
        if os.environ.get("FINISH") == f"{{rank}} {{step}}":
            run.finish("early stopping")
            if "BREAK" in os.environ:
                break
        place["x"] += rng.gauss(0, 1)
        share["position"] += 1
        share["sum"] += own.gauss(0, 1)
        run.log(x=place["x"])
        if step % 10 == 0:
            run.eval(height=place["x"], best="max")
        print(step, flush=True)
        time.sleep(float(os.environ.get("PACE", "0")) * (1 + rank))
    run.result("place.txt").write_text(repr(place["x"]))
with open(f"end-{{rank}}", "w") as file:
    file.write(repr((share, own.random(), place)))
"""


class Party:
    """The processes of one launch, and what they said."""

    def __init__(self, processes: list["subprocess.Popen[str]"]) -> None:
        self.processes = processes

    def wait(self) -> list[int]:
        """Their exit codes; what they said is in ``out`` and ``err``."""
        said = [process.communicate(timeout=programs.WAIT_SEC) for process in self.processes]
        self.out = [out for out, _ in said]
        self.err = [err for _, err in said]
        return [process.returncode for process in self.processes]

    def last_steps(self) -> list[int]:
        return [int(out.split()[-1]) for out in self.out]


@contextlib.contextmanager
def launched(tmp_path: Path, size: int = 2, **more: str) -> Iterator[Party]:
    """``size`` ranks, started as a launcher does; all end with the test."""
    program = tmp_path / "walk.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, str(program), str(tmp_path / "run")]
    with contextlib.ExitStack() as stack:
        yield Party(
            [
                stack.enter_context(
                    programs.started(
                        tmp_path,
                        argv,
                        RANK=str(rank),
                        WORLD_SIZE=str(size),
                        LOCAL_WORLD_SIZE=str(size),
                        MASTER_PORT="29500",
                        **more,
                    )
                )
                for rank in range(size)
            ]
        )


def ends(tmp_path: Path, size: int = 2) -> list[str]:
    """Each rank's final state, and the run's result."""
    own = [(tmp_path / f"end-{rank}").read_text() for rank in range(size)]
    return [*own, *map(repr, programs.result_of(tmp_path / "run").items())]


@pytest.fixture(scope="module")
def baseline_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of two ranks."""
    folder = tmp_path_factory.mktemp("baseline")
    with launched(folder) as party:
        assert party.wait() == [0, 0], party.err
    return folder


@pytest.fixture(scope="module")
def baseline(baseline_folder: Path) -> list[str]:
    """Its result."""
    return ends(baseline_folder)


def test_all_ranks_stop_after_the_same_step_without_a_change(
    tmp_path: Path, baseline: list[str]
) -> None:
    run_dir = tmp_path / "run"
    with launched(tmp_path, PACE="0.05") as party:
        programs.wait_for(lambda: programs.newest(run_dir) > 0, party.processes[0])
        for process in party.processes:  # as a terminal does
            process.send_signal(signal.SIGINT)
        assert party.wait() == [75, 75], party.err
    first, second = party.last_steps()
    assert first == second == programs.newest(run_dir) < TOTAL
    assert f"stopped after step {first} of {TOTAL}" in party.err[0]
    assert not party.err[1]
    with launched(tmp_path) as party:
        assert party.wait() == [0, 0], party.err
    assert ends(tmp_path) == baseline


def test_killed_at_seeded_moments_a_run_ends_with_the_same_bytes(
    tmp_path: Path, baseline: list[str]
) -> None:
    run_dir, draw = tmp_path / "run", random.Random(5)
    for victim in (1, 0):
        before = programs.newest(run_dir)
        with launched(tmp_path, PACE="0.05") as party:
            programs.wait_for(lambda old=before: programs.newest(run_dir) > old, party.processes[0])
            time.sleep(draw.uniform(0, 0.1))
            party.processes[victim].kill()
            codes = party.wait()
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] == 1, party.err
        programs.wait_until_alone(tmp_path)
        assert programs.head(run_dir)["state"] == "open"
    with launched(tmp_path) as party:
        assert party.wait() == [0, 0], party.err
        assert int(party.out[0].split()[0]) > 3, "it resumed from a checkpoint"
    assert ends(tmp_path) == baseline


@pytest.mark.parametrize("where", ["0 tmp-0", "0 rank-00000", "1 rank-00001"])
def test_all_ranks_repeat_a_snapshot_that_found_its_disk_full(
    tmp_path: Path, baseline: list[str], where: str
) -> None:
    """Each question for a part has one answer, whichever rank's part had no room."""
    with launched(tmp_path, FULL=where) as party:
        assert party.wait() == [0, 0], party.err
    said = party.err[0].count("no room for a snapshot ([Errno 28] No space left on device)")
    assert said == 1 and "room for the snapshot at try 3" in party.err[0] and not party.err[1]
    steps = [entry["step"] for entry in programs.head(tmp_path / "run")["chain"]]
    assert ends(tmp_path) == baseline and steps[-1] == TOTAL


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_ends_a_rank_that_hangs(tmp_path: Path, victim: int) -> None:
    """As in a collective that waits forever for the dead rank."""
    with launched(tmp_path, HANG=f"{1 - victim} 2") as party:
        said = party.processes[1 - victim].stdout
        assert said is not None and [said.readline(), said.readline()] == ["1\n", "hangs\n"]
        party.processes[victim].kill()
        assert party.wait()[1 - victim] == 1
    assert f"rank {victim} has ended, and this rank hangs" in party.err[1 - victim]
    programs.wait_until_alone(tmp_path)


def test_a_rank_that_fails_tells_the_others_why(tmp_path: Path) -> None:
    with launched(tmp_path, FAIL="1 5") as party:
        assert party.wait() == [1, 1]
    assert "ZeroDivisionError: on purpose" in party.err[1]
    assert "outlast: rank 1 has failed: on purpose" in party.err[0]
    assert "Traceback" not in party.err[0]


def test_ranks_with_different_steps_are_refused(tmp_path: Path) -> None:
    with launched(tmp_path, FINISH="1 5", BREAK="1") as party:
        assert party.wait() == [1, 1]
    assert "all ranks must make the same steps" in party.err[1]
    with launched(tmp_path, LEAVE="1 5") as party:
        assert party.wait() == [1, 1]
    assert "the loop was left after step 4 of 40" in party.err[1]
    with launched(tmp_path, TOTAL_1="41") as party:
        assert party.wait() == [1, 1]
    assert "total: is 41 in rank 1 and 40 in rank 0" in party.err[0]


@pytest.mark.parametrize("more", [{}, {"BREAK": "1"}])
def test_rank_0_ends_the_loop_of_all(tmp_path: Path, more: dict[str, str]) -> None:
    with launched(tmp_path, FINISH="0 7", **more) as party:
        assert party.wait() == [0, 0], party.err
    assert party.last_steps() == ([7, 7] if not more else [6, 7])
    head = programs.head(tmp_path / "run")
    assert (head["state"], head["end"]["step"]) == ("done", 7)


def test_a_checkpoint_of_two_ranks_does_not_fit_three(tmp_path: Path) -> None:
    with launched(tmp_path, FAIL="0 8") as party:
        assert party.wait() == [1, 1]
    assert programs.newest(tmp_path / "run") >= 3
    with launched(tmp_path, 3) as party:
        assert party.wait() == [1, 1, 1]
    assert "the checkpoint is of 2 ranks and this training has 3" in party.err[0]
    assert "continue with 2 processes, or start a new run" in party.err[2]


def test_a_finished_run_is_kept_as_it_is(baseline_folder: Path, baseline: list[str]) -> None:
    with launched(baseline_folder) as party:
        assert party.wait() == [0, 0], party.err
    assert party.out == ["", ""]
    assert ends(baseline_folder) == baseline


LAUNCHER = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(sys.argv[1:], env={**os.environ, "RANK": str(rank)}, start_new_session=True)
    for rank in range(2)
]
print(*(rank.pid for rank in ranks), flush=True)
for rank in ranks:
    rank.wait()
"""


def test_a_killed_launcher_leaves_no_rank_behind(tmp_path: Path) -> None:
    program = tmp_path / "walk.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, "-c", LAUNCHER, sys.executable, str(program), str(tmp_path / "run")]
    variables = {"WORLD_SIZE": "2", "MASTER_PORT": "29501", "TORCHELASTIC_RUN_ID": "x"}
    with programs.started(tmp_path, argv, PACE="0.1", **variables) as launcher:
        assert launcher.stdout is not None
        pids = [int(word) for word in launcher.stdout.readline().split()]
        programs.wait_for(lambda: programs.newest(tmp_path / "run") > 0, launcher)
        launcher.kill()
        _wait(lambda: not any(_alive(pid) for pid in pids))
    programs.wait_until_alone(tmp_path)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_waits_for_a_missing_rank_leaves_when_asked(tmp_path: Path, rank: int) -> None:
    """As torchrun tells it where another one failed before it came to outlast.train."""
    program = tmp_path / "walk.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, str(program), str(tmp_path / "run")]
    variables = {"WORLD_SIZE": "2", "MASTER_PORT": "29502", "RANK": str(rank)}
    with programs.started(tmp_path, argv, **variables) as alone:
        programs.wait_for(lambda: _catches(alone.pid, signal.SIGTERM), alone)
        alone.terminate()
        assert alone.wait(programs.WAIT_SEC) == 75
    programs.wait_until_alone(tmp_path)


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + programs.WAIT_SEC
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_unsavable_state_of_a_rank_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"rank_state\['x'\] is 1, which cannot be restored"):
        ranks.RankState({"x": 1}, 0, 1)
    with pytest.raises(StateError, match=r"rank_state\['x'\].* cannot be saved"):
        ranks.RankState({"x": [object()]}, 0, 1).prove(tmp_path)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"RANK": "2"}, "RANK 2: must be below WORLD_SIZE, which is 2"),
        ({"RANK": "one"}, "RANK 'one': must be a whole number"),
        ({"LOCAL_WORLD_SIZE": "1"}, "all ranks of a run are processes of one machine"),
        ({"MASTER_PORT": ""}, "MASTER_PORT: is not set though RANK is"),
    ],
)
def test_inconsistent_rank_variables_are_reported(variables: dict[str, str], says: str) -> None:
    good = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    found = ranks.world(good)
    assert found is not None and (found.rank, found.size, found.launcher) == (1, 2, None)
    with pytest.raises(LoopError) as caught:
        ranks.world({**good, **variables})
    assert says in str(caught.value)


def test_a_single_process_is_not_a_rank() -> None:
    assert ranks.world({}) is None
    assert ranks.world({"RANK": "0", "WORLD_SIZE": "1"}) is None
    keys = {
        found.key
        for port in ("1", "2")
        if (found := ranks.world({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": port}))
    }
    assert len(keys) == 2


def test_a_folder_that_others_may_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = ranks.socket_path("key").parent
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(LoopError, match="closed to all other users"):
        ranks.socket_path("key")


def test_only_rank_0_writes_rows_and_no_socket_is_left(baseline_folder: Path) -> None:
    pieces = sorted((baseline_folder / "run" / "metrics").rglob("*.jsonl"))
    rows = [json.loads(line) for piece in pieces for line in piece.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, TOTAL + 1))
    assert os.listdir(baseline_folder / "tmp") == [f"outlast-ranks-{os.getuid()}"]
    assert not list((baseline_folder / "tmp").glob("*/*"))


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        ([(5, 64), (5, 64)], 64),
        ([(5, 1), (5, -9)], -9),  # the one that was killed, not the one that lost it
        ([(5, -15), (5, 1)], 1),
        ([(5, 1), (5, 64)], 64),
        ([(35, -9), (5, 64)], 64),  # torchrun's own SIGKILL
        ([(5, 75), (5, 1)], 1),
        ([(5, -15), (5, 75)], 75),
    ],
)
def test_the_most_specific_exit_code_of_all_ranks_counts(
    failures: list[tuple[float, int]], code: int
) -> None:
    assert launch._cause(failures) == code


def test_an_interpreter_without_torch_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert launch.main(["2", "outlast.trainers", "digits"]) == 64
    assert "processes 2: " in (said := capsys.readouterr().err) and "needs torch there" in said
