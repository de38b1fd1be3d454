"""What a trainer and its supervisor say to each other: JSON lines on a Unix socket.

One line is one message: ``{"type": "snapshot", "id": "000001", ...}``. The trainer connects to the
socket that ``OUTLAST_SOCKET`` names and speaks first:

==============  =========================================  =====================================
from trainer    means                                      answer
==============  =========================================  =====================================
``hello``       here I am, with this protocol version      ``welcome``, ``ended`` or ``error``
``snapshot``    this folder is complete, it is yours now   ``accepted`` or ``busy``; later
                                                           ``committed`` or ``failed`` is pushed
``warn``        what people should look at                 none
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

The supervisor also pushes ``stop`` (hand over a snapshot and exit 75 within so many seconds) and
``checkpoint`` (hand over a snapshot at the next step boundary and train on).

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
"""Of an error's lines the last ones are sent, each cut to ERROR_LINE_CHARS_MAX."""
ERROR_LINE_CHARS_MAX = 1000

_SECONDS = re.compile(r"([0-9]*\.?[0-9]+)s", re.ASCII)
_STEPS = re.compile(r"[0-9]{1,15}", re.ASCII)
_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", re.ASCII)
_TAKEN_NAMES = ("RESULT.json",)


class ProtocolError(Exception):
    """The conversation between trainer and supervisor cannot go on."""


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
    """``auto``, ``30s`` or ``200``; a ValueError with a sentence for anything else."""
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
    """``name`` itself, if it can name a part; a ValueError with a sentence for anything else."""
    if not isinstance(name, str) or not _PART_NAME.fullmatch(name) or name in _TAKEN_NAMES:
        raise ValueError(
            f"part {name!r}: must be letters, digits, '_', '.' and '-', begin with a letter or a "
            "digit, and have at most 40 characters"
        )
    return name


def row_part(part: str, before: int) -> list[typing.Any]:
    """The `part` of a row as it is in the bucket, where its step counts through all parts: the
    name, and the steps of the parts before it."""
    return [part, before]


def own_row(row: Mapping[str, typing.Any]) -> dict[str, typing.Any]:
    """A row of the bucket with the name and the steps of its part; one of a run without parts
    as it is."""
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
    """Steps of the whole training, where the trainer knows it; for progress only."""
    part: str = ""
    """Name of the part of the run that is to be trained; empty for the whole run."""
    restore_done: bool = True
    """Whether the state of the part is wanted also where the part is done."""


@dataclass(frozen=True)
class Snapshot:
    """A complete folder, renamed into place; rows up to ``rows_offset`` belong to it."""

    id: str
    path: str
    step: int
    tags: list[str]
    rows_offset: int
    last: bool = False
    """Whether the loop is over: it may wait in line behind others."""


@dataclass(frozen=True)
class Tick:
    """A sign of life. ``phase`` names a long piece of work that makes no steps."""

    step: int
    phase: str = "train"


@dataclass(frozen=True)
class Warn:
    """Something about the training that people should look at; it goes on."""

    message: str


@dataclass(frozen=True)
class Complete:
    """Training is over; ``result`` is a folder with model files and metrics.json. Of a part it is
    one with those files in ``result``, and ``part.json``."""

    step: int
    result: str
    rows_offset: int
    why: str = ""
    """Why it is over before all steps were made, where the trainer ended it so."""


@dataclass(frozen=True)
class Results:
    """Where are the files of this part's result? Said once, of a part that is done."""


@dataclass(frozen=True)
class Exit:
    """The program ends with this exit code; 0 says that no other part follows. Said where the
    supervisor cannot see it, as it is the trainer's child."""

    code: int


@dataclass(frozen=True)
class Error:
    """Why a side gives up. Kinds: ``protocol``, ``usage``, ``restore``, ``does-not-fit``,
    ``data-changed``, ``no-output``, ``result-too-large``, ``trainer``, ``supervisor``."""

    message: str
    kind: str
    lines: list[str] = field(default_factory=list)
    """What a person reads of it, such as a traceback: at most ERROR_LINES_MAX lines."""


@dataclass(frozen=True)
class Fetch:
    """The data of ``url``, a ``gs://`` path or a local one, is needed as a local path."""

    url: str
    path: str = ""
    """Where the trainer has it already; the supervisor then only looks at what it is."""


