"""A trainer's secrets: read, given to the trainer alone, and masked in all that it says."""

import base64
import json
import os
import random
import re
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from outlast.base.retry import CODE_TRIES, Limits, Patience
from outlast.base.webhook import Announcement, Event
from outlast.protocol import VERSION, Channel, Complete, Error, Hello, Tick
from outlast.supervisor.listener import Connected, Listener, MessageReceived
from outlast.supervisor.metadata import Metadata
from outlast.supervisor.process import Exited, TrainerProcess, trainer_environment
from outlast.supervisor.secrets import (
    Mask,
    SecretReader,
    SecretRefused,
    SecretUnavailable,
    TrainerSecrets,
)
from outlast.supervisor.trainer_log import TrainerLog
from outlast.supervisor.webhook import Webhook
from tests.log_lines import log_lines
from tests.stores import FakeClock
from tests.supervisor.world import wait_until

NAME = "projects/p/secrets/wandb/versions/latest"
LIMITS = Limits(forbidden_sec=30, silent_tries=CODE_TRIES)
SECRET = b"w4ndb/K3y+with=signs&more?%"


class SecretManager:
    """Answers for the metadata server and for Secret Manager."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.statuses: list[int] = []
        manager = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.removeprefix("/v1/").removesuffix(":access")
                body: dict[str, object] = {"access_token": "t", "expires_in": 3600}
                status = 200
                if self.path.startswith("/v1/"):
                    status = manager.statuses.pop(0) if manager.statuses else 200
                    if name not in manager.values and status == 200:
                        status = 404
                    data = base64.b64encode(manager.values.get(name, b"")).decode()
                    # The API leaves an empty field out.
                    body = {"payload": {"data": data} if data else {}}
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretManager]:
    found = SecretManager()
    monkeypatch.setenv("OUTLAST_SECRET_MANAGER_ENDPOINT", f"{found.url}/")
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def said() -> list[str]:
    return log_lines()


@pytest.fixture
def reader(manager: SecretManager, said: list[str]) -> SecretReader:
    metadata = Metadata(f"{manager.url}/computeMetadata/v1")
    return SecretReader(metadata, Patience(FakeClock(), limits=LIMITS))


# -- reading


def test_the_trainer_gets_its_variables_without_the_newline_of_echo(manager, reader):
    other = "projects/k/secrets/hf/versions/2"
    manager.values = {NAME: SECRET + b"\n", other: "zwei\nZeilen ü".encode()}
    found = TrainerSecrets(reader, {"WANDB_API_KEY": NAME, "HF_TOKEN": other})
    found.load()
    assert found.environment == {"WANDB_API_KEY": SECRET.decode(), "HF_TOKEN": "zwei\nZeilen ü"}
    assert found.mask.data(SECRET) == b"***"
    assert SECRET.decode() not in repr(found)


@pytest.mark.parametrize(
    ("statuses", "kind", "expected"),
    [
        ([404], SecretRefused, "does not exist, or has no version; add one with gcloud secrets"),
        ([400], SecretRefused, "is disabled or destroyed"),
        ([403] * 40, SecretRefused, "may not be read by this VM; grant its service account"),
        ([500] * 40, SecretUnavailable, "status 500"),
    ],
)
def test_a_secret_that_cannot_be_read_is_named_with_its_variable(
    manager, reader, statuses, kind, expected
):
    manager.statuses, manager.values = statuses, {NAME: SECRET}
    with pytest.raises(kind, match=rf"^secretEnv\.KEY {NAME}: {expected}"):
        TrainerSecrets(reader, {"KEY": NAME}).load()


@pytest.mark.parametrize(
    ("value", "expected"), [(b"", "is empty"), (b"\n", "is empty"), (b"a\0b", "holds a null byte")]
)
def test_a_value_that_does_not_fit_a_variable_is_refused(manager, reader, value, expected):
    manager.values = {NAME: value}
    with pytest.raises(SecretRefused, match=rf"secretEnv\.KEY {NAME}: {expected}"):
        TrainerSecrets(reader, {"KEY": NAME}).load()


def test_a_short_secret_is_not_masked_and_that_is_reported_once(manager, reader, said):
    manager.values = {NAME: b"abc"}
    found = TrainerSecrets(reader, {"PIN": NAME})
    found.load()
    found.load()
    assert found.environment == {"PIN": "abc"}
    assert found.mask.data(b"abc abcdef") == b"abc abcdef"
    assert len(said) == 1 and said[0].startswith("secretEnv.PIN: has fewer than 6 bytes")


def test_a_new_version_counts_from_the_next_attempt_and_both_are_masked(manager, reader):
    manager.values = {NAME: b"first-value"}
    found = TrainerSecrets(reader, {"KEY": NAME})
    found.load()
    manager.values = {NAME: b"second-value"}
    found.load()
    assert found.environment == {"KEY": "second-value"}
    assert found.mask.text("first-value second-value") == "*** ***"


# -- the mask


def masked(*secrets: bytes) -> Mask:
    mask = Mask()
    for secret in secrets:
        mask.add(secret)
    return mask


@pytest.mark.parametrize("before", [b"", b"u:", b"me:", b"user:"])
@pytest.mark.parametrize("after", [b"", b"!", b"!!"])
def test_a_secret_is_masked_in_base64_wherever_it_begins(before, after):
    mask = masked(SECRET)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        shown = mask.data(b"Authorization: Basic " + encode(before + SECRET + after) + b"\n")
        left = shown.removeprefix(b"Authorization: Basic ").replace(b"***", b"").strip()
        # What stays are the neighbours' own characters, and at most one with bits of both.
        assert b"***" in shown and len(left) <= (len(before) + len(after)) * 4 // 3 + 4


def test_a_secret_is_masked_as_it_looks_in_a_url_and_in_json():
    secret = 'pa"ss wörd/&%x'
    mask = masked(secret.encode())
    for shown in (
        urllib.parse.quote(secret),
        urllib.parse.quote(secret, safe=""),
        urllib.parse.quote_plus(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
    ):
        assert mask.text(f"a {shown} b") == "a *** b", shown


def test_a_secret_is_masked_across_any_pieces():
    rng = random.Random(7)
    mask = masked(SECRET, b"w4ndb/K3y", b"abcdef", b"cdefgh-longer")
    for _ in range(500):
        words = [SECRET, b"abcdef", b"cdefgh-longer", b"w4ndb", b"ab", b" ", b"\n", b"loss 0.1"]
        data = b"".join(rng.choice(words) for _ in range(8))
        stream, shown, at = mask.stream(), b"", 0
        while at < len(data):
            step = rng.randint(1, 9)
            shown += stream.feed(data[at : at + step])
            at += step
        shown += stream.end()
        assert shown == mask.data(data), data
        assert SECRET not in shown and b"w4ndb/K3y" not in shown


def test_a_stream_shows_text_at_once_unless_a_secret_may_begin_there():
    stream = masked(b"secret-value").stream()
    assert stream.feed(b"password: ") == b"password: "
    assert stream.feed(b"secret") == b""
    assert stream.feed(b"ary") == b"secretary"


def test_half_a_secret_at_the_end_is_masked():
    """A log file is uploaded while its trainer writes it, and a process dies in mid-write."""
    mask = masked(SECRET)
    assert mask.data(b"key " + SECRET[:-1]) == b"key ***"
    assert mask.data(b"key " + SECRET[:2]) == b"key " + SECRET[:2]
    stream = mask.stream()
    assert stream.feed(b"key " + SECRET[:20]) + stream.end() == b"key ***"


def test_each_line_of_a_key_file_is_masked():
    key = b"-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"
    shown = masked(key).data(b"line MIIEvQIBADANBgkq and\n" + key)
    assert b"MIIE" not in shown and b"hkiG" not in shown


def test_without_secrets_nothing_changes():
    mask = Mask()
    mask.add(b"")
    mask.add(b"short")
    data = bytes(range(256)) * 3
    assert mask.data(data) == data and mask.text("short \ud800") == "short \ud800"
    assert masked(SECRET).text("odd \ud800 text") == "odd \ud800 text"


# -- the trainer


PRINTS = """
import os, sys, subprocess
key = os.environ["KEY"]
cut = len(key) // 2
for stream in (sys.stdout, sys.stderr):
    stream.write("begin " + key[:cut]); stream.flush()
    stream.write(key[cut:] + " end\\n"); stream.flush()
