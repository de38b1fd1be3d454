"""Finds global random generators that training draws from and that the state does not have.

``random``, ``numpy.random``, ``torch.random`` and ``keras.random`` belong to the process. A program
that draws from one and does not put it into its state runs without any error, but draws other
numbers after a preemption. So at each snapshot the loop checks whether one of them has moved since
the first step. If it has and the snapshot does not hold its position in any form, the loop reports
that and refuses a resume, unless the program declares that its result does not depend on the
generator.

outlast.loop.unsaved finds generators that are objects of the program.
"""

import array
import base64
import json
import random
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from outlast.loop import frameworks, state
from outlast.loop.errors import DoesNotFit

_BLOB_BYTES_MAX = 1 << 20
"""Arrays longer than this are not searched for a generator's position, which has 5 KB at most."""
_SMALL_BYTES = 16
"""A position this short must be a whole list or array, not a part of an array."""
_GPU_BYTES = 16
_CODES = {1: "B", 4: "I", 8: "Q"}
_INLINE = re.compile(r'"\$bytes": "([^"]*)"')


class Part(NamedTuple):
    """Numbers of a position that a program keeps together."""

    numbers: tuple[int, ...]
    bytes_each: int
    """Bytes of each number in the generator's own form."""


class Position(NamedTuple):
    """The position of one generator."""

    parts: tuple[Part, ...]
    """Its numbers, in groups as a program may keep them."""
    rest: object = None
    """Further values that distinguish positions."""


@dataclass
class Held:
    """The contents of a state, to search for positions."""

    texts: list[str]
    arrays: list[bytes]

    @classmethod
    def by(cls, states: Iterable[Mapping[str, object]]) -> "Held":
        found = cls([], [])
        for values in states:
            nodes, blobs = state.capture_all(values)
            text = json.dumps(nodes)
            found.texts.append(text)
            found.arrays += [base64.b64decode(each) for each in _INLINE.findall(text)]
            small = (blob for blob in blobs.items if blob.nbytes <= _BLOB_BYTES_MAX)
            found.arrays += [bytes(blob.data) for blob in small]
        return found

    def has(self, position: Position) -> bool:
        """Whether the state has all numbers of a position, in any object."""
        return all(map(self._has_part, position.parts))

    def _has_part(self, part: Part) -> bool:
        as_text = ", ".join(map(str, part.numbers))
        # In an array made from a list, each number has 8 bytes.
        forms = {_raw(part.numbers, size) for size in (part.bytes_each, max(part.bytes_each, 8))}
        if len(part.numbers) > 1 and len(part.numbers) * part.bytes_each <= _SMALL_BYTES:
            text = f"[{as_text}]"
            return any(text in each for each in self.texts) or any(
                form == each for each in self.arrays for form in forms
            )
        return any(as_text in each for each in self.texts) or any(
            form in each for each in self.arrays for form in forms
        )


def _raw(numbers: Sequence[int], bytes_each: int) -> bytes:
    if bytes_each in _CODES:
        return array.array(_CODES[bytes_each], numbers).tobytes()
    return b"".join(number.to_bytes(bytes_each, "little") for number in numbers)


class Draws:
    """Tracks draws of one training from the global generators. For the thread of the loop."""

    def __init__(
        self, states: Iterable[Mapping[str, object] | None], constant: Collection[str] = ()
    ) -> None:
        """``states`` are everything that the program saves; ``constant`` names generators that
        steps may draw from."""
        self._states = [values for values in states if values is not None]
        self._watched = [name for name in _READERS if name not in constant]
        self._begun: dict[str, list[Position]] | None = None
        self._drawn: list[str] = []

    def begin(self, step: int, drawn: Collection[str]) -> None:
        """Begin after ``step``; ``drawn`` is the note in the restored snapshot.

        DoesNotFit names an unsaved generator that the steps before the snapshot drew from.
        """
        if refused := [name for name in self._watched if name in drawn]:
            raise DoesNotFit(
                f"the {step} steps before this checkpoint drew from {refused[0]}, which the state "
                f"lacks, so a resume would draw other numbers; if the result does not "
                f"depend on them, declare it with outlast.train(..., constant=[{refused[0]!r}]), "
                f"and the run resumes from here; if it does, add it to the state, as in "
                f"state['rng'] = {refused[0]}, and start from scratch"
            )
        # Draws from declared generators stay noted, because the declaration may be removed later.
        self._drawn = list(drawn)

    def first_step(self) -> None:
        """Note that the first step of this attempt begins, so that later draws are made by
        steps."""
        if self._begun is None:
            self._begun = self._positions()

    def look(self) -> list[str]:
        """Look after a step, while no capture is alive; return sentences to print."""
        if self._begun is None:
            return []
        moved = {
            name: found
            for name, found in self._positions().items()
            if _has_moved(self._begun, name, found)
        }
        if not moved:
            return []
        held = Held.by(self._states)
        unsaved = [name for name, found in moved.items() if not all(map(held.has, found))]
        self._watched = [name for name in self._watched if name not in moved]
        self._drawn += unsaved
        return [
            f"the steps draw from {name}, which the state lacks: after a preemption they "
            f"would draw other numbers; add it, as in state['rng'] = {name}; if the result does "
            f"not depend on them, declare constant=[{name!r}]: a resume is refused until then"
            for name in unsaved
        ]

    def note(self) -> list[str]:
        """The snapshot's note: generators that steps have drawn from and that it does not have."""
        return sorted(self._drawn)

    def _positions(self) -> dict[str, list[Position]]:
        """Positions by generator, one for each device, without frameworks that the program has not
        imported."""
        loaded = [name for name in self._watched if name.partition(".")[0] in sys.modules]
        return {name: _READERS[name]() for name in loaded}


