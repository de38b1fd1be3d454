"""``outlast:processes`` under the real supervisor: how a rank ends is how the attempt ends."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlast
from outlast.base.exits import Reason, State
from outlast.bucket.rows import read_rows
from outlast.bucket.store import Store
from tests.supervisor.fake_cloud import fake_cloud
from tests.supervisor.test_main import LAYOUT, TIMEOUTS, Machines

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]
pytest.importorskip("torch", reason="torch's launcher starts the ranks")

WAIT_SEC = 90
TRAINER = """
import os, signal, sys, time
import outlast
from outlast.trainers.flags import UsageError

def main(argv):
    what = argv[0].removeprefix("--do=") if argv else ""
    rank = int(os.environ["RANK"])
    if what == "refuse" or (what, rank) == ("refuse-one", 1):
        raise UsageError("flag --do: must be something else")
    with outlast.train(state={"none": {}}, total=6) as run:
        for step in run.steps():
            run.log(ranks=run.world_size)
            if (rank, step, os.environ["ATTEMPT"]) == (1, 4, "1"):
                if what == "fail":
                    raise ValueError("rank 1 does not like step 4")
                if what == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if what == "hang":
                    stay_here()
    return 0

def stay_here():
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    ignored = shutil.ignore_patterns("__pycache__", "cli", "localcloud")
    shutil.copytree(Path(outlast.__file__).parent, folder / "outlast", ignore=ignored)
    (folder / "outlast" / "trainers" / "count.py").write_text(TRAINER)
    return folder


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path) -> Iterator[Machines]:
    with fake_cloud(monkeypatch) as cloud:
        machines = Machines(cloud, tmp_path, bundle)
        try:
            yield machines
        finally:
            machines.close()


def train(machines: Machines, do: str, **more: str) -> None:
    """One VM, from its boot to its end."""
    spec = {"outlast-processes": "2", "outlast-arg-do": do, "outlast-checkpoint-every": "2"}
    spec |= more
    assert machines.boot(**spec).wait(WAIT_SEC) == 0, machines.serial(0)


def rows(store: Store, machines: Machines) -> list[tuple[int, int]]:
    return [(row["step"], row["ranks"]) for row in read_rows(store, LAYOUT, machines.head)]


@pytest.mark.parametrize("do", ["refuse", "refuse-one"])
def test_bad_usage_is_final(machines: Machines, do: str) -> None:
    """Also of one rank alone, for which the others wait."""
    train(machines, do)
    end = machines.end_of(1)
    assert (machines.head.state, end.reason, end.exit) == (State.FAILED, Reason.USAGE, 64)
    assert any("flag --do: must be something else" in line for line in end.stderr)


def test_the_message_names_the_rank_and_its_error(machines: Machines) -> None:
    train(machines, "fail")
    end = machines.end_of(1)
    assert (machines.head.state, end.reason, end.exit) == (State.FAILED, Reason.USER_FAILED, 1)
    assert "rank 1 has failed: rank 1 does not like step 4" in end.message


def test_a_killed_rank_counts_as_out_of_memory_and_a_retry_resumes(machines: Machines) -> None:
    train(machines, "die", **{"outlast-retries-failures": "1"})
    end = machines.end_of(1)
    assert (end.reason, end.exit) == (Reason.OUT_OF_MEMORY, 137), end
    assert (machines.head.state, machines.head.failures) == (State.DONE, 1)
    assert rows(machines.store, machines) == [(step, 2) for step in range(1, 7)]


def test_the_stacks_of_ranks_that_hang_are_kept(machines: Machines) -> None:
    timeouts = TIMEOUTS.replace('"stall":60', '"stall":30')  # more than a start takes
    train(machines, "hang", **{"outlast-timeouts": timeouts})
    end = machines.end_of(1)
    assert end.reason is Reason.STALLED
    log, _ = machines.store.get(LAYOUT.log_piece(1, 0))
    assert b"in stay_here" in log
