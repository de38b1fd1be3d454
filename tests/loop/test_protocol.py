"""The protocol: messages arrive unchanged, or are refused in one sentence."""

import threading
from pathlib import Path

import pytest

from outlast import protocol
from outlast.protocol import Channel, ServerSocket

EXAMPLES = [
    protocol.Hello(1, 42, 100),
    protocol.Hello(1, 42),
    protocol.Snapshot("000001", "/run/work/snap-000001", 7, ["best"], 120),
    protocol.Tick(7, "eval"),
    protocol.Complete(9, "/run/work/result", 130),
    protocol.Error("does not load: ü\n", "does-not-fit"),
    protocol.Welcome(None, 0, "/run/work", "/run/work/rows.jsonl", 1, "auto"),
    protocol.Welcome("/run/work/restored", 7, "/run/work", "/run/work/rows.jsonl", 2, "30s"),
    protocol.Ended("done", 0, "run 0123456789 is done"),
    protocol.Accepted("000001"),
    protocol.Busy("000001"),
    protocol.Committed("000001", 7),
    protocol.Failed("000001", "disk full"),
    protocol.Stop(27.5),
    protocol.Checkpoint("maintenance"),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_survives_a_line(message: protocol.Message) -> None:
    line = protocol.encode(message)
    assert line.count(b"\n") == 1
    assert protocol.decode(line) == message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "is a JSON object"),
        (b"{}", "message type None"),
        (b'{"type":"snapshots"}', "message type 'snapshots'"),
        (b'{"type":["tick"]}', "message type"),
        (b'{"type":"tick","step":1,"speed":2}', "field 'speed' is not known"),
        (b'{"type":"tick"}', "field 'step' is missing"),
        (b'{"type":"tick","step":"1"}', "field 'step' is '1', must be int"),
        (b'{"type":"tick","step":true}', "field 'step' is True, must be int"),
        (b'{"type":"stop","seconds":null}', "field 'seconds' is None, must be float"),
        (
            b'{"type":"snapshot","id":"1","path":"p","step":1,"tags":[1],"rows_offset":0}',
            "must be list[str]",
        ),
        (b'{"type":"hello","version":1,"pid":1,"total":1.5}', "must be int | null"),
    ],
)
def test_unknown_messages_are_refused_by_name(line: bytes, says: str) -> None:
    with pytest.raises(protocol.UnknownMessage) as caught:
        protocol.decode(line)
    assert says in str(caught.value)


def test_a_deep_folder_has_a_socket_too(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 15) / ("deeper" * 10)
    folder.mkdir(parents=True)
    path = folder / "supervisor.sock"
    with ServerSocket(path) as listener, Channel.connect(path) as trainer:
        trainer.send(protocol.Tick(1))
        accepted = listener.accept(5)
        assert accepted is not None
        with accepted:
            assert accepted.receive(5) == protocol.Tick(1)
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


def test_messages_sent_before_closing_are_still_read(tmp_path: Path) -> None:
    with ServerSocket(tmp_path / "s") as listener, Channel.connect(tmp_path / "s") as trainer:
        accepted = listener.accept(5)
        assert accepted is not None
        for step in range(3):
            accepted.send(protocol.Tick(step))
        accepted.close()
        assert [message for message in trainer] == [protocol.Tick(step) for step in range(3)]
        with pytest.raises(protocol.Closed):
            trainer.receive(5)
        with pytest.raises(protocol.Closed):
            for _ in range(1000):
                trainer.send(protocol.Tick(1))


def test_receiving_without_a_message_respects_its_timeout(tmp_path: Path) -> None:
    with ServerSocket(tmp_path / "s") as listener:
        assert listener.accept(0) is None
        with Channel.connect(tmp_path / "s") as trainer:
            assert trainer.receive(0) is None
            assert trainer.receive(0.01) is None


def test_closing_wakes_waiting_threads(tmp_path: Path) -> None:
    listener = ServerSocket(tmp_path / "s")
    woken = []

    def wait() -> None:
        try:
            listener.accept()
        except protocol.Closed:
            woken.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    listener.close()
    thread.join(60)
    assert woken == [True]


def test_a_missing_supervisor_gives_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(protocol.Closed, match="no supervisor answers there"):
        Channel.connect(tmp_path / "absent", timeout_sec=0.05)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (protocol.Hello(2, 1), "hello version 2: this supervisor speaks 1"),
        (protocol.Tick(1), "first message tick: must be hello"),
    ],
)
def test_another_version_gets_the_reason(
    tmp_path: Path, first: protocol.Message, says: str
) -> None:
    with ServerSocket(tmp_path / "s") as listener, Channel.connect(tmp_path / "s") as trainer:
        trainer.send(first)
        accepted = listener.accept(5)
        assert accepted is not None
        with accepted, pytest.raises(protocol.ProtocolError, match=says):
            protocol.greet(accepted, timeout_sec=5)
        answer = trainer.receive(5)
        assert isinstance(answer, protocol.Error) and says in answer.message


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    with ServerSocket(tmp_path / "s") as listener, Channel.connect(tmp_path / "s") as trainer:
        accepted = listener.accept(5)
        assert accepted is not None
        with accepted:
            sender = threading.Thread(
                target=lambda: trainer._socket.sendall(b"x" * (protocol.LINE_BYTES_MAX + 70_000))
            )
            sender.start()
            with pytest.raises(protocol.UnknownMessage, match="longer than"):
                accepted.receive(5)
            while trainer_is_alive := sender.is_alive():
                accepted._socket.recv(65536)
                sender.join(0.01)
            assert not trainer_is_alive
