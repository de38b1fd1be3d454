"""Every object operation of a scripted run, disturbed in every way: the guarantees hold.

The planted mutants that must turn these checks red are in test_mutants.py.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from outlast.bucket.head import read_head
from outlast.bucket.store import MemoryStore
from tests.stores import prove_stale_writes_are_refused
from tests.supervisor.scripted import (
    LAYOUT,
    How,
    in_parts,
    paged,
    play,
    play_retaken,
    violations,
)


@pytest.fixture(autouse=True, scope="module")
def fencing() -> None:
    prove_stale_writes_are_refused(MemoryStore())


def disturbed(how: How) -> Iterator[list[str]]:
    """The violations at each operation; where a successor meets the old attempt, at each moment."""
    _, sent = play(None, -1)
    for at, operation in enumerate(sent):
        moments = range(1)
        if how in (How.REPLAYED, How.FROZEN) and operation.writes:
            # From right after the take-over to after the successor's end: at each of its
            # operations where the old one decides or deletes, at some where it adds an object.
            decides = operation.verb == "delete" or operation.path == LAYOUT.head
            moments = range(0, len(sent) + 5, 1 if decides else 6)
        for moment in moments:
            yield violations(play(how, at, replay_at=moment)[0])


def test_the_undisturbed_run_keeps_its_guarantees() -> None:
    played, sent = play(None, -1)
    assert violations(played) == []
    assert played.error is None and played.term == 1
    assert {operation.verb for operation in sent} == {"get", "list", "put", "copy", "delete"}


def test_the_run_with_pages_writes_and_reads_some() -> None:
    with paged():
        played, sent = play(None, -1)
        assert violations(played) == []
        paths = [operation.path for operation in sent if operation.path.startswith(LAYOUT.pages)]
        assert len(paths) == 1
        head = read_head(played.bucket, LAYOUT).head
        assert head.older_chain is not None and len(head.chain) == 2


def test_the_run_of_parts_copies_the_result_of_each() -> None:
    with in_parts():
        played, sent = play(None, -1)
        assert violations(played) == []
        copied = [operation.path for operation in sent if operation.verb == "copy"]
        assert [path.rpartition("/result/")[2] for path in copied] == ["a/model", "b/model"]


LONG = pytest.mark.long
"""A pair of moments for each pair of operations: before a release, but of a plain run."""
PLACES = ["in HEAD", "in pages"]
PARTS = ["of parts", "of parts in pages"]
EVERYWHERE = [*PLACES, *(pytest.param(place, marks=LONG) for place in PARTS)]


def cases() -> Iterator[Any]:
    """Where entries are, and what happens."""
    for place in [*PLACES, *PARTS]:
        for how in How:
            pairs = how in (How.REPLAYED, How.FROZEN)
            long = place != "in HEAD" if pairs else place == "of parts"
            marks = [LONG] if long else []
            yield pytest.param(place, how, marks=marks, id=f"{place}-{how.value}")


@pytest.fixture
def where_entries_are(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whether HEAD's old entries stay in it or go to pages, and whether the run has parts."""
    with contextlib.ExitStack() as stack:
        if "pages" in request.param:
            stack.enter_context(paged())
        if "parts" in request.param:
            stack.enter_context(in_parts())
        yield


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("where_entries_are")
@pytest.mark.parametrize(
    ("where_entries_are", "how"), list(cases()), indirect=["where_entries_are"]
)
def test_guarantees_hold_at_every_operation(how: How) -> None:
    broken = [violation for found in disturbed(how) for violation in found]
    assert broken == []


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("where_entries_are")
@pytest.mark.parametrize("where_entries_are", EVERYWHERE, indirect=True)
def test_guarantees_hold_when_the_successor_is_cut_too() -> None:
    _, sent = play(None, -1)
    broken: list[str] = []
    for at in (at for at, operation in enumerate(sent) if operation.writes):
        for successor_at in range(0, len(sent) + 5, 2):
            played, _ = play(How.CRASH_AFTER, at, crash_successor_at=successor_at)
            broken += violations(played)
    assert broken == []


def retaken() -> Iterator[list[str]]:
    """The violations where the process of a frozen attempt takes the run again."""
    _, sent = play(None, -1)
    swaps = [at for at, sends in enumerate(sent) if sends.writes and sends.path == LAYOUT.head]
    for at in range(swaps[0] + 1, swaps[-1] + 1):
        # A frozen swap keeps its process from settling the next term: it is thawed at once.
        for thaw_at in range(1) if at in swaps else range(0, len(sent), 5):
            yield violations(play_retaken(at, thaw_at))


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("where_entries_are")
@pytest.mark.parametrize("where_entries_are", EVERYWHERE, indirect=True)
def test_guarantees_hold_when_the_process_of_an_old_attempt_takes_the_run_again() -> None:
    broken = [violation for found in retaken() for violation in found]
    assert broken == []
