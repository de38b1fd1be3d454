"""The messages between a trainer and its supervisor: JSON lines on a Unix socket.

One line is one message: ``{"type": "snapshot", "id": "000001", ...}``. The trainer connects to the
socket that ``OUTLAST_SOCKET`` names and speaks first:

==============  =========================================  =====================================
from trainer    means                                      answer
==============  =========================================  =====================================
``hello``       here I am, with this protocol version      ``welcome``, ``ended`` or ``error``
``snapshot``    this folder is complete, it is yours now   ``accepted`` or ``busy``; later
                                                           ``committed`` or ``failed`` is pushed
``warn`` a warning for people none
``tick``        still alive: the step and what I am doing  none
``complete``    training is over, this is the result       ``accepted`` (id ``complete``)
``error``       what I cannot do, before I exit            none
``fetch``       where is this data, as a local path?       ``fetched`` or ``error``
``results``     the result's files of this part, which is  ``fetched``
                done?
``exit``        the program of named parts ends            none
==============  =========================================  =====================================

``fetch`` may also be the first and only message on a separate connection: a trainer asks for its
data before it knows how many steps it will make.

A program that trains named parts of a run sends ``hello`` for each on the same connection, once the
``complete`` of the one before was answered with ``accepted`` and then ``committed``. A part's steps
are its own in every message.

The supervisor also pushes ``stop`` (hand over a snapshot and exit with 75 within the given seconds)
and ``checkpoint`` (hand over a snapshot at the next step boundary and continue).

A folder answered with ``busy`` stays the trainer's; one answered with ``accepted`` belongs to the
supervisor, which deletes it. At most one snapshot is in flight.

Standard library only; used by both sides and by nothing else.

Errors: ProtocolError
        ├── UnknownMessage   a type, field or value that this version does not know
        └── Closed           the other side has gone
"""

import contextlib
import dataclasses
import json
import re
import select
import socket
import threading
import time
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlast.base import unix_socket

VERSION = 1
SOCKET_VARIABLE = "OUTLAST_SOCKET"
COMPLETE_ID = "complete"
LINE_BYTES_MAX = 1 << 20
ERROR_LINES_MAX = 100
"""The most lines of an error, the last ones, each cut to ERROR_LINE_CHARS_MAX."""
ERROR_LINE_CHARS_MAX = 1000

_SECONDS = re.compile(r"([0-9]*\.?[0-9]+)s", re.ASCII)
_STEPS = re.compile(r"[0-9]{1,15}", re.ASCII)
_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", re.ASCII)
_TAKEN_NAMES = ("RESULT.json",)


class ProtocolError(Exception):
    """The conversation between trainer and supervisor cannot continue."""


class UnknownMessage(ProtocolError):
    """A line that this version of the protocol does not know."""


class Closed(ProtocolError):
    """The other side has closed the connection."""


@dataclass(frozen=True)
class Every:
    """A parsed ``checkpoint_every``; both None means ``auto``."""

    seconds: float | None = None
    steps: int | None = None


def parse_every(text: str) -> Every:
    """Parses ``auto``, ``30s`` or ``200``. Raises ValueError with a sentence for anything else."""
    if text == "auto":
        return Every()
    if (match := _SECONDS.fullmatch(text)) and float(match[1]) > 0:
        return Every(seconds=float(match[1]))
    if _STEPS.fullmatch(text) and int(text) > 0:
        return Every(steps=int(text))
    raise ValueError(
        f"checkpoint-every {text!r}: must be auto, seconds such as 30s, or steps such as 200"
    )


def check_part_name(name: str) -> str:
    """Returns ``name`` if it can name a part. Raises ValueError with a sentence for anything
    else.
    """
    if not isinstance(name, str) or not _PART_NAME.fullmatch(name) or name in _TAKEN_NAMES:
        raise ValueError(
            f"part {name!r}: must be letters, digits, '_', '.' and '-', begin with a letter or a "
            "digit, and have at most 40 characters"
        )
    return name


def row_part(part: str, before: int) -> list[typing.Any]:
    """The `part` of a row in the bucket, whose step counts through all parts: the name, and the
    steps of the parts before it.
    """
    return [part, before]


