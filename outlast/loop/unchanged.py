"""Finds entries of a state that the program does not train with.

If a program binds a name again (``w = w + 1``, ``best = copy.deepcopy(model)``), the object in the
state stays unchanged. Nothing fails, but a resumed run ends with another result. So at each
snapshot the loop checks which objects have not changed, and how the program refers to them
(``usage``, ``rebound``):

array
    An array or a tensor that has not changed since the first step may be one whose name the program
    binds again, which cannot be known for certain. It is reported, and a resume is refused, unless
    it is declared constant.
container of plain data
    Its values may change only at the end of an epoch. It is reported and refused if there is
    evidence that the program uses another object. The same applies to each array, number, text and
    flag inside.
anything else
    A module, an optimiser or a generator may stay unchanged for long. It is reported if there is
    evidence that the program uses another object, and never refused.

The name of a changed object may be bound again later. So an array or a container stays watched: it
is reported and refused if the program has bound its name to another object and it no longer
changes. If it has other references, one more step shows whether it still changes, and a snapshot
waits for that step; a snapshot that cannot wait notes the name, and a resume from it is refused.

The loop remembers a digest of samples of each value, and a CRC32 of the whole value once the
samples were equal.
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
"""Snapshots without a change after which an array is reported without evidence."""
GLANCES = 3
"""First steps after which the program's variables are checked, besides each snapshot."""
PLACES_MAX = 256
"""The most arrays and numbers of one container to check, at even distances if it has more."""
_SAMPLE_BYTES = 4096


@dataclass
class _Entry:
    """One watched place."""

    keys: tuple[Any, ...]
    """Keys that lead from the state to the place: the entry's name, then keys of containers."""
    kind: str
    """``array``, ``value`` (a number, a text or a flag), ``container`` or ``object``."""
    use: usage.Use
    mark: str | None
    """Digest of its earlier value; a lazy entry gets one once there is evidence."""
    is_lazy: bool = False
    has_numbers: bool = False
    """Whether the container has an array or a number."""
    has_changed: bool = False
    token: Callable[[], Any] | int = 0
    """The object at the place: a weak reference or its id."""
    crc: int | None = None
    evidence: str = ""
    is_unsure: bool = False
    """Whether the evidence is new, so that the next step must show whether the program still
    changes the object."""
    marked_at: int = -1
    """The step after which it was last marked with evidence."""
    in_use: bool = False
    """Whether it has changed although one of its names now refers to another object."""
    reported: bool = False

    @property
    def path(self) -> str:
        return "".join(f"[{key!r}]" for key in self.keys)

    @property
    def is_bound(self) -> bool:
        """Whether to look for names of the program that refer to it."""
        return self.kind == "array" or (self.kind == "container" and len(self.keys) == 1)

    @property
    def is_refused(self) -> bool:
        """Whether a resume is refused because of it. Settings that only the state has are not a
        mistake, unless they have numbers, which a program would change."""
        weak = self.evidence == usage.UNREACHABLE and not self.has_numbers
        return bool(self.evidence) and self.kind != "object" and not weak

    @property
    def is_plain_array(self) -> bool:
        """Whether this is an array that the state itself names."""
        return self.kind == "array" and len(self.keys) == 1


