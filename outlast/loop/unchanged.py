"""Entries of a state that never change while it trains.

A name that a program binds again (``w = w + 1``, ``best = copy.deepcopy(model)``) leaves the object
in the state as it was at the first step. Nothing fails then, and a resumed run ends with another
result. So with each snapshot the loop looks at what has not changed yet, and at how the program
holds it:

array
    An array or a tensor that has not changed since the first step may be one that the program
    rebinds, and nothing tells for certain. It is reported, and a resume is refused, unless it is
    declared constant.
container of arrays and numbers
    Its values may wait for the end of an epoch. It is reported and refused where the program has
    shown that it uses something else (``usage``). The same goes for each array and number inside.
anything else
    A module, an optimiser or a generator may stay as it is for long. It is reported where the
    program has shown that it uses something else, and never refused.

What a value was is remembered as a digest of samples, and a CRC32 of all once the samples have been
found equal. What has changed once is not looked at again.
"""

import hashlib
import itertools
import json
import zlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.loop import state, usage
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
    """One place that has not been seen to change."""

    keys: tuple[Any, ...]
    """How to get there from the state: its name, and the keys of containers below."""
    kind: str
    """``array``, ``number``, ``container`` or ``object``."""
    use: usage.Use
    mark: str | None
    """Digest of what it was; an object gets one once the program has let go of it."""
    crc: int | None = None
    evidence: str = ""
    reported: bool = False

    @property
    def path(self) -> str:
        return "".join(f"[{key!r}]" for key in self.keys)

    @property
    def is_plain_array(self) -> bool:
        """Whether this is an array that the state itself names."""
        return self.kind == "array" and len(self.keys) == 1


class Watch:
    """What of one state has not changed yet. All methods belong to the thread of the loop, and
    are called while no capture of the state is alive."""

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
        self._begun = False
        self._step = 0
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
            self._refuse(step, note["rebound"])
        self._step = step
        watched = [name for name in self._values if name not in self._constant]
        for keys, kind in [place for name in watched for place in self._places(name)]:
            # First how it is used: a look at it is a use of our own.
            use = usage.begin(self._values, keys, is_number=kind == "number")
            mark = None if kind == "object" else _mark(self._at(keys))
            self._entries.append(_Entry(keys, kind, use, mark))

    def glance(self) -> None:
        """After each of the first steps: what the program's variables are doing."""
        if self._glances < GLANCES:
            self._glances += 1
            for entry in self._entries:
                entry.use.follow(self._values)

    def look(self, step: int, *, snapshot: bool = True) -> list[str]:
        """Look at what has not changed, before a capture; gives sentences that are to be said."""
        self._entries = [entry for entry in self._entries if self._stays(entry)]
        if not snapshot or step <= self._step:
            return []
        self._looks += 1
        due = [entry for entry in self._entries if not entry.reported and self._is_due(entry)]
        for entry in due:
            entry.reported = True
        return [self._report(entry, step - self._step) for entry in due]

    def note(self) -> dict[str, Any]:
        """For the snapshot: arrays that have changed, and what a resume refuses for certain."""
        rebound = {
            f"{self._called}{entry.path}": entry.evidence
            for entry in self._entries
            if entry.evidence and entry.kind != "object"
        }
        return {"changed": sorted(self._changed), "rebound": rebound}

    def _places(self, name: str) -> Iterator[tuple[tuple[Any, ...], str]]:
        value = self._values[name]
        if usage.is_array(value):
            # One that has changed before need not change again.
            yield (name,), "object" if name in self._changed else "array"
            return
        inside = _inside(value, (name,))
        yield (name,), "container" if inside else "object"
        for keys, item in inside:
            yield keys, "array" if usage.is_array(item) else "number"

    def _at(self, keys: tuple[Any, ...]) -> Any:
        found: Any = self._values
        for key in keys:
            found = found[key]
        return found

    def _stays(self, entry: _Entry) -> bool:
        """Whether an entry has still not changed."""
        try:
            evidence = entry.use.evidence(self._values, inline=self._inline)
            if entry.kind == "object":
                return self._stays_object(entry, evidence)
            changed = self._has_changed(entry)
        except (KeyError, IndexError, TypeError):
            return False  # it is not there any more
        entry.evidence = "" if changed else evidence
        if changed and entry.is_plain_array:
            self._changed.add(entry.keys[0])
        return not changed

    def _stays_object(self, entry: _Entry, evidence: str) -> bool:
        if not evidence:
            entry.mark = None
        elif entry.mark is None:
            entry.mark = _mark(self._at(entry.keys))
        else:
            entry.evidence = evidence
            return _mark(self._at(entry.keys)) == entry.mark
        entry.evidence = ""
        return True

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
        return bool(entry.evidence) or (entry.is_plain_array and self._looks >= REPORT_AT)

    def _report(self, entry: _Entry, steps: int) -> str:
        place, name = f"{self._called}{entry.path}", entry.keys[0]
        if entry.kind == "object":
            return (
                f"{place} does not change, and {entry.evidence}: what the other one becomes is not "
                "saved; change the object that the state names in place"
            )
        why = f", and {entry.evidence}" if entry.evidence else ""
        remedy = "change the object in place instead"
        if isinstance(self._at(entry.keys), dict):
            remedy += f", as in {entry.keys[-1]}.update(new)"
        return (
            f"{place} has not changed in {steps} steps{why}; if your program binds the name again, "
            f"as in w = w + 1, {remedy}; if it is meant to stay, declare "
            f"it with constant=[{name!r}]: a resume is refused until then"
        )

    def _refuse(self, step: int, rebound: Mapping[str, str]) -> None:
        for name in self._values:
            if name in self._constant:
                continue
            place = f"{self._called}[{name!r}]"
            known = [(path, why) for path, why in rebound.items() if path.startswith(place)]
            if not known and (name in self._changed or not usage.is_array(self._values[name])):
                continue
            where, why = known[-1] if known else (place, "")
            raise DoesNotFit(
                f"{where} did not change in any of the {step} steps before this checkpoint"
                f"{', and ' + why if why else ''}; if it is meant to stay, declare it with "
                f"outlast.train(..., constant=[{name!r}]), and the run resumes from here; if your "
                "program binds the name again, as in w = w + 1, its values were never saved: "
                "change the object in place and start from scratch"
            )


def _inside(value: object, keys: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Any]]:
    """The arrays and numbers of a container that are looked at."""
    found = list(_walk(value, keys))
    step = -(-len(found) // PLACES_MAX) or 1
    return found[::step]


def _walk(value: Any, keys: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        pairs: Any = value.items()
    elif isinstance(value, list | tuple | deque):
        pairs = enumerate(value)
    else:
        return
    for key, item in pairs:
        if usage.is_array(item) or usage.is_number(item):
            yield (*keys, key), item
        else:
            yield from _walk(item, (*keys, key))


def _mark(value: object) -> str:
    """A digest of a value: of all that is plain, and of samples of each array."""
    parts = [item for _, item in _inside(value, ())] or [value]
    digest = hashlib.blake2b(digest_size=16)
    if len(parts) > 1 or parts[0] is not value:
        digest.update(f"{type(value).__name__} {len(value)} ".encode())  # type: ignore[arg-type]
    nodes, blobs = state.capture_all({str(i): part for i, part in enumerate(parts)})
    digest.update(json.dumps(nodes, sort_keys=True).encode())
    for blob in blobs.items:
        digest.update(f"{blob.dtype} {tuple(blob.shape)} {blob.nbytes};".encode())
        digest.update(_sample(blob))
    return digest.hexdigest()


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
