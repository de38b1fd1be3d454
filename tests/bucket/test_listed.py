"""Records of many runs from a few listings: the same as each read by its name."""

from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket import blocks, history, listed
from outlast.bucket.head import read_head
from outlast.bucket.layout import BootEnd, Layout
from outlast.bucket.store import MemoryStore, NotFound, Operation, ReadOnlyStore, Unavailable
from tests.cli.test_overview import START, layout, plant

ROOT = "experiments/"


def view_of(store: ReadOnlyStore, **more: Any) -> listed.Listed:
    return listed.read(store, ROOT, **more)


def test_a_long_history_is_the_same_through_blocks() -> None:
    store = MemoryStore()
    run = plant(store, "long", attempts=80)
    blocks.write_missing(store, run, 80)
    assert len([*store.list(run.records)]) > 0
    end = BootEnd("1", "b1", Reason.SETUP_FAILED, "pip", 1, "no", START)
    store.put(run.boot_end("1", "b1"), end.to_json())
    view = view_of(store)
    assert history.read(view, run) == history.read(store, run)
    assert history.read_boots(view, run) == history.read_boots(store, run)
    assert view.get(run.attempt_end(3)) == store.get(run.attempt_end(3))


def test_what_was_not_listed_is_absent_and_the_rest_is_the_stores() -> None:
    store = MemoryStore()
    run = plant(store, "one")
    other = plant(store, "other")
    view = view_of(store, only=lambda name: name == "one")
    assert view.runs() == [run]
    with pytest.raises(NotFound):
        view.get(other.head)
    store.put(run.metrics_piece(1, 0), b"row")
    assert view.get(run.metrics_piece(1, 0))[0] == b"row"
    assert [one.path for one in view.list(run.rows)] == [run.metrics_piece(1, 0)]
    assert [*view.folders(run.attempts)] == ["000001", "000002"]
    assert [*view.folders(run.root)] == ["attempts", "boots", "metrics"]


def test_a_record_that_is_rewritten_meanwhile_is_read_as_it_is_now() -> None:
    """The generation that was listed no longer exists."""
    store = MemoryStore()
    run = plant(store, "busy")
    before = read_head(store, run).head

    def around(operation: Operation, perform: Any) -> Any:
        found = perform()
        if operation.verb == "list" and operation.path == ROOT and not rewritten:
            rewritten.append(True)
            plant(store, "busy", attempts=3, state=State.STOPPED)
        return found

    rewritten: list[bool] = []
    view = view_of(store.view(around))
    assert before.term == 2 and read_head(view, run).head.term == 3
    book = history.read(view, run)
    assert book is not None and len(book.attempts) == 3


def test_an_error_of_one_record_is_that_records_alone() -> None:
    store = MemoryStore()
    good, bad = plant(store, "good"), plant(store, "bad")

    def around(operation: Operation, perform: Any) -> Any:
        if operation.verb == "get" and operation.path == bad.heartbeat(2):
            raise Unavailable("no answer")
        return perform()

    view = view_of(store.view(around))
    assert history.read(view, good) is not None
    for _ in range(2):
        with pytest.raises(Unavailable, match="no answer"):
            history.read(view, bad)


def test_names_that_no_run_has_do_no_harm() -> None:
    store = MemoryStore()
    for path in ("experiments/a/0/attempts/x/start.json", "experiments/a/0/records/no.json"):
        store.put(path, b"{}")
    view = view_of(store)
    assert view.runs() == [Layout("experiments/a", "0")]
    assert history.read(view, layout("a")) is None
