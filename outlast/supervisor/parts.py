"""The parts of a run: which one may start, and where it starts.

One attempt is one life of the program. It sends a hello for each training; a part begins when all
parts before it are done, so the steps of all parts form one sequence.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.bucket.head import Checkpoint
from outlast.bucket.parts import Part, is_done, own_step, shown
from outlast.protocol import Hello, check_part_name
from outlast.supervisor.initial import is_init


@dataclass(frozen=True)
class Begin:
    """Where a training starts; from scratch without a `state`."""

    part: str = ""
    before: int = 0
    """Steps of the parts before it."""
    state: Checkpoint | None = None
    end: Checkpoint | None = None
    """The last entry of a part that is done."""
    wants_state: bool = True

    @property
    def step(self) -> int:
        """The part's own steps so far."""
        return 0 if self.state is None else own_step(self.state)

    @property
    def missing(self) -> tuple[Checkpoint, ...]:
        """The checkpoints to read before it can start."""
        state = self.state if self.wants_state else None
        return tuple(entry for entry in (state, self.end) if entry is not None)


class Parts:
    """The trainings of one attempt, in the order in which its program begins them."""

    def __init__(self, chain: Sequence[Checkpoint], parts: Iterable[Part] = ()) -> None:
        """``chain`` is HEAD's, without unreadable checkpoints; ``parts`` are all parts of the
        run."""
        self._newest = chain[-1] if chain else None
        self._init = next((entry for entry in chain if is_init(entry)), None)
        self._unnamed = any(not entry.part and not is_init(entry) for entry in chain)
        """Whether the run started without parts."""
        self._known: dict[str, Part | None] = {part.name: part for part in parts}
        """None for a part that has no entry yet."""
        self._begun: dict[str, None] = {}
        self.now = Begin()
        """The current training, or the previous one if none is running."""

    @property
    def known(self) -> tuple[Part, ...]:
        """All parts that have an entry."""
        return tuple(part for part in self._known.values() if part is not None)

    @property
    def used(self) -> bool:
        """Whether the program trains parts."""
        return bool(self._begun) and "" not in self._begun

    @property
    def lacking(self) -> str | None:
        """A clause that says what the run lacks to be done: a part that is not done, or one that an
        earlier start has done and this one has not started. None if nothing is lacking."""
        for name, part in self._known.items():
            if part is None or not part.done:
                return f"its part {name!r} is not done"
            if name not in self._begun:
                return (
                    f"its part {name!r} was done in an earlier start but did not begin in this one"
                )
        return None

    def resumes_from(self) -> str:
        """A clause for people: where the same command will continue."""
        newest = self._newest
        if newest is None or is_init(newest):
            return "the same command starts from scratch"
        if is_done(newest):
            return f"the same command resumes after part {newest.part}"
        of = f" of part {newest.part}" if newest.part else ""
        return f"the same command resumes from step {own_step(newest)}{of}"

    @property
    def all_done(self) -> bool:
        """Whether the program trains parts, and has started and finished every part of the run."""
        return self.used and self.lacking is None

    def refusal(self, hello: Hello) -> str | None:
        """Why the training that sent the hello may not start; None if it may."""
        name = hello.part
        if not name:
            if self._known:
                return (
                    f"outlast.train without part=: the run has parts ({shown(self._known)}); "
                    "give every training of the run a name, or start another run"
                )
            return None
        try:
            check_part_name(name)
        except ValueError as error:
            return str(error)
        if self._unnamed or "" in self._begun:
            return (
                f"part {name!r}: the run started without parts; leave out part=, or start "
                "another run"
            )
        return self._refusal_of_order(name) or self._refusal_of_case(name)

    def _refusal_of_order(self, name: str) -> str | None:
        """A later part may depend on the parts before it, so the order must be the same in every
        start."""
        for begun in [*self._begun][-1:]:  # those before it were done when it started
            part = self._known[begun]
            if part is not None and part.done:
                continue
            at = "" if part is None else f" (it is at step {part.step})"
            if begun == name:
                return f"part {name!r}: this program has already begun it{at}"
            return (
                f"part {name!r}: part {begun!r} began before it and is not done{at}; a part "
                "can begin when the one before it is done"
            )
        expected = next((known for known in self._known if known not in self._begun), None)
        if expected in (None, name) or name in self._begun:
            return None
        return (
            f"part {name!r}: the run's parts are {shown(self._known, expected)}, and {expected!r} "
            "comes next; begin the same parts in the same order in every start (a finished part "
            "makes no steps), or start another run"
        )

    def _refusal_of_case(self, name: str) -> str | None:
        """Each part has a folder in the result, and some file systems treat "A" and "a" as the same
        name."""
        for known in self._known:
            if known != name and known.lower() == name.lower():
                return (
                    f"part {name!r}: differs from part {known!r} only in upper and lower case; "
                    "give it another name"
                )
        return None

    def begin(self, hello: Hello) -> Begin:
        """Notes that the training that sent the hello starts; returns where."""
        name = hello.part
        self._begun[name] = None
        if not name:
            self.now = Begin(state=self._newest)
            return self.now
        part = self._known.get(name)
        if part is None:
            before = self._newest.step if self._newest else 0
            self._known[name] = None
            self.now = Begin(name, before, self._init)
        else:
            end = part.newest if part.done else None
            wants_state = end is None or hello.restore_done
            self.now = Begin(name, part.before, part.state, end, wants_state)
        return self.now

    def committed(self, checkpoint: Checkpoint) -> None:
        """Notes a new entry of the current training."""
        self._newest = checkpoint
        if checkpoint.part:
            part = self._known.get(checkpoint.part)
            part = part or Part(checkpoint.part, checkpoint.before, checkpoint)
            part = replace(part, newest=checkpoint)
            if not is_done(checkpoint):
                part = replace(part, state=checkpoint)
            self._known[checkpoint.part] = part


@dataclass(frozen=True)
class Folders:
    """What a training starts from, read into folders."""

    begin: Begin
    state: Path | None = None
    end: Path | None = None
