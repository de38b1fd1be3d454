"""Process trees: found by their group, by descent and by a mark in their environment.

A mark is a ``NAME=value`` in the environment of a tree's first process. All its descendants inherit
it, so it finds a child in a separate session whose parent has ended. Without ``/proc``, only the
group is found.

As a program (``python process_tree.py MARK``), it waits for the end of its stdin, which its starter
keeps open as long as it lives, and then kills every process with the mark, so a tree does not
outlive a killed starter. Standard library only.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "OUTLAST_TREE"
"""Marks everything that a supervisor's trainer has started."""

PR_SET_CHILD_SUBREAPER = 36

KILL_ROUNDS = 100
KILL_ROUND_SEC = 0.01


def is_alive(pid: int) -> bool:
    """Whether there is a process of this id on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def marked(mark: str) -> list[int]:
    """Processes with ``NAME=value`` in their environment, except this one; none if the system has
    no /proc.
    """
    wanted = mark.encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def signal_tree(pid: int, mark: str, number: int, more: Iterable[int] = ()) -> None:
    """Sends a signal to the process group of ``pid``, to the rest of its tree and to ``more``
    processes, once each.
    """
    others = (set(marked(mark)) | _descendants(pid) | set(more)) - {pid}
    # Collected before the group gets the signal: a process that ends would hide its group.
    with_group = {other for other in others if _group_of(other) == pid}
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    for other in others - with_group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(other, number)


def kill_tree(pid: int, mark: str) -> None:
    """Kills the process group of ``pid`` and all processes with ``mark``, until none is left that
    could have started another.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill_marked(mark)


def kill_marked(mark: str) -> None:
    """Kills all processes with ``mark``, for about a second: a process that waits for a disk dies
    later.
    """
    for _ in range(KILL_ROUNDS):
        left = marked(mark)
        if not left:
            return
        for other in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(other, signal.SIGKILL)
        time.sleep(KILL_ROUND_SEC)


class Orphans:
    """Finds the orphans of the processes that this one starts, such as daemons, in any session and
    with any environment. Linux makes them children of this process, which must `reap` them; other
    systems have none.
    """

    def __init__(self) -> None:
        self._apart: set[int] = set()

    def adopt(self, *apart: int) -> None:
        """Begins now; existing children, and ``apart``, are not included."""
        self._apart = {*apart, *_children().get(os.getpid(), {})}
        adopt_orphans()

    def release(self) -> None:
        """Ends."""
        adopt_orphans(False)

    def alive(self) -> set[int]:
        """All descendants of this process except those apart; includes its own new children."""
        children = _children()
        roots = set(children.get(os.getpid(), {})) - self._apart
        found = {pid for root in roots for pid in {root, *_below(root, children)}}
        return {pid for pid in found if not _is_dead(pid, children)}

    def reap(self, *but: int) -> None:
        """Reaps those that have ended, except the children in ``but``, which other code waits
        for.
        """
        for pid, state in _children().get(os.getpid(), {}).items():
            if state == "Z" and pid not in self._apart and pid not in but:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def kill(self, *but: int) -> None:
        """Kills them all, for about a second, and reaps them as `reap` does."""
        for _ in range(KILL_ROUNDS):
            left = self.alive()
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap(*but)
            if not left:
                return
            time.sleep(KILL_ROUND_SEC)


def adopt_orphans(wanted: bool = True) -> None:
    """Whether orphans among the descendants become children of this process; on Linux alone."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def _children() -> dict[int, dict[int, str]]:
    """The state of each process, by parent and process id."""
    children: dict[int, dict[int, str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may contain anything; state and parent are the fields after it.
            after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), {})[int(entry.name)] = after_name[0]
    return children


def _is_dead(pid: int, children: dict[int, dict[int, str]]) -> bool:
    return any(state.get(pid) == "Z" for state in children.values())


def _descendants(pid: int) -> set[int]:
    """All descendants of ``pid``."""
    return _below(pid, _children())


def _below(pid: int, children: dict[int, dict[int, str]]) -> set[int]:
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), {}):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _guard(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1024):
        pass
    kill_marked(mark)


if __name__ == "__main__":
    _guard(sys.argv[1])