def own_row(row: Mapping[str, typing.Any]) -> dict[str, typing.Any]:
    """A row of the bucket with its part's name and steps; unchanged in a run without parts."""
    match row.get("part"):
        case [str(part), int(before)]:
            return {**row, "step": row["step"] - before, "part": part}
    return dict(row)


# From the trainer.


@dataclass(frozen=True)
class Hello:
    """The first message on a connection."""

    version: int
    pid: int
    total: int | None = None
    """Total steps, if the trainer knows them; only to show progress."""
    part: str = ""
    """Name of the part to train; empty for the whole run."""
    restore_done: bool = True
    """Whether to restore the part's state even if the part is done."""


@dataclass(frozen=True)
class Snapshot:
    """A complete folder, renamed into place; rows up to ``rows_offset`` belong to it."""

    id: str
    path: str
    step: int
    tags: list[str]
    rows_offset: int
    last: bool = False
    """Whether the loop is over; such a snapshot may wait behind others."""


@dataclass(frozen=True)
class Tick:
    """A sign of life. ``phase`` names long work that makes no steps."""

    step: int
    phase: str = "train"


@dataclass(frozen=True)
class Warn:
    """A warning about the training, which continues."""

    message: str


@dataclass(frozen=True)
class Complete:
    """The training is over; ``result`` is a folder with model files and metrics.json or, for a
    part, with those files in ``result`` and with ``part.json``.
    """

    step: int
    result: str
    rows_offset: int
    why: str = ""
    """Why the trainer ended it before its last step, if it did."""


@dataclass(frozen=True)
class Results:
    """Asks for the files of a finished part's result; sent once."""


@dataclass(frozen=True)
class Exit:
    """The program ends with this exit code; 0 means that no other part follows. Sent if the
    supervisor, as the trainer's child, cannot see it.
    """

    code: int


@dataclass(frozen=True)
class Error:
    """Why a side gives up. Kinds: ``protocol``, ``usage``, ``restore``, ``does-not-fit``,
    ``data-changed``, ``no-output``, ``result-too-large``, ``trainer``, ``supervisor``."""

    message: str
    kind: str
    lines: list[str] = field(default_factory=list)
    """Lines for people, such as a traceback: at most ERROR_LINES_MAX."""


@dataclass(frozen=True)
class Fetch:
    """Asks for the data of ``url``, a ``gs://`` or local path, as a local path."""

    url: str
    path: str = ""
    """The trainer's own path to it; the supervisor then only checks it."""


# From the supervisor.


@dataclass(frozen=True)
class Welcome:
    """Says where to begin. ``restore`` is a verified snapshot folder, or null for a start from
    scratch.
    """

    restore: str | None
    step: int
    work: str
    """Existing folder for ``tmp-*`` and ``snap-*``, on the file system that the trainer chose."""
    rows: str
    """File to append rows to; empty at the start of every attempt."""
    term: int
    checkpoint_every: str
    """``auto``, seconds such as ``30s``, or a number of steps such as ``200``."""
    run_id: str = ""
    """Name of the run."""
    run_url: str = ""
    """Where the run lives: ``gs://…/`` or a folder; no other run has the same."""
    log_dir: str = ""
    """Existing folder whose files are kept with the attempt, TensorBoard's for example."""
    result: str = ""
    """Existing folder for the result's files, on a disk; empty for in ``work``."""
    scratch: list[str] = field(default_factory=list)
    """Other existing folders for snapshots, in order, if ``work`` has no room for two."""
    machine_age_sec: float = 0.0
    """Seconds since this machine was started."""
    commit_sec: float | None = None
    """Seconds of an earlier attempt's last commit; null if unknown."""
    init: bool = False
    """Whether ``restore`` holds another run's state: start from it at step 0, without a history."""
    before: int = 0
    """Steps of the parts before this one; a row's step counts them."""
    done: str | None = None
    """Folder that a finished part ended with, as in its ``complete`` but without the result's
    files. ``restore`` is its last state, if requested; make no steps.
    """

    def environment(self) -> dict[str, str]:
        """Environment variables of every trainer; one that was started before this welcome, on a
        laptop, sets them itself.
        """
        found = {"RUN_ID": self.run_id, "LOG_DIR": self.log_dir, "ATTEMPT": str(self.term)}
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True)
class Fetched:
    """The answer to ``fetch`` and ``results``: a file, or a folder."""

    path: str


