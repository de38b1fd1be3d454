"""Where a VM's supervisor lets snapshots be written: in memory, on local SSDs, on its disk."""

from pathlib import Path
from typing import Any

import pytest

from outlast.supervisor import on_vm
from outlast.supervisor.health import Life
from outlast.supervisor.notice import Notices
from outlast.supervisor.secrets import Mask
from outlast.supervisor.site import MachineClock, Site
from tests.supervisor.world import SPEC


def site(monkeypatch: pytest.MonkeyPatch, vm: Path) -> Site:
    """The folders that the supervisor of a VM with its files in ``vm`` uses."""

    def rooted(path: str) -> Path:
        return vm / path.lstrip("/")

    monkeypatch.setattr(on_vm, "rooted", rooted)
    nothing: Any = None
    life, notices = Life(None), Notices(SPEC.timeouts)
    clock = MachineClock(notices)
    return on_vm._vm_site(SPEC, nothing, nothing, notices, vm, life, Mask(), clock)


@pytest.fixture
def vm(tmp_path: Path) -> Path:
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "dev/disk/by-id").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text("/dev/sda1 / ext4 rw,relatime 0 0\n")
    return tmp_path


def test_without_a_local_ssd_snapshots_go_to_memory_and_then_the_disk(
    monkeypatch: pytest.MonkeyPatch, vm: Path
) -> None:
    left = vm / "var/lib/outlast/snapshots/snap-000001"
    left.mkdir(parents=True)
    found = site(monkeypatch, vm)
    assert found.work == vm / "dev/shm/outlast" and found.work.is_dir()
    assert found.scratch == (vm / "var/lib/outlast/snapshots",)
    assert found.scratch[0].is_dir() and not left.exists(), "an earlier supervisor's is gone"


def test_a_local_ssd_goes_before_the_disk_and_takes_the_data(
    monkeypatch: pytest.MonkeyPatch, vm: Path
) -> None:
    (vm / "dev/nvme0n1").touch()
    (vm / "dev/disk/by-id/google-local-nvme-ssd-0").symlink_to(vm / "dev/nvme0n1")
    (vm / "mnt/ssd").mkdir(parents=True)
    (vm / "proc/self/mounts").write_text(
        "/dev/sda1 / ext4 rw,relatime 0 0\n/dev/nvme0n1 /mnt/ssd ext4 rw,discard 0 0\n"
    )
    found = site(monkeypatch, vm)
    assert found.scratch == (vm / "mnt/ssd/outlast", vm / "var/lib/outlast/snapshots")
    assert all(place.is_dir() for place in found.scratch)


def test_a_machine_with_too_little_memory_uses_its_disk(
    monkeypatch: pytest.MonkeyPatch, vm: Path
) -> None:
    (vm / "dev/shm").rmdir()
    assert site(monkeypatch, vm).work == vm / "run/outlast/work"
