"""Entries of a state that the program does not train with.

A name that a program binds again (``w = w + 1``, ``best = copy.deepcopy(model)``) leaves the object
in the state as it was. Nothing fails then, and a resumed run ends with another result. So with each
snapshot the loop looks at what has not changed, and at how the program holds it (``usage``,
``rebound``):

array
    An array or a tensor that has not changed since the first step may be one that the program
    rebinds, and nothing tells for certain. It is reported, and a resume is refused, unless it is
    declared constant.
container of plain data
    Its values may wait for the end of an epoch. It is reported and refused where the program has
    shown that it uses something else. The same goes for each array, number, text and flag inside.
anything else
    A module, an optimiser or a generator may stay as it is for long. It is reported where the
    program has shown that it uses something else, and never refused.

What has changed may be bound again later. So an array or a container stays in the watch: it is
reported and refused if the program has bound its name to another object, and it does not change any
more. Where other references to it are left, one more step tells that, and a snapshot waits for it;
one that cannot wait notes the name, and a resume from it is refused.

What a value was is remembered as a digest of samples, and a CRC32 of all once the samples have been
found equal.
"""

import hashlib
import itertools
import json
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.loop import classes, frameworks, rebound, state, usage
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import Blob

REPORT_AT = 3
"""Snapshots in which an array has not changed, before it is reported without evidence."""
GLANCES = 3
"""Steps after which the program's variables are looked at, besides each snapshot."""
PLACES_MAX = 256
"""Arrays and numbers of one container that are looked at; of more, so many in even distances."""
_SAMPLE_BYTES = 4096


@dataclass
class _Entry:
    """One place that is watched."""

    keys: tuple[Any, ...]
    """How to get there from the state: its name, and the keys of containers below."""
    kind: str
    """``array``, ``value`` (a number, a text or a flag), ``container`` or ``object``."""
    use: usage.Use
    mark: str | None
    """Digest of what it was; what is lazy gets one once the program uses something else."""
    is_lazy: bool = False
    has_numbers: bool = False
    """Whether an array or a number is in the container."""
    has_changed: bool = False
    token: Callable[[], Any] | int = 0
    """The object that is there: a weak reference, or its identity."""
    crc: int | None = None
    evidence: str = ""
    is_unsure: bool = False
    """Whether the evidence is new: the next step tells whether the program still changes it."""
    marked_at: int = -1
    """The step after which it was looked at with evidence."""
    in_use: bool = False
    """Whether it has changed although a name of it is another object's now."""
    reported: bool = False

    @property
    def path(self) -> str:
        return "".join(f"[{key!r}]" for key in self.keys)

    @property
    def is_bound(self) -> bool:
        """Whether names of the program are looked for that refer to it."""
        return self.kind == "array" or (self.kind == "container" and len(self.keys) == 1)

    @property
    def is_refused(self) -> bool:
        """Whether a resume without it is refused. Settings that only the state has are no mistake,
        unless they have numbers, which a program would change."""
        weak = self.evidence == usage.UNREACHABLE and not self.has_numbers
        return bool(self.evidence) and self.kind != "object" and not weak

    @property
    def is_plain_array(self) -> bool:
        """Whether this is an array that the state itself names."""
        return self.kind == "array" and len(self.keys) == 1