# From the supervisor.


@dataclass(frozen=True)
class Welcome:
    """Where to begin. ``restore`` is a verified snapshot folder, or null for a fresh start."""

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
    """Other existing folders for snapshots, in order, where ``work`` has no room for two."""
    machine_age_sec: float = 0.0
    """Since this machine was started."""
    commit_sec: float | None = None
    """What the last commit of an earlier attempt took; null if none is known."""
    init: bool = False
    """``restore`` holds another run's state: take it, and start at step 0 without a history."""
    before: int = 0
    """Steps of the parts before this one; a row's step counts them."""
    done: str | None = None
    """Folder of what a part ended with that is done, as its ``complete`` named it but without the
    result's files: ``restore`` is its last state, if that was wanted, and no step is to be made."""

    def environment(self) -> dict[str, str]:
        """What every trainer finds in its environment; one that began before this welcome, on a
        laptop, sets it by itself."""
        found = {"RUN_ID": self.run_id, "LOG_DIR": self.log_dir, "ATTEMPT": str(self.term)}
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True)
class Fetched:
    """The answer to ``fetch`` and ``results``: a file, or a folder."""

    path: str


@dataclass(frozen=True)
class Ended:
    """Instead of ``welcome``: there is nothing to train here, and no use in asking again."""

    state: str
    """done, failed, stopped or pruned; ``refused`` where the folder is not to be used."""
    exit: int
    """The code the trainer exits with."""
    message: str
    """One sentence for people."""


@dataclass(frozen=True)
class Accepted:
    """The folder is the supervisor's now. ``id`` is the snapshot's, or ``complete``."""

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
    """The snapshot could not be committed; the trainer must not go on unaware."""

    id: str
    message: str


@dataclass(frozen=True)
class Stop:
    """Hand over a snapshot at the next step boundary and exit 75, within ``seconds``."""

    seconds: float
    snapshot: bool = True
    """False if none could be committed in time any more: exit 75 at once."""


@dataclass(frozen=True)
class Checkpoint:
    """Hand over a snapshot at the next step boundary and train on."""

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
    # ASCII: any text can be said, half a surrogate pair of a file's name too.
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line; UnknownMessage with a sentence for anything else."""
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
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with unix_socket.address(Path(path)) as address:
                    connection.connect(address)
                return cls(connection)
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
                connection.close()
                if time.monotonic() >= deadline:
                    raise Closed(
                        f"{SOCKET_VARIABLE} {path}: no supervisor answers there ({error.strerror})"
                    ) from None
                time.sleep(0.02)  # nothing to wait on: a socket file appears without an event
            except BaseException:
                connection.close()
                raise

    def fileno(self) -> int:
        """For select; only meaningful while no complete line is buffered."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Write one message; Closed if the other side has gone."""
        try:
            with self._sending:
                self._socket.sendall(encode(message))
        except OSError as error:
            raise Closed(f"connection lost while sending ({error.strerror or error})") from None

    def receive(self, timeout_sec: float | None = None) -> Message | None:
        """The next message; None after ``timeout_sec`` without one (0 only looks).

        One thread at a time. Closed once everything that was sent has been read.
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
        """Whether ``receive`` finds anything now, if only that the connection is gone."""
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
        """The bare connection, for another conversation than this module's; use no other method
        of the channel before or after."""
        return self._socket

    def close(self, *, hang_up: bool = True) -> None:
        """Close both directions; a thread blocked in ``receive`` gets Closed. Without ``hang_up``
        only this process's hold on the connection, which a forked child shares."""
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
        self.path.unlink(missing_ok=True)  # left behind by a supervisor that was killed
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
        """The next connection, before its hello was read; None after ``timeout_sec``."""
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
            self._socket.shutdown(socket.SHUT_RDWR)  # closing alone does not wake a poll
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> "ServerSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def greet(channel: Channel, *, timeout_sec: float | None = None) -> Hello | Fetch | None:
    """Read the first message on a new connection; None after ``timeout_sec`` without one.

    One that is neither hello nor fetch, or another version, is answered with ``error`` and raised.
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
