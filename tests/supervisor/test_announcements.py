"""What a webhook and a serial port get of a run's changes: real events, to the example receiver."""

import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outlast.base import webhook
from outlast.base.exits import Reason, State
from outlast.base.http_client import RequestFailed, ask
from outlast.base.webhook import SENT, SIGNATURE_HEADER, TIMESTAMP_HEADER, Announcement, Event
from outlast.bucket.headfile import HeadFile
from outlast.cli.rehearsal.secrets import WEBHOOK_ADDRESS
from outlast.supervisor.webhook import Webhook
from tests.supervisor.test_attempt import finish, stopped_after
from tests.supervisor.world import LAYOUT, SPEC, Life, World, a_world, spec_with, wait_until

KEY = b"a key"
NAME = "projects/p/secrets/key/versions/latest"
ANNOUNCED = Announcement(
    Event.FAILED, "o/p/s", "first", "0123456789", 0, 2, "failed", "limit", 3, "time", "vm", "zone"
)


def load_example() -> ModuleType:
    file = Path(__file__).parents[2] / "examples" / "webhook_receiver.py"
    spec = importlib.util.spec_from_file_location("webhook_receiver", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Receiver:
    """The example, and what it received."""

    def __init__(self) -> None:
        self.url = ""
        self.messages: list[dict[str, Any]] = []

    @property
    def events(self) -> list[str]:
        return [message["event"] for message in self.messages]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    with serving(load_example().server(KEY, found.messages.append)) as found.url:
        yield found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as found:
        yield found


def spec_for(receiver: Receiver, **more: Any):
    return spec_with(webhook=receiver.url, webhook_key_secret=NAME, **more)


def console(*vms: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for vm in vms for line in vm.console]


def test_the_end_of_a_run_is_one_signed_message(world: World, receiver: Receiver) -> None:
    vm = world.boot(finish, spec=spec_for(receiver))
    assert vm.run() == 0
    (message,) = receiver.messages
    assert message["text"].startswith("first: run 0123456789, attempt 1 is done at step ")
    known = {"event": "done", "state": "done", "reason": "done", "attempt": 1, "run": LAYOUT.run}
    assert known.items() <= message.items() and message["owner"] == SPEC.owner
    # Every change of state is one line of JSON on the serial port, with the event first.
    lines = console(vm)
    assert [line["outlastEvent"] for line in lines] == ["running", "done"]
    assert vm.console[-1].startswith('{"outlastEvent":"done","text":"first: run')
    assert lines[-1]["id"] == message["id"]


def test_a_lost_vm_is_reported_by_its_successor(world: World, receiver: Receiver) -> None:
    hanging = threading.Event()

    def lost(life: Life) -> int:
        life.advance(5)
        life.commit()
        hanging.set()
        return life.obey()

    # It does not notice that it has lost the run.
    first = world.boot(lost, spec=spec_for(receiver, heartbeat=600)).start()
    assert hanging.wait(60)
    second = world.boot(finish, spec=spec_for(receiver))
    assert second.run() == 0
    assert receiver.events == ["lost", "done"]
    lost_message = receiver.messages[0]
    assert (lost_message["attempt"], lost_message["step"]) == (1, 5)
    assert (lost_message["state"], lost_message["reason"]) == ("open", "vm-lost")
    first.terminate()
    first.ended()


def test_a_preemption_that_is_recorded_sends_nothing(world: World, receiver: Receiver) -> None:
    vm = world.boot(lambda life: life.obey(), spec=spec_for(receiver)).start()
    vm.terminate()
    assert vm.ended() == 75
    assert receiver.events == []
    assert [line["outlastEvent"] for line in console(vm)] == ["running", "interrupted"]


def test_a_failure_a_stop_and_a_budget_are_different_events(
    world: World, receiver: Receiver
) -> None:
    assert world.boot(lambda life: 1, spec=spec_for(receiver)).run() == 0
    spec = spec_for(receiver, resume=1)
    vm = world.boot(lambda life: life.hang(), spec=spec).start()
    wait_until(lambda: world.heartbeat_of(2))
    HeadFile(world.store, LAYOUT).end_from_outside(State.STOPPED, Reason.STOPPED)
    vm.ended()
    spec = spec_for(receiver, resume=2, budget_dollars=400.0, hour_prices={"type": 3600.0})
    assert world.boot(stopped_after(1), spec=replace(spec, budget_dollars=124.0)).run() == 0
    assert receiver.events == ["failed", "stopped", "budget"]
    assert [message["resume"] for message in receiver.messages] == [0, 1, 2]
    assert receiver.messages[2]["state"] == "stopped"


def test_a_vm_that_may_not_leave_says_so_once(world: World, receiver: Receiver) -> None:
    permissions, world.cloud.permissions = world.cloud.permissions, []
    vm = world.boot(finish, spec=spec_for(receiver)).start()
    wait_until(lambda: sum(line.startswith("stuck-leaving") for line in vm.said) > 2)
    world.cloud.permissions = permissions
    assert vm.ended() == 0
    assert receiver.events == ["stuck", "done"]


def test_a_stuck_trainer_is_reported(world: World, receiver: Receiver) -> None:
    spec = spec_for(receiver, stall=0.3, retries_failures=1)
    assert world.boot(lambda life: life.hang(), finish, spec=spec).run() == 0
    assert receiver.events == ["stuck", "done"]


def test_a_run_that_ends_at_a_boot_is_reported(world: World, receiver: Receiver) -> None:
    vm = world.boot(lambda life: life.obey(), spec=spec_for(receiver)).start()
    vm.terminate()
    vm.ended()
    past = replace(spec_for(receiver), deadline=world.store.now())
    assert world.boot(spec=past).run() == 0
    (message,) = receiver.messages
    assert (message["event"], message["reason"]) == ("failed", "limit")


# -- the receiver and the sender ------------------------------------------------------------------


def post(url: str, body: bytes, timestamp: object, signature: str) -> int:
    headers = {TIMESTAMP_HEADER: str(timestamp), SIGNATURE_HEADER: signature}
    try:
        ask(url, what="post", method="POST", body=body, headers=headers)
    except RequestFailed as error:
        return error.status
    return 204


def test_the_example_refuses_what_was_not_signed_now_with_its_key(receiver: Receiver) -> None:
    body, now = json.dumps(ANNOUNCED.body(SPEC.deadline)).encode(), int(time.time())
    good = webhook.sign(KEY, now, body)
    assert post(receiver.url, body, now, good) == 204
    for case in (
        (body, now, webhook.sign(b"another key", now, body)),
        (body + b" ", now, good),
        (body, now + 1, good),
        (body, now, ""),
        (body, now, "sha256=é"),
        (body, "x", good),
        (body, -1, good),
        (body, now - 301, webhook.sign(KEY, now - 301, body)),
    ):
        assert post(receiver.url, *case) == 401, case
    ahead = int(time.time()) + 310  # by the clock now, which has moved on
    assert post(receiver.url, body, ahead, webhook.sign(KEY, ahead, body)) == 401
    assert post(receiver.url, b"[]", now, webhook.sign(KEY, now, b"[]")) == 400
    # The same message again is accepted, and handled once.
    assert post(receiver.url, body, now, good) == 204
    assert receiver.events == ["failed"]


class Flaky(BaseHTTPRequestHandler):
    """Answers with the statuses of its server, one each."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.seen.append((dict(self.headers), body))
        self.send_response(server.statuses.pop(0) if server.statuses else 204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def flaky() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    server.seen, server.statuses = [], []
    with serving(server) as server.url:
        yield server


def test_a_message_is_sent_again_until_it_has_an_answer(flaky: Any) -> None:
    flaky.statuses = [503, 429]
    hook = Webhook(flaky.url, KEY)
    hook.post(ANNOUNCED)
    hook.close(60)
    assert len(flaky.seen) == 3 and len({body for _, body in flaky.seen}) == 1
    headers, body = flaky.seen[-1]
    assert headers[SIGNATURE_HEADER] == webhook.sign(KEY, int(headers[TIMESTAMP_HEADER]), body)
    hook.post(ANNOUNCED)  # the same change
    hook.close(60)
    assert len(flaky.seen) == 3


def test_a_refusal_is_final_and_without_a_key_nothing_is_signed(flaky: Any) -> None:
    flaky.statuses = [404]
    hook = Webhook(flaky.url)
    hook.post(ANNOUNCED)
    hook.post(replace(ANNOUNCED, event=Event.DONE))
    hook.close(60)
    assert len(flaky.seen) == 2
    assert SIGNATURE_HEADER not in flaky.seen[0][0]


def test_a_rehearsals_address_is_not_tried() -> None:
    with pytest.raises(RequestFailed, match="leads nowhere"):
        webhook.send(WEBHOOK_ADDRESS, KEY, ANNOUNCED)


def test_a_webhook_that_never_answers_delays_nothing_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.supervisor.announcements.LAST_WORDS_SEC", 0.2)
    # Nothing listens there.
    spec = spec_with(webhook="http://127.0.0.1:9/hook", webhook_key_secret=NAME)
    assert world.boot(finish, spec=spec).run() == 0
    assert world.head.state is State.DONE and world.cloud.groups["group"] == []


def test_a_message_has_the_documented_keys() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    for key in ANNOUNCED.body(SPEC.deadline):
        assert f"`{key}`" in page, key
    for event in SENT:
        assert f"`{event}`" in page, event


def test_a_runs_message_is_plain_text_in_a_chat() -> None:
    said = '<!channel> <https://evil.example|log in> & "more"'
    found = replace(ANNOUNCED, message=said)
    body = found.body(SPEC.deadline)
    assert body["text"].endswith(
        ': &lt;!channel&gt; &lt;https://evil.example|log in&gt; &amp; "more"'
    )
    assert body["message"] == said
    assert json.loads(found.console_line(SPEC.deadline))["text"].endswith(said)


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://hooks.example/x", True),
        ("http://127.0.0.1:80/x", True),
        ("http://[::1]/x", True),
        ("http://localhost/x", False),
        ("http://hooks.example/x", False),
        ("https:///x", False),
        ("https://h:0/x", False),
        ("https://[x/", False),
        ("", False),
    ],
)
def test_an_address_is_https_or_here(url: str, good: bool) -> None:
    assert webhook.is_address(url) is good