class Watch:
    """What of one state the program may not train with. All methods belong to the thread of the
    loop, and are called while no capture of the state is alive."""

    def __init__(
        self,
        values: Mapping[str, object],
        constant: Collection[str] = (),
        *,
        inline: bool = False,
        called: str = "state",
    ) -> None:
        """``constant`` names entries that may stay as they are. ``inline``: the program holds no
        reference to ``values`` itself. ``called`` is what people call ``values``."""
        self._values = values
        self._constant = frozenset(constant)
        self._inline = inline
        self._called = called
        self._entries: list[_Entry] = []
        self._changed: set[str] = set()
        """Arrays by name that have changed once, in whatever attempt."""
        self._names: dict[tuple[Any, ...], rebound.Names] | None = None
        self._begun = self._is_over = False
        self._step = self._now = 0
        self._looks = self._glances = 0

    def begin(self, step: int, note: Mapping[str, Any] | None = None) -> None:
        """Training begins after ``step``, which is said once; ``note`` is that of the snapshot that
        was restored.

        DoesNotFit names what never changed before that snapshot.
        """
        if self._begun:
            return
        self._begun = True
        if step and note is not None:
            self._changed = set(note["changed"])
            self._refuse(step, note["rebound"], note.get("stopped", ()))
        self._step = step
        watched = [name for name in self._values if name not in self._constant]
        for keys, kind in [place for name in watched for place in self._places(name)]:
            # First how it is used: a look at it is a use of our own.
            use = usage.begin(self._values, keys)
            self._entries.append(self._entry(keys, kind, use))

    def first_step(self) -> None:
        """The first step of this attempt begins: the names that refer to an entry now are its
        names."""
        if self._names is None:
            keys = [each.keys for each in self._entries if each.is_bound]
            self._names = rebound.find(self._values, keys) if keys else {}

    def leave_loop(self) -> None:
        """The steps are over: what the program does with its names now means nothing."""
        self._is_over = True

    def glance(self) -> None:
        """After each of the first steps: what the program's variables are doing."""
        if self._glances < GLANCES:
            self._glances += 1
            for entry in self._entries:
                entry.use.follow()

    def look(self, step: int, *, snapshot: bool = True) -> list[str]:
        """Look at what is watched, before a capture; gives sentences that are to be said."""
        self._now = step
        self._entries = [entry for entry in self._entries if self._stays(entry)]
        if not snapshot or step <= self._step:
            return []
        self._looks += 1
        due = [entry for entry in self._entries if not entry.reported and self._is_due(entry)]
        for entry in due:
            entry.reported = True
        return [self._report(entry, step - self._step) for entry in due]

    def wants_step(self, step: int) -> bool:
        """Whether a snapshot after ``step``, if it can wait, should wait for one more: a name was
        bound to another object since the last look, and nothing tells yet whether that matters."""
        self._now, found = step, False
        for entry in self._entries:
            if self._may_be_left(entry):
                self._stays(entry)
                found = found or entry.is_unsure
        return found

    def _may_be_left(self, entry: _Entry) -> bool:
        """Whether it is the first time that a changed entry has a name of another object."""
        new = entry.is_bound and not (entry.in_use or entry.evidence or self._is_over)
        if not new or not self._is_left(entry):
            return False
        try:
            return entry.has_changed or self._has_changed(entry)
        except (KeyError, IndexError, TypeError):
            return False

    def note(self) -> dict[str, Any]:
        """For the snapshot: arrays that have changed, and what a resume refuses for certain."""
        refused = [entry for entry in self._entries if entry.is_refused]
        return {
            "changed": sorted(self._changed),
            "rebound": {self._place(entry): entry.evidence for entry in refused},
            "stopped": sorted(self._place(entry) for entry in refused if entry.has_changed),
        }

    def _place(self, entry: _Entry) -> str:
        return f"{self._called}{entry.path}"

    def _places(self, name: str) -> Iterator[tuple[tuple[Any, ...], str]]:
        value = self._values[name]
        if usage.is_array(value):
            yield (name,), "array"
            return
        inside = _inside(value, (name,))
        yield (name,), "container" if inside or _is_plain(value) else "object"
        for keys, item in inside:
            if usage.is_array(item) or usage.is_value(item):
                yield keys, "array" if usage.is_array(item) else "value"

    def _entry(self, keys: tuple[Any, ...], kind: str, use: usage.Use) -> _Entry:
        value, is_array = self._at(keys), kind == "array"
        # An array that has changed in an attempt before need not change again.
        changed = is_array and len(keys) == 1 and keys[0] in self._changed
        inside = [item for _, item in _inside(value, ())]
        is_lazy = changed or kind == "object"
        numbers = is_array or any(usage.is_array(i) or usage.is_number(i) for i in inside)
        mark = None if is_lazy else _mark(value)
        return _Entry(keys, kind, use, mark, is_lazy, numbers, changed, token=_token(value))

    def _at(self, keys: tuple[Any, ...]) -> Any:
        found: Any = self._values
        for key in keys:
            found = found[key]
        return found

    def _stays(self, entry: _Entry) -> bool:
        """Whether an entry is still watched."""
        try:
            self._at(entry.keys)
        except (KeyError, IndexError, TypeError):
            return False  # it is not there any more
        evidence = entry.evidence if self._is_over else self._evidence(entry)
        if entry.is_lazy:
            return self._follow(entry, evidence)
        if not self._has_changed(entry):
            entry.evidence = evidence
            return True
        return self._note_change(entry)

    def _evidence(self, entry: _Entry) -> str:
        """Why the program does not use what is there."""
        if not entry.has_changed:
            found = entry.use.evidence(self._values, inline=self._inline)
            # A name of a thing inside of a container may be used for another one of these.
            if found and not (entry.kind == "array" and len(entry.keys) > 1 and self._names):
                return found
            return usage.REBOUND if self._others(entry) else ""
        return usage.REBOUND if self._is_left(entry) else ""

    def _is_left(self, entry: _Entry) -> bool:
        """Whether names that were an entry's are another object's now, or it has none left."""
        # Who has the state has each object in it without a name for it.
        let_go = self._inline and len(entry.keys) == 1 and entry.use.is_let_go(self._values)
        return let_go or self._others(entry)

    def _others(self, entry: _Entry) -> bool:
        """Whether a name of what is there refers to another object now, with other values."""
        if not entry.is_bound:
            return False
        others = [
            each
            for each in entry.use.others(self._values)
            if not rebound.is_kept(self._values, each, named=True)
        ]
        if self._names and entry.keys in self._names:
            others += self._names[entry.keys].others(self._values)
        now = self._at(entry.keys) if others else None
        return any(not _is_same(now, each) for each in others)

    def _note_change(self, entry: _Entry) -> bool:
        """It has changed for the first time."""
        if entry.is_plain_array:
            self._changed.add(entry.keys[0])
        named = entry.use.homes or entry.keys in (self._names or {})
        if not entry.is_bound or not (named or len(entry.keys) == 1):
            return False
        entry.is_lazy = entry.has_changed = True
        entry.mark, entry.evidence, entry.reported = None, "", False
        return self._follow(entry, self._evidence(entry))

    def _follow(self, entry: _Entry, evidence: str) -> bool:
        """Whether an entry of which only the use is looked at is still watched: what the program
        changes by another name is in use."""
        if entry.has_changed and not _is_it(entry.token, self._at(entry.keys)):
            return False  # the program puts new objects into the state itself
        if evidence and entry.marked_at == self._now:
            return True  # no step was made since
        is_known = bool(entry.evidence) and not entry.is_unsure
        entry.evidence, entry.is_unsure = "", False
        if not evidence:
            entry.mark = None
        elif entry.has_changed and self._is_sure(entry):
            entry.evidence = evidence
        else:
            before, entry.mark = entry.mark, _mark(self._at(entry.keys))
            entry.marked_at = self._now
            if before == entry.mark or (before is None and is_known):
                entry.evidence = evidence
            elif before is not None:
                entry.in_use = True
            elif entry.has_changed and not entry.in_use:
                entry.evidence, entry.is_unsure = evidence, True
            return before in (None, entry.mark) or entry.kind != "object"
        return True

    def _is_sure(self, entry: _Entry) -> bool:
        """Whether nothing of the program refers to what is there any more."""
        known = self._inline or callable(entry.token)
        return known and entry.use.is_let_go(self._values)

    def _has_changed(self, entry: _Entry) -> bool:
        value = self._at(entry.keys)
        if _mark(value) != entry.mark:
            return True
        if not (entry.kind == "array" and (entry.is_plain_array or entry.evidence)):
            return False
        crc = _crc(value)
        entry.crc = crc if entry.crc is None else entry.crc
        return crc != entry.crc

    def _is_due(self, entry: _Entry) -> bool:
        if entry.is_unsure:
            return False
        waits = entry.is_plain_array and not entry.is_lazy
        return bool(entry.evidence) or (waits and self._looks >= REPORT_AT)

    def _report(self, entry: _Entry, steps: int) -> str:
        place, name = self._place(entry), entry.keys[0]
        if not entry.is_refused and entry.evidence:
            return (
                f"{place} does not change, and {entry.evidence}: changes of the other object are"
                " not "
                "saved; change the object that the state names in place"
            )
        why = f", and {entry.evidence}" if entry.evidence else ""
        since = "no longer changes" if entry.has_changed else f"has not changed in {steps} steps"
        remedy = "change the object in place instead"
        if isinstance(self._at(entry.keys), dict):
            remedy += f", as in {entry.keys[-1]}.update(new)"
        return (
            f"{place} {since}{why}; if your program binds the name again, "
            f"as in w = w + 1, {remedy}; if it is meant to stay, declare "
            f"it with constant=[{name!r}]: a resume is refused until then"
        )

    def _refuse(self, step: int, rebound: Mapping[str, str], stopped: Collection[str]) -> None:
        for name in self._values:
            if name in self._constant:
                continue
            place = f"{self._called}[{name!r}]"
            known = [(path, why) for path, why in rebound.items() if path.startswith(place)]
            if not known and (name in self._changed or not usage.is_array(self._values[name])):
                continue
            where, why = known[-1] if known else (place, "")
            since = f"did not change in any of the {step} steps before this checkpoint"
            if where in stopped:
                since = "no longer changed before this checkpoint"
            raise DoesNotFit(
                f"{where} {since}{', and ' + why if why else ''}; if it is meant to stay, "
                f"declare it with outlast.train(..., constant=[{name!r}]), and the run resumes "
                "from here; if your program binds the name again, as in w = w + 1, its values "
                "were never saved: change the object in place and start from scratch"
            )


