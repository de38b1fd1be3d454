"""Questions to the cloud before anything is created: each in a thread, all at the same time.

A question without an answer within `ANSWER_SEC` only warns: a preview needs no cloud.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

ANSWER_SEC = 10.0


@dataclass(frozen=True)
class Answer:
    """The result of a check; at most one of them is a sentence."""

    refusal: str = ""
    """Why nothing may be created."""
    warning: str = ""
    """Why it could not be found out, or what may not work."""
    about: str = field(default="", compare=False)
    """What was checked; `ask_all` fills it in."""


Question = tuple[str, Callable[[], Answer]]
"""What a check is about, and the check."""


def ask_all(questions: Iterable[Question]) -> Callable[[], list[Answer]]:
    """Asks all of them at the same time; the returned function waits for the answers."""
    waiting = [_Asked(about, question) for about, question in questions]
    return lambda: [asked.answer() for asked in waiting]


class _Asked:
    """One check, in a thread."""

    def __init__(self, about: str, question: Callable[[], Answer]) -> None:
        self._about = about
        self._found: list[Answer] = []
        self._until = time.monotonic() + ANSWER_SEC
        self._thread = threading.Thread(target=lambda: self._found.append(question()), daemon=True)
        self._thread.start()

    def answer(self) -> Answer:
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._found:
            return replace(self._found[0], about=self._about)
        late = f"{self._about}: not looked up (no answer in {ANSWER_SEC:.0f} s)"
        return Answer(warning=late, about=self._about)
