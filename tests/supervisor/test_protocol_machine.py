"""Three machines and an operator, interleaved operation by operation: the protocol holds.

A plan is a list drawn by hypothesis: who does how many operations, what goes wrong at the last of
them, who is replaced, stopped, moved, repaired. It is a list and not a `RuleBasedStateMachine`,
because most of a schedule is "this one for a while": bursts keep plans short, each sublist of a
plan is a plan, so that they shrink to a few lines, and a plan can be written down, as those of the
planted mutants are (test_mutants.py). machine.py checks what must hold after every operation; a
failure prints all operations that led there.

With OUTLAST_HYPOTHESIS=deep the search takes OUTLAST_HYPOTHESIS_SECONDS (600) and new plans each
time; without it the plans are the same on every machine.
"""

import itertools
import os
import time

import pytest
from hypothesis import HealthCheck, given, seed, settings

from outlast.bucket.boot import STOP_ASKED
from outlast.bucket.store import MemoryStore
from tests.stores import prove_stale_writes_are_refused
from tests.supervisor.machine import (
    LAYOUT,
    OPERATOR,
    Boot,
    Event,
    Fault,
    Go,
    Harm,
    Wish,
    play,
)
from tests.supervisor.plans import (
    FAR,
    TROUBLES,
    Scene,
    at_each_moment,
    plan_of,
    scenes,
)

DEEP = os.environ.get("OUTLAST_HYPOTHESIS") == "deep"
DEEP_SECONDS = float(os.environ.get("OUTLAST_HYPOTHESIS_SECONDS", "600"))
EXAMPLES = 100
"""In one batch, with its own seed."""
BATCHES = range(3, 13)
"""At least, and then until all of REACHED was come by."""

REACHED = {
    "a fenced machine": "holds the run now",
    "a retry of a failed trainer": "user-failed",
    "a stop seen by the holder": "the run has ended: stopped",
    "a stop request seen at work": "asked at work",
    "a stop request seen by a boot": f"says: {STOP_ASKED}",
    "a lower pair": "the run is at resume",
    "a repair": "operator put HEAD",
    "a lost HEAD refused": "HEAD is gone while attempts exist",
    "a garbage HEAD refused": "HEAD cannot be read as one",
    "a damaged checkpoint passed over": "trying the one before",
    "a late write refused": "PreconditionFailed",
    "a sweep or retention": " delete ",
    "a reader of the result": "operator fetch",
    "a machine that is not a member any more": "not a member of its group any more",
    "old entries of HEAD in a page": "HEAD names pages",
}
"""What the search must come by, or it would prove little: words of the trace."""


FOUND: dict[str, list[Event]] = {
    "HEAD appears between two looks of a boot, which then left as if HEAD were lost": [
        Go(0, 2),
        Boot(2),
        Go(2, 1),
        Go(0, 3),
        Go(2, 9),
    ],
    "HEAD is lost after terms without a record, of which a repair gave one again": [
        Go(0, 14),
        Boot(1),
        Go(1, 6),
        Boot(2),
        Go(2, 8),
        Harm.HEAD_LOST,
        Wish.REPAIR,
        Go(OPERATOR, 40),
        Wish.RESUME,
        Boot(0),
        Go(0, 20),
        Go(2, FAR),
    ],
}
"""Traces of faults that this search brought to light."""


@pytest.fixture(autouse=True, scope="module")
def fencing() -> None:
    prove_stale_writes_are_refused(MemoryStore())


@pytest.mark.timeout(400 + (DEEP_SECONDS if DEEP else 0))
def test_the_protocol_holds_for_any_order_of_machines_and_operator() -> None:
    reached: set[str] = set()
    played = 0

    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(scenes(30 if DEEP else 16))
    def search(chosen: list[Scene]) -> None:
        nonlocal played
        # Every second plan is one of a run whose HEAD has its old entries in pages, and of all of
        # these every second one is of a run with parts.
        world = play(plan_of(chosen), paged=played % 2 == 1, parts=played % 4 > 1)
        story = "\n".join(world.trace)
        played += 1
        reached.update(what for what, words in REACHED.items() if words in story)

    end = time.monotonic() + DEEP_SECONDS
    for batch in itertools.count(1):
        seed(time.time_ns() if DEEP else batch)(search)()
        enough = batch in BATCHES and reached == set(REACHED)
        if time.monotonic() >= end if DEEP else enough or batch == BATCHES.stop:
            break
    print(f"{played} plans")
    assert reached == set(REACHED)


@pytest.mark.parametrize(
    "parts",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["whole", "of parts"],
)
@pytest.mark.parametrize("paged", [False, True], ids=["in HEAD", "in pages"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_protocol_holds_with_a_fault_at_each_operation(
    trouble: str, paged: bool, parts: bool
) -> None:
    for plan in at_each_moment(trouble, stride=1 if DEEP else 3 + 2 * paged + 4 * parts):
        assert play(plan, paged=paged, parts=parts).watch.head is not None


def test_a_killed_machine_leaves_no_files() -> None:
    for plan in at_each_moment("cut", stride=2):
        world = play(plan, paged=True)
        head = world.watch.head
        assert head is not None and head.end is not None and head.end.result is not None
        paths = [found.path for found in world.bucket.list(LAYOUT.terms)]
        folders = {place[1] for path in paths if (place := LAYOUT.folder_of(path))}
        assert folders == {*(entry.path for entry in head.chain), head.end.result.path}


@pytest.mark.parametrize("story", FOUND)
def test_faults_that_the_search_found_stay_fixed(story: str) -> None:
    assert play(FOUND[story]).watch.head is not None


def test_the_undisturbed_run_commits_and_ends() -> None:
    world = play([])
    story = "\n".join(world.trace)
    assert "vm1 exits 0" in story and "chain [t1s6,t1s8,t1s10]" in story
    story = "\n".join(play([], parts=True).trace)
    assert "vm1 exits 0" in story and "chain [t1s4,t1s4,t1s10,t1s10]" in story


def test_a_plan_gives_the_same_operations_each_time() -> None:
    plan = [
        Go(0, 20, Fault.LATE),
        Boot(1),
        Go(1, 30, Fault.AGAIN),
        Harm.BIT_FLIP,
        Wish.MOVE,
        Boot(2),
        Go(2, 20),
        Go(0, 9),
    ]
    assert play(plan).trace == play(plan).trace
