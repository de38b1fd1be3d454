"""Scripts in the shape of public ones (``tests/loop/scripts``), killed at seeded moments: each ends
with the undisturbed run's bytes. And the slips that such scripts make: each is refused by name.

``KILLS=10 pytest -m frameworks tests/loop/test_scripts.py`` kills more often.
"""

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.loop import programs

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(3600)]  # each wait has its own limit

SCRIPTS = {
    "mnist": "torch",
    "nanogpt": "torch",
    "dqn": "torch",
    "keras_loop": "keras",
    "xgb": "xgboost",
    "jax_optax": "jax",
    "partial_fit": "pandas",
    "kfold": "sklearn",
}
KILLS = int(os.environ.get("KILLS", "2"))
PAUSE_SEC = 0.1 if KILLS < 5 else 0.4
"""Of a step, where it is to be killed: HEAD is written once a second."""
THREADS = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cpu"}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework alone takes long to import."""
    monkeypatch.setattr(programs, "WAIT_SEC", 240.0)


def runs_in(where: Path) -> list[Path]:
    # Not below them: what is being written there may vanish while it is listed.
    return sorted(path.parent for path in (where / "runs").glob("*/HEAD"))


def committed(where: Path) -> int:
    return sum(map(programs.newest, runs_in(where)))


def terms(where: Path) -> int:
    return sum(programs.head(run_dir).get("term", 0) for run_dir in runs_in(where))


def results(where: Path) -> list[dict[str, bytes]]:
    return [programs.result_of(run_dir) for run_dir in runs_in(where)]


def kill_once(
    where: Path, command: list[str], moments: random.Random, *, as_it_resumes: bool
) -> bool:
    """SIGKILL after a new commit, or as soon as the attempt has taken the run; False if the
    script came to its end before."""
    state = terms if as_it_resumes else committed
    before = state(where)
    with programs.started(where, command, PAUSE=str(PAUSE_SEC), **THREADS) as process:
        programs.wait_for(lambda: state(where) > before or process.poll() == 0, process)
        time.sleep(moments.uniform(0, 3 * PAUSE_SEC))  # the moment itself: any will do
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=programs.WAIT_SEC)
    programs.wait_until_alone(where)
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_killed_script_ends_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    pytest.importorskip(SCRIPTS[name]) if SCRIPTS[name] != "keras" else None
    script = Path(__file__).with_name("scripts") / f"{name}.py"
    command = [sys.executable, str(script)]
    baseline, killed = tmp_path / "baseline", tmp_path / "killed"
    baseline.mkdir()
    killed.mkdir()
    done = programs.run(baseline, command, **THREADS)
    assert done.returncode == 0, done.stderr
    moments = random.Random(name)
    kills = sum(
        kill_once(killed, command, moments, as_it_resumes=number % 3 == 2)
        for number in range(KILLS)
    )
    assert kills == KILLS, f"{KILLS - kills} kills came after the end"
    done = programs.run(killed, command, **THREADS)
    assert done.returncode == 0, done.stderr
    expected, found = results(baseline), results(killed)
    assert [sorted(each) for each in found] == [sorted(each) for each in expected]
    of = ["fold-0/", "fold-1/", "fold-2/"] if name == "kfold" else [""]
    assert found == expected
    assert all(f"{each}metrics.json" in files for files in found for each in of)


START = """
import copy, itertools, sys, torch, outlast
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(8, 3))
state = {"model": model, "optimizer": optimizer}

def step(x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""

SLIPS = {
    "an average of the weights in an object of one's own": (
        """
class Average:
    def __init__(self):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    def update(self):
        for name, p in model.named_parameters():
            self.shadow[name].mul_(0.9).add_(p.detach(), alpha=0.1)
model.average = Average()
with outlast.train(state, 5, run_dir="run") as run:
    for _ in run.steps():
        step(torch.ones(3))
        model.average.update()
""",
        "state['model'].average.shadow['weight'] changes during training",
    ),
    "an optimiser that is made in the first step": (
        """
state = {"model": model, "box": {"optimizer": None}}
with outlast.train(state, 5, run_dir="run") as run:
    for _ in run.steps():
        if state["box"]["optimizer"] is None:
            state["box"]["optimizer"] = torch.optim.Adam(model.parameters())
        step(torch.ones(3))
""",
        "['optimizer'] is torch.optim.adam.Adam with groups of 2 parameters, which did not exist",
    ),
    "an iterator over the data": (
        """
state["batches"] = itertools.cycle(torch.utils.data.DataLoader(rows, 2, shuffle=True))
with outlast.train(state, 5, run_dir="run") as run:
    for _ in run.steps():
        step(next(state["batches"])[0])
""",
        "state['batches'] is itertools.cycle, which cannot be saved",
    ),
    "a loader that fetches ahead": (
        """
state["sampler"] = outlast.BatchSampler(8, 2)
loader = torch.utils.data.DataLoader(rows, batch_sampler=state["sampler"])
with outlast.train(state, 5, run_dir="run") as run:
    for _, (x,) in zip(run.steps(), loader):
        step(x)
""",
        "sampler.over(loader)",
    ),
    "a number at the top of the state": (
        """
state["best"] = 0.0
with outlast.train(state, 5, run_dir="run") as run:
    for _ in run.steps():
        step(torch.ones(3))
""",
        "state['best'] is 0.0, which cannot be restored in place",
    ),
    "a loop that is left early": (
        """
with outlast.train(state, 50, run_dir="run") as run:
    for _, (x,) in zip(run.steps(), torch.utils.data.DataLoader(rows, 2)):
        step(x)
        run.log(x=1)
""",
        "4 of 50",
    ),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_mistake_is_refused_by_name(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    program, says = SLIPS[name]
    (tmp_path / "p.py").write_text(START + program)
    done = programs.run(tmp_path, [sys.executable, "p.py"], **THREADS)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    assert programs.head(tmp_path / "run")["state"] != "done"
