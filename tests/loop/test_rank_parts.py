"""Parts of one run whose steps several ranks make: ended at the seams, they end as undisturbed."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlast
from tests.loop import programs
from tests.loop.test_ranks import Party

PARTS = ("fold-0", "fold-1", "final")
STEPS = 9
PROGRAM = f"""
import os, random, sys, time
import outlast

rank = int(os.environ["RANK"])
way = os.environ["WAY"]
where = {{"run_dir": sys.argv[1], "name": "walk", "arguments": {{}}, "checkpoint_every": "4"}}
seen = []

def at(phase):
    if os.environ.get("PAUSE") == f"{{part}} {{phase}}":
        open(f"reached-{{rank}}", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)

place = {{"x": 0.0}}
for part in {PARTS}:
    rng, own, share = random.Random(part), random.Random(f"{{part}} {{rank}}"), {{"sum": 0.0}}
    at("before")
    with outlast.train(
        state={{"rng": rng, "place": place}}, rank_state={{"own": own, "share": share}},
        total=None if way == "break" else {STEPS} if way == "total" else 100,
        part=os.environ.get(f"PART_{{rank}}", part), restore_done="SKIP" not in os.environ, **where,
    ) as run:
        for step in run.steps():
            place["x"] += rng.gauss(0, 1)
            share["sum"] += own.gauss(0, 1)
            if rank == 0 or step != 9:
                run.log(x=place["x"])
            if step % 5 == 0:
                run.eval(x=place["x"], best="max")
            at(f"step {{step}}")
            if step == {STEPS} and way == "finish" and rank == 0:
                run.finish("enough")
            if step == {STEPS} and way == "break":
                break
        at("evaluation")
        if "EVALS" in os.environ:
            print(run.evals)
        if run.done:
            place["x"] = float(run.result("place.txt").read_text())
        else:
            place["x"] = round(place["x"], 6)  # what follows the loop is done again
            run.eval(x=place["x"])
            run.result("place.txt").write_text(repr(place["x"]))
    assert run.step == 9, (rank, run.step)
    seen.append((part, run.step, place["x"], *(() if "SKIP" in os.environ else share.values())))
    print(part, "was done" if run.done else "is done", flush=True)
    at("end")
with open(f"end-{{rank}}", "w") as file:
    file.write(repr(seen))
"""


@contextlib.contextmanager
def launched(folder: Path, way: str, **more: str) -> Iterator[Party]:
    """Two ranks, started as a launcher does; both end with the test."""
    program = folder / "walk.py"
    program.write_text(PROGRAM)
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500", "WAY": way}
    with contextlib.ExitStack() as stack:
        argv = [sys.executable, str(program), str(folder / "run")]
        yield Party(
            [
                stack.enter_context(programs.started(folder, argv, RANK=str(rank), **ranks, **more))
                for rank in range(2)
            ]
        )


def ends(folder: Path) -> tuple[object, ...]:
    """Each rank's final state, the run's result and its rows."""
    own = [(folder / f"end-{rank}").read_text() for rank in range(2)]
    return *own, programs.result_of(folder / "run"), outlast.open(str(folder / "run")).rows()


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, ...]]:
    """The result of an undisturbed run, by the way that its loops end."""
    found = {}
    for way in ("total", "finish", "break"):
        folder = tmp_path_factory.mktemp(way)
        with launched(folder, way) as party:
            assert party.wait() == [0, 0], party.err
        found[way] = ends(folder)
        rows = found[way][-1]
        made = [(part, step) for part in PARTS for step in range(1, STEPS + 1)]
        assert [(row["part"], row["step"]) for row in rows] == made
    return found


def saved(folder: Path) -> dict[str, int]:
    """Of each part that has a checkpoint, its newest step."""
    chain = programs.head(folder / "run")["chain"]
    return {entry["part"]: entry["step"] - entry.get("before", 0) for entry in chain}


def end_at(folder: Path, way: str, seam: str, victim: str) -> None:
    """End a start where both ranks are: one is killed, or both get Ctrl-C."""
    reached = [folder / f"reached-{rank}" for rank in range(2)]
    for path in (folder / "go", *reached):
        path.unlink(missing_ok=True)
    with launched(folder, way, PAUSE=seam) as party:
        programs.wait_for(lambda: all(map(Path.exists, reached)), party.processes[0])
        if victim == "Ctrl-C":
            for process in party.processes:
                process.send_signal(signal.SIGINT)
        else:
            if "step" in seam:
                programs.wait_for(lambda: seam.split()[0] in saved(folder), party.processes[0])
            party.processes[int(victim)].kill()
            if seam.endswith(("before", "end")):  # nothing connects the ranks there
                party.processes[1 - int(victim)].send_signal(signal.SIGTERM)
        (folder / "go").touch()
        codes = party.wait()
        assert 0 not in codes, (codes, party.err)
    programs.wait_until_alone(folder)


@pytest.mark.parametrize(
    ("way", "seams"),
    [
        ("total", {"fold-0 step 6": "1", "fold-0 end": "0", "fold-1 evaluation": "0"}),
        ("total", {"fold-1 before": "1", "fold-1 step 1": "Ctrl-C", "final end": "1"}),
        ("total", {"fold-0 end": "Ctrl-C", "fold-1 step 6": "0", "final evaluation": "1"}),
        ("finish", {"fold-0 step 6": "Ctrl-C", "fold-0 evaluation": "1", "fold-1 before": "0"}),
        ("break", {"fold-0 step 6": "0", "fold-1 end": "1", "final step 6": "Ctrl-C"}),
    ],
)
def test_a_run_interrupted_in_and_between_parts_ends_as_undisturbed(
    tmp_path: Path, baseline: dict[str, tuple], way: str, seams: dict[str, str]
) -> None:
    for seam, victim in seams.items():
        end_at(tmp_path, way, seam, victim)
        part, _, phase = seam.partition(" ")
        if victim == "Ctrl-C" and phase.startswith("step"):
            assert saved(tmp_path)[part] == int(phase.split()[1]), "a word to stop loses nothing"
        if phase in ("evaluation", "end"):
            assert saved(tmp_path)[part] == STEPS, "the last state was handed over"
    with launched(tmp_path, way) as party:
        assert party.wait() == [0, 0], party.err
    assert ends(tmp_path) == baseline[way]


def test_every_rank_gets_the_results_of_done_parts(
    tmp_path: Path, baseline: dict[str, tuple]
) -> None:
    """Also where their state is not wanted."""
    end_at(tmp_path, "total", "final end", "0")
    with launched(tmp_path, "total", SKIP="yes") as party:
        assert party.wait() == [0, 0], party.err
    assert all(out.count("was done") == len(PARTS) for out in party.out)
    assert ends(tmp_path)[2:] == baseline["total"][2:]
    for rank in range(2):
        places = [(part, step, x) for part, step, x, _ in eval(baseline["total"][rank])]
        assert (tmp_path / f"end-{rank}").read_text() == repr(places)


def test_only_rank_0_evaluates(tmp_path: Path) -> None:
    """A decision on them in another rank would be one on nothing."""
    with launched(tmp_path, "total", EVALS="yes") as party:
        assert 0 not in party.wait()
    said = "run.evals in rank 1: only rank 0 keeps evaluations"
    assert said in party.err[0] and said in party.err[1]


def test_ranks_that_begin_different_parts_are_refused_by_name(tmp_path: Path) -> None:
    with launched(tmp_path, "total", PART_1="fold-9") as party:
        assert 0 not in party.wait()
    said = "part: is fold-9 in rank 1 and fold-0 in rank 0; all ranks must call"
    assert said in party.err[0] and said in party.err[1]
