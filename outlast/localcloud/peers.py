"""Who is at the other end of a loopback connection, so that a VM cannot pass for somebody else.

The kernel's table names the socket of a connection's far end by its inode; whichever process has
that socket open is the sender.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address
from sys import byteorder

Address = tuple[str, int]

TABLE = "/proc/net/tcp"
LISTENING = "0A"
# The table is read in pieces while connections come and go: one look may miss a line.
LOOKS = 3


def far_socket(far: Address, near: Address) -> int | None:
    """The inode of the far end's socket; None where its process has closed it."""
    wanted = f"{_text(far)} {_text(near)}"
    for _ in range(LOOKS):
        with open(TABLE) as table:
            for line in table:
                fields = line.split(None, 10)
                if f"{fields[1]} {fields[2]}" == wanted:
                    return int(fields[9]) or None
    return None


def listening_sockets(host: str) -> set[int]:
    """The inodes of the sockets that listen at an address, on any port."""
    found = set()
    wanted = _text((host, 0)).removesuffix("0000")
    with open(TABLE) as table:
        for line in table:
            fields = line.split(None, 10)
            if fields[3] == LISTENING and fields[1].startswith(wanted):
                found.add(int(fields[9]))
    return found


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


def _text(address: Address) -> str:
    """An address as the kernel's table has it: the four bytes in this machine's own order."""
    host = int.from_bytes(IPv4Address(address[0]).packed, byteorder)
    return f"{host:08X}:{address[1]:04X}"
