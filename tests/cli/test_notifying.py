"""What `outlast watch --notify` sends to a webhook: what no VM can say."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.bucket.standing import Standing
from outlast.bucket.store import MemoryStore
from outlast.cli import notifying, overview, status
from outlast.cli.app import cli
from outlast.cli.errors import UsageError
from outlast.cli.notifying import Notifier
from outlast.cli.runs import Place
from outlast.cli.show.overview import summary
from tests.cli.test_overview import layout, plant
from tests.supervisor.test_announcements import KEY, Receiver, receiver  # noqa: F401


@pytest.fixture
def line() -> overview.Line:
    store = MemoryStore()
    plant(store, "first")
    return overview.line_of(Place("first", store, layout("first")))


def later(line: overview.Line, seconds: float) -> overview.Line:
    """The same run, so many seconds after its last heartbeat."""
    found = line.status
    assert found.history is not None and found.history.attempts[-1].seen is not None
    now = found.history.attempts[-1].seen + timedelta(seconds=seconds)
    return replace(line, status=replace(found, now=now))


def test_a_silent_run_and_a_lost_one_are_announced_once_each(line: Any, receiver: Receiver) -> None:  # noqa: F811
    notifier = Notifier(receiver.url, KEY)
    for seconds in (1, 40, 50, 700, 800, 1):
        assert notifier.look([later(line, seconds)]) == ()
    assert receiver.events == ["silent", "lost"]
    silent = receiver.messages[0]
    assert (silent["experiment"], silent["state"], silent["attempt"]) == ("first", "silent", 2)
    assert silent["message"] == "last heartbeat 40 s ago"


def test_vms_that_never_start_are_stuck(line: Any) -> None:
    waits = status.Wait(Standing.NEVER_STARTED, None, "VMs come and go")
    found = notifying.announcement_of(replace(line.status, history=None, wait=waits))
    assert found is not None and (found.event, found.message) == ("stuck", "VMs come and go")


def test_a_run_that_expires_without_a_vm_is_announced_as_failed(
    line: Any,
    receiver: Receiver,  # noqa: F811
) -> None:
    """No VM is there to say it. Where one was, its message has the same id."""
    head = line.status.history.head
    seen = line.status.history.attempts[-1].seen
    expired = later(line, (head.deadline - seen).total_seconds() + 60)
    assert expired.status.state is Standing.EXPIRED
    notifier = Notifier(receiver.url, KEY)
    assert notifier.look([expired]) == notifier.look([expired]) == ()
    (message,) = receiver.messages
    assert (message["event"], message["state"], message["reason"]) == ("failed", *["expired"] * 2)
    assert message["attempt"] == 0
    limit = f"past its limit of {head.deadline:%Y-%m-%d %H:%M} UTC"
    assert message["message"].startswith(f"{limit}, and no VM was there to end it; raise")
    # A command that looks later says the same.
    assert expired.as_json()["why"] == message["message"]
    assert message["message"] in summary(expired)
    found = notifying.announcement_of(expired.status)
    assert found is not None and found.id == replace(found, reason="limit", state="failed").id


def test_a_message_that_is_not_delivered_is_tried_at_the_next_look(
    line: Any,
    receiver: Receiver,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifying, "WITHIN_SEC", 0.0)
    notifier = Notifier("http://127.0.0.1:9/hook", KEY)
    (said,) = notifier.look([later(line, 40)])
    assert "webhook: no answer" in said and "silent was not delivered" in said
    notifier._url = receiver.url
    assert notifier.look([later(line, 40)]) == () and receiver.events == ["silent"]


@pytest.mark.parametrize("url", ["", "http://hooks.example/x", "hooks.example"])
def test_an_address_is_needed(url: str) -> None:
    with pytest.raises(UsageError, match="--notify: OUTLAST_WEBHOOK is not"):
        Notifier.of_environment({"OUTLAST_WEBHOOK": url})


def test_wait_and_watch_need_it_before_they_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLAST_WEBHOOK", raising=False)
    for command in ("watch", "wait"):
        answer = CliRunner().invoke(cli, [command, "first", "--notify"])
        assert isinstance(answer.exception, UsageError) or answer.exit_code == 64
