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


SHOWN_NAMES = 20
"""Of a list of known words, how many a sentence shows."""


def choices(word: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest if one is near, and all of them."""
    names = sorted(known)
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    there = f"known are {', '.join(names[:SHOWN_NAMES])}{more}" if names else "there is none"
    return " ".join(filter(None, [did_you_mean(word, names), there]))
