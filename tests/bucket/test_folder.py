"""The supervisor of a run in a folder, in this process: a disk that is full, a folder refused."""

import argparse
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.base.exits import DONE, USAGE, State
from outlast.bucket.head import read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import FolderStore, Forbidden
from outlast.loop.errors import LoopError
from outlast.loop.session import Session, connect
from outlast.protocol import Ended, Welcome
from outlast.supervisor import life, on_computer
from outlast.supervisor.stop import Stop

WAIT_SEC = 90.0


class FullDisk(FolderStore):
    """Has no room for objects whose name ends so."""

    path_end = ""

    def put(self, path: str, data: Any, **conditions: Any) -> Any:
        if self.path_end and path.endswith(self.path_end):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().put(path, data, **conditions)


class Folder:
    """A supervisor in a thread; its trainer is the test."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.socket = folder / "s"
        self._codes: list[int] = []
        self._thread: threading.Thread | None = None

    def start(self, run: str = "0123456789") -> Session:
        options = argparse.Namespace(
            run_dir=str(self.run_dir),
            socket=self.socket,
            trainer="walk",
            run=run,
            checkpoint_every="auto",
            init="",
            model_output_path="",
            parent=None,
        )

        def live() -> None:
            self._codes.append(on_computer.run_folder(Stop(), options))

        self._thread = threading.Thread(target=live)
        self._thread.start()
        ticks = threading.Event()
        while not self.socket.exists():
            assert self._thread.is_alive() and not ticks.wait(0.01)
        return Session(connect(self.socket), total=1)

    def ended(self) -> int:
        assert self._thread is not None
        self._thread.join(WAIT_SEC)
        return self._codes.pop()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the disk full for objects whose name ends so."""
    monkeypatch.setattr(on_computer, "open_store", lambda url, **_: FullDisk(Path(url)))
    return lambda path_end: monkeypatch.setattr(FullDisk, "path_end", path_end)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    assert made._thread is None or not made._thread.is_alive()


def finish(session: Session) -> None:
    welcome = session.welcome()
    assert isinstance(welcome, Welcome)
    result = Path(welcome.work) / "result"
    result.mkdir()
    (result / "metrics.json").write_text("{}")
    session.complete(1, result, 0)
    session.close()


def test_the_trainer_learns_that_the_disk_is_full(
    folder: Folder, full: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    full("HEAD")
    session = folder.start()
    with pytest.raises(LoopError, match="the supervisor refuses: .*No space left on device"):
        session.welcome()
    session.close()
    assert folder.ended() == 1
    assert not capfd.readouterr().err, "the trainer says it"


def test_a_disk_full_for_the_end_record_takes_nothing_from_the_run(
    folder: Folder, full: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    full("attempts/000001/end.json")
    finish(folder.start())
    assert folder.ended() == DONE
    assert read_head(FolderStore(folder.run_dir), Layout("", "")).head.state is State.DONE
    said = capfd.readouterr().err
    assert "outlast: the end of term 1 was not recorded: [Errno 28] No space left" in said
    assert "outlast: the run is done; its result is in" in said.splitlines()[-1]
    assert not (folder.run_dir / "attempts/000001/end.json").exists()


@pytest.mark.parametrize("path_end", ["attempts/000001/start.json", "RESULT.json", "HEAD"])
def test_one_refusal_of_a_moment_ends_no_run(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, path_end: str
) -> None:
    """As a bucket's, when a token is renewed."""
    refused: list[str] = []

    class Moody(FolderStore):
        def put(self, path: str, data: Any, **conditions: Any) -> Any:
            is_first_head = path == "HEAD" and conditions.get("if_generation_match") == 0
            if path.endswith(path_end) and not refused and not is_first_head:
                refused.append(path)
                raise Forbidden(f"{path}: 401")
            return super().put(path, data, **conditions)

    monkeypatch.setattr(on_computer, "open_store", lambda url, **_: Moody(Path(url)))
    finish(folder.start())
    assert folder.ended() == DONE and refused
    assert read_head(FolderStore(folder.run_dir), Layout("", "")).head.state is State.DONE


def test_a_folder_that_is_anothers_is_refused_with_its_name(folder: Folder) -> None:
    finish(folder.start())
    assert folder.ended() == DONE
    session = folder.start("aaaaaaaaaa")
    answer = session.welcome()
    assert isinstance(answer, Ended) and answer.exit == USAGE
    assert answer.message.startswith(f"run folder {folder.run_dir}: belongs to another run (other")
    session.close()
    assert folder.ended() == USAGE


@pytest.mark.parametrize(
    ("held", "why"), [("{bad", "cannot be read as one"), (None, "is gone while attempts exist")]
)
def test_a_folder_without_a_sound_head_is_refused_with_what_helps(
    folder: Folder, held: str | None, why: str
) -> None:
    finish(folder.start())
    assert folder.ended() == DONE
    head = folder.run_dir / "HEAD"
    head.unlink() if held is None else head.write_text(held)
    session = folder.start()
    answer = session.welcome()
    assert isinstance(answer, Ended) and answer.exit == USAGE
    assert answer.message == (
        f"run folder {folder.run_dir}: its HEAD {why}; repair it: outlast repair {folder.run_dir}, "
        "or give another --run-dir to start from scratch"
    )
    session.close()
    assert folder.ended() == USAGE


def test_a_folder_with_another_programs_head_is_refused_and_left_alone(folder: Folder) -> None:
    folder.run_dir.mkdir()
    (folder.run_dir / "HEAD").write_text("ref: refs/heads/main")
    session = folder.start()
    answer = session.welcome()
    assert isinstance(answer, Ended) and answer.exit == USAGE
    assert answer.message == (
        f"run folder {folder.run_dir}: {folder.run_dir}/HEAD: is not an object of this run; move"
        " it out of the folder"
    )
    session.close()
    assert folder.ended() == USAGE
    assert (folder.run_dir / "HEAD").read_text() == "ref: refs/heads/main"


@pytest.mark.parametrize("silent_sec", [599.0, 600.0])
def test_a_killed_try_without_a_checkpoint_makes_way_once_it_was_silent(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, silent_sec: float
) -> None:
    session = folder.start()
    assert isinstance(session.welcome(), Welcome)
    session.close()
    folder.ended()
    (folder.run_dir / "attempts/000001/end.json").unlink()  # as if it had been killed
    monkeypatch.setattr(life, "silent_seconds", lambda *_: silent_sec)
    session = folder.start("aaaaaaaaaa")
    answer = session.welcome()
    session.close()
    folder.ended()
    assert isinstance(answer, Welcome if silent_sec >= 600 else Ended)
    aside = list(folder.run_dir.parent.glob("run.0123456789-*/HEAD"))
    assert len(aside) == (silent_sec >= 600)
