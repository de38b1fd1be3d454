"""What another user of the machine can do: programs that run as `nobody`."""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.another_user import NOBODY

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start a program of another user"
)

# Modules first: the other user may not be able to read where they are.
BECOME = f"""
import encodings.idna, os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""


def as_nobody(code: str, *arguments: Any, imports: str = "") -> str:
    """What a Python program prints that runs as the user `nobody`; `imports` come as root."""
    command = [sys.executable, "-I", "-c", f"{imports}\n{BECOME}\n{code}"]
    done = subprocess.run(
        [*command, *map(str, arguments)], cwd="/", capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


EXCHANGE = """
host, port, text = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with socket.create_connection((host, port), timeout=60) as connection:
    assert os.geteuid() != 0
    connection.sendall(text.encode())
    answer = b""
    while data := connection.recv(65536):
        answer += data
print(answer.decode())
"""


def exchange_as_nobody(port: int, request: str, host: str = "127.0.0.1") -> str:
    """All that is answered to the bytes of a request by a process of `nobody`."""
    return as_nobody(EXCHANGE, host, port, request)
