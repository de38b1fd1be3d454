"""`outlast dev pull`: verified, and never outside of its target."""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outlast.cli.boots import Vm
from outlast.cli.dev import pull
from outlast.cli.dev.channel import Channel, Lost
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


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        *((name, "must be a relative path") for name in ("..", "a/../b", "a\\b", "./x", "", "a\0")),
        *((name, "must have no control characters") for name in ("\x1b[2J", "a\nb", "\x7f")),
        *((name, "must have at most 1024 bytes") for name in ("x" * 256, "a/" * 600 + "b")),
        ("good", "file 'good': is there twice"),
        ("good/x", "'good' would be a file and a folder"),
        ("\ud800", "must be valid UTF-8"),
        (None, "file None: must have a name and a size"),
        *(
            (["x", size, DIGEST], "must have a name and a size")
            for size in (-1, "4", math.inf, None)
        ),
        (["x", 4, 0], "must be 64 hexadecimal digits"),
        (["x", 4], "the VM's list of files"),
        (7, "the VM's list of files"),
    ],
)
def test_what_a_vm_lists_is_checked(entry: Any, why: str) -> None:
    second = [entry, 4, DIGEST] if isinstance(entry, str | None) else entry
    with pytest.raises(OperateError, match=re.escape(why)) as refused:
        pull._checked([["good", 4, DIGEST], second])
    assert str(refused.value).startswith("the VM's list of files: ")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hello", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"size": -1}', "size must be 0 to"),
        ('{"size": 1e999}', "size must be 0 to"),
        ('{"size": 99999999999}', "size must be 0 to"),
    ],
)
def test_a_connection_ends_with_a_sentence_if_a_vm_sends_garbage(
    line: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"import sys; print('outlast-dev 1'); print({line!r}, flush=True); sys.stdin.read()"
    with Channel(["python3", "-c", script]) as channel, pytest.raises(Lost) as lost:
        channel.receive(250.0, silent_sec=250.0)
    assert why in str(lost.value)
    assert "Traceback" not in capfd.readouterr().err
