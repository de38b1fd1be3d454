"""The notices of a machine's end."""

import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.base.exits import Reason
from outlast.spec.run_spec import Timeouts
from outlast.supervisor.metadata import Metadata
from outlast.supervisor.notice import (
    Interrupted,
    Maintenance,
    Notices,
    Stopping,
    is_system_stopping,
)
from tests.supervisor.fake_cloud import FakeCloud, fake_cloud

TIMEOUTS = Timeouts(notice=120.0, stop=30.0)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    with fake_cloud(monkeypatch) as cloud:
        cloud.boot("group", "17", {})
        yield cloud


@pytest.fixture
def notices(cloud: FakeCloud) -> Notices:
    return Notices(TIMEOUTS, Metadata())


def heard(notices: Notices) -> "queue.SimpleQueue[Any]":
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    notices.listen(inbox.put)
    return inbox


def test_preemption_gives_the_notice(cloud: FakeCloud, notices: Notices) -> None:
    inbox = heard(notices)
    notices.start()
    assert notices.stopping is None
    cloud.set("instance/preempted", "TRUE")
    stopping = inbox.get(timeout=60)
    assert stopping.reason is Reason.PREEMPTED
    assert 110 < stopping.until - time.monotonic() <= 120


def test_without_a_notice_the_flag_gives_the_time_of_a_stop(cloud: FakeCloud) -> None:
    notices = Notices(Timeouts(notice=0.0, stop=30.0), Metadata())
    inbox = heard(notices)
    notices.start()
    cloud.set("instance/preempted", "TRUE")
    stopping = inbox.get(timeout=60)
    assert stopping.reason is Reason.PREEMPTED
    assert 20 < stopping.until - time.monotonic() <= 30


def test_a_flag_that_was_set_at_boot_is_seen(cloud: FakeCloud, notices: Notices) -> None:
    cloud.set("instance/preempted", "TRUE")
    notices.start()
    assert heard(notices).get(timeout=60).reason is Reason.PREEMPTED


def test_a_signal_gives_less_time_and_the_flag_gives_its_reason(
    cloud: FakeCloud, notices: Notices
) -> None:
    inbox = heard(notices)
    notices.handle_signal(signal.SIGTERM, None)
    stopping = inbox.get(timeout=1)
    assert stopping.reason is Reason.INTERRUPTED
    assert 20 < stopping.until - time.monotonic() <= 30
    cloud.set("instance/preempted", "TRUE")
    looked = notices.look()
    assert looked == Stopping(Reason.PREEMPTED, stopping.until)


def test_a_later_listener_hears_an_earlier_notice(cloud: FakeCloud, notices: Notices) -> None:
    cloud.set("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    first = heard(notices)
    notices.start()
    assert first.get(timeout=60) == Maintenance("TERMINATE_ON_HOST_MAINTENANCE")
    notices.handle_signal(signal.SIGTERM, None)
    second = heard(notices)
    stopping = second.get(timeout=1)
    assert isinstance(stopping, Stopping) and stopping.reason is Reason.MAINTENANCE
    assert isinstance(second.get(timeout=1), Maintenance)


def test_the_notice_survives_an_outage_of_the_metadata_server(
    cloud: FakeCloud, notices: Notices
) -> None:
    cloud.answers["metadata"] = [503, 503, 0]
    inbox = heard(notices)
    notices.start()
    cloud.set("instance/preempted", "TRUE")
    assert inbox.get(timeout=60).reason is Reason.PREEMPTED


def test_a_signal_ends_an_unprotected_sleep(notices: Notices) -> None:
    notices.sleep(0.0)
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(Interrupted):
            notices.sleep(60.0)
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    notices.handle_signal(signal.SIGTERM, None)
    thread.join(60)
    assert ended.is_set()


@pytest.mark.parametrize(("says", "stopping"), [("stopping", True), ("running", False)])
def test_a_stopping_system_gives_the_notice(
    says: str,
    stopping: bool,
    notices: Notices,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shim = tmp_path / "systemctl"
    shim.write_text(f"#!/bin/sh\necho {says}\nexit 1\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert is_system_stopping() is stopping
    assert (notices.look() is not None) is stopping


def test_without_systemd_the_system_is_not_stopping(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not is_system_stopping()