@dataclass(frozen=True)
class Ended:
    """Sent instead of ``welcome``: there is nothing to train, and asking again is useless."""

    state: str
    """done, failed, stopped or pruned; ``refused`` if the folder must not be used."""
    exit: int
    """The trainer's exit code."""
    message: str
    """One sentence for people."""


@dataclass(frozen=True)
class Accepted:
    """The folder now belongs to the supervisor. ``id`` is the snapshot's, or ``complete``."""

    id: str


@dataclass(frozen=True)
class Busy:
    """An earlier snapshot is still in flight; the folder stays the trainer's."""

    id: str


@dataclass(frozen=True)
class Committed:
    """The snapshot is a checkpoint now."""

    id: str
    step: int


@dataclass(frozen=True)
class Failed:
    """The snapshot could not be committed; the trainer must know before it continues."""

    id: str
    message: str


@dataclass(frozen=True)
class Stop:
    """Hand over a snapshot at the next step boundary and exit 75, within ``seconds``."""

    seconds: float
    snapshot: bool = True
    """False if no commit is possible in time: exit with 75 at once."""


@dataclass(frozen=True)
class Checkpoint:
    """Hand over a snapshot at the next step boundary and continue."""

    reason: str = field(default="maintenance")


Message = (
    Hello
    | Snapshot
    | Tick
    | Warn
    | Complete
    | Error
    | Fetch
    | Results
    | Exit
    | Fetched
    | Welcome
    | Ended
    | Accepted
    | Busy
    | Committed
    | Failed
    | Stop
    | Checkpoint
)

_CLASSES: dict[str, type] = {cls.__name__.lower(): cls for cls in typing.get_args(Message)}


def encode(message: Message) -> bytes:
    """One line, with its newline."""
    body = {"type": type(message).__name__.lower(), **dataclasses.asdict(message)}
    # ASCII, so that any text can be sent, even half a surrogate pair in a file name.
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Parses one line. Raises UnknownMessage with a sentence if it is not a message."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnknownMessage(f"line {_shown(line)}: not JSON ({error})") from None
    if not isinstance(body, dict):
        raise UnknownMessage(f"line {_shown(line)}: a message is a JSON object")
    name = body.pop("type", None)
    cls = _CLASSES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise UnknownMessage(
            f"message type {name!r}: protocol version {VERSION} knows {', '.join(_CLASSES)}; "
            "use the same version of outlast on both sides"
        )
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in body:
        if key not in fields:
            raise UnknownMessage(
                f"message {name}: field {key!r} is not known to protocol version {VERSION}"
            )
    hints = typing.get_type_hints(cls)
    for key, spec in fields.items():
        if key not in body:
            if dataclasses.MISSING is spec.default is spec.default_factory:
                raise UnknownMessage(f"message {name}: field {key!r} is missing")
            continue
        if not _fits(body[key], hints[key]):
            raise UnknownMessage(
                f"message {name}: field {key!r} is {body[key]!r}, must be {_named(hints[key])}"
            )
    return cls(**body)


