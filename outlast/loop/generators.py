"""Global random generators that training draws from and that the state does not have.

``random``, ``numpy.random`` and ``torch.random`` belong to the process. A program that draws from
one and does not name it in its state runs without any error, and after a preemption it draws other
numbers. So with each snapshot the loop looks whether one of them has moved since the first step. If
it has and the snapshot does not hold its position, in whatever form, that is reported, and a resume
is refused unless the program declares that its result does not depend on it.
"""

import array
import json
import random
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from outlast.loop import state
from outlast.loop.errors import DoesNotFit

_BLOB_BYTES_MAX = 1 << 20
"""Arrays longer than this are not searched for a generator's position, which has 5 KB at most."""
_CODES = {1: "B", 4: "I"}


class _Position(NamedTuple):
    """Where one generator stands."""

    words: bytes
    """Its numbers, as a program may keep them."""
    word_bytes: int
    rest: object = None
    """What tells it from another position besides."""


class Draws:
    """What one training draws from the global generators. For the thread of the loop."""

    def __init__(
        self, states: Iterable[Mapping[str, object] | None], constant: Collection[str] = ()
    ) -> None:
        """``states`` are all that the program saves; ``constant`` names what may be drawn from."""
        self._states = [values for values in states if values is not None]
        self._watched = [name for name in _READERS if name not in constant]
        self._begun: dict[str, list[_Position]] | None = None
        self._drawn: list[str] = []

    def begin(self, step: int, drawn: Collection[str]) -> None:
        """Training begins after ``step``; ``drawn`` is the note of the snapshot that was restored.

        DoesNotFit names a generator that the steps before it drew from and that was not saved.
        """
        if refused := [name for name in self._watched if name in drawn]:
            raise DoesNotFit(
                f"the {step} steps before this checkpoint drew from {refused[0]}, which the state "
                f"does not have, so that a resume would draw other numbers; if the result does not "
                f"depend on them, declare it with outlast.train(..., constant=[{refused[0]!r}]), "
                f"and the run resumes from here; if it does, add it to the state, as in "
                f"state['rng'] = {refused[0]}, and start from scratch"
            )
        # What declared generators gave before stays noted: the declaration may be withdrawn.
        self._drawn = list(drawn)

    def first_step(self) -> None:
        """The first step of this attempt begins: what is drawn from now on is drawn by steps."""
        if self._begun is None:
            self._begun = self._positions()

    def look(self) -> list[str]:
        """Look after a step, where no capture is alive; gives sentences that are to be said."""
        if self._begun is None:
            return []
        moved = {
            name: found
            for name, found in self._positions().items()
            if self._begun.setdefault(name, found) != found
        }
        unsaved = [name for name, found in moved.items() if not self._is_saved(found)]
        self._watched = [name for name in self._watched if name not in moved]
        self._drawn += unsaved
        return [
            f"the steps draw from {name}, which the state does not have: after a preemption they "
            f"would draw other numbers; add it, as in state['rng'] = {name}; if the result does "
            f"not depend on them, declare constant=[{name!r}]: a resume is refused until then"
            for name in unsaved
        ]

    def note(self) -> list[str]:
        """For the snapshot: the generators that steps have drawn from and that it does not have."""
        return sorted(self._drawn)

    def _positions(self) -> dict[str, list[_Position]]:
        """By generator, all that its program has of it: one on each device. A framework that the
        program has not imported is left alone."""
        loaded = [name for name in self._watched if name.partition(".")[0] in sys.modules]
        return {name: _READERS[name]() for name in loaded}

    def _is_saved(self, positions: Sequence[_Position]) -> bool:
        """Whether the state has these positions, by whatever name and in whatever object."""
        texts: list[str] = []
        held: list[bytes] = []
        for values in self._states:
            nodes, blobs = state.capture_all(values)
            texts.append(json.dumps(nodes))
            small = (blob for blob in blobs.items if blob.nbytes <= _BLOB_BYTES_MAX)
            held += [bytes(blob.data) for blob in small]
        return all(_is_in(position, texts, held) for position in positions)


def _is_in(position: _Position, texts: Iterable[str], held: Iterable[bytes]) -> bool:
    words = array.array(_CODES[position.word_bytes], position.words).tolist()
    as_text = ", ".join(map(str, words))
    # A list of numbers that has become an array has 8 bytes for each.
    forms = (position.words, array.array("Q", words).tobytes())
    return any(as_text in text for text in texts) or any(
        form in each for each in held for form in forms
    )


def _python() -> list[_Position]:
    _, words, rest = random.getstate()
    # The last number counts the draws since the others were made.
    return [_Position(array.array("I", words[:-1]).tobytes(), 4, (words[-1], rest))]


def _numpy() -> list[_Position]:
    numpy: Any = sys.modules["numpy"]
    found = numpy.random.get_state(legacy=False)
    inner = found["state"]
    if "key" not in inner:  # the program has chosen a bit generator by itself
        return []
    rest = inner["pos"], found["has_gauss"], found["gauss"]
    return [_Position(inner["key"].tobytes(), 4, rest)]


def _torch() -> list[_Position]:
    torch: Any = sys.modules["torch"]
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return [_Position(each.numpy().tobytes(), 1) for each in states]


_READERS: dict[str, Callable[[], list[_Position]]] = {
    "random": _python,
    "numpy.random": _numpy,
    "torch.random": _torch,
}
NAMES = tuple(_READERS)
"""The generators that ``constant`` may name."""
