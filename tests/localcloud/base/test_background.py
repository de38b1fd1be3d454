"""A failure in the cloud's background ends the cloud, instead of its answers."""

import asyncio
import subprocess
import sys
from pathlib import Path

from outlast.localcloud.base.background import Background

ROOT = Path(__file__).parents[3]
BROKEN = """
import sys
from outlast.localcloud import __main__
from outlast.localcloud.compute import platform

async def broken(self):
    raise {error}

platform.Platform._tick = broken
sys.exit(__main__.main(["serve", "--state", sys.argv[1], "--no-provider", "--no-guests"]))
"""


def test_a_failure_is_reported_but_an_end_or_a_cancel_is_not() -> None:
    failures: list[BaseException] = []
    error = RuntimeError("planted")

    async def fail() -> None:
        raise error

    async def scene() -> None:
        background = Background(failures.append)
        background.begin(asyncio.sleep(0))
        background.begin(asyncio.sleep(3600))
        background.begin(fail())
        while not failures:
            await asyncio.sleep(0)
        background.cancel()
        await background.rest()

    asyncio.run(scene())
    assert failures == [error]


def end_of_a_cloud(state: Path, error: str) -> str:
    """What a cloud says whose background task raises the error."""
    done = subprocess.run(
        [sys.executable, "-c", BROKEN.format(error=error), str(state)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_a_cloud_whose_background_task_failed_ends_with_the_error(tmp_path: Path) -> None:
    said = end_of_a_cloud(tmp_path / "state", 'RuntimeError("planted")')
    assert "RuntimeError: planted" in said
    last = "rehearsal: the local cloud has a defect and cannot continue (RuntimeError)"
    assert said.splitlines()[-1] == last


def test_a_cloud_whose_disk_is_full_says_so(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert end_of_a_cloud(state, 'OSError(28, "No space left on device")') == (
        f"rehearsal: {state}: its disk is full (No space left on device), and the local cloud "
        "cannot continue; free some space there\n"
    )
