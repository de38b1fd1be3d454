"""Cleans up after a rehearsal, however it ends."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from outlast.cli import cloud as clouds


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder with a short name, because Unix sockets need short paths."""
    # A Ctrl-C waits until the removal of the folder is guaranteed.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    folder = Path(tempfile.mkdtemp(prefix="outlast-re-", dir=_short_temporary()))
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield folder
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)


SHORT_NAME = 24
"""The longest folder name in bytes that leaves room for a VM's sockets."""


def _short_temporary() -> str | None:
    """The user's folder for temporary files if its name is short enough, else /tmp."""
    if len(os.fsencode(tempfile.gettempdir())) <= SHORT_NAME:
        return None
    short = "/tmp"  # noqa: S108 - what is made in it comes from mkdtemp
    return short if os.path.isdir(short) and os.access(short, os.W_OK) else None


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end it like Ctrl-C, with a full clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING[1:]}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """The clean-up is short and ignores further Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_strays(token: str, *, only: str = "") -> list[str]:
    """Kills every other process whose environment contains the token; returns their names.

    `only`: those whose executable's name begins so.
    """
    mark = f"{clouds.TOKEN_VARIABLE}={token}".encode()
    killed = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            name = (folder / "comm").read_text().strip()
            if name.startswith(only):
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(f"{name} ({folder.name})")
    return killed
