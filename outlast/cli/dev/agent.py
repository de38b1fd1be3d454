"""What `outlast dev` runs on the VM: receives files, and keeps a development run going with them.

The command sends this file over its connection, so it is standard library only and needs nothing on
the VM but `python3`. Both sides send messages: a JSON object in a line, and after it `size` bytes
if it has that field. It answers `begin` with `ready`, after which it obeys. It ends, and everything
that it has started, once its input has ended, or has been silent for `lease` seconds.

It writes and deletes only inside the destination, and deletes only what it has written: it opens
each folder without following links. What it knows of the destination is in a folder beside it.

Everyone who may log in as the same user can change the folder anyway.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import select
import signal
import stat
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MARK = "OUTLAST_DEV"
"""As `outlast.supervisor.development` has it."""
MAGIC = b"outlast-dev 1\n"
LOCK_SEC = 3.0
STOP_SEC = 8.0
"""Seconds from SIGTERM to SIGKILL for a development run."""
LOOK_SEC = 0.2
MESSAGE_BYTES_MAX = 1 << 20
CHUNK_BYTES = 1 << 18
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
HOME = Path(os.environ.get("HOME") or "/")
ROOT = os.environ.get("OUTLAST_ROOT", "")
"""The folder that is a local VM's disk; empty on a machine."""
PYTHONS = (
    Path(ROOT + "/opt/outlast/venv/bin/python"),
    Path(ROOT + "/var/lib/outlast/venv/bin/python"),
)
"""The supervisor's interpreter: baked, or made at boot (startup/interpreter.sh)."""

Message = dict[str, Any]


class Refused(Exception):
    """A sentence for the person at the other end. `again`: a later try may succeed."""

    def __init__(self, sentence: str, *, again: bool = False) -> None:
        super().__init__(sentence)
        self.again = again


class Disconnected(Exception):
    """The other end is gone, or silent."""


# ---------------------------------------------------------------------------------------------
# Messages


class Wire:
    """The connection: standard input and output."""

    def __init__(self) -> None:
        self._in = 0
        self._out = os.dup(1)
        # Whatever is printed by mistake must not end up between two messages.
        os.dup2(2, 1)
        self._sending = threading.Lock()
        self._buffer = b""
        self.lease_sec = 60.0

    def send(self, payload: bytes = b"", **message: Any) -> None:
        """Raises Disconnected."""
        if payload:
            message["size"] = len(payload)
        data = json.dumps(message).encode() + b"\n" + payload
        with self._sending:
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except OSError:
                raise Disconnected from None

    def magic(self) -> None:
        """Marks where the messages begin."""
        os.write(self._out, MAGIC)

    def receive(self) -> Message:
        """The next message. Raises Disconnected."""
        while b"\n" not in self._buffer:
            if len(self._buffer) > MESSAGE_BYTES_MAX:
                raise Disconnected
            self._fill()
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise Disconnected
        return message

    def payload(self, size: int) -> Iterator[bytes]:
        """The next bytes, piece by piece. Raises Disconnected."""
        while size:
            if not self._buffer:
                self._fill()
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            size -= len(piece)
            yield piece

    def _fill(self) -> None:
        ready, _, _ = select.select([self._in], [], [], self.lease_sec)
        data = os.read(self._in, CHUNK_BYTES) if ready else b""
        if not data:
            raise Disconnected
        self._buffer += data


# ---------------------------------------------------------------------------------------------
# Files


def checked(name: str) -> list[str]:
    """The parts of a relative path. Raises Refused for any other."""
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise Refused(f"path {name!r}: must be relative, without '.' and '..'")
    return parts


