"""The stored state of the local cloud: one folder, a file for each entry, atomic writes.

A write renames a temporary file, so that after a kill at any moment each entry is as it was before
or after a write. Files are not synced: the state survives the end of the process, but not a crash
of the machine."""

import bisect
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces the file in one step; its folder must exist."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


class Table(MutableMapping[str, Entry]):
    """A mapping of names to JSON objects, in memory and in a folder.

    Only assignment and deletion reach the disk: to change an entry, assign it again. Iteration is
    in order of names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._entries: dict[str, Entry] = {}
        for file in folder.iterdir():
            if file.name.startswith("."):  # an interrupted write
                file.unlink()
                continue
            kept = json.loads(file.read_bytes())
            self._entries[kept["key"]] = kept["value"]
        self._order = sorted(self._entries)

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __setitem__(self, key: str, value: Entry) -> None:
        data = json.dumps({"key": key, "value": value}, separators=(",", ":")).encode()
        write_atomically(self._file(key), data)
        if key not in self._entries:
            bisect.insort(self._order, key)
        self._entries[key] = value

    def __delitem__(self, key: str) -> None:
        del self._entries[key]
        del self._order[bisect.bisect_left(self._order, key)]
        self._file(key).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._order))

    def clear(self) -> None:
        for key in self:
            del self[key]

    def names_from(self, first: str) -> Iterator[str]:
        """Yields the names at or after `first`, in order; the table must not change in between."""
        for index in range(bisect.bisect_left(self._order, first), len(self._order)):
            yield self._order[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def _file(self, key: str) -> Path:
        # Keys may be longer than a file name, and may contain slashes.
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"


class State:
    """The folder of one local cloud."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._tables: dict[str, Table] = {}
        self._last_number = 0
        self._numbers = root / "numbers"
        if self._numbers.exists():
            self._last_number = int(self._numbers.read_text())
        self._reserved = self._last_number

    def table(self, name: str) -> Table:
        """The table of this name (`compute/templates`); the same object each time."""
        if name not in self._tables:
            self._tables[name] = Table(self.root / name)
        return self._tables[name]

    def folder(self, name: str) -> Path:
        """A folder for files that are not JSON entries (`storage/bytes`, `vms`)."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def next_number(self) -> int:
        """A number higher than all previous ones, also across restarts: for ids and generations.

        It is the microseconds since 1970, like real generations. Numbers for one second are
        reserved on the disk at a time, so that a clock that is set back cannot repeat a number."""
        number = max(time.time_ns() // 1000, self._last_number + 1)
        if number > self._reserved:
            self._reserved = number + 1_000_000
            write_atomically(self._numbers, str(self._reserved).encode())
        self._last_number = number
        return number

    def clear(self) -> None:
        """Forgets every entry of every table."""
        for table in self._tables.values():
            table.clear()


class EventLog:
    """`events.jsonl`: one line for each event that a rehearsal needs with its time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, kind: str, **fields: Any) -> None:
        """Appends {time (seconds since 1970), kind, …}."""
        line = {"time": round(time.time(), 6), "kind": kind, **fields}
        self._file.write(json.dumps(line, default=str) + "\n")

    def close(self) -> None:
        self._file.close()
