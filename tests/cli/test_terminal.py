"""Text from a bucket, a log or a trainer is text: it sets no clipboard, clears no screen, forges
no link and no mention."""

import hashlib
import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outlast.base.exits import Reason, State
from outlast.base.visible import one_line, visible
from outlast.bucket.data import DataError
from outlast.bucket.errors import CommitError
from outlast.bucket.head import Checkpoint, End, Head, HeadError, Lineage, Result
from outlast.bucket.layout import AttemptEnd, Layout
from outlast.bucket.store import StoreError, open_store
from outlast.cli.errors import OperateError
from outlast.cli.review import show
from outlast.cli.runs import Table
from outlast.dynamic import host
from outlast.loop import words
from outlast.loop.errors import LoopError
from outlast.spec.metrics import Last
from outlast.spec.result import ResultFile, ResultManifest
from tests.cli.records import heartbeat_record, start_record

CLIPBOARD = "\x1b]52;c;Y3VybA==\x1b\\"
CLEAR = "\x1b[2J\x1b[H\x1b[8m"
TITLE = "\x1b]0;pwned\x07"
C1 = "\x9b31m"
REVERSED = "\u202egpj.exe\u2066"
MARKUP = "[link=https://evil.example]x[/link][/b] :bomb:"
HOSTILE = CLIPBOARD + CLEAR + TITLE + C1 + REVERSED + MARKUP
START = datetime(2026, 1, 1, tzinfo=UTC)

COUNTS = {"failures": 0, "no_progress": 0, "data": None, "nonce": "0" * 32}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in a folder whose records hold hostile text wherever text is free."""
    store = open_store(str(tmp_path / "run"))
    layout = Layout("", "")
    start = replace(start_record(1, 0, START), trainer=HOSTILE, versions={HOSTILE: HOSTILE})
    end = AttemptEnd(
        1,
        Reason.USER_FAILED,
        State.OPEN,
        1,
        3,
        None,
        f"boom {HOSTILE}",
        ("Traceback (most recent call last):", f"ValueError: {HOSTILE}"),
        0.0,
        START,
    )
    heartbeat = heartbeat_record(1, 3, START, total=9, row={"step": 3, f"loss{HOSTILE}": 0.5})
    heartbeat = replace(
        heartbeat, metrics={f"loss{HOSTILE}": Last(3, HOSTILE)}, warnings=(HOSTILE,)
    )
    head = Head(
        owner="folder/a/b",
        resume=0,
        placement=0,
        term=1,
        state=State.OPEN,
        end=None,
        started=START,
        deadline=START.replace(year=2030),
        chain=(Checkpoint("t000001/s000000000003-aa/", 1, "0" * 64, 1, 3, ("kept",)),),
        lineage=(Lineage(1, 0),),
        failures=0,
        no_progress=0,
        data=None,
        nonce="0" * 32,
    )
    for name, record in (
        (layout.attempt_start(1), start),
        (layout.attempt_end(1), end),
        (layout.heartbeat(1), heartbeat),
        (layout.head, head),
    ):
        store.put(name, record.to_json())
    return tmp_path / "run"


def on_a_terminal(*words: str) -> bytes:
    """What the command writes to its own terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="200")
        os.execv(sys.executable, [sys.executable, "-m", "outlast.cli", *words])
    written = b""
    try:
        while block := os.read(terminal, 65536):
            written += block
    except OSError:  # Linux says so at the end of a terminal
        pass
    os.close(terminal)
    os.waitpid(child, 0)
    return written


@pytest.mark.parametrize("command", ["status", "checkpoints", "costs"])
def test_hostile_records_do_not_reach_the_terminal(run: Path, command: str) -> None:
    written = on_a_terminal(command, str(run)).decode()
    for sequence in (CLIPBOARD, CLEAR, TITLE, C1, "\x1b]8;", "\u202e", "\u2066", "💣"):
        assert sequence not in written

    if command == "status":
        # Shown as it is, and not taken for markup.
        assert "[link=https://evil.example]x[/link][/b] :bomb:" in written
        assert "loss?]52;c;Y3VybA==?" in written


def test_a_hostile_tag_is_refused_in_text(run: Path) -> None:
    store = open_store(str(run))
    layout = Layout("", "")
    head = store.get(layout.head)[0].replace(b'"kept"', json.dumps(f"tag{HOSTILE}").encode())
    store.put(layout.head, head)
    written = on_a_terminal("checkpoints", str(run)).decode()
    assert "Head.chain[0].tags" in written
    assert "\x1b" not in written and "\u202e" not in written


