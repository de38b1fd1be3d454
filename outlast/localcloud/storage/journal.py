"""The state of the storage: tables in memory, and one file to which every change is appended.

A change is one line and one write, however many entries it changes: after a kill at any moment, a
change is there completely or not at all. An incomplete line is dropped at the next start. As in
`base.state`, the file is not synced: it survives the end of the process, but not a crash of the
machine."""

import bisect
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from outlast.localcloud.base.state import Entry

Change = tuple[str, str | None, Entry | None]
"""Table, key, value. Without a value the key is deleted, without a key the whole table."""

COMPACT_FROM = 20_000
"""Lines from which a file is rewritten, if at least half of them are obsolete."""


class Table(Mapping[str, Entry]):
    """Entries by name, iterated in order of names. Only `Journal.write` changes a table."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._order: list[str] = []

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._order))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def names_from(self, first: str) -> Iterator[str]:
        """Yields the names at or after `first`, in order; the table must not change in between."""
        for index in range(bisect.bisect_left(self._order, first), len(self._order)):
            yield self._order[index]

    def put(self, key: str, value: Entry | None) -> None:
        """Sets or deletes an entry; only for the journal."""
        if value is not None:
            if key not in self._entries:
                bisect.insort(self._order, key)
            self._entries[key] = value
        elif self._entries.pop(key, None) is not None:
            del self._order[bisect.bisect_left(self._order, key)]


class Journal:
    """The tables and their file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tables: dict[str, Table] = {}
        self._lines = 0
        path.touch()
        self._replay()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def _replay(self) -> None:
        whole = 0
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._apply(json.loads(line))
                self._lines += 1
                whole += len(line)
        os.truncate(self._path, whole)

    def table(self, name: str) -> Table:
        """The table of this name; the same object until the whole table is deleted."""
        return self._tables.setdefault(name, Table())

    def write(self, *changes: Change) -> None:
        """Makes all changes or none. Raises OSError if the disk is full."""
        self._append(self._file, changes)
        self._apply(changes)
        self._lines += 1
        if self._lines > COMPACT_FROM:
            self._compact()

    def _apply(self, changes: "tuple[Change, ...] | list[Change]") -> None:
        for name, key, value in changes:
            if key is None:
                self._tables.pop(name, None)
            else:
                self.table(name).put(key, value)

    def _append(self, file: int, changes: "tuple[Change, ...]") -> int:
        data = json.dumps(changes, separators=(",", ":")).encode() + b"\n"
        written = os.write(file, data)
        if written != len(data):  # a full disk
            os.ftruncate(file, os.fstat(file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        return written

    def _compact(self) -> None:
        """Rewrites the file if at least half of its lines are obsolete."""
        count = sum(len(table) for table in self._tables.values())
        if self._lines < 2 * count:
            return
        fresh = self._path.with_suffix(".new")
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        try:
            for name, table in self._tables.items():
                for key, value in table.items():
                    self._append(file, ((name, key, value),))
            os.replace(fresh, self._path)
        except BaseException:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._lines = file, count

    def close(self) -> None:
        os.close(self._file)
