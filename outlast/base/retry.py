"""Retries errors that may pass by themselves: one policy with its limits, for every phase of a run.

An error's attribute `trouble` says what kind it is; a full disk is recognised by its errno. Any
other error is final at the first try.
"""

import copy
import itertools
import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import NoReturn, TypeVar

from outlast.base.clock import SYSTEM_CLOCK, Clock
from outlast.base.numbers import duration
from outlast.base.scratch_space import FULL

_log = logging.getLogger(__name__)

T = TypeVar("T")

SILENT_SEC = 900.0
"""Seconds without an answer from storage that end an attempt: another machine may reach it."""
PERSON_SEC = 60.0
"""The same if a person waits for the answer."""
FULL_SEC = 60.0
"""Seconds to retry on a full disk: someone may free space."""
DOUBTFUL_SEC = 20.0
"""Seconds to retry a request that was called bad: it may have been damaged on its way."""
METADATA_SEC = 15.0
"""The metadata server is tried for so long; it is on the machine's own host."""
LIBRARY_SEC = 60.0
"""The storage client's own tries of one read."""
LIBRARY_WITHIN_SEC = 5.0
"""The same within a `Patience`, which tries again itself."""
CODE_TRIES = 5
"""Of a secret or a git host. After that another machine may do."""
BUILD_TRIES = 3
"""Of making packages, each of which may take minutes."""

PAUSE_SEC = 1.0
"""Seconds before the second try; doubles with each try."""
PAUSE_MAX_SEC = 30.0
PAUSE_GROWTH_MAX = 60
PERMISSION_PAUSE_MAX_SEC = 5.0
"""The longest pause while permissions spread: whole boots wait for them."""
RETRY_AFTER_MAX_SEC = 60.0
"""The longest pause, even if a server asks for more."""


class Trouble(Enum):
    """Kinds of errors that may pass by themselves."""

    SILENT = "silent"
    """No answer, or too many requests."""
    FORBIDDEN = "forbidden"
    """A refusal by permissions that may still be spreading."""
    FULL = "full"
    """A disk without room."""
    DOUBTFUL = "doubtful"
    """A refusal that may be of this one try: a conflict, or a request damaged on its way."""


@dataclass(frozen=True)
class Limits:
    """How long each kind is retried, in seconds; 0: its first error is final here."""

    silent_sec: float = SILENT_SEC
    forbidden_sec: float = 0.0
    full_sec: float = FULL_SEC
    doubtful_sec: float = DOUBTFUL_SEC
    silent_tries: int | None = None
    """The tries of what gives no answer, if they are counted instead of their time."""

    def of(self, trouble: Trouble) -> float:
        return {
            Trouble.SILENT: self.silent_sec,
            Trouble.FORBIDDEN: self.forbidden_sec,
            Trouble.FULL: self.full_sec,
            Trouble.DOUBTFUL: self.doubtful_sec,
        }[trouble]

    def within(self, seconds: float) -> "Limits":
        """The same limits, none longer than ``seconds``."""
        return Limits(
            min(self.silent_sec, seconds),
            min(self.forbidden_sec, seconds),
            min(self.full_sec, seconds),
            min(self.doubtful_sec, seconds),
            self.silent_tries,
        )


_OWN = random.SystemRandom()


def trouble_of(error: BaseException) -> Trouble | None:
    """The kind of an error; None if it is final or was retried long enough."""
    if getattr(error, "tried_enough", False):
        return None
    if isinstance(error, OSError) and error.errno in FULL:
        return Trouble.FULL
    return getattr(error, "trouble", None)


def jittered(seconds: float) -> float:
    """Multiplied by 0.5 to 1.5, so that two writers do not collide again."""
    # Not Python's global generator: that one belongs to the trainer.
    return seconds * (0.5 + _OWN.random())


def grown(first_sec: float, most_sec: float, tries: int) -> float:
    """A pause that doubles with each try after the first one, up to ``most_sec``."""
    return min(first_sec * 2.0 ** min(tries - 1, 20), most_sec)


def pauses(first_sec: float) -> Iterator[float]:
    """Pauses without an end, for what is asked until it answers: jittered, they double up to sixty
    times the first."""
    for tries in itertools.count(1):
        yield jittered(grown(first_sec, first_sec * PAUSE_GROWTH_MAX, tries))


def pause_after(error: BaseException, seconds: float) -> float:
    """The pause before the next try: about ``seconds``, or what the server asked for."""
    asked = getattr(error, "retry_after_sec", None)
    return max(jittered(seconds), min(asked or 0.0, RETRY_AFTER_MAX_SEC))


