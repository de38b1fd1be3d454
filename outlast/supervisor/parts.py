"""The parts of a run as its program trains them: which one may begin, and where it begins.

One attempt is one life of the program. It greets for each of its trainings; a part begins once all
parts before it are done, so that the steps of all parts are one line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.bucket.head import Checkpoint
from outlast.bucket.parts import Part, is_done, own_step, parts_of
from outlast.protocol import Hello, check_part_name
from outlast.supervisor.initial import is_init


@dataclass(frozen=True)
class Begin:
    """Where a training begins: from scratch without a `state`."""

    part: str = ""
    before: int = 0
    """Steps of the parts before it."""
    state: Checkpoint | None = None
    end: Checkpoint | None = None
    """Of a part that is done: the entry that says so."""

    @property
    def step(self) -> int:
        """Its own steps so far."""
        return 0 if self.state is None else own_step(self.state)

    @property
    def missing(self) -> tuple[Checkpoint, ...]:
        """What has to be read before it can begin."""
        return tuple(entry for entry in (self.state, self.end) if entry is not None)


class Parts:
    """The trainings of one attempt, in the order in which its program begins them."""

    def __init__(self, chain: Sequence[Checkpoint]) -> None:
        """``chain`` is HEAD's, without what could not be read."""
        self._chain = tuple(chain)
        self._known: dict[str, Part | None] = {part.name: part for part in parts_of(self._chain)}
        """Of one that has no entry yet, None."""
        self._begun: set[str] = set()
        self.now = Begin()
        """The training at work, or the one before where none is."""

    @property
    def used(self) -> bool:
        """Whether the program trains parts."""
        return bool(self._begun) and "" not in self._begun

    @property
    def lacking(self) -> str | None:
        """What the run's end lacks, for people: a part that is not done, or one that an earlier
        start has done and this one has not begun. None where nothing is lacking."""
        for name, part in self._known.items():
            if part is None or not part.done:
                return f"its part {name!r} is not done"
            if name not in self._begun:
                return f"its part {name!r} was done in an earlier start and not begun in this one"
        return None

    def goes_on(self) -> str:
        """What the same command begins with, for people."""
        if not self._chain or is_init(self._chain[-1]):
            return "the same command starts from scratch"
        newest = self._chain[-1]
        if is_done(newest):
            return f"the same command resumes after part {newest.part}"
        of = f" of part {newest.part}" if newest.part else ""
        return f"the same command resumes from step {own_step(newest)}{of}"

    @property
    def all_done(self) -> bool:
        """Whether the program trains parts, has begun every one that the run has, and each is
        done."""
        return self.used and self.lacking is None

    def refusal(self, hello: Hello) -> str | None:
        """Why the training that greets may not begin; None where it may."""
        if not hello.part:
            if self._known:
                return (
                    f"outlast.train without part=: the run has parts ({', '.join(self._known)}); "
                    "give every training of the run a name, or begin another run"
                )
            return None
        try:
            check_part_name(hello.part)
        except ValueError as error:
            return str(error)
        unnamed = any(not entry.part and not is_init(entry) for entry in self._chain)
        if unnamed or "" in self._begun:
            return (
                f"part {hello.part!r}: the run was begun without parts; leave part= away, or begin "
                "another run"
            )
        return self._refusal_of_order(hello.part)

    def _refusal_of_order(self, name: str) -> str | None:
        """A later part may stand on the ones before: it sees them as they were each time."""
        for begun in self._begun:
            part = self._known[begun]
            if part is not None and part.done:
                continue
            at = "" if part is None else f" (it is at step {part.step})"
            if begun == name:
                return f"part {name!r}: this program has begun it already{at}"
            return (
                f"part {name!r}: part {begun!r} was begun before and is not done{at}; a part "
                "begins once the one before it is done"
            )
        expected = next((known for known in self._known if known not in self._begun), None)
        if expected in (None, name) or name in self._begun:
            return None
        return (
            f"part {name!r}: the run's parts are {', '.join(self._known)}, and {expected!r} comes "
            "next; begin the same parts in the same order in every start (one that is done makes "
            "no steps), or begin another run"
        )

    def begin(self, hello: Hello) -> Begin:
        """The training that greets begins."""
        name = hello.part
        self._begun.add(name)
        if not name:
            state = self._chain[-1] if self._chain else None
            self.now = Begin(state=state)
            return self.now
        part = self._known.get(name)
        if part is None:
            before = self._chain[-1].step if self._chain else 0
            init = next((entry for entry in self._chain if is_init(entry)), None)
            self._known[name] = None
            self.now = Begin(name, before, init)
        else:
            self.now = Begin(name, part.before, part.state, part.newest if part.done else None)
        return self.now

    def committed(self, checkpoint: Checkpoint) -> None:
        """The training at work has a new entry."""
        self._chain = (*self._chain, checkpoint)
        if checkpoint.part:
            part = self._known.get(checkpoint.part)
            part = part or Part(checkpoint.part, checkpoint.before, checkpoint)
            part = replace(part, newest=checkpoint)
            if not is_done(checkpoint):
                part = replace(part, state=checkpoint)
            self._known[checkpoint.part] = part


@dataclass(frozen=True)
class Folders:
    """What a training begins with, as it was read."""

    begin: Begin
    state: Path | None = None
    end: Path | None = None
