"""Finds objects of the program that training changes and that checkpoints lack.

An optimiser, a schedule, a moving average or a random generator that is not in the state starts
from scratch after a resume. The program runs without any error but ends with another result. So
after the first steps, and at snapshots, the loop checks the objects that the program holds (see
outlast.loop.program): random generators and objects with a state to save. If one has changed since
the first step and the snapshot does not have its state in any form, it is reported, and a resume is
refused unless the program declares it.

Arrays and numbers in variables are not checked, because values that a step recomputes cannot be
distinguished from values that it needs.
"""

import re
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.loop import generators, omissions, program, things, unchanged
from outlast.loop.errors import DoesNotFit, LoopError
from outlast.loop.generators import Draws
from outlast.loop.omissions import Omissions
from outlast.loop.things import Saved

SAVED_LOOKS = 8
"""Looks at which the state must have the values of a changing object before it counts as saved."""
WALKS = 4
"""First looks that walk through the program; later ones do when their number is a power of two."""


_REMEDIES = {
    omissions.LEFT_OUT: "make state_dict() return it and load_state_dict() restore it",
    omissions.LOOSE: "keep it in a number or a dict of the module's own",
}


@dataclass
class _Thing:
    """One object that the program holds."""

    place: str
    kind: str
    get: Callable[[], Any]
    """Returns the object, or None once the program has dropped it."""
    mark: Any
    found_saved: int = 0
    """Number of times that it had changed and the state had equal values in another form."""


class Unsaved:
    """Everything that the steps of one training change or draw from and that its checkpoints lack.
    For the thread of the loop, while no capture is alive."""

    def __init__(
        self, states: Iterable[Mapping[str, object] | None], constant: Collection[str] = ()
    ) -> None:
        """``states`` are everything that the program saves; ``constant`` names objects that may be
        left out."""
        self._states = [values for values in states if values is not None]
        self._draws = Draws(self._states, constant)
        self._objects = Objects(self._states, constant)
        self._omissions = Omissions()
        self._begun = False

    def begin(self, step: int, loop: Mapping[str, Any]) -> None:
        """Begin after ``step``; ``loop`` has the notes of the restored snapshot.

        DoesNotFit names an unsaved object that the steps before it changed or drew from.
        """
        self._draws.begin(step, loop["drawn"])
        self._objects.begin(step, loop["unsaved"])

    def first_step(self, steps: object = None) -> None:
        """Begin the first step of this attempt; later changes are made by steps. ``steps`` is the
        iterator from which the program takes them."""
        if self._begun:
            return
        self._begun = True
        self._draws.first_step()
        saved = Saved(self._states)
        self._objects.first_step(saved, steps)
        self._omissions.first_step(saved.owned, saved.loose, self._skip(saved))

    def look(self) -> list[str]:
        """Check after a step; return sentences to print."""
        if not self._begun:
            return []
        saved = Saved(self._states)
        said = [*self._draws.look(), *self._objects.look(saved)]
        left_out = self._omissions.look(self._skip(saved), lambda: saved.leaves)
        return said + self._objects.add_left_out(left_out)

    def note(self) -> dict[str, Any]:
        """The snapshot's notes."""
        return {"drawn": self._draws.note(), "unsaved": self._objects.note()}

    def _skip(self, saved: Saved) -> Callable[[Any], bool]:
        """Whether ``Objects`` checks an object separately, or it is saved separately."""
        return lambda value: (
            things.kind(value) is not None or saved.has_object(things.token_of(value))
        )


