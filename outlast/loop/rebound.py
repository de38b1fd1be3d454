"""Finds a program's names that referred to an object of its state and now refer to another one.

Before the first step the loop looks for the variables, attributes, closures and items of containers
that refer to a plain object of the state: an array, a dict, a list. If a name later refers to
another object of the same kind, the program probably trains with that one, unless the state has it
too or both have equal values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.loop import program, usage
from outlast.loop.program import Place
from outlast.loop.things import Saved

_KINDS = (dict, list, set, frozenset)


@dataclass
class Names:
    """The names of one object, at ``keys`` in the state."""

    keys: tuple[Any, ...]
    places: list[Place] = field(default_factory=list)

    def others(self, values: Mapping[str, object]) -> list[Any]:
        """The other objects of its kind, not in the state, to which its names refer now."""
        now = usage.at(values, self.keys)
        found = [(place, place.now()) for place in self.places]
        # The program may use an object inside a container through that container.
        is_used = len(self.keys) > 1 or any(item is now for _, item in found)
        return [
            item
            for place, item in found
            if item is not now
            and is_of_kind(now, item)
            and (not is_used or place.way or self._is_own(place) or _is_like(now, item))
            and not is_kept(values, item, named=self._is_own(place))
        ]

    def _is_own(self, place: Place) -> bool:
        """Whether the variable has the entry's name. Another variable may refer to the object only
        by chance, like a loop variable after its loop."""
        return not place.way and place.name in usage.names(self.keys)


def find(values: Mapping[str, object], keys: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], Names]:
    """The program's current names for these places of ``values``, without places that have none."""
    wanted = {id(item): item for item in (usage.at(values, each) for each in keys)}
    owners = {id(usage.at(values, each)): each for each in keys}
    found: dict[tuple[Any, ...], Names] = {}
    for place, item in program.places_of(values, wanted):
        each = owners[id(item)]
        found.setdefault(each, Names(each)).places.append(place)
    return found


def is_kept(values: Mapping[str, object], item: object, *, named: bool) -> bool:
    """Whether an object is saved with the state. For a name that is ``named`` like its own entry,
    another entry's object does not count, because after a resume the name refers to its own entry
    again."""
    if named and any(item is each for each in values.values()):
        return False
    return program.is_in(values, item) or Saved([values]).has_object(item)


def is_of_kind(one: Any, two: Any) -> bool:
    """Whether two objects are arrays, or containers of one kind. A number counts as an array
    without dimensions, because calculations turn such arrays into numbers."""
    if usage.is_array(one):
        return usage.is_array(two) or (usage.is_number(two) and one.ndim == 0)
    return type(one) is type(two) or any(
        isinstance(one, kind) and isinstance(two, kind) for kind in _KINDS
    )


def _is_like(one: Any, two: Any) -> bool:
    """Whether one may be computed from the other: equal shapes or equal keys."""
    if usage.is_array(one):
        return tuple(one.shape) == tuple(getattr(two, "shape", ()))
    return isinstance(one, dict) and dict.keys(one) == dict.keys(two)