class Destination:
    """The folder of the code, and what was written into it."""

    def __init__(self, named: str) -> None:
        """Raises Refused for a folder that is not only the code's."""
        self.path = place(named)
        if self.path in (HOME, Path(ROOT or "/"), Path("/")):
            raise Refused(
                f"destination {named}: is a folder that holds more than code; name another one with"
                " --destination"
            )
        self.state = self.path.with_name(f".{self.path.name}.outlast-dev")
        self._known = self.state / "files.json"
        self._held = -1
        self.files: dict[str, str] = {}
        """What each path holds: the SHA-256 of a file (with x if it is executable), `-> target` of
        a link, or nothing if that is not known."""

    def open(self, session: str) -> None:
        """Takes the folder for this connection. Raises Refused."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise Refused(
                f"destination {self.path}: is not a folder; name another one with --destination"
            )
        if not self.state.exists() and self.path.exists() and any(self.path.iterdir()):
            raise Refused(
                f"destination {self.path}: holds files that are not from outlast dev; name another"
                " one with --destination"
            )
        try:
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock(session)
            known = json.loads(self._known.read_text())
            self.files = {path: now for path in known if (now := self._kind(path)) is not None}
        except FileNotFoundError:
            self.files = {}
        except OSError as error:
            raise Refused(f"destination {self.path}: {error.strerror}") from None
        except ValueError:
            self.files = {}

    def _lock(self, session: str) -> None:
        """Holds the lock until this process ends; an earlier connection of the same command, whose
        end has not been noticed yet, is ended."""
        self._held = os.open(self.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + LOCK_SEC
        while not self._has_lock():
            pid, _, other = os.pread(self._held, 200, 0).decode().partition(" ")
            if other == session and pid.isdigit():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGTERM)
            if time.monotonic() > until:
                raise Refused(
                    f"destination {self.path}: another outlast dev sync uses it; stop that one"
                    " (without its connection it ends within a minute), or name another"
                    " --destination"
                )
            time.sleep(LOOK_SEC)
        os.ftruncate(self._held, 0)
        os.pwrite(self._held, f"{os.getpid()} {session}".encode(), 0)

    def _has_lock(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def plan(self, paths: Iterable[str]) -> None:
        """Writes down what is about to be written, so that it can be deleted after a crash."""
        for path in paths:
            checked(path)
            self.files.setdefault(path, "")
        self.keep()

    def _kind(self, path: str) -> str | None:
        """What a path holds now: the run may have changed it. None if it does not exist."""
        try:
            with self._parent(path) as (folder, name):
                return kind_at(folder, name)
        except (FileNotFoundError, NotADirectoryError, Refused):
            return None
        except OSError:
            return ""

    @contextlib.contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder above a path, opened without following a link, and the last name."""
        *folders, name = checked(path)
        here = os.open(self.path, FOLDER)
        try:
            for part in folders:
                if make:
                    self._make(here, part)
                below = os.open(part, FOLDER, dir_fd=here)
                os.close(here)
                here = below
            yield here, name
        finally:
            os.close(here)

    def _make(self, here: int, part: str) -> None:
        try:
            os.mkdir(part, 0o755, dir_fd=here)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(part, dir_fd=here, follow_symlinks=False).st_mode):
                os.unlink(part, dir_fd=here)
                os.mkdir(part, 0o755, dir_fd=here)

    def write(
        self, path: str, pieces: Iterable[bytes], size: int, sha256: str, executable: bool
    ) -> None:
        """Replaces a file once every byte has arrived. Raises Refused."""
        digest, got = hashlib.sha256(), 0
        with self._parent(path, make=True) as (folder, name):
            part = f".outlast-{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(part, flags, 0o600, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    for piece in pieces:
                        digest.update(piece)
                        got += len(piece)
                        file.write(piece)
                    os.fchmod(file.fileno(), 0o755 if executable else 0o644)
                if (got, digest.hexdigest()) != (size, sha256):
                    raise Refused(f"{path}: arrived damaged")
                self._put(folder, part, name, path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=folder)
                raise
        self.files[path] = sha256 + ("x" if executable else "")

    def link(self, path: str, target: str) -> None:
        """Creates a link to a place inside the destination. Raises Refused."""
        depth = len(checked(path)) - 1
        for part in target.split("/"):
            depth += -1 if part == ".." else part not in ("", ".")
            if depth < 0 or target.startswith("/"):
                raise Refused(f"{path}: is a link to {target}, outside of the folder")
        with self._parent(path, make=True) as (folder, name):
            part = f".outlast-{secrets.token_hex(8)}"
            os.symlink(target, part, dir_fd=folder)
            self._put(folder, part, name, path)
        self.files[path] = f"-> {target}"

    def _put(self, folder: int, part: str, name: str, path: str) -> None:
        try:
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)
            raise Refused(f"{path}: cannot be written on the VM ({error.strerror})") from None

    def delete(self, path: str) -> None:
        """Deletes what was written, and its folders if they are empty then."""
        checked(path)
        if path not in self.files:
            return
        del self.files[path]
        with contextlib.suppress(OSError), self._parent(path) as (folder, name):
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
        above = path.rpartition("/")[0]
        while above:
            try:
                with self._parent(above) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except OSError:
                break
            above = above.rpartition("/")[0]

    def keep(self) -> None:
        """Writes down what the destination holds."""
        fresh = self._known.with_suffix(".new")
        fresh.write_text(json.dumps(self.files))
        os.replace(fresh, self._known)


