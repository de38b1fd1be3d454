"""`outlast dev pull`: verified, and never outside of its target."""

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outlast.cli.boots import Vm
from outlast.cli.dev import pull
from outlast.cli.dev.channel import Channel
from outlast.cli.errors import OperateError, UsageError
from tests.cli.dev.planted import Metadata, enter, metadata_server, plant_vm

VM = Vm("vm", "1", datetime.now(UTC), "zones/z/instances/vm")


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with metadata_server() as found:
        yield found


class Into:
    """The way into a planted VM."""

    def __init__(self, root: Path, metadata: Metadata) -> None:
        self._root, self._metadata = root, metadata

    def vm(self) -> Vm:
        return VM

    def connect(self, vm: Vm) -> Channel:
        return enter(self._root, self._metadata)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return plant_vm(tmp_path / "vm")


@pytest.fixture
def way(home: Path, metadata: Metadata) -> Any:
    return Into(home.parent, metadata)


def take(way: Any, remote: str, local: Path) -> pull.Pulled:
    return pull.pull(way, "first", remote, local)


def test_a_folder_and_a_file_are_copied(way: Any, home: Path, tmp_path: Path) -> None:
    (home / "out/sub").mkdir(parents=True)
    (home / "out/a.json").write_text("{}")
    (home / "out/sub/b.bin").write_bytes(b"x" * 600_000)
    (home / "out/empty").write_bytes(b"")
    pulled = take(way, "out", tmp_path / "mine/copy")
    assert (pulled.files, pulled.size) == (3, 600_002)
    assert (tmp_path / "mine/copy/sub/b.bin").read_bytes() == b"x" * 600_000
    (tmp_path / "there").mkdir()
    assert take(way, "out/a.json", tmp_path / "there").path == tmp_path / "there/a.json"
    assert take(way, "/home/out/a.json", tmp_path / "named.json").size == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "named.json", "there", "vm"]


def test_nothing_here_is_replaced(way: Any, home: Path, tmp_path: Path) -> None:
    (home / "a").write_text("new")
    (tmp_path / "a").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    for local in (tmp_path / "a", tmp_path, tmp_path / "dangling"):
        with pytest.raises(UsageError, match="exists already"):
            take(way, "a", local)
    assert (tmp_path / "a").read_text() == "mine"
    with pytest.raises(UsageError, match="must name a file or a folder"):
        take(way, "..", tmp_path / "b")


def test_links_and_other_things_are_refused(way: Any, home: Path, tmp_path: Path) -> None:
    (home / "out").mkdir()
    (home / "out/key").symlink_to("/etc/shadow")
    (home / "linked").symlink_to("out")
    for remote in ("out", "linked"):
        with pytest.raises(OperateError, match="is a link; name what it leads to"):
            take(way, remote, tmp_path / "copy")
    with pytest.raises(OperateError, match=r"^none: cannot be read on the VM \(No such file"):
        take(way, "none", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


AGENT = """
import json, sys
while not sys.stdin.buffer.readline().startswith(b'{"do": "begin"'):
    pass
print("outlast-dev 1", flush=True)
print(json.dumps({"kind": "ready", "files": %s}), flush=True)
for line in sys.stdin:
    data = %r
    print(json.dumps({"kind": "piece", "size": len(data)}) + "\\n" + data, end="", flush=True)
    print(json.dumps({"kind": "piece"}), flush=True)
"""
DIGEST = hashlib.sha256(b"evil").hexdigest()


@pytest.mark.parametrize(
    ("files", "data", "why"),
    [
        ([["../../x", 4, DIGEST]], "evil", "must be a relative path"),
        ([["/tmp/x", 4, DIGEST]], "evil", "must be a relative path"),
        ([["a", 4, DIGEST], ["a/b", 4, DIGEST]], "evil", "a"),
        ([["x", 4, "0" * 64]], "evil", "x: changed on the VM while it was copied"),
        ([["x", 2, DIGEST]], "evil", "x: changed on the VM while it was copied"),
        ([["x", 4, "x"]], "evil", "must be 64 hexadecimal digits"),
        ("nothing", "evil", "the VM's list of files"),
    ],
)
def test_a_hostile_vm_writes_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Any, data: str, why: str
) -> None:
    class Hostile:
        def vm(self) -> Vm:
            return VM

        def connect(self, vm: Vm) -> Channel:
            return Channel(["python3", "-c", AGENT % (json.dumps(files), data)])

    (tmp_path / "here").mkdir()
    with pytest.raises(OperateError, match=why):
        take(Hostile(), "out", tmp_path / "here/copy")
    assert [path for path in tmp_path.rglob("*")] == [tmp_path / "here"]