class Patience:
    """Calls what may fail for a while, again and again until it goes through or a limit is reached.

    Only for actions that may be repeated: reads, and writes that recognise their own earlier try.
    Safe to share between threads: trouble that they meet at the same time is reported once. In
    nested calls only the inner one retries: if it gives up, so does the outer one.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        *,
        limits: Limits | None = None,
        pause_sec: float = PAUSE_SEC,
    ) -> None:
        """``pause_sec``: before the second try."""
        self.clock = clock
        self._pause_sec = pause_sec
        self.limits = limits or Limits()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._tellers: dict[Trouble, Spell] = {}

    def __call__(self, action: Callable[[], T], what: str = "") -> T:
        """What ``action`` returns; ``what`` names it in sentences. Raises its last error."""
        with self.spell(what) as spell:
            while True:
                try:
                    value = action()
                except Exception as error:
                    spell.wait(error)
                else:
                    spell.over()
                    return value

    def spell(self, what: str = "") -> "Spell":
        """One action's trouble, for a caller with its own loop."""
        return Spell(self, what)

    def fresh(self) -> "Patience":
        """Another one with the same limits, which is not closed with this one."""
        return Patience(self.clock, limits=self.limits, pause_sec=self._pause_sec)

    def within(self, seconds: float) -> "Patience":
        """The same, which gives nothing longer than ``seconds``."""
        return self._with(limits=self.limits.within(seconds))

    def permitting(self, forbidden_sec: float) -> "Patience":
        """The same, which gives permissions so long to spread."""
        return self._with(limits=replace(self.limits, forbidden_sec=forbidden_sec))

    def _with(self, **fields: object) -> "Patience":
        other = copy.copy(self)
        other.__dict__.update(fields)
        return other

    def close(self) -> None:
        """From now on every error is final; a sleeping caller raises after its pause."""
        self._closed.set()


class Spell:
    """One action's trouble, from its first failed try until it succeeds; as a context manager, it
    is forgotten at the end in any case.
    """

    def __init__(self, patience: Patience, what: str) -> None:
        self._patience = patience
        self._what = f"{what}: " if what else ""
        self._since: float | None = None
        self._tries = 0
        self._logged = False

    def __enter__(self) -> "Spell":
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()

    def wait(self, error: Exception) -> None:
        """Sleeps before the next try. Raises the error if it is final or its time is used up."""
        patience, trouble = self._patience, trouble_of(error)
        self._tries += 1
        now = patience.clock.monotonic()
        self._since = now if self._since is None else self._since
        limit_sec = patience.limits.of(trouble) if trouble else 0.0
        if trouble is None or not limit_sec:
            raise error  # an outer caller may still wait for it
        counted = patience.limits.silent_tries if trouble is Trouble.SILENT else None
        is_over = self._tries >= counted if counted else now - self._since >= limit_sec
        if is_over or patience._closed.is_set():
            self._give_up(error)
        until = f"up to {counted} times" if counted else f"for up to {duration(limit_sec)}"
        self._tell(error, trouble, now - self._since, until)
        longest_sec = PERMISSION_PAUSE_MAX_SEC if trouble is Trouble.FORBIDDEN else PAUSE_MAX_SEC
        pause_sec = grown(patience._pause_sec, longest_sec, self._tries)
        patience.clock.sleep(pause_after(error, pause_sec))
        if patience._closed.is_set():
            self._give_up(error)

    def pause(self, error: Exception) -> None:
        """Sleep after a lost race, to which no limit applies: the winner may have done the work."""
        self._patience.clock.sleep(pause_after(error, PAUSE_SEC))

    def note(self, error: Exception) -> None:
        """Log it as `wait` does, for a caller that tries again in any case, and only then."""
        self._tries += 1
        now = self._patience.clock.monotonic()
        self._since = now if self._since is None else self._since
        if not self._logged or (self._tries >= 4 and self._tries.bit_count() == 1):
            count = f" (tried {self._tries} times)" if self._tries > 1 else ""
            _log.info(f"{self._what}{_first_line(error)}; trying again{count}")
            self._logged = True

    def over(self) -> None:
        """The action succeeded."""
        if self._logged:
            _log.info(f"{self._what or 'storage: '}succeeded at try {self._tries + 1}")
        self.forget()

    def forget(self) -> None:
        """Forgets the trouble without a word."""
        with self._patience._lock:
            tellers = self._patience._tellers
            for trouble in [trouble for trouble, spell in tellers.items() if spell is self]:
                del tellers[trouble]
        self._since, self._tries, self._logged = None, 0, False

    def _give_up(self, error: Exception) -> NoReturn:
        error.tried_enough = True  # type: ignore[attr-defined]
        raise error

    def _tell(self, error: Exception, trouble: Trouble, since_sec: float, until: str) -> None:
        """The trouble once, then the 4th, 8th, 16th try: who waits still hears of it."""
        with self._patience._lock:
            if self._patience._tellers.setdefault(trouble, self) is not self:
                return
        if not self._logged:
            why = "permissions may still be spreading, " if trouble is Trouble.FORBIDDEN else ""
            _log.info(f"{self._what}{_first_line(error)}; {why}trying again {until}")
            self._logged = True
        elif self._tries >= 4 and self._tries.bit_count() == 1:
            _log.info(
                f"{self._what}{_first_line(error)}; trying again (tried {self._tries} times in "
                f"{duration(since_sec)})"
            )


def persistently(action: Callable[[], T], pause_sec: float, clock: Clock = SYSTEM_CLOCK) -> T:
    """What ``action`` returns: it is called until it raises nothing, whatever that is."""
    while True:
        try:
            return action()
        except Exception:
            clock.sleep(jittered(pause_sec))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


BRIEF = Patience(limits=Limits(silent_sec=PERSON_SEC))
"""Limits if a person waits for the answer."""
ONCE = Patience(limits=Limits().within(0.0))
"""One try."""


def spreading(clock: Clock, forbidden_sec: float, pause_sec: float = PAUSE_SEC) -> Patience:
    """Waits for permissions that may still be spreading, and for nothing else."""
    limits = replace(Limits().within(0.0), forbidden_sec=forbidden_sec)
    return Patience(clock, limits=limits, pause_sec=pause_sec)
