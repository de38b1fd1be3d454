"""Finds the known word that a person probably meant."""

import difflib
from collections.abc import Iterable


def nearest(word: object, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known words that look like ``word``, most similar first. ``cutoff`` is from 0 (any word)
    to 1 (only the word itself).
    """
    return difflib.get_close_matches(str(word), list(known), n=most, cutoff=cutoff)


def did_you_mean(word: object, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a sentence about an unknown word: a question, or ``otherwise``."""
    near = nearest(word, known)
    return f"did you mean {near[0]}?" if near else otherwise
