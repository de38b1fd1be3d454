"""Finds the process at the other end of a loopback connection.

The kernel knows the far end's socket by its inode, and the user who created it. The process that
has this socket open is the sender. The kernel is asked about the one connection. Only if that is
impossible, its whole table is read, which may take 40 ms on a machine with much memory."""

import errno
import functools
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address
from sys import byteorder
from typing import NamedTuple, Protocol

Address = tuple[str, int]

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""A client may use an IPv6 socket for an IPv4 address; the second table lists it."""
MAPPED = f"{'0' * 16}{int.from_bytes(bytes.fromhex('0000ffff'), byteorder):08X}"
"""The prefix of an IPv4 address in the second table."""
CONNECTING, LISTENING = 2, 10
# The table changes while it is read in pieces, so one read may miss a line.
LOOKS = 3

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
NLMSG_ERROR = 2
ALL_STATES = 0xFFFFFFFF
NO_COOKIE = b"\xff" * 8
HEADER = struct.Struct("=IHHII")
QUESTION = struct.Struct("=BBBBI")
ENDS = struct.Struct("!HH16s16s")
"""Local and remote port and address."""
ANSWER = struct.Struct("=BBBB")
OWNER = struct.Struct("=II")
"""User id and inode."""
ENDS_AT = HEADER.size + ANSWER.size
OWNER_AT = ENDS_AT + ENDS.size + 4 + len(NO_COOKIE) + 12


class Socket(NamedTuple):
    """A socket that a process has open."""

    inode: int
    uid: int
    """The user who created it."""


class Connection(Protocol):
    """The near end, as `socket.socket` and asyncio's transports implement it."""

    def getpeername(self) -> Address:
        """The far address; OSError after a reset of the connection."""
        ...

    def getsockname(self) -> Address:
        """The near address."""
        ...


def far_end(connection: Connection) -> Socket | None:
    """The socket at the far end of an accepted connection; None if its process has closed it.

    It is never that of a later connection with the same port: no other connection can have these
    addresses while this one exists, and it must still exist after the look."""
    try:
        found = far_socket(connection.getpeername(), connection.getsockname())
        connection.getpeername()
    except OSError:
        return None
    return found


def far_socket(far: Address, near: Address) -> Socket | None:
    """The far end's socket by both addresses (IPv4); None if no process has it open."""
    found = _ask(far, near) if _answers() else _look_up(far, near)
    return found if found and found.inode else None


def listening_sockets(host: str) -> set[int]:
    """The inodes of the sockets that listen on an address, on any port."""
    wanted = {prefix + _text(host) for prefix in ("", MAPPED)}
    return {
        int(fields[9])
        for fields in _lines()
        if int(fields[3], 16) == LISTENING and fields[1].partition(":")[0] in wanted
    }


def has_open(pids: Iterable[int], inode: int) -> bool:
    """Whether one of these processes has the socket open."""
    wanted = f"socket:[{inode}]"
    for pid in pids:
        with suppress(OSError):
            for entry in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{entry}") == wanted:
                        return True
    return False


# The kernel's answer for one connection (sock_diag(7))


def _ask(far: Address, near: Address) -> Socket | None:
    """Asks the kernel; raises OSError if that is impossible."""
    ends = ENDS.pack(far[1], near[1], _packed(far), _packed(near))
    question = QUESTION.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, ALL_STATES)
    question += ends + bytes(4) + NO_COOKIE
    head = HEADER.pack(HEADER.size + len(question), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(head + question)
        answer = kernel.recv(4096)
    kind = HEADER.unpack_from(answer)[1]
    if kind == NLMSG_ERROR:
        code = -struct.unpack_from("=i", answer, HEADER.size)[0]
        if code == errno.ENOENT:
            return None
        raise OSError(code, os.strerror(code))
    state = ANSWER.unpack_from(answer, HEADER.size)[1]
    # Without such a connection, the kernel may answer with a socket that listens there.
    if state in (CONNECTING, LISTENING) or not _is_between(answer, far, near):
        return None
    uid, inode = OWNER.unpack_from(answer, OWNER_AT)
    return Socket(inode, uid)


def _is_between(answer: bytes, far: Address, near: Address) -> bool:
    """Whether the answer is about these two ends; an IPv6 socket has mapped addresses."""
    far_port, near_port, *hosts = ENDS.unpack_from(answer, ENDS_AT)
    mapped = bytes(10) + b"\xff\xff"
    if answer[HEADER.size] == socket.AF_INET6:
        wanted = [mapped + IPv4Address(end[0]).packed for end in (far, near)]
    else:
        wanted = [_packed(far), _packed(near)]
    return (far_port, near_port) == (far[1], near[1]) and hosts == wanted


def _packed(address: Address) -> bytes:
    return IPv4Address(address[0]).packed + bytes(12)


@functools.cache
def _answers() -> bool:
    """Whether the kernel answers, tried once with a connection of this process."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        inode = os.fstat(client.fileno()).st_ino
        try:
            found = _ask(client.getsockname(), server.getsockname())
        except (OSError, struct.error):
            return False
    return found is not None and found.inode == inode


# The kernel's table


def _look_up(far: Address, near: Address) -> Socket | None:
    ends = [(f"{_text(end[0])}:{end[1]:04X}") for end in (far, near)]
    wanted = {tuple(prefix + end for end in ends) for prefix in ("", MAPPED)}
    for _ in range(LOOKS):
        for fields in _lines():
            if (fields[1], fields[2]) in wanted and int(fields[3], 16) != CONNECTING:
                return Socket(int(fields[9]), int(fields[7]))
    return None


def _lines() -> Iterator[list[str]]:
    """The fields of each line of both tables."""
    for name in TABLES:
        with suppress(FileNotFoundError), open(name) as table:  # a kernel without IPv6
            next(table)
            for line in table:
                yield line.split(None, 10)


def _text(host: str) -> str:
    """An address as in the kernel's table: its four bytes in this machine's byte order."""
    return f"{int.from_bytes(IPv4Address(host).packed, byteorder):08X}"