def _is_plain(value: object) -> bool:
    """Whether this is plain data without anything in it that could be looked at by itself."""
    empty = isinstance(value, dict | list | deque) and not value
    return empty or isinstance(value, bytearray) or _is_record(value)


def _is_record(value: object) -> bool:
    return classes.is_dataclass(type(value)) and not frameworks.has_state_dict(value)


def _token(value: Any) -> Callable[[], Any] | int:
    try:
        return weakref.ref(value)
    except TypeError:
        return id(value)


def _is_it(token: Callable[[], Any] | int, value: object) -> bool:
    return token == id(value) if isinstance(token, int) else token() is value


def _is_same(one: Any, two: Any) -> bool:
    """Whether two objects hold the same values."""
    try:
        same = _mark(one) == _mark(two)
        return same and (not usage.is_array(one) or _crc(one) == _crc(two))
    except Exception:  # foreign code; what cannot be saved is another value
        return False


def _inside(value: object, keys: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Any]]:
    """What is plain in a container, as far as it is looked at."""
    found = list(_walk(value, keys))
    step = -(-len(found) // PLACES_MAX) or 1
    return found[::step]


def _walk(value: Any, keys: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        pairs: Any = value.items()
    elif isinstance(value, list | tuple | deque):
        pairs = enumerate(value)
    else:
        if isinstance(value, set | frozenset):
            yield keys, value
        return
    for key, item in pairs:
        if usage.is_array(item) or usage.is_value(item) or item is None:
            yield (*keys, key), item
        else:
            yield from _walk(item, (*keys, key))


def _mark(value: object) -> str:
    """A digest of a value: of all that is plain, and of samples of each array."""
    parts = [_plain(item) for _, item in _inside(value, ())] or [value]
    digest = hashlib.blake2b(digest_size=16)
    if len(parts) > 1 or parts[0] is not value:
        digest.update(f"{type(value).__name__} {len(value)} ".encode())  # type: ignore[arg-type]
    nodes, blobs = state.capture_all({str(i): part for i, part in enumerate(parts)})
    digest.update(json.dumps(nodes, sort_keys=True).encode())
    for blob in blobs.items:
        digest.update(f"{blob.dtype} {tuple(blob.shape)} {blob.nbytes};".encode())
        digest.update(_sample(blob))
    return digest.hexdigest()


def _plain(item: Any) -> Any:
    """A set by its size and its hash, as it has no order."""
    return f"{len(item)} {hash(frozenset(item))}" if isinstance(item, set | frozenset) else item


def _sample(blob: Blob) -> bytes:
    data = memoryview(blob.data)
    if len(data) <= 4 * _SAMPLE_BYTES:
        return bytes(data)
    last = len(data) - _SAMPLE_BYTES
    return b"".join(bytes(data[at : at + _SAMPLE_BYTES]) for at in (0, last // 3, last // 2, last))


def _crc(value: object) -> int:
    _, blobs = state.capture_all({"x": value})
    crc = 0
    for data in itertools.chain(blob.data for blob in blobs.items):
        crc = zlib.crc32(data, crc)
    return crc
