"""The agent on a VM: what it writes, deletes and refuses, and that it leaves no process."""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.cli.dev import agent
from outlast.cli.dev.channel import Channel, Lost, Refused
from tests.cli.dev.planted import Metadata, enter, marked, metadata_server, plant_vm


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with metadata_server() as found:
        yield found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return plant_vm(tmp_path / "vm")


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


@pytest.fixture
def channel(home: Path, metadata: Metadata) -> Iterator[Channel]:
    with enter(home.parent, metadata) as found:
        found.begin(destination="code", session="s")
        yield found


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(channel: Channel, path: str, data: bytes, **more: Any) -> None:
    message = {"path": path, "size": len(data), "sha256": digest(data), "executable": False}
    channel.send("file", data, **{**message, **more})


def synced(channel: Channel) -> list[str]:
    """The refusals until everything before is done."""
    channel.send("synced")
    why: list[str] = []
    while True:
        message, _ = channel.receive(60)
        if message.get("kind") == "synced":
            return why
        if message.get("kind") == "refused":
            why.append(message["why"])


def heard(channel: Channel, text: str) -> None:
    """Waits for output of the development run."""
    output, deadline = b"", time.monotonic() + 60
    while text.encode() not in output:
        assert time.monotonic() < deadline, output
        output += channel.receive(1)[1]


def there(home: Path) -> list[str]:
    code = home / "code"
    return sorted(path.relative_to(code).as_posix() for path in code.rglob("*"))


def test_files_are_written_replaced_and_deleted_with_their_folders(
    home: Path, channel: Channel
) -> None:
    write(channel, "a/b/c.py", b"1" * 300_000)
    write(channel, "run.sh", b"#!/bin/sh\n", executable=True)
    write(channel, "empty", b"")
    channel.send("link", path="now", target="a/b/c.py")
    assert synced(channel) == []
    assert (home / "code/a/b/c.py").stat().st_size == 300_000
    assert os.access(home / "code/run.sh", os.X_OK)
    assert (home / "code/now").read_bytes() == b"1" * 300_000
    write(channel, "a/b/c.py", b"2")
    channel.send("delete", path="now")
    channel.send("delete", path="run.sh")
    assert synced(channel) == []
    assert there(home) == ["a", "a/b", "a/b/c.py", "empty"]
    channel.send("delete", path="a/b/c.py")
    write(channel, "a", b"a file now")
    assert synced(channel) == []
    assert there(home) == ["a", "empty"]


def test_only_what_was_sent_is_deleted(home: Path, channel: Channel) -> None:
    write(channel, "out/x.py", b"1")
    assert synced(channel) == []
    (home / "code/out/model.bin").write_bytes(b"made by the run")
    for path in ("out/model.bin", "out/x.py"):
        channel.send("delete", path=path)
    assert synced(channel) == []
    assert there(home) == ["out", "out/model.bin"]
    write(channel, "out", b"x")
    (why,) = synced(channel)
    assert why.startswith("out: cannot be written on the VM")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", ".", "a//b"])
def test_nothing_is_written_or_deleted_outside(home: Path, channel: Channel, path: str) -> None:
    (home / "x").write_text("mine")
    write(channel, path, b"1")
    channel.send("delete", path=path)
    channel.send("link", path=path, target="y")
    assert len(synced(channel)) == 3
    assert (home / "x").read_text() == "mine" and there(home) == []


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "a/../../x"])
def test_a_link_that_leads_out_is_refused(home: Path, channel: Channel, target: str) -> None:
    channel.send("link", path="l", target=target)
    (why,) = synced(channel)
    assert "outside of the folder" in why and there(home) == []


def test_a_link_that_the_run_planted_is_not_followed(home: Path, channel: Channel) -> None:
    (home / "elsewhere").mkdir()
    (home / "elsewhere/c.py").write_text("mine")
    write(channel, "a/c.py", b"1")
    assert synced(channel) == []
    (home / "code/a/c.py").unlink()
    (home / "code/a").rmdir()
    (home / "code/a").symlink_to(home / "elsewhere")
    channel.send("delete", path="a/c.py")
    write(channel, "a/d.py", b"2")
    assert synced(channel) == []
    assert sorted(path.name for path in (home / "elsewhere").iterdir()) == ["c.py"]
    assert there(home) == ["a", "a/d.py"] and not (home / "code/a").is_symlink()


def test_a_damaged_file_is_refused_and_the_old_one_stays(home: Path, channel: Channel) -> None:
    write(channel, "a.py", b"1")
    write(channel, "a.py", b"2", sha256="0" * 64)
    write(channel, "b.py", b"3")
    assert synced(channel) == ["a.py: arrived damaged"]
    assert (home / "code/a.py").read_bytes() == b"1" and there(home) == ["a.py", "b.py"]


@pytest.mark.parametrize("destination", [".", "..", "/", "/home", "full", "file"])
def test_a_destination_that_is_not_for_code_is_refused(
    home: Path, metadata: Metadata, destination: str
) -> None:
    (home / "full").mkdir()
    (home / "full/thesis.tex").write_text("x")
    (home / "file").write_text("x")
    with enter(home.parent, metadata) as found, pytest.raises(Refused, match="^destination"):
        found.begin(destination=destination, session="s")
    assert (home / "full/thesis.tex").exists()