def place(named: str) -> Path:
    """A path on the VM: below the home folder unless it is absolute."""
    path = Path(ROOT + named) if named.startswith("/") else HOME / named
    return Path(os.path.normpath(path))


def kind_at(folder: int, name: str) -> str:
    """As `Destination.files` has it."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        return f"-> {os.readlink(name, dir_fd=folder)}"
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest() + ("x" if found.st_mode & 0o100 else "")


# ---------------------------------------------------------------------------------------------
# The development run


def metadata(path: str) -> str:
    """A value of the metadata server; empty if it is not set. Raises Refused."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    base = os.environ.get("METADATA_BASE") or f"http://{host}/computeMetadata/v1"
    asked = {"Metadata-Flavor": "Google"}
    request = urllib.request.Request(f"{base}/{path}", headers=asked)  # noqa: S310 - the VM's own
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return ""
        raise Refused(f"metadata {path}: {error}", again=True) from None
    except OSError as error:
        raise Refused(f"metadata {path}: {error}", again=True) from None


class Run:
    """The development run: one process of the VM's own bundle, and everything below it."""

    def __init__(self, wire: Wire, destination: Destination) -> None:
        self._wire = wire
        self._destination = destination
        self._mark = f"{MARK}={destination.path}"
        self._process: subprocess.Popen[bytes] | None = None
        self._end()  # Left by an agent that was killed.

    def start(self, code: str, share: bool) -> None:
        """Starts it with the code that is there now, on GPUs only if it may `share` them. Raises
        Refused."""
        self.stop()
        gpus = metadata("instance/attributes/outlast-gpus")
        if gpus not in ("", "0") and not share:
            raise Refused(
                "the experiment's run is open and its GPU memory would be shared, so that either"
                " run could fail; add --share-gpu, or use a stack whose run has ended"
                " (outlast:onEnd keep)"
            )
        bundle = self._bundle()
        python = next((path for path in PYTHONS if path.exists()), None)
        if python is None:
            raise Refused("the VM has not prepared its Python yet", again=True)
        environment = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONHOME"},
            "PYTHONPATH": str(bundle),
            "OUTLAST_BUNDLE_DIR": str(bundle),
            MARK: str(self._destination.path),
        }
        state = self._destination.state
        words = ["--source", str(self._destination.path), "--state", str(state), "--code", code]
        process = self._process = subprocess.Popen(
            [str(python), "-P", "-m", "outlast.supervisor", "dev", *words],
            cwd=bundle,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def stop(self) -> None:
        """Ends it, after its last checkpoint if that is quick."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SEC)
        self._end()
        process.wait()

    def kill(self) -> None:
        """Ends it at once."""
        process, self._process = self._process, None
        self._end()
        if process is not None:
            process.wait()

    def _end(self) -> None:
        """Kills every process with the mark, until none is left."""
        wanted = self._mark.encode()
        for _ in range(100):
            found = []
            for entry in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
            if not found:
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        """Passes its output on, then its end."""
        with contextlib.suppress(Disconnected):
            assert process.stdout
            while data := os.read(process.stdout.fileno(), CHUNK_BYTES):
                self._wire.send(data, kind="output")
            code = process.wait()
            if process is self._process:
                self._wire.send(kind="ended", code=code)

    def _bundle(self) -> Path:
        sha256 = metadata("instance/attributes/outlast-bundle-sha256")
        if len(sha256) != 64 or not sha256.isalnum():
            raise Refused(f"metadata outlast-bundle-sha256 {sha256[:80]!r}: is not a digest")
        bundle = Path(ROOT + "/var/lib/outlast/bundle") / sha256
        if not bundle.is_dir():
            raise Refused("the VM has not fetched its bundle yet", again=True)
        if not (bundle / "outlast/supervisor/development.py").is_file():
            raise Refused(
                "this VM's bundle has an Outlast without dev sync; bring a new one up with"
                " outlast up, which applies once the VM is recreated"
            )
        return bundle


# ---------------------------------------------------------------------------------------------
# The other direction


def listed(named: str) -> list[tuple[str, int, str]]:
    """(path, size, SHA-256) of a file (with an empty path) or a folder's files. Raises Refused."""
    top = place(named)
    if top.is_symlink():
        raise Refused(f"{named}: is a link; name what it leads to")
    found: list[tuple[str, int, str]] = []

    def one(path: str, name: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Refused(f"{named}/{name}: is not a file".rstrip("/"))
            digest, size = hashlib.sha256(), 0
            while piece := file.read(CHUNK_BYTES):
                digest.update(piece)
                size += len(piece)
        found.append((name, size, digest.hexdigest()))

    try:
        if not top.is_dir():
            one(str(top), "")
            return found
        for folder, folders, names in os.walk(top, onerror=raise_it):
            folders.sort()
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in sorted([*names, *links]):
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    raise Refused(f"{os.path.relpath(path, top)}: is a link; name what it leads to")
                one(path, os.path.relpath(path, top))
    except OSError as error:
        raise Refused(f"{named}: cannot be read on the VM ({error.strerror})") from None
    return found


def raise_it(error: OSError) -> None:
    """For `os.walk`, which ignores errors."""
    raise error


def sent(wire: Wire, named: str, name: str) -> None:
    """Sends a file's bytes, in pieces, and an empty one as their end."""
    path = place(named)
    if name:
        path = path.joinpath(*checked(name))
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Refused(f"{named}/{name}: {error.strerror}") from None
    with os.fdopen(handle, "rb") as file:
        while piece := file.read(CHUNK_BYTES):
            wire.send(piece, kind="piece")
    wire.send(kind="piece")


# ---------------------------------------------------------------------------------------------
# Obeying


def serve(wire: Wire) -> None:
    """Obeys. Raises Disconnected, and Refused if the first message cannot be obeyed."""
    begin = wire.receive()
    wire.lease_sec = float(begin["lease"])
    if begin.get("pull"):
        pull(wire, begin["pull"])
        return
    destination = Destination(begin["destination"])
    destination.open(begin["session"])
    run = Run(wire, destination)
    wire.send(kind="ready", files=destination.files, path=str(destination.path))
    try:
        while True:
            message = wire.receive()
            try:
                obey(wire, destination, run, message)
            except Refused as error:
                wire.send(
                    kind="refused", why=str(error), path=message.get("path"), again=error.again
                )
            except OSError as error:
                path = message.get("path")
                why = f"{path or destination.path}: {error.strerror or error}"
                wire.send(kind="refused", why=why, path=path)
    finally:
        run.kill()


def obey(wire: Wire, destination: Destination, run: Run, message: Message) -> None:
    """Does what one message says. Raises Refused, Disconnected and OSError."""
    match message["do"]:
        case "plan":
            destination.plan(message["paths"])
        case "file":
            pieces = wire.payload(message["size"])
            try:
                destination.write(
                    message["path"],
                    pieces,
                    message["size"],
                    message["sha256"],
                    message["executable"],
                )
            finally:
                for _ in pieces:  # The next message comes after them.
                    pass
        case "link":
            destination.link(message["path"], message["target"])
        case "delete":
            destination.delete(message["path"])
        case "synced":
            destination.keep()
            wire.send(kind="synced")
        case "start":
            run.start(message["code"], message["share"])
        case "ping":
            wire.send(kind="pong")


def pull(wire: Wire, named: str) -> None:
    """Serves a copy of a file or folder. Raises Disconnected and Refused."""
    wire.send(kind="ready", files=listed(named))
    while True:
        message = wire.receive()
        if message["do"] == "ping":
            wire.send(kind="pong")
        else:
            sent(wire, named, message["path"])


def ended(number: int, frame: object) -> None:
    """Handles a request to stop as the end of the connection."""
    raise Disconnected


def main() -> None:
    """Serves one connection."""
    wire = Wire()
    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGHUP, ended)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wire.magic()
    try:
        serve(wire)
    except Disconnected:
        pass
    except (Refused, OSError) as error:
        with contextlib.suppress(Disconnected):
            wire.send(kind="refused", why=str(error), fatal=True)


if __name__ == "__main__":
    main()
