"""Whether the processes that a command leaves running when it exits with 0 are idle or at work.

A script whose last line starts its training in the background ends at once. The remaining processes
are ended with the command, so their files must not become a result as if the training had finished.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

BUSY_SHARE = 0.5
"""Share of the looks at which a process computes or waits for a disk that makes it at work."""
LOOKS_MIN = 5
_NAME_LENGTH_MAX = 80


class Left:
    """Samples the processes again and again to find those at work."""

    def __init__(self) -> None:
        self._looks: dict[int, int] = {}
        self._busy: dict[int, int] = {}
        self._names: dict[int, str] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Take one more sample."""
        for pid in pids:
            self._looks[pid] = self._looks.get(pid, 0) + 1
            self._busy[pid] = self._busy.get(pid, 0) + _is_busy(pid)
            self._names.setdefault(pid, _name_of(pid))

    def at_work(self, alive: Iterable[int], *, saves: bool) -> str | None:
        """A text that names those of the ``alive`` processes that are at work; None if there are
        none. ``saves``: files of the command have changed since its exit."""
        alive = sorted(pid for pid in alive if pid in self._looks)
        busy = [pid for pid in alive if self._is_busy(pid)]
        found = busy or (alive if saves else [])
        if not found:
            return None
        some = ", ".join(f"{self._names[pid]} ({pid})" for pid in found[:3])
        return some + (f" and {len(found) - 3} more" if len(found) > 3 else "")

    def _is_busy(self, pid: int) -> bool:
        looks = self._looks[pid]
        return looks >= LOOKS_MIN and self._busy[pid] >= BUSY_SHARE * looks


def _is_busy(pid: int) -> bool:
    """Whether one of its threads computes or waits for a disk at this moment."""
    tasks = Path(f"/proc/{pid}/task")
    threads: list[str] = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        threads = os.listdir(tasks)
    for thread in threads:
        with contextlib.suppress(OSError, IndexError):
            state = (tasks / thread / "stat").read_text(errors="replace").rpartition(")")[2]
            if state.split()[0] in ("R", "D"):
                return True
    return False


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        name = " ".join(b" ".join(words).decode(errors="replace").split())
        return name if len(name) <= _NAME_LENGTH_MAX else f"{name[:_NAME_LENGTH_MAX]}…"
    return "a process"
