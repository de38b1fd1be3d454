"""Parts of one run under real ``torchrun``: two ranks with gloo, killed and stopped."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast
from tests.loop import programs

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]
pytest.importorskip("torch", reason="torch is an extra")

WAIT_SEC = 180.0
"""For a start: both ranks and their launcher import torch."""
PARTS = ("fold-0", "fold-1", "final")
STEPS = 12
PROGRAM = f"""
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import outlast

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
with open(f"pid-{{rank}}", "w") as file:
    file.write(str(os.getpid()))

def at(phase):
    if os.environ.get("PAUSE") == f"{{part}} {{phase}}":
        open(f"reached-{{rank}}", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)

ends = []
for number, part in enumerate({PARTS}):
    torch.manual_seed(number)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    noise = torch.Generator().manual_seed(100 * number + rank)
    share = {{"rows": 0}}
    at("before")
    with outlast.train(
        state={{"model": model, "optimizer": optimizer}},
        rank_state={{"noise": noise, "share": share}},
        total={STEPS}, part=part, run_dir="run", arguments={{}}, checkpoint_every="3",
    ) as run:
        for step in run.steps():
            rows = torch.randn(4, 8, generator=noise)
            share["rows"] += len(rows)
            loss = (parallel(rows) - rows.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            at(f"step {{step}}")
        at("evaluation")
        weight = torch.tensor([float(sum(p.detach().sum() for p in model.parameters()))])
        dist.all_reduce(weight)
        if not run.done:
            run.eval(weight=weight.item())
            torch.save(model.state_dict(), run.result("model.pt"))
    at("end")
    ends.append((part, run.done, run.step, share, noise.get_state().sum().item()))
    ends[-1] += (weight.item(),)
    with open(f"end-{{rank}}", "w") as file:
        file.write(repr([end[:1] + end[2:] for end in ends]))
    with open(f"done-{{rank}}", "w") as file:
        file.write(repr([end[1] for end in ends]))
dist.destroy_process_group()
"""
ARGV = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ARGV += ["walk.py"]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    folder = tmp_path_factory.mktemp("baseline")
    (folder / "walk.py").write_text(PROGRAM)
    done = run(folder)
    assert done.returncode == 0, done.stderr
    return ends(folder)


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = programs.environment(folder)
    return subprocess.run(
        ARGV, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_SEC
    )


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SEC
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def ends(folder: Path) -> list[object]:
    own = [(folder / f"end-{rank}").read_text() for rank in range(2)]
    return [*own, programs.result_of(folder / "run"), outlast.open(str(folder / "run")).rows()]


def saved(folder: Path) -> dict[str, int]:
    """Of each part that has a checkpoint, its newest step."""
    chain = programs.head(folder / "run")["chain"]
    return {entry["part"]: entry["step"] - entry.get("before", 0) for entry in chain}


def end_at(folder: Path, where: str, victim: str) -> None:
    """End a start where both ranks are: by a kill of one, or with a word to stop."""
    (folder / "go").unlink(missing_ok=True)
    for rank in range(2):
        (folder / f"reached-{rank}").unlink(missing_ok=True)
    with programs.started(folder, ARGV, PAUSE=where) as launcher:
        reached = [folder / f"reached-{rank}" for rank in range(2)]
        wait_for(lambda: launcher.poll() is not None or all(map(Path.exists, reached)), where)
        assert launcher.poll() is None, launcher.communicate()
        pids = [int((folder / f"pid-{rank}").read_text()) for rank in range(2)]
        if victim == "word":
            launcher.send_signal(signal.SIGTERM)
            assert launcher.stderr is not None
            assert any("Ctrl-C again leaves at once" in line for line in launcher.stderr)
            (folder / "go").touch()
        else:
            pid = {"rank 0": pids[0], "rank 1": pids[1], "torchrun": launcher.pid}[victim]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of all")
        launcher.communicate(timeout=programs.WAIT_SEC)
    programs.wait_until_alone(folder)


SEAMS = {"fold-0 step 8": "rank 1", "fold-0 end": "rank 0", "fold-1 evaluation": "word"}
"""Where a start ends, and how; ``test_rank_parts`` has more, without torch."""


def test_a_run_interrupted_in_and_between_parts_ends_as_undisturbed(
    tmp_path: Path, baseline: list[object]
) -> None:
    """One run, ended at each of the seams in another way."""
    (tmp_path / "walk.py").write_text(PROGRAM)
    steps = 0
    for seam, victim in SEAMS.items():
        end_at(tmp_path, seam, victim)
        part, _, phase = seam.partition(" ")
        if phase in ("evaluation", "end"):
            assert saved(tmp_path)[part] == STEPS, "its last state was handed over"
        assert sum(saved(tmp_path).values()) >= steps, "what is committed stays"
        steps = sum(saved(tmp_path).values())
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert ends(tmp_path) == baseline
