"""How a process says a sentence to people: a function that takes the sentence."""

from collections.abc import Callable

Say = Callable[[str], None]