def test_what_is_there_is_known_at_the_next_connection(home: Path, metadata: Metadata) -> None:
    with enter(home.parent, metadata) as found:
        found.begin(destination="code", session="s")
        for name in ("a.py", "b.py"):
            write(found, name, b"1")
        synced(found)
    (home / "code/a.py").write_text("2")  # by the run
    with enter(home.parent, metadata) as found:
        files = found.begin(destination="code", session="other")["files"]
    assert files == {"a.py": digest(b"2"), "b.py": digest(b"1")}


def test_what_was_being_written_at_a_crash_can_be_deleted(home: Path, metadata: Metadata) -> None:
    with enter(home.parent, metadata) as found:
        found.begin(destination="code", session="s")
        found.send("plan", paths=["a.py", "never.py"])
        write(found, "a.py", b"1")
        found.send("ping")
        while not (home / "code/a.py").exists():
            found.receive(0.1)
        os.kill(found.pid, signal.SIGKILL)
    with enter(home.parent, metadata) as found:
        assert found.begin(destination="code", session="s")["files"] == {"a.py": digest(b"1")}
        found.send("delete", path="a.py")
        assert synced(found) == [] and there(home) == []


def test_a_second_command_is_refused_but_the_same_one_takes_over(
    home: Path, metadata: Metadata, channel: Channel
) -> None:
    channel.send("start", code="c", share=False)
    heard(channel, "trains nothing")
    with enter(home.parent, metadata) as again:
        assert again.begin(destination="code", session="s")["kind"] == "ready"
        with pytest.raises(Lost, match="the connection ended"):
            while True:
                channel.receive(1)
        until(lambda: not marked(f"OUTLAST_DEV={home}/code"), "the first one's run ends")
        with (
            enter(home.parent, metadata) as other,
            pytest.raises(Refused, match="another outlast dev sync uses it"),
        ):
            other.begin(destination="code", session="t")


def test_a_run_is_restarted_and_ends_with_its_connection(home: Path, channel: Channel) -> None:
    write(channel, "train.py", b"one")
    synced(channel)
    channel.send("start", code="1", share=False)
    heard(channel, "trains one")
    first = set(until(lambda: marked(f"OUTLAST_DEV={home}/code"), "a process"))
    write(channel, "train.py", b"two")
    synced(channel)
    channel.send("start", code="2", share=False)
    heard(channel, "trains two")
    assert first.isdisjoint(marked(f"OUTLAST_DEV={home}/code"))
    assert channel.close()
    assert not marked(f"OUTLAST_DEV={home}/code")


def test_a_run_that_fails_is_reported(home: Path, channel: Channel) -> None:
    write(channel, "train.py", b"fails")
    synced(channel)
    channel.send("start", code="1", share=False)
    ended: dict[str, Any] = {}

    def has_ended() -> bool:
        ended.update(channel.receive(1)[0])
        return ended.get("kind") == "ended"

    until(has_ended, "its end")
    assert ended["code"] == 3


def test_what_a_killed_agent_left_ends_with_the_next(home: Path, metadata: Metadata) -> None:
    with enter(home.parent, metadata) as found:
        found.begin(destination="code", session="s")
        found.send("start", code="1", share=False)
        heard(found, "trains nothing")
        os.kill(found.pid, signal.SIGKILL)
        left = until(lambda: marked(f"OUTLAST_DEV={home}/code"), "what it left")
    with enter(home.parent, metadata) as found:
        found.begin(destination="code", session="s")
        assert set(left).isdisjoint(marked(f"OUTLAST_DEV={home}/code"))


def test_a_silent_connection_ends_the_run(
    home: Path, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a laptop that sleeps: nothing closes the connection."""
    monkeypatch.setattr("outlast.cli.dev.channel.LEASE_SEC", 1.0)
    with enter(home.parent, metadata) as found:
        found.begin(destination="code", session="s")
        found.send("start", code="1", share=False)
        heard(found, "trains nothing")
        until(lambda: not marked(f"OUTLAST_DEV={home}/code"), "the end of the lease")


def test_gpus_are_shared_only_on_request(metadata: Metadata, channel: Channel) -> None:
    metadata.values["outlast-gpus"] = "1"
    channel.send("start", code="1", share=False)
    (why,) = synced(channel)
    assert "its GPU memory would be shared" in why and "--share-gpu" in why
    channel.send("start", code="1", share=True)
    heard(channel, "trains nothing")


def test_a_vm_that_is_not_ready_says_so(home: Path, metadata: Metadata, channel: Channel) -> None:
    metadata.values["outlast-bundle-sha256"] = "b" * 64
    channel.send("start", code="1", share=False)
    message, _ = channel.receive(60)
    assert message["again"] and message["why"] == "the VM has not fetched its bundle yet"


def test_the_agent_marks_as_the_supervisor_knows_it() -> None:
    from outlast.supervisor import development

    assert agent.MARK == development.VARIABLE
