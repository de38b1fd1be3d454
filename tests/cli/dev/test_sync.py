"""`outlast dev sync` through `gcloud compute ssh`, with real processes at both ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.base.exits import CTRL_C, USAGE, State
from outlast.bucket.headfile import HeadFile
from outlast.bucket.store import MemoryStore
from outlast.cli.boots import Vm
from outlast.cli.dev import vms
from outlast.cli.dev.source import Source
from outlast.cli.dev.sync import Sync
from outlast.cli.errors import OperateError, UsageError
from outlast.cloud.compute import Group
from tests.cli.dev.planted import (
    Metadata,
    calls,
    marked,
    metadata_server,
    plant_gcloud,
    plant_vm,
)
from tests.cli.test_overview import layout, plant

DRIVER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from outlast.cli import app
from outlast.cli.boots import Vm
from outlast.cli.commands import dev
from outlast.cli.dev.sync import Sync
from outlast.cli.dev.vms import Way
from outlast.cloud.compute import Group

here = Path(sys.argv.pop(1))

class Found(Way):
    def vm(self):
        name = (here / "name").read_text().strip()
        return Vm(name, name, datetime.now(UTC), f"zones/z1/instances/{name}") if name else None

Sync.may_share = lambda self: self.share_gpu
dev._way = lambda experiment, user: (None, Found(Group("p1", "zones/z1", "g"), user))
app.main()
"""


