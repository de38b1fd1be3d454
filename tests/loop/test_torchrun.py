"""Real ``torchrun`` with gloo on the CPU: two ranks, killed and resumed, end with equal bytes."""

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.loop import programs

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]
pytest.importorskip("torch", reason="torch is an extra")

TOTAL = 60
PROGRAM = f"""
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import outlast

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
parallel = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
noise = torch.Generator().manual_seed(100 + rank)
share = {{"rows": 0}}
with open(f"pid-{{rank}}", "w") as file:
    file.write(str(os.getpid()))
with outlast.train(
    state={{"model": model, "optimizer": optimizer}},
    rank_state={{"noise": noise, "share": share}},
    total={TOTAL}, run_dir="run", arguments={{}}, checkpoint_every="5",
) as run:
    for step in run.steps():
        rows = torch.randn(4, 8, generator=noise)
        share["rows"] += len(rows)
        loss = (parallel(rows) - rows.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        time.sleep(float(os.environ.get("PACE", "0")))
    torch.save(model.state_dict(), run.result("model.pt"))
with open(f"end-{{rank}}", "w") as file:
    file.write(repr((share, noise.get_state().sum().item())))
dist.destroy_process_group()
"""


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    (tmp_path / "walk.py").write_text(PROGRAM)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*run, "walk.py"]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    folder = tmp_path_factory.mktemp("baseline")
    (folder / "walk.py").write_text(PROGRAM)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = programs.run(folder, [*run, "walk.py"])
    assert done.returncode == 0, done.stderr
    return ends(folder)


def ends(folder: Path) -> list[object]:
    own = [(folder / f"end-{rank}").read_text() for rank in range(2)]
    return [*own, programs.result_of(folder / "run")]


def ranks_of(folder: Path) -> list[int]:
    return [int((folder / f"pid-{rank}").read_text()) for rank in range(2)]


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + programs.WAIT_SEC
    while alive := [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists()]:
        assert time.monotonic() < deadline, f"{alive} live on"
        time.sleep(0.05)


def test_a_stop_goes_through_torchrun(
    tmp_path: Path, argv: list[str], baseline: list[object]
) -> None:
    with programs.started(tmp_path, argv, PACE="0.1") as launcher:
        programs.wait_for(lambda: programs.newest(tmp_path / "run") > 0, launcher)
        launcher.send_signal(signal.SIGTERM)
        _, err = launcher.communicate(timeout=programs.WAIT_SEC)
    wait_until_gone(ranks_of(tmp_path))
    newest = programs.newest(tmp_path / "run")
    assert f"stopped after step {newest} of {TOTAL}" in err
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert ends(tmp_path) == baseline


@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "torchrun"])
def test_one_death_ends_all_and_the_same_command_ends_with_equal_bytes(
    tmp_path: Path, argv: list[str], baseline: list[object], victim: str
) -> None:
    draw = random.Random(victim)
    with programs.started(tmp_path, argv, PACE="0.05") as launcher:
        programs.wait_for(lambda: programs.newest(tmp_path / "run") > 0, launcher)
        pids = ranks_of(tmp_path)
        time.sleep(draw.uniform(0, 0.5))
        pid = {"rank 0": pids[0], "rank 1": pids[1], "torchrun": launcher.pid}[victim]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(pids)
    programs.wait_until_alone(tmp_path)
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert ends(tmp_path) == baseline
