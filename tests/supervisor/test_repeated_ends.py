"""Ends that every machine would meet again end the run, a crash leaves its reason, and odd text
holds up neither the heartbeat nor `outlast stop`."""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.base import exits
from outlast.base.exits import MAX_NO_PROGRESS, Reason, State
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Heartbeat
from outlast.bucket.records import read_record
from outlast.bucket.store import MemoryStore, Operation, StoreError
from outlast.protocol import Error, Fetch, Tick
from tests.supervisor.world import LAYOUT, Life, World, a_world, spec_with, wait_until

CAFE = os.fsdecode(b"caf\xe9.txt")
"""A name as `os.listdir` gives it where the file's is not a UTF-8."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        yield world


def failing(error: Callable[[], Exception]) -> Callable[[Operation, Callable[[], Any]], Any]:
    """A store in which no checkpoint's manifest can be written."""

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and operation.path.endswith("MANIFEST.json"):
            raise error()
        return perform()

    return around


def one_commit(life: Life) -> int:
    life.advance()
    life.offer()
    return life.hang()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (lambda: StoreError("put: the bucket is locked"), "refuses: .*the bucket is locked"),
        (lambda: KeyError("no such thing"), "the supervisor crashed: KeyError: 'no such thing'"),
        (lambda: OSError(5, "Input/output error"), "Input/output error"),
    ],
    ids=["store", "crash", "disk"],
)
def test_ten_equal_ends_in_a_row_end_the_run(
    world: World, error: Callable[[], Exception], message: str
) -> None:
    assert isinstance(world.store, MemoryStore)
    store = world.store.view(failing(error))
    for boot in range(1, MAX_NO_PROGRESS + 1):
        assert world.boot(one_commit, store=store).run() == exits.INTERRUPTED
        end = world.end_of(boot)
        assert (end.reason, end.repeats) == (Reason.HOST_ERROR, True)
        assert re.search(message, end.message)
        assert world.head.state is State.OPEN
    last = world.boot(one_commit, store=store)
    assert last.run() == 0
    assert re.search(
        f"10 terms in a row committed nothing; the last one: .*{message}", str(last.said)
    )
    end = world.head.end
    assert world.head.state is State.FAILED and end is not None
    assert end.reason is Reason.HOST_ERROR
    boot_end = world.boot_end_of(last)
    assert boot_end is not None and boot_end.reason is Reason.HOST_ERROR


def test_a_stop_during_a_crash_keeps_its_own_reason(world: World) -> None:
    """An error caused by the machine's end does not count against the next machine."""
    reached, proceed = threading.Event(), threading.Event()

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and operation.path.endswith("MANIFEST.json"):
            reached.set()
            assert proceed.wait(60)
            raise KeyError("broken by the end")
        return perform()

    assert isinstance(world.store, MemoryStore)
    vm = world.boot(one_commit, store=world.store.view(around)).start()
    assert reached.wait(60)
    vm.terminate()
    wait_until(lambda: vm.notices.stopping, "the notice")
    proceed.set()
    assert vm.ended() == exits.INTERRUPTED
    end = world.end_of(1)
    assert (end.reason, end.repeats) == (Reason.INTERRUPTED, False)


def test_a_crash_is_logged_with_its_traceback(world: World) -> None:
    assert isinstance(world.store, MemoryStore)
    store = world.store.view(failing(lambda: KeyError("no such thing")))
    vm = world.boot(one_commit, store=store)
    vm.run()
    console = "\n".join(vm.said)
    assert "the supervisor crashed: Traceback (most recent call last)" in console
    assert "KeyError: 'no such thing'" in console


def test_rows_with_odd_text_delay_neither_heartbeat_nor_stop(world: World) -> None:
    def script(life: Life) -> int:
        with open(life.welcome.rows, "a") as rows:
            rows.write(json.dumps({"step": 1, "file": CAFE}) + "\n")
        life.step = 1
        life.channel.send(Tick(1))
        life.commit()
        return life.hang()

    vm = world.boot(script).start()
    wait_until(lambda: world.exists(LAYOUT.head) and world.head.chain, "a commit")

    def heartbeat() -> Heartbeat | None:
        return read_record(world.store, LAYOUT.heartbeat(1), Heartbeat)

    found = wait_until(
        lambda: (seen := heartbeat()) and seen.rows and seen, "a heartbeat with the row"
    )
    assert found.rows[0]["file"] == CAFE
    HeadFile(world.store, LAYOUT).end_from_outside(State.STOPPED, Reason.STOPPED)
    assert vm.ended() == 0
    assert world.end_of(1).reason is Reason.STOPPED


def test_an_error_with_odd_text_is_recorded(world: World) -> None:
    def script(life: Life) -> int:
        life.channel.send(Error(f"bad image {CAFE}", "trainer"))
        return 1

    assert world.boot(script, spec=spec_with(retries_failures=0)).run() == 0
    end = world.end_of(1)
    assert (end.reason, end.message) == (
        Reason.USER_FAILED,
        f"the trainer exited with 1: bad image {CAFE}",
    )


@pytest.mark.parametrize(
    ("names", "remedy"),
    [(["d/a", "d/a/b"], "rename"), (["d/" + "x" * 300], "shorten it")],
    ids=["both", "long"],
)
def test_data_that_no_disk_can_hold_ends_the_run_at_once(
    world: World, names: list[str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Others may have written names that no store of ours takes.
    world.data.put("d/plain", b"x")
    (plain,) = world.data.list("d/")
    monkeypatch.setattr(
        world.data, "list", lambda prefix: iter([replace(plain, path=name) for name in names])
    )

    def script(life: Life) -> int:
        life.channel.send(Fetch("gs://data/d"))
        refusal = life.hear(Error)
        assert isinstance(refusal, Error) and remedy in refusal.message
        return exits.USAGE

    assert world.boot(script).run() == 0
    head = world.head
    assert head.state is State.FAILED and head.end is not None
    assert head.end.reason is Reason.USAGE
