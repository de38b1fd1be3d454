"""Programs that train alone on this machine, for the tests that interrupt and kill them."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from outlast import protocol
from outlast.loop import local

ROOT = Path(__file__).resolve().parents[2]
WAIT_SEC = 180.0
"""Programs that import PyTorch on a busy machine begin after a minute."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    tmp = folder / "tmp"
    tmp.mkdir(exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if key != protocol.SOCKET_VARIABLE}
    return {**kept, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp), **more}


def run(tmp_path: Path, argv: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=tmp_path,
        env=environment(tmp_path, **more),
        capture_output=True,
        text=True,
        timeout=WAIT_SEC,
    )


@contextlib.contextmanager
def started(tmp_path: Path, argv: Sequence[str], **more: str) -> Iterator["subprocess.Popen[str]"]:
    """A trainer in a separate process group, as a terminal makes it."""
    process = subprocess.Popen(
        argv,
        cwd=tmp_path,
        env=environment(tmp_path, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_SEC)


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + WAIT_SEC
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        if process.poll() is not None:
            pytest.fail(f"the trainer ended with {process.returncode}: {process.communicate()}")
        time.sleep(0.01)


def head(run_dir: Path) -> dict:
    try:
        return json.loads((run_dir / "HEAD").read_bytes())
    except FileNotFoundError:
        return {"chain": [], "state": "absent"}


def result_of(run_dir: Path) -> dict[str, bytes]:
    folder = local.finished_result(run_dir)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def supervisors(tmp_path: Path) -> list[int]:
    """The supervisors of this test, found by the folder that their sockets are in."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"outlast.supervisor" in words and any(
                    bytes(tmp_path / "tmp") in word for word in words
                ):
                    found.append(int(entry.name))
    return found


def wait_until_alone(tmp_path: Path) -> None:
    """The supervisor ends by itself, and takes its folders along."""
    deadline = time.monotonic() + WAIT_SEC
    while supervisors(tmp_path):
        assert time.monotonic() < deadline, "the supervisor lives on"
        time.sleep(0.02)


def interrupt_at_a_commit(
    tmp_path: Path, run_dir: Path, argv: Sequence[str], **more: str
) -> tuple[int, str]:
    """Ctrl-C once this attempt has committed something; the exit code and stderr."""
    before = newest(run_dir)
    with started(tmp_path, argv, **more) as process:
        wait_for(lambda: newest(run_dir) > before, process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SEC)
    return process.returncode, err


def newest(run_dir: Path) -> int:
    """Step of the newest checkpoint; 0 before the first."""
    chain = head(run_dir)["chain"]
    return chain[-1]["step"] if chain else 0
