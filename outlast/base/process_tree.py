"""Process trees: found by their group, by descent and by a mark in their environment.

A mark is a ``NAME=value`` that the first process of a tree was given: all that it starts inherit
it, so a child in a separate session, whose parent has gone, is found by it. Where the system has
no ``/proc`` only the group is.

As a program (``python process_tree.py MARK``) it waits for the end of its stdin, which its starter
holds open for as long as it lives, and then kills whatever carries the mark: so a tree does not
outlive a starter that was killed. Standard library only.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "OUTLAST_TREE"
"""Marks all that a supervisor's trainer has started."""

PR_SET_CHILD_SUBREAPER = 36

KILL_ROUNDS = 100
KILL_ROUND_SEC = 0.01


def marked(mark: str) -> list[int]:
    """Processes with ``NAME=value`` in their environment, this one left out; none where the
    system has no /proc."""
    wanted = mark.encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def signal_tree(pid: int, mark: str, number: int, more: Iterable[int] = ()) -> None:
    """Send a signal to the process group of ``pid``, to everybody else of its tree and to ``more``
    processes, once each."""
    others = (set(marked(mark)) | _descendants(pid) | set(more)) - {pid}
    # Before the group is signalled: a process that ends on it would hide its group.
    with_group = {other for other in others if _group_of(other) == pid}
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    for other in others - with_group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(other, number)


def kill_tree(pid: int, mark: str) -> None:
    """SIGKILL the process group of ``pid`` and all that carry ``mark`` in their environment, until
    none is left that could have started another meanwhile."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill_marked(mark)


def kill_marked(mark: str) -> None:
    """SIGKILL all that carry ``mark``, for about a second: a process that waits for a disk dies
    later."""
    for _ in range(KILL_ROUNDS):
        left = marked(mark)
        if not left:
            return
        for other in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(other, signal.SIGKILL)
        time.sleep(KILL_ROUND_SEC)


class Orphans:
    """What the processes that this one starts leave behind, each found in whatever session and
    with whatever environment it runs: a daemon too. Linux gives them to this process, which must
    `reap` them; elsewhere there are none.
    """

    def __init__(self) -> None:
        self._apart: set[int] = set()

    def adopt(self, *apart: int) -> None:
        """From now on. The children that there are already, and ``apart``, are none of them."""
        self._apart = {*apart, *_children().get(os.getpid(), {})}
        _adopt_orphans(True)

    def release(self) -> None:
        """No more from now on."""
        _adopt_orphans(False)

    def alive(self) -> set[int]:
        """All below this process but for what is apart; its own new children are among them."""
        children = _children()
        roots = set(children.get(os.getpid(), {})) - self._apart
        found = {pid for root in roots for pid in {root, *_below(root, children)}}
        return {pid for pid in found if not _is_dead(pid, children)}

    def reap(self, *but: int) -> None:
        """Forget those that have ended, ``but`` for the children that somebody waits for."""
        for pid, state in _children().get(os.getpid(), {}).items():
            if state == "Z" and pid not in self._apart and pid not in but:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def kill(self, *but: int) -> None:
        """SIGKILL all of them, for about a second, and reap them as `reap` does."""
        for _ in range(KILL_ROUNDS):
            left = self.alive()
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap(*but)
            if not left:
                return
            time.sleep(KILL_ROUND_SEC)


def _adopt_orphans(wanted: bool) -> None:
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def _children() -> dict[int, dict[int, str]]:
    """The state of each process, by its parent and its own number."""
    children: dict[int, dict[int, str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything; state and parent are the fields after it.
            after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), {})[int(entry.name)] = after_name[0]
    return children


def _is_dead(pid: int, children: dict[int, dict[int, str]]) -> bool:
    return any(state.get(pid) == "Z" for state in children.values())


def _descendants(pid: int) -> set[int]:
    """All below ``pid``, by their parents."""
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
