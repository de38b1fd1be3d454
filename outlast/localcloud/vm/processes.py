"""Finds the processes of VMs: those below a VM's first process, and those with its token."""

import os
from contextlib import suppress
from pathlib import Path

from outlast.localcloud.vm.guest_init import descendants, read_stat

TOKEN_VARIABLE = "OUTLAST_VM_TOKEN"
TOKEN_FILE = "token"
"""File in a VM's folder with the token of its current boot."""


def processes_below(pid: int, token: str) -> set[int]:
    """Every process of a VM except its first one."""
    return (descendants(pid) | holders_of(token)) - {pid}


def holders_of(token: str) -> set[int]:
    """Every live process that has the token in its environment."""
    found = {
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and has_token(int(entry), token)
    }
    return {pid for pid in found if (stat := read_stat(pid)) and stat[0] not in "ZX"}


def has_token(pid: int, token: str) -> bool:
    """Whether a process exists and has the token in its environment."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return wanted in file.read().split(b"\0")
    return False


def trees_of(token: str) -> set[int]:
    """The processes with the token, and all processes below them; a VM's first process has it."""
    holders = holders_of(token)
    return holders.union(*map(descendants, holders))


def command_line(pid: int) -> str:
    """The command line of a process; empty if it no longer exists."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""