class Channel:
    """One connection. Blocking; ``send`` may be called from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        # poll, not select: a trainer may have more than 1024 files open.
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN | select.POLLHUP)
        self._pending = bytearray()
        self._sending = threading.Lock()

    @classmethod
    def connect(cls, path: str | Path, *, timeout_sec: float = 10.0) -> "Channel":
        """Connect to a supervisor that may still be starting."""
        deadline = time.monotonic() + timeout_sec
        while isinstance(found := unix_socket.connect(Path(path)), OSError):
            if time.monotonic() >= deadline:
                raise Closed(
                    f"{SOCKET_VARIABLE} {path}: no supervisor answers there ({found.strerror})"
                )
            time.sleep(0.02)  # There is no event for a new socket file.
        return cls(found)

    def fileno(self) -> int:
        """For select; only meaningful while no complete line is buffered."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Sends one message. Raises Closed if the other side has closed the connection."""
        try:
            with self._sending:
                self._socket.sendall(encode(message))
        except OSError as error:
            raise Closed(f"connection lost while sending ({error.strerror or error})") from None

    def receive(self, timeout_sec: float | None = None) -> Message | None:
        """The next message; None after ``timeout_sec`` without one (0 does not wait).

        For one thread at a time. Raises Closed once everything that was sent has been read.
        """
        deadline = None if timeout_sec is None else time.monotonic() + timeout_sec
        while b"\n" not in self._pending:
            if len(self._pending) > LINE_BYTES_MAX:
                raise UnknownMessage(f"a line longer than {LINE_BYTES_MAX} bytes")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                if not self._is_readable(left):
                    return None
                data = self._socket.recv(65536)
            except (OSError, ValueError) as error:  # ValueError: closed by another thread
                raise Closed(f"connection lost while reading ({error})") from None
            if not data:
                raise Closed("the other side has closed the connection")
            self._pending += data
        line, _, rest = self._pending.partition(b"\n")
        self._pending = bytearray(rest)
        return decode(bytes(line))

    def is_waiting(self) -> bool:
        """Whether ``receive`` would return or raise at once."""
        return b"\n" in self._pending or self._socket.fileno() < 0 or bool(self._poll.poll(0))

    def _is_readable(self, timeout_sec: float | None) -> bool:
        if self._socket.fileno() < 0:
            raise ValueError("closed")
        return bool(self._poll.poll(None if timeout_sec is None else timeout_sec * 1000))

    def __iter__(self) -> Iterator[Message]:
        """Messages until the other side closes; for a reader thread."""
        while True:
            try:
                message = self.receive()
            except Closed:
                return
            if message is not None:
                yield message

    def detach(self) -> socket.socket:
        """The raw connection, for another protocol; use no other method of the channel."""
        return self._socket

    def close(self, *, hang_up: bool = True) -> None:
        """Closes both directions; a thread blocked in ``receive`` gets Closed. Without ``hang_up``,
        closes only this process's descriptor, which a forked child shares.
        """
        if hang_up:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerSocket:
    """The supervisor's end: a socket file that only this user can reach."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.unlink(missing_ok=True)  # A killed supervisor left it behind.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with unix_socket.address(self.path) as address:
                self._socket.bind(address)
            self.path.chmod(0o600)
            self._socket.listen(4)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """For select: readable when a trainer waits to be accepted."""
        return self._socket.fileno()

    def accept(self, timeout_sec: float | None = None) -> Channel | None:
        """The next connection, before its hello is read; None after ``timeout_sec``."""
        try:
            if not _readable(self._socket, timeout_sec):
                return None
            connection, _ = self._socket.accept()
        except (OSError, ValueError) as error:
            raise Closed(f"listener {self.path} is closed ({error})") from None
        return Channel(connection)

    def close(self) -> None:
        """Stop listening and remove the socket file; a thread blocked in ``accept`` gets Closed."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # Closing alone does not wake a poll.
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> "ServerSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def greet(channel: Channel, *, timeout_sec: float | None = None) -> Hello | Fetch | None:
    """Read the first message on a new connection; None after ``timeout_sec`` without one.

    Any message but hello and fetch, or another version, is answered with ``error`` and raised.
    """
    message = channel.receive(timeout_sec)
    if message is None:
        return None
    if isinstance(message, Fetch):
        return message
    if not isinstance(message, Hello):
        problem = f"first message {type(message).__name__.lower()}: must be hello"
    elif message.version != VERSION:
        problem = (
            f"hello version {message.version}: this supervisor speaks {VERSION}; "
            "use the same version of outlast on both sides"
        )
    else:
        return message
    channel.send(Error(problem, "protocol"))
    raise ProtocolError(problem)


def _readable(connection: socket.socket, timeout_sec: float | None) -> bool:
    # poll, not select: a trainer may have more than 1024 files open.
    poll = select.poll()
    poll.register(connection, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(None if timeout_sec is None else timeout_sec * 1000))


def _fits(value: object, hint: object) -> bool:
    if isinstance(hint, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is list:
        (item,) = typing.get_args(hint)
        return isinstance(value, list) and all(_fits(part, item) for part in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, typing.cast(type, hint))


def _named(hint: object) -> str:
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__name__
    return str(hint).replace("NoneType", "null").replace("None", "null")


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")
