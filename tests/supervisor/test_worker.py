"""The thread that commits: how long it tries, and what counts as an answer."""

import queue
import types
from typing import Any

import pytest

from outlast.bucket.store import Unavailable
from outlast.supervisor import worker
from outlast.supervisor.worker import Finished, Job, Worker


def outcome(
    monkeypatch: pytest.MonkeyPatch, left: list[int], said: list[str] | None = None
) -> tuple[Any, int]:
    """What a job that fails five times, with so many bytes left each time, comes to; its tries."""
    now = iter(range(0, 10_000, 600))
    clock = types.SimpleNamespace(monotonic=lambda: float(next(now)))
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(worker, "pause_after", lambda error, wait_sec: 0.0)
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    say = (lambda message: None) if said is None else said.append
    thread = Worker(posted.put, say, forbidden_sec=0.0)
    tries = []

    def run() -> str:
        tries.append(1)
        if len(tries) <= 5:
            raise Unavailable("no answer")
        return "done"

    thread.submit(Job("commit", run, bytes_left=lambda: left[len(tries) - 1]))
    finished = posted.get(timeout=60)
    thread.close()
    assert isinstance(finished, Finished)
    return finished.value if finished.error is None else finished.error, len(tries)


def test_an_upload_that_gets_on_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, [50, 40, 30, 20, 10]) == ("done", 6)


def test_a_store_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    error, tries = outcome(monkeypatch, [50, 50, 50, 50, 50])
    assert isinstance(error, Unavailable) and tries == 3


def test_a_trouble_that_lasts_is_told_once_and_then_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    assert outcome(monkeypatch, [50, 40, 30, 20, 10], said) == ("done", 6)
    assert said == [
        "commit: no answer; trying again",
        "commit: no answer; trying again (tried 4 times)",
        "commit: went through at try 6",
    ]