def _has_moved(begun: dict[str, list[Position]], name: str, found: Sequence[Position]) -> bool:
    """Whether a generator has moved since it was first seen; new ones are added to ``begun``."""
    before = begun.setdefault(name, [])
    # A new device's generator, or one that was created by its first draw, has been used if it is no
    # longer at its start.
    before += [_at_start(name, each) for each in found[len(before) :]]
    return list(found) != before[: len(found)]


def _at_start(name: str, position: Position) -> Position:
    (part,) = position.parts
    if name == "torch.random" and len(part.numbers) == _GPU_BYTES:
        # A GPU generator's position is its seed and the number of draws.
        return Position((part._replace(numbers=(*part.numbers[:8], *[0] * 8)),))
    if name == "keras.random":
        return Position((), "not made yet")
    return position


def of_random(generator: Any) -> Position:
    """The position of a ``random.Random``, or of the module itself."""
    _, words, rest = generator.getstate()
    # The last number counts the draws since the other numbers were generated.
    return Position((Part(tuple(words[:-1]), 4),), (words[-1], rest))


def of_numpy(found: Mapping[str, Any]) -> Position:
    """The position in the state of a numpy bit generator or a ``RandomState``."""
    inner = found["state"]
    rest = {name: item for name, item in found.items() if name not in ("state", "buffer")}
    if isinstance(inner, Mapping):
        # MT19937's key changes once in 624 draws, PCG64's increment never.
        parts = [part for name, item in inner.items() if (part := _part(item)) and name != "inc"]
        rest |= {name: item for name, item in inner.items() if isinstance(item, int)}
    else:
        parts = [part for part in [_part(inner)] if part]
    return Position(tuple(parts), repr(rest))


def _part(item: Any) -> Part | None:
    if isinstance(item, int):
        return Part((item,), 16) if item.bit_length() > 64 else None
    numbers = tuple(map(int, item))
    return Part(numbers, item.dtype.itemsize) if numbers else None


def of_torch(state_bytes: Any) -> Position:
    """The position in the state bytes of a torch generator."""
    return Position((Part(tuple(state_bytes.numpy().tobytes()), 1),))


def of_keras(generator: Any) -> Position:
    """The position of a ``keras.random.SeedGenerator``."""
    keras_adapter: Any = frameworks.adapter("keras")
    found = keras_adapter.array_of(generator.state)
    return Position((Part(tuple(map(int, found)), found.dtype.itemsize),))


def _python() -> list[Position]:
    return [of_random(random)]


def _numpy() -> list[Position]:
    numpy: Any = sys.modules["numpy"]
    found = numpy.random.get_state(legacy=False)
    if "key" not in found["state"]:  # the program has chosen its own bit generator
        return []
    return [of_numpy(found)]


def _torch() -> list[Position]:
    torch: Any = sys.modules["torch"]
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return [of_torch(each) for each in states]


def _keras() -> list[Position]:
    keras_adapter: Any = frameworks.adapter("keras")
    generator = keras_adapter.global_generator()
    return [] if generator is None else [of_keras(generator)]


_READERS: dict[str, Callable[[], list[Position]]] = {
    "random": _python,
    "numpy.random": _numpy,
    "torch.random": _torch,
    "keras.random": _keras,
}
NAMES = tuple(_READERS)
"""The generators that ``constant`` may name."""