class Place:
    """A laptop's folder, VMs by name, and the command between them."""

    def __init__(self, home: Path, metadata: Metadata) -> None:
        self.home = home
        self.code = home / "code"
        self.code.mkdir()
        (home / "vms").mkdir()
        self._bin = plant_gcloud(home / "bin")
        self._metadata = metadata
        self.log = home / "gcloud.log"
        self.started: list[subprocess.Popen[bytes]] = []

    def vm(self, name: str) -> Path:
        """Makes the VM the newest of the group; returns its folder of code."""
        if not (self.home / "vms" / name).exists():
            plant_vm(self.home / "vms" / name)
        (self.home / "name").write_text(name)
        return self.home / "vms" / name / "home/outlast-dev/first"

    def sync(self, *words: str) -> subprocess.Popen[bytes]:
        env = {
            **{key: value for key, value in os.environ.items() if "STORAGE" not in key},
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "GCLOUD_LOG": str(self.log),
            "GCLOUD_VMS": str(self.home / "vms"),
            "GCLOUD_METADATA": self._metadata.base,
        }
        argv = [sys.executable, "-c", DRIVER, str(self.home), "dev", "sync", "first"]
        with (self.home / "said").open("ab") as file:
            process = subprocess.Popen(
                [*argv, "--source", str(self.code), *words],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    @property
    def said(self) -> str:
        return (self.home / "said").read_text()

    def wait(self, text: str, count: int = 1) -> None:
        def there() -> bool:
            assert self.started[-1].poll() is None or self.said.count(text) >= count, self.said
            return self.said.count(text) >= count

        until(there, f"{text} in {self.said}")

    @property
    def processes(self) -> list[int]:
        """Everything that runs there or on the way, the commands themselves aside."""
        own = {process.pid for process in self.started}
        found = {*marked(f"={self.home}/vms"), *marked(f"GCLOUD_LOG={self.log}")}
        return sorted(found - own)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with metadata_server() as metadata:
        made = Place(tmp_path, metadata)
        yield made
        for process in made.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        until(lambda: not made.processes, "the end of all processes")


def test_code_follows_and_the_run_is_restarted(place: Place) -> None:
    there = place.vm("vm1")
    (place.code / "train.py").write_text("one")
    (place.code / "lib").mkdir()
    (place.code / "lib/old.py").write_text("old")
    (place.code / ".env").write_text("KEY=x")
    (place.code / "notes.ipynb").write_text("{}")
    place.sync("--exclude", "*.ipynb", "--user", "ann")
    place.wait("trains one")
    assert sorted(path.name for path in there.rglob("*")) == ["lib", "old.py", "train.py"]
    (there / "made-there").write_text("by the run")
    (place.code / "lib/old.py").unlink()
    (place.code / "train.py").write_text("two")
    place.wait("trains two")
    assert sorted(path.name for path in there.rglob("*")) == ["made-there", "train.py"]
    (words,) = calls(place.log)
    assert words[:9] == [
        *("compute", "ssh", "ann@vm1", "--zone", "z1", "--project", "p1", "--tunnel-through-iap"),
        "--quiet",
    ]


def test_a_touched_file_restarts_nothing(place: Place) -> None:
    place.vm("vm1")
    (place.code / "train.py").write_text("one")
    place.sync()
    place.wait("trains one")
    os.utime(place.code / "train.py")
    (place.code / "more.py").write_text("")
    place.wait("1 file sent", count=2)
    place.wait("trains one", count=2)
    assert place.said.count("trains one") == 2


def test_a_recreated_vm_gets_everything_again(place: Place) -> None:
    place.vm("vm1")
    (place.code / "train.py").write_text("one")
    (place.code / "lib.py").write_text("x")
    place.sync()
    place.wait("trains one")
    shell = int((place.home / "vms/vm1/shell").read_text())
    (place.home / "name").write_text("")
    for pid in (shell, *marked(f"OUTLAST_DEV={place.home}/vms/vm1")):
        os.kill(pid, signal.SIGKILL)
    place.wait("has no VM now; waiting for one")
    there = place.vm("vm2")
    place.wait("trains one", count=2)
    assert sorted(path.name for path in there.iterdir()) == ["lib.py", "train.py"]


def test_ctrl_c_leaves_no_process_here_or_there(place: Place) -> None:
    place.vm("vm1")
    (place.code / "train.py").write_text("one")
    command = place.sync()
    place.wait("trains one")
    assert len(place.processes) >= 3
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == CTRL_C
    assert place.processes == []
    assert "interrupted; everything it started has ended" in place.said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_command_leaves_no_process_here_or_there(place: Place, number: int) -> None:
    place.vm("vm1")
    (place.code / "train.py").write_text("one")
    command = place.sync()
    place.wait("trains one")
    command.send_signal(number)
    command.wait(60)
    until(lambda: not place.processes, "the end of all processes")


def test_what_must_not_leave_is_named_and_synced_once_it_is_gone(place: Place) -> None:
    there = place.vm("vm1")
    (place.code / "train.py").write_text("one")
    place.sync()
    place.wait("trains one")
    (place.code / "out.py").symlink_to("/etc/passwd")
    (place.code / "train.py").write_text("two")
    place.wait("out.py: is a link to /etc/passwd")
    (place.code / "out.py").unlink()
    place.wait("trains two")
    assert [path.name for path in there.iterdir()] == ["train.py"]


def test_a_first_look_that_is_refused_ends_the_command(place: Place) -> None:
    place.vm("vm1")
    (place.code / "out.py").symlink_to("/etc/passwd")
    assert place.sync().wait(60) == USAGE
    assert place.said.startswith("outlast: out.py: is a link") and not calls(place.log)


def test_a_vm_without_a_way_in_is_named(place: Place) -> None:
    (place.home / "name").write_text("vm1")
    assert place.sync().wait(60) == 1
    assert "Could not fetch resource vm1; on Google, set outlast:ssh to iap" in place.said
    assert len(calls(place.log)) == 3


def test_gpus_are_shared_once_the_experiments_run_has_ended(tmp_path: Path) -> None:
    store = MemoryStore()
    deployed: Any = SimpleNamespace(head_file=lambda: HeadFile(store, layout("first")))
    way: Any = None
    (tmp_path / "code").mkdir()
    made = [
        Sync(deployed, way, Source(tmp_path / "code"), "code", share) for share in (False, True)
    ]
    assert [one.may_share() for one in made] == [False, True]  # not begun: it will
    plant(store, "first")
    assert [one.may_share() for one in made] == [False, True]
    plant(store, "first", state=State.DONE)
    assert [one.may_share() for one in made] == [True, True]


def test_without_gcloud_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    vm = Vm("vm", "1", datetime.now(UTC), "zones/z/instances/vm")
    with pytest.raises(OperateError, match="^gcloud: is not on PATH"):
        vms.Way(Group("p", "zones/z", "g")).connect(vm)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    with pytest.raises(UsageError, match="VMs of the local cloud have one user"):
        vms.Way(Group("p", "zones/z", "g"), "ann").connect(vm)