def test_json_holds_the_text_and_no_control_character(run: Path) -> None:
    written = on_a_terminal("status", str(run), "--json").decode()
    assert "\x1b" not in written and "\u202e" not in written
    assert f"loss{HOSTILE}" in json.loads(written)["metrics"]


def test_an_error_that_quotes_what_was_typed_or_read_is_text(tmp_path: Path) -> None:
    written = on_a_terminal("status", str(tmp_path / f"no{HOSTILE}")).decode()
    assert "?]52;c;" in written
    assert "\x1b]" not in written and "\u202e" not in written


def test_a_notebooks_table_is_text() -> None:
    shown = repr(Table([{f"loss{HOSTILE}": HOSTILE}]))
    assert "\x1b" not in shown and "\u202e" not in shown and len(shown.splitlines()) == 2


def test_what_trainers_and_providers_say_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    words.say(f"a tag {HOSTILE}")
    host.say(f"a reason {HOSTILE}")
    said = capsys.readouterr().err
    assert "a tag ?]52" in said and "a reason ?]52" in said
    assert "\x1b" not in said and "\u202e" not in said


def test_a_pull_requests_comment_has_no_link_picture_tag_or_mention() -> None:
    text = "@all ![x](https://evil.example) <img src=x> `code` | cell & more\n# heading"
    shown = show._cell(text)
    for mark in ("@", "![", "](", "<", "`", "\n"):
        assert mark not in shown
    assert "\\|" in shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain · Größe 1 µs\n\tindented", "plain · Größe 1 µs\n\tindented"),
        ("\x1b[31mred\x1b[0m", "?[31mred?[0m"),
        ("a\rb\r\nc", "a b\nc"),
        ("\x00\x07\x7f\x85\x9b", "??? ?"),
        ("\u061c\u200b\u200e\u202a\u202e\u2066\u2069\ufeff", "?" * 8),
        ("\ud800\udcff", "??"),
        ("a\u00a0b\u2028c", "a b c"),
    ],
)
def test_what_a_terminal_obeys_is_replaced(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_one_line_is_one_line() -> None:
    assert one_line("a\nb\r\nc\td\x0be\u2029f") == "a b c d e f"


@pytest.mark.parametrize(
    "kind", [OperateError, LoopError, HeadError, StoreError, DataError, CommitError]
)
def test_an_error_that_no_program_catches_is_text(kind: type[Exception]) -> None:
    """Python's own traceback passes on what a message quotes."""
    said = str(kind(f"x{HOSTILE}"))
    assert said.startswith("x?]52;c;") and "\x1b" not in said and "\u202e" not in said


READ = """
import sys, warnings
import outlast
from outlast.loop import snapshot, state
from outlast.loop.state import Blobs
if sys.argv[1] == "load":
    outlast.open(sys.argv[2] + "/").load("model")
box = {"mode": 1}
state.restore_all({"box": box}, {"box": {"mode": {"$value": ["enum", sys.argv[3], sys.argv[3]]}}},
                  Blobs())
"""


@pytest.mark.parametrize("act", ["load", "restore"])
def test_a_program_that_reads_a_hostile_run_writes_text(tmp_path: Path, act: str) -> None:
    """What a checkpoint or a result holds may be the message of an error."""
    name = f"a.{HOSTILE}"
    text = {"format": 1, "values": {"model": {"$value": ["enum", name, name]}}, "arrays": []}
    files = {"model.json": json.dumps(text).encode(), "model.bin": b""}
    store, layout = open_store(str(tmp_path / "run")), Layout("", "")
    listed = []
    for file, content in files.items():
        store.put(layout.result(1) + file, content)
        listed.append(ResultFile(file, len(content), hashlib.sha256(content).hexdigest()))
    manifest = ResultManifest.of(listed)
    put = store.put(layout.result_manifest(1), manifest.to_json())
    result = Result(layout.result(1), put.generation, manifest.digest)
    end = End(Reason.DONE, 0, 1, result)
    times = {"started": START, "deadline": START}
    head = Head("folder/a/b", 0, 0, 1, State.DONE, end, **times, chain=(), lineage=(), **COUNTS)
    store.put(layout.head, head.to_json())
    env = {**os.environ, "OUTLAST_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", READ, act, str(tmp_path / "run"), name]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, cwd=Path.cwd())
    assert ended.returncode and "?]52;c;" in ended.stderr, ended.stderr
    assert "\x1b" not in ended.stderr and "\u202e" not in ended.stderr
