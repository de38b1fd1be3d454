"""What a process does to the world while it reads: every file, program, module and socket.

The hook is Python's own: it cannot be taken off again, so it belongs into a process that does
nothing else.
"""

import codecs
import hashlib
import os
import sys
import sysconfig
import zoneinfo
from contextlib import suppress
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((0, 2), (1, 3)),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.setxattr": ((0, None),),
    "os.truncate": ((0, None),),
    "os.utime": ((0, 3),),
    "shutil.move": ((0, None), (1, None)),
    "shutil.rmtree": ((0, None),),
}
"""Events that change files: which of their arguments are paths, and which the open folders that
these begin at."""
_NEVER = (
    *(
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
    ),
    *("subprocess.Popen", "socket.connect", "socket.bind", "socket.sendto", "pty.spawn"),
    *(
        "ctypes.dlopen",
        "pickle.find_class",
        "marshal.loads",
        "os.kill",
        "os.putenv",
        "shutil.chown",
    ),
    *("tempfile.mkstemp", "webbrowser.open", "urllib.Request", "sqlite3.connect"),
)
MODULES = ("outlast", "sklearn", "numpy", "scipy", "encodings", "zoneinfo", "tzdata", "ml_dtypes")
FRAMEWORKS = ("torch", "keras", "jax", "xgboost", "flax")
"""Modules that may be looked for: those that a snapshot's kinds belong to, and nothing else."""


for _name in ("utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "cp437", "idna"):
    codecs.lookup(_name)  # JSON and zip files need them; an import while they are read is noted


with suppress(zoneinfo.ZoneInfoNotFoundError):  # what it imports to look for one, too
    zoneinfo.ZoneInfo("Nowhere/At_All")


class Outside(Exception):
    """Something was done that no reader may do."""


class Watch:
    """Notes what happens outside of a folder, while it is on."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        python = sysconfig.get_paths()
        roots = [*python.values(), *sys.path, "/usr/share/zoneinfo", "/etc/localtime", "/proc/self"]
        self._readable = tuple(
            {os.path.realpath(root) for root in roots if root} | {self._folder.rstrip("/")}
        )
        self.is_on = False
        self.found: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        self.is_on = False  # what is done here is not what is watched
        try:
            if said := self._judge(event, args):
                self.found.append(said)
                raise Outside(said)
        finally:
            self.is_on = True

    def _judge(self, event: str, args: tuple[Any, ...]) -> str | None:
        if event in _NEVER:
            return f"{event} {args[:1]!r}"
        if event == "os.symlink":
            target, link = os.fsdecode(args[0]), _full(args[1], args[2])
            inside = self._is_in(link) and self._is_in(os.path.join(os.path.dirname(link), target))
            return None if inside else f"{event} {target!r} at {link!r}"
        for at, folder in _PATHS.get(event, ()):
            path = args[at]
            full = path if folder is None else _full(path, args[folder])
            if not self._is_in(full):
                return f"{event} {full!r}"
        if event == "open":
            return self._judge_open(*args)
        if event == "import":
            top = str(args[0]).partition(".")[0]
            known = top in (*MODULES, *FRAMEWORKS) or top in sys.stdlib_module_names
            return None if known else f"import {args[0]}"
        if event == "exec":
            file = getattr(args[0], "co_filename", "")
            mine = file.startswith(("<frozen ", "/")) or file in (
                "<string>",
                "<__array_function__ internals>",
            )
            return None if mine else f"exec of {file}"
        return None

    def _judge_open(self, path: Any, mode: Any, flags: Any) -> str | None:
        if isinstance(path, int):
            return None
        if flags & _WRITES or (isinstance(mode, str) and set(mode) & set("wax+")):
            return None if self._is_in(path) else f"open {path!r} to write"
        real = os.path.realpath(os.fsdecode(path))
        return None if real.startswith(self._readable) else f"open {path!r}"

    def _is_in(self, path: Any) -> bool:
        if path is None or isinstance(path, int):
            return True
        # The last part may be a link that is made or removed itself.
        full = os.path.abspath(os.fsdecode(path))
        parent = os.path.realpath(os.path.dirname(full))
        return f"{parent}/{os.path.basename(full)}/".startswith(self._folder)


def _full(path: Any, folder: int) -> Any:
    """A path from the open folder that it begins at, if it does."""
    if folder < 0 or isinstance(path, int):
        return path
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))


def canaries(folder: Path) -> None:
    """Files around the place of work that no reader may touch."""
    for name in ("home/.bashrc", "home/.ssh/id", "other/run/HEAD", "etc/passwd", "json.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")


def digest(folder: Path, without: Path) -> str:
    """A digest of every name, mode and byte below a folder, without those of one inside it."""
    found = hashlib.sha256()
    for root, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if Path(root, name) != without)
        for name in sorted([*names, *files]):
            path = Path(root, name)
            found.update(f"{path} {path.lstat().st_mode} ".encode("utf-8", "surrogateescape"))
            if path.is_file() and not path.is_symlink():
                found.update(path.read_bytes())
    return found.hexdigest()