class Watch:
    """Watches for entries of one state with which the program does not train. Call all methods in
    the thread of the loop and while no capture of the state is alive."""

    def __init__(
        self,
        values: Mapping[str, object],
        constant: Collection[str] = (),
        *,
        inline: bool = False,
        called: str = "state",
    ) -> None:
        """``constant`` names entries that may stay unchanged. ``inline``: the program holds no
        reference to ``values`` itself. ``called`` is the name of ``values`` in messages."""
        self._values = values
        self._constant = frozenset(constant)
        self._inline = inline
        self._called = called
        self._entries: list[_Entry] = []
        self._changed: set[str] = set()
        """Names of arrays that have changed at least once, in any attempt."""
        self._names: dict[tuple[Any, ...], rebound.Names] | None = None
        self._begun = self._is_over = False
        self._step = self._now = 0
        self._looks = self._glances = 0

    def begin(self, step: int, note: Mapping[str, Any] | None = None) -> None:
        """Begin after ``step``, once; ``note`` is the one in the restored snapshot.

        DoesNotFit names an entry that did not change before that snapshot.
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
            # Check the usage first, because reading the value adds a reference.
            use = usage.begin(self._values, keys)
            self._entries.append(self._entry(keys, kind, use))

    def first_step(self) -> None:
        """Begin the first step of this attempt; names that refer to an entry now are its names."""
        if self._names is None:
            keys = [each.keys for each in self._entries if each.is_bound]
            self._names = rebound.find(self._values, keys) if keys else {}

    def leave_loop(self) -> None:
        """Note that the steps are over, so that later uses of names have no meaning."""
        self._is_over = True

    def glance(self) -> None:
        """After each of the first steps, follow the program's variables."""
        if self._glances < GLANCES:
            self._glances += 1
            for entry in self._entries:
                entry.use.follow()

    def look(self, step: int, *, snapshot: bool = True) -> list[str]:
        """Check the watched entries before a capture; return sentences to print."""
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
        """Whether a snapshot after ``step`` should wait for one more step if it can: a name was
        bound to another object since the last look, and it is not known yet whether that
        matters."""
        self._now, found = step, False
        for entry in self._entries:
            if self._may_be_left(entry):
                self._stays(entry)
                found = found or entry.is_unsure
        return found

    def _may_be_left(self, entry: _Entry) -> bool:
        """Whether a name of a changed entry refers to another object for the first time."""
        new = entry.is_bound and not (entry.in_use or entry.evidence or self._is_over)
        if not new or not self._is_left(entry):
            return False
        try:
            return entry.has_changed or self._has_changed(entry)
        except (KeyError, IndexError, TypeError):
            return False

    def note(self) -> dict[str, Any]:
        """The snapshot's note: arrays that have changed, and entries that a resume refuses."""
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
        # An array that has changed in an earlier attempt need not change again.
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
        """Check an entry; whether it is still watched."""
        try:
            self._at(entry.keys)
        except (KeyError, IndexError, TypeError):
            return False  # it was removed
        evidence = entry.evidence if self._is_over else self._evidence(entry)
        if entry.is_lazy:
            return self._follow(entry, evidence)
        if not self._has_changed(entry):
            entry.evidence = evidence
            return True
        return self._note_change(entry)

    def _evidence(self, entry: _Entry) -> str:
        """Why the program does not seem to use the entry's object; empty without evidence."""
        if not entry.has_changed:
            found = entry.use.evidence(self._values, inline=self._inline)
            # A name of an array in a container may later be used for another array there.
            if found and not (entry.kind == "array" and len(entry.keys) > 1 and self._names):
                return found
            return usage.REBOUND if self._others(entry) else ""
        return usage.REBOUND if self._is_left(entry) else ""

    def _is_left(self, entry: _Entry) -> bool:
        """Whether an entry's names now refer to another object, or it has no reference left."""
        # A program with a reference to the state needs no name for an object in it.
        let_go = self._inline and len(entry.keys) == 1 and entry.use.is_let_go(self._values)
        return let_go or self._others(entry)

    def _others(self, entry: _Entry) -> bool:
        """Whether a name of the entry's object now refers to another object with other values."""
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
        """Note the entry's first change; whether it is still watched."""
        if entry.is_plain_array:
            self._changed.add(entry.keys[0])
        named = entry.use.homes or entry.keys in (self._names or {})
        if not entry.is_bound or not (named or len(entry.keys) == 1):
            return False
        entry.is_lazy = entry.has_changed = True
        entry.mark, entry.evidence, entry.reported = None, "", False
        return self._follow(entry, self._evidence(entry))

    def _follow(self, entry: _Entry, evidence: str) -> bool:
        """Check an entry by its usage only; whether it is still watched. An object that the program
        changes through another name is in use."""
        if entry.has_changed and not _is_it(entry.token, self._at(entry.keys)):
            return False  # the program puts new objects into the state itself
        if evidence and entry.marked_at == self._now:
            return True  # no step since
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
        """Whether the program no longer has any reference to the entry's object."""
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
                f"{place} does not change, and {entry.evidence}: changes of the other object are "
                "not saved; change the object that the state names in place"
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
    """Whether this is plain data without parts that could be watched separately."""
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
    """Whether two objects have equal values."""
    try:
        same = _mark(one) == _mark(two)
        return same and (not usage.is_array(one) or _crc(one) == _crc(two))
    except Exception:  # foreign code; an object that cannot be saved counts as different
        return False


def _inside(value: object, keys: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Any]]:
    """The plain values in a container, at most PLACES_MAX of them."""
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
    """A digest of a value: of its plain values and of samples of each array."""
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
    """The value; for a set, which has no order, its size and hash."""
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
