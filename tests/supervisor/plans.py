"""Plans for the machine: as hypothesis draws them, and at each moment of a life."""

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from tests.supervisor.machine import (
    OPERATOR,
    Boot,
    Deliver,
    Event,
    Fault,
    Go,
    Harm,
    Instruction,
    Tell,
    Wish,
)

Scene = tuple[Event, ...]

MACHINES = st.integers(0, 2)
BURSTS = st.one_of(st.integers(1, 12), st.integers(1, 60))
"""Short ones are the moments between two operations, long ones get somewhere."""

GOES = st.builds(Go, MACHINES, BURSTS)
FAULTS = st.builds(Go, MACHINES, BURSTS, st.sampled_from(Fault))
BOOTS = st.builds(Boot, MACHINES)
FAULTS_SURVIVED = st.builds(
    lambda fault, more: (fault, Go(fault.slot, more)), FAULTS, st.integers(1, 60)
)
OPERATES = st.builds(Go, st.just(OPERATOR), st.integers(1, 6), st.none() | st.sampled_from(Fault))
STACK = st.sampled_from([Wish.RESUME, Wish.MOVE])
OPERATOR_DOES = st.sampled_from([Wish.STOP, Wish.ASK, Wish.READ, Wish.REPAIR])

SCENES: st.SearchStrategy[Scene] = st.one_of(
    st.tuples(GOES),
    st.tuples(FAULTS),
    FAULTS_SURVIVED,
    FAULTS_SURVIVED,
    st.tuples(BOOTS, GOES),
    st.tuples(BOOTS, FAULTS),
    st.tuples(STACK, BOOTS, GOES),
    st.tuples(st.builds(Deliver, st.integers(0, 3))),
    st.tuples(st.builds(Tell, MACHINES, st.sampled_from(Instruction)), GOES),
    st.tuples(OPERATOR_DOES, OPERATES, GOES),
    st.tuples(OPERATES),
    st.tuples(st.sampled_from(Harm), BOOTS, GOES),
)
"""What seldom matters alone comes with what makes it matter."""


def scenes(most: int) -> st.SearchStrategy[list[Scene]]:
    """A plan in scenes; each is possible, for what cannot happen does nothing."""
    return st.lists(SCENES, min_size=1, max_size=most)


def plan_of(chosen: Iterable[Scene]) -> list[Event]:
    return [event for scene in chosen for event in scene]


FAR = 300
"""Operations that take any machine to its end."""


def _at(moment: int) -> dict[str, list[Event]]:
    """Each kind of trouble once the first machine did so many operations."""
    begin = Go(0, moment)
    return {
        "frozen while a successor finishes": [begin, Boot(1), Go(1, FAR), Go(0, FAR)],
        "overtaken": [begin, Boot(1), Go(1, 14), Go(0, FAR), Go(1, FAR)],
        "cut, its request applied late": [
            Go(0, moment, Fault.CRASH_LATE),
            Boot(1),
            Go(1, 30),
            Deliver(0),
        ],
        "cut": [Go(0, moment, Fault.CRASH_AFTER)],
        "answer lost": [Go(0, moment, Fault.LOST), Go(0, FAR)],
        "a second try refused": [Go(0, moment, Fault.AGAIN), Go(0, FAR)],
        "applied late": [Go(0, moment, Fault.LATE), Deliver(0), Go(0, FAR)],
        "late boot of an earlier placement": [
            Go(0, 14),
            Boot(1),
            Tell(1, Instruction.UNHEARD),  # else it would leave at once as not a member
            Wish.MOVE,
            Boot(2),
            Go(2, moment),
            Go(1, FAR),
        ],
        "bit flipped": [begin, Harm.BIT_FLIP, Boot(0), Go(0, FAR)],
        "stopped by the operator": [begin, Wish.STOP, Go(OPERATOR, 9), Go(0, FAR)],
        "asked to stop": [begin, Wish.ASK, Go(OPERATOR, 9), Go(0, FAR)],
        "asked to stop, then cut": [
            *(begin, Wish.ASK, Go(OPERATOR, 9), Go(0, 9, Fault.CRASH_AFTER)),
            *(Boot(1), Go(1, FAR)),
        ],
        "trainer fails": [begin, Tell(0, Instruction.FAILS), Go(0, 40)],
        "HEAD lost and repaired": [
            begin,
            Harm.HEAD_LOST,
            Wish.REPAIR,
            Go(OPERATOR, 40),
            Go(0, FAR),
        ],
    }


MOMENTS = range(1, 85)
"""A life without trouble has about so many operations."""

TROUBLES = tuple(_at(1))


def at_each_moment(trouble: str, *, stride: int = 1) -> list[Sequence[Event]]:
    """The plans with one kind of trouble, from the first operation to after the last."""
    return [_at(moment)[trouble] for moment in MOMENTS[::stride]]
