"""Notes which function of Outlast calls which. Copied as `sitecustomize.py` into a bundle, it notes
the calls of that bundle's processes, too.

A lambda or an inner function counts as the function that it is written in, and a call through
another library as a direct one.
"""

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

PACKAGES = ("outlast", "components", "trainers")


def named(frame: FrameType | None, root: str) -> str | None:
    """The function of a frame, such as `bucket.upload.Uploader.send`; None if it is not Outlast's,
    whose files are below `root`."""
    if frame is None or not frame.f_code.co_filename.startswith(root):
        return None
    first, *rest = frame.f_code.co_filename[len(root) :].removesuffix(".py").split("/")
    if first not in PACKAGES:
        return None
    path = rest if first == "outlast" else [first, *rest]
    return ".".join([*path, frame.f_code.co_qualname.partition(".<locals>")[0]])


def tracer(root: str, value: str, note: Callable[[str, bool], None]) -> Any:
    """A profile function that notes each call, `CALLER→CALLEE`, and whether the callee has `value`
    in its arguments; each call is noted once with it and once without."""
    seen: set[tuple[str, bool]] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        callee = named(frame, root) if event == "call" else None
        if callee is None:
            return
        before = frame.f_back
        while before is not None and (caller := named(before, root)) is None:
            before = before.f_back
        if before is None or caller == callee:
            return
        call = f"{caller}→{callee}"
        if (call, True) in seen:
            return
        try:
            has = bool(value) and value in repr(frame.f_locals)
        except Exception:  # an object that is not ready for its repr
            has = False
        if (call, has) not in seen:
            seen.add((call, has))
            note(call, has)

    return profile


def follow_process(root: str, value: str, file: str) -> None:
    """Note the calls of this process and its threads in a file, a line each."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    profile = tracer(root, value, lambda call, has: _write(opened, f"{call} {int(has)}\n"))
    threading.setprofile(profile)
    sys.setprofile(profile)


def _write(file: int, line: str) -> None:
    os.write(file, line.encode())


if __name__ == "sitecustomize":
    home = os.path.dirname(os.path.abspath(__file__))
    with open(f"{home}/traced.txt") as asked:
        follow_process(f"{home}/", asked.readline().strip(), f"{home}/calls-{os.getpid()}.txt")