subprocess.run(["sh", "-c", 'echo "child $KEY"'])
raise SystemExit("died with " + key)
"""


def test_only_the_trainer_and_its_children_see_the_variable(tmp_path):
    log = TrainerLog(tmp_path / "log")
    environment = {**trainer_environment(tmp_path / "s", tmp_path), "KEY": SECRET.decode()}
    process = TrainerProcess(
        [sys.executable, "-c", PRINTS],
        folder=tmp_path / "cwd",
        environment=environment,
        log=log,
        mask=masked(SECRET),
    )
    ended: list[Exited] = []
    process.start(ended.append)
    wait_until(lambda: ended != [])
    assert ended[0].code == 1
    shown = log.path.read_text()
    # Two streams share the log, so their pieces may alternate; each piece is whole.
    assert sorted(re.findall(r"begin |\*\*\* end\n", shown)) == 2 * ["*** end\n"] + 2 * ["begin "]
    assert "child ***\n" in shown
    assert process.last_lines()[-1] == "died with ***"
    assert SECRET.decode() not in shown and SECRET.decode() not in str(process.last_lines())
    assert "KEY" not in os.environ


def test_a_trainers_error_is_masked_when_it_arrives(tmp_path):
    listener = Listener(tmp_path / "s", mask=masked(SECRET))
    heard: list[object] = []
    listener.listen(heard.append)
    try:
        channel = Channel.connect(tmp_path / "s")
        channel.send(Hello(VERSION, 1))
        channel.send(Tick(1, f"phase {SECRET.decode()}"))
        channel.send(Error(f"401 for key {SECRET.decode()}", "trainer"))
        channel.send(Complete(2, "/r", 0))
        wait_until(lambda: sum(isinstance(event, MessageReceived) for event in heard) == 3)
        channel.close()
    finally:
        listener.close()
    messages = [event.message for event in heard if isinstance(event, MessageReceived)]
    assert messages == [
        Tick(1, "phase ***"),
        Error("401 for key ***", "trainer"),
        Complete(2, "/r", 0),
    ]
    assert any(isinstance(event, Connected) for event in heard)


# -- the webhook's address

ANNOUNCED = Announcement(
    Event.DONE, "o/p/s", "first", "0123456789", 0, 1, "done", "done", 3, "", "vm", "zone"
)


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch):
    monkeypatch.setattr("outlast.base.webhook.RETRY_SEC", 0.0)


def test_a_secret_webhook_is_called_but_never_shown(manager, reader, said, monkeypatch):
    address = "https://hooks.example/services/T000/BSECRETPART"
    manager.values = {NAME: address.encode() + b"\n"}
    asked: list[str] = []

    real, mask = urllib.request.OpenerDirector.open, Mask()

    def refuse(opener, request, **more):
        if request.full_url != address:
            return real(opener, request, **more)
        asked.append(request.full_url)
        raise ValueError(f"can't send to {request.full_url} at /services/T000/BSECRETPART")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refuse)
    hook = Webhook.of_secrets("", NAME, "", reader, mask)
    hook.post(ANNOUNCED)
    hook.close()
    assert set(asked) == {address}
    assert "BSECRETPART" not in mask.text(" ".join(said)) and "webhook: " in said[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "does not exist"), (b"http://plain.invalid/x", "does not hold an https address")],
)
def test_an_unavailable_webhook_ends_no_training(manager, reader, said, value, expected):
    if value is not None:
        manager.values = {NAME: value}
    hook = Webhook.of_secrets("", NAME, "", reader, Mask())
    hook.post(ANNOUNCED)
    hook.close()
    assert expected in said[0] and "no message is sent" in said[0] and "plain" not in said[0]
