"""Where snapshots are written, and what happens if there is no room."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from outlast.base import scratch_space
from outlast.loop import DoesNotFit, snapshot, writing
from outlast.protocol import Error, Stop
from tests.loop.fake_supervisor import FakeSupervisor
from tests.loop.test_training import TOTAL, stopped, walk

MB = 1 << 20


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """Folders and the room that they seem to have."""
    rooms = {tmp_path / "memory": 10 * MB, tmp_path / "ssd": 50 * MB, tmp_path / "disk": 40 * MB}
    for folder in rooms:
        folder.mkdir()
    monkeypatch.setattr(scratch_space, "room", lambda folder: rooms.get(folder, 0))
    return rooms


@pytest.mark.parametrize(
    ("size", "name"),
    [(0, "memory"), (5 * MB, "memory"), (5 * MB + 1, "ssd"), (25 * MB, "ssd"), (30 * MB, "ssd")],
)
def test_snapshots_use_a_folder_with_room_for_two_or_the_largest(
    folders: dict[Path, int], size: int, name: str
) -> None:
    assert scratch_space.choose(list(folders), size).name == name


def test_memory_has_no_more_room_than_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = scratch_space.room(tmp_path)
    assert on_disk > 0
    monkeypatch.setattr(scratch_space, "file_system_type", lambda folder: "tmpfs")
    monkeypatch.setattr(scratch_space, "_available_memory", lambda: 7)
    assert scratch_space.room(tmp_path) == 7
    monkeypatch.setattr(scratch_space, "_available_memory", lambda: None)
    assert scratch_space.room(tmp_path) > 7


def test_local_ssds_are_known_by_their_names(tmp_path: Path) -> None:
    def rooted(path: str) -> Path:
        return Path(f"{tmp_path}{path}")

    assert scratch_space.local_ssds(rooted) == []
    by_id = rooted("/dev/disk/by-id")
    by_id.mkdir(parents=True)
    rooted("/proc/self").mkdir(parents=True)
    for device, name in (("nvme0n1", "google-local-nvme-ssd-0"), ("sda", "google-boot")):
        rooted(f"/dev/{device}").touch()
        (by_id / name).symlink_to(f"../../{device}")
    rooted("/proc/self/mounts").write_text(
        "/dev/sda / ext4 rw,relatime 0 0\n"
        "/dev/nvme0n1 /mnt/fast\\040disk ext4 rw,discard 0 0\n"
        "/dev/nvme0n1 /mnt/read ext4 ro 0 0\n"
        "proc /proc proc rw 0 0\n"
    )
    assert scratch_space.local_ssds(rooted) == [rooted("/mnt/fast disk")]


def test_snapshots_go_where_two_of_them_fit(
    supervisor: FakeSupervisor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    supervisor.scratch = [disk]
    monkeypatch.setattr(scratch_space, "room", lambda folder: 10 * MB if folder == disk else 30)
    walk()
    assert supervisor.gone.wait(60)
    assert {Path(taken.path).parent for taken, _ in supervisor.committed} == {disk}
    assert len(supervisor.committed) == TOTAL and not list(disk.iterdir())
    said = capsys.readouterr().err
    assert f"go to {disk}: {supervisor.work} has 30 bytes free" in said


def full_for(monkeypatch: pytest.MonkeyPatch, tries: int) -> list[Path]:
    """The disk is full for a number of snapshots after the proof at step 0; yields the tries."""
    tried: list[Path] = []
    write = snapshot.write

    def full(folder: Path, saved: snapshot.Saved, **named: Any) -> None:
        if not folder.name.startswith("tmp-proof"):
            tried.append(folder)
            if len(tried) <= tries:
                folder.mkdir()
                (folder / "arrays.bin").write_bytes(b"as far as it went")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(folder, saved, **named)

    monkeypatch.setattr(snapshot, "write", full)
    monkeypatch.setattr(writing, "BUSY_RETRY_SEC", 0.02)
    return tried


def test_a_full_disk_is_tried_again(
    supervisor: FakeSupervisor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full_for(monkeypatch, 3)
    walk()
    assert supervisor.gone.wait(60)
    assert [taken.step for taken, _ in supervisor.committed] == list(range(1, TOTAL + 1))
    said = capsys.readouterr().err
    assert said.count("no room for a snapshot") == 1 and "room for the snapshot at try 4" in said
    assert not list(supervisor.work.iterdir())


def test_a_disk_that_stays_full_ends_with_the_reason(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = full_for(monkeypatch, 10**9)
    monkeypatch.setattr(writing, "FULL_RETRY_SEC", 10.0)
    with pytest.raises(DoesNotFit, match="bytes free; choose a machine with more memory"):
        walk()
    assert supervisor.gone.wait(60)
    (error,) = supervisor.of(Error)
    assert error.kind == "does-not-fit" and str(supervisor.work) in error.message
    assert len(tried) > 1 and supervisor.committed == []
    assert not list(supervisor.work.iterdir())


def test_a_state_without_room_for_its_proof_does_not_fit(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, *_: Any, **__: Any) -> None:
        folder.mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(snapshot, "write", full)
    with pytest.raises(DoesNotFit, match="bytes free; choose a machine with more memory"):
        walk()
    assert supervisor.gone.wait(60)
    (error,) = supervisor.of(Error)
    assert error.kind == "does-not-fit" and supervisor.committed == []
    assert not list(supervisor.work.iterdir())


def test_another_disk_error_is_reported_at_once(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(snapshot, "publish", broken)
    with pytest.raises(OSError, match="Input/output error"):
        walk()


def test_a_stop_without_a_snapshot_writes_none(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    """The supervisor said that there was no time left to commit it."""
    supervisor.every = "1000"

    def each(step: int) -> None:
        if step == 5:
            supervisor.push(Stop(20.0, snapshot=False))

    assert stopped(each) == 75
    assert supervisor.gone.wait(60)
    assert [taken.step for taken, _ in supervisor.committed] == [4]  # the best of before
    assert not list(supervisor.work.iterdir())
    assert "resumes from the checkpoint before" in capsys.readouterr().err