class Objects:
    """Objects with a state that one program holds. For the thread of the loop, while no capture is
    alive."""

    def __init__(
        self, states: Collection[Mapping[str, object]], constant: Collection[str] = ()
    ) -> None:
        """``states`` are everything that the program saves; ``constant`` names places that may
        change."""
        self._states = states
        self._constant = constant
        self._things: dict[int, _Thing] | None = None
        self._known: dict[int, Any] = {}
        """Objects already decided on, by id, with a reference that detects whether the id was
        reused."""
        self._found: dict[str, str] = {}
        self._looks = 0

    def begin(self, step: int, note: Mapping[str, str]) -> None:
        """Begin after ``step``; ``note`` is the one in the restored snapshot.

        DoesNotFit names an unsaved object that the steps before it changed.
        """
        for place, kind in note.items():
            if is_declared(place, self._constant):
                continue
            raise DoesNotFit(
                f"the {step} steps before this checkpoint changed {place}, {kind}, which was not "
                "saved, so a resume would start with another one; if the result does not "
                f"depend on it, declare it with outlast.train(..., constant=[{place!r}]), and the "
                "run resumes from here; if it does, save it and start from scratch"
            )
        self._found = dict(note)

    def first_step(self, saved: Saved, iterator: object = None) -> None:
        """Begin the first step of this attempt; later changes are made by steps. ``iterator`` is
        the one from which the program takes the steps."""
        self._iterator = weakref.ref(iterator) if iterator is not None else lambda: None
        self._things = {}
        self._walk(saved)

    def look(self, saved: Saved) -> list[str]:
        """Check after a step; return sentences to print."""
        if self._things is None:
            return []
        changed = [thing for thing in self._things.values() if self._has_changed(thing)]
        self._looks += 1
        if self._looks <= WALKS or not self._looks & (self._looks - 1):
            self._walk(saved)
        unsaved = self._decide(changed, saved)
        self._found |= {thing.place: thing.kind for thing in unsaved}
        return [
            f"the steps change {thing.place}, {thing.kind}, which the state lacks: after a "
            f"preemption it would be another one; add it, as in state[{_short(thing.place)!r}] = "
            f"{thing.place}; if the result does not depend on it, declare "
            f"constant=[{thing.place!r}]: a resume is refused until then"
            for thing in unsaved
            if not is_declared(thing.place, self._constant)
        ]

    def add_left_out(self, places: Iterable[tuple[str, str]]) -> list[str]:
        """Note places that objects of the state leave out, with the reason; return sentences to
        print."""
        found = dict(places)
        self._found |= found
        return [
            f"the steps change {place}, {why}: after a preemption it would have another value; "
            f"{_REMEDIES[why]}; if the result does not depend on it, declare "
            f"constant=[{place!r}]: a resume is refused until then"
            for place, why in found.items()
            if not is_declared(place, self._constant)
        ]

    def note(self) -> dict[str, str]:
        """The snapshot's note: objects that steps have changed and that it lacks, with the kind of
        each."""
        return dict(sorted(self._found.items()))

    def _walk(self, saved: Saved) -> None:
        assert self._things is not None
        values = {name: item for each in self._states for name, item in each.items()}
        # Iterators beside the steps are searched for among all objects, so do that rarely.
        iterator = self._iterator() if self._looks <= unchanged.GLANCES else None
        self._things = {key: each for key, each in self._things.items() if each.get() is not None}
        for place, value in program.walk(values, iterator):
            kind = things.kind(value)
            token = None if kind is None else things.token_of(value)
            if kind is None or id(token) in self._things or self._is_known(token):
                continue
            if saved.has_object(token):
                self._know(token)
            elif (mark := things.mark(value)) is not None:
                self._things[id(token)] = _Thing(place, kind, things.reference(value, token), mark)

    def _know(self, token: Any) -> None:
        """Do not check this object again."""
        self._known[id(token)] = things.reference(token, token)

    def _is_known(self, token: Any) -> bool:
        known = self._known.get(id(token))
        return known is not None and known() is token

    def _has_changed(self, thing: _Thing) -> bool:
        value = thing.get()
        return value is not None and things.mark(value) not in (None, thing.mark)

    def _decide(self, changed: list[_Thing], saved: Saved) -> list[_Thing]:
        """The changed objects that the state lacks."""
        assert self._things is not None
        unsaved = []
        for thing in changed:
            value = thing.get()
            is_saved = value is None or saved.has_object(things.token_of(value))
            if not is_saved and saved.has(value):
                # Once is not enough: a moving average begins as a copy of the averaged values.
                thing.found_saved += 1
                thing.mark = things.mark(value)
                if thing.found_saved < SAVED_LOOKS:
                    continue
                is_saved = True
            self._things = {key: item for key, item in self._things.items() if item is not thing}
            if value is not None:
                self._know(things.token_of(value))
            if not is_saved:
                unsaved.append(thing)
        return unsaved


def check_constant(constant: Collection[str], *states: Mapping[str, object] | None) -> None:
    """Raise LoopError unless each name in ``constant`` is in a state, a global generator or a
    variable of the program."""
    known = [name for values in states if values is not None for name in values]
    if not isinstance(constant, str):
        others = [name for name in constant if name not in (*known, *generators.NAMES)]
        names = {re.split(r"[.\[]", name)[0] for name in others} - {*known}
        names -= {
            *known,
            *(name.partition(".")[0] for name in generators.NAMES if name in constant),
        }
        if not names or names <= program.names():
            return
    raise LoopError(
        f"constant {constant!r}: must be a list of names in state, such as ['weights']; "
        f"the state has {', '.join(map(str, known))}"
    )


def is_declared(place: str, constant: Collection[str]) -> bool:
    """Whether the program has declared a place, or an object that contains it, in ``constant``."""
    return any(
        place == name or (place.startswith(name) and place[len(name)] in ".[") for name in constant
    )


def _short(place: str) -> str:
    return place.rpartition(".")[2].partition("[")[0] or "it"
