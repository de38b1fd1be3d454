"""A disk that is really full: a small one, which a training fills under its own snapshots and under
its run's folder. Needs a system that lets a user mount one in a name space of his own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from outlast.bucket.head import read_head
from outlast.bucket.layout import Layout
from outlast.bucket.rows import read_rows
from outlast.bucket.store import FolderStore

ROOT = Path(__file__).resolve().parents[2]
WAIT_SEC = 180.0
TOTAL, FULL_AT, SIZE = 10, 4, 1 << 20
IN_NAME_SPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
MOUNT = 'mount -t tmpfs -o size=16m disk "$DISK" && '

PROGRAM = f"""
import os, sys, threading
import numpy as np
import outlast

run_dir, disk, until = sys.argv[1], os.environ["DISK"], os.environ["UNTIL"]
place = np.zeros({SIZE} // 8)
filler = os.path.join(disk, "filler")

def fill():
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass

def empty():
    os.unlink(filler)

with outlast.train({{"place": place}}, {TOTAL}, run_dir=run_dir, checkpoint_every="1") as run:
    print("from", run.step, flush=True)
    for step in run.steps():
        place += step
        run.log(place=place[0])
        assert run._side.session.wait_committed(60)
        if step == {FULL_AT} and until != "never full":
            fill()
            if until == "emptied":
                threading.Timer(1.0, empty).start()
    place.tofile(run.result("place"))
"""

BUDGETS = """
import outlast.base.retry, outlast.loop.writing
outlast.loop.writing.FULL_RETRY_SEC = 0.5
outlast.base.retry.PAUSE_SEC = 0.1
outlast.base.retry.Limits.of = lambda limits, trouble: 0.5
"""
"""What both processes begin with where no time shall be spent on a disk that stays full."""


FOREVER, FOR_A_WHILE, NEVER = "stays full", "emptied", "never full"


class Disk:
    """A disk of 16 MB, for one shell and what it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "disk"
        self.path.mkdir()
        (folder / "program.py").write_text(PROGRAM)
        (folder / "tmp").mkdir()

    def shell(self, line: str, *, snapshots_on_it: bool = False, hasty: bool = False) -> str:
        """What a shell line says that is run where the disk is mounted; it must end with 0."""
        if hasty:
            (self.folder / "sitecustomize.py").write_text(BUDGETS)
        done = subprocess.run(
            [*IN_NAME_SPACE, MOUNT + line],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": f"{self.folder}:{ROOT}",
                "TMPDIR": str(self.path if snapshots_on_it else self.folder / "tmp"),
                "DISK": str(self.path),
                "TRAIN": f"{sys.executable} {self.folder / 'program.py'}",
            },
            capture_output=True,
            text=True,
            timeout=WAIT_SEC,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    made = Disk(tmp_path)
    try:
        made.shell("true")
    except (OSError, AssertionError) as error:
        pytest.skip(f"no disk can be mounted here: {error}")
    return made


def check_result(run: Path) -> None:
    """The state after all steps, and a row of each."""
    store, layout = FolderStore(run), Layout("", "")
    head = read_head(store, layout).head
    assert head.end is not None and head.end.result is not None
    place = np.fromfile(run / head.end.result.path / "place")
    assert set(place) == {TOTAL * (TOTAL + 1) / 2}
    rows = [(row["step"], row["place"]) for row in read_rows(store, layout, head)]
    assert rows == [(step, step * (step + 1) / 2) for step in range(1, TOTAL + 1)]


def begins(said: str) -> list[int]:
    """The steps that the trainings resumed from."""
    return [int(line.split()[1]) for line in said.splitlines() if line.startswith("from ")]


def test_a_disk_of_snapshots_that_gets_room_again_costs_nothing(disk: Disk) -> None:
    said = disk.shell(f'UNTIL="{FOR_A_WHILE}" $TRAIN run', snapshots_on_it=True)
    assert "no room for a snapshot ([Errno 28] No space left on device" in said
    check_result(disk.folder / "run")


def test_a_disk_of_snapshots_that_stays_full_ends_with_the_reason(disk: Disk) -> None:
    said = disk.shell(
        f'! UNTIL="{FOREVER}" $TRAIN run && rm "$DISK/filler" && UNTIL="{NEVER}" $TRAIN run',
        snapshots_on_it=True,
        hasty=True,
    )
    assert (
        f"a snapshot of {SIZE} bytes could not be written for 0 s (No space left on device)" in said
    )
    assert "bytes free; choose a machine with more memory" in said
    assert begins(said) == [0, FULL_AT - 1]
    check_result(disk.folder / "run")


def test_a_runs_folder_on_a_disk_that_gets_room_again_costs_nothing(disk: Disk) -> None:
    said = disk.shell(f'UNTIL="{FOR_A_WHILE}" $TRAIN "$DISK/run" && cp -r "$DISK/run" run')
    assert f"No space left on device: '{disk.path / 'run'}'; trying again" in said
    check_result(disk.folder / "run")


def test_a_runs_folder_on_a_disk_that_stays_full_ends_with_the_reason(disk: Disk) -> None:
    said = disk.shell(
        f'! UNTIL="{FOREVER}" $TRAIN "$DISK/run" && rm "$DISK/filler" '
        f'&& UNTIL="{NEVER}" $TRAIN "$DISK/run" && cp -r "$DISK/run" run',
        hasty=True,
    )
    assert f"No space left on device: '{disk.path / 'run'}'; {disk.path / 'run'} has " in said
    assert "bytes free; make room or choose a larger machine" in said
    assert begins(said) == [0, FULL_AT - 1]
    check_result(disk.folder / "run")
