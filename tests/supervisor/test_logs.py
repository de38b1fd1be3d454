"""Files in LOG_DIR: kept as they grow, within bounds, and never in anybody's way."""

import threading
from pathlib import Path

import pytest

from outlast.bucket.store import Unavailable
from outlast.supervisor import logs
from outlast.supervisor.logs import Logs
from tests.log_lines import log_lines


class Kept:
    """What was uploaded; ``trouble`` is raised instead, once it is set."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.said = log_lines()
        self.trouble: Exception | None = None
        self.again = threading.Semaphore(0)

    def put(self, name: str, data: bytes) -> None:
        self.again.release()
        if self.trouble is not None:
            raise self.trouble
        self.puts.append(name)
        self.files[name] = data


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_files_present_at_the_end_are_kept(tmp_path: Path, kept: Kept) -> None:
    own = Logs(tmp_path, kept.put)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "events.1").write_bytes(b"abc")
    own.close(last_words=True)
    assert kept.files == {"train/events.1": b"abc"} and not kept.said


def test_only_changed_files_are_uploaded_again(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "EVERY_SEC", 0.01)
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    own = Logs(tmp_path, kept.put)
    assert kept.again.acquire(timeout=60) and kept.again.acquire(timeout=60)
    (tmp_path / "b").write_bytes(b"23")
    assert kept.again.acquire(timeout=60)
    own.close(last_words=True)
    assert kept.files == {"a": b"1", "b": b"23"} and kept.puts.count("a") == 1


def test_a_failing_store_is_reported_once_and_tried_again(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "EVERY_SEC", 0.01)
    kept.trouble = Unavailable("no answer")
    (tmp_path / "a").write_bytes(b"1")
    own = Logs(tmp_path, kept.put)
    assert all(kept.again.acquire(timeout=60) for _ in range(3))
    kept.trouble = None
    own.close(last_words=True)
    assert kept.files == {"a": b"1"}
    assert kept.said == ["LOG_DIR a: is not kept with the attempt: no answer"]


def test_a_file_that_is_too_large_is_skipped_and_reported(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(logs, "ALL_BYTES_MAX", (1 << 20) + 5)
    (tmp_path / "a").write_bytes(bytes(1 << 20))
    (tmp_path / "b").write_bytes(bytes((1 << 20) + 1))
    (tmp_path / "c").write_bytes(b"12345")
    (tmp_path / "d").write_bytes(b"6")
    own = Logs(tmp_path, kept.put)
    own.close(last_words=True)
    assert list(kept.files) == ["a", "c"]
    assert kept.said == [
        "LOG_DIR b: is not kept with the attempt: is larger than 1 MiB",
        "LOG_DIR d: is not kept with the attempt: together, the files are larger than 1 MiB",
    ]


def test_an_upload_that_hangs_blocks_no_other_work(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LAST_SEC", 0.05)
    proceed = threading.Event()
    (tmp_path / "a").write_bytes(b"1")
    own = Logs(tmp_path, lambda name, data: proceed.wait(60))
    own.close(last_words=True)
    assert not proceed.is_set()
    proceed.set()
