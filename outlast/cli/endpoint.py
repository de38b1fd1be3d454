"""Says at once that this shell's local cloud is stopped, instead of after all retries."""

import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from outlast.cli.errors import CloudError

LOCAL_PROJECT = "outlast-rehearsal"
"""The project of Pulumi.dev.yaml, which exists only in local clouds."""
VARIABLE = "STORAGE_EMULATOR_HOST"
ANSWER_SEC = 5.0


def is_local() -> bool:
    """Whether this shell uses a local cloud."""
    return bool(os.environ.get(VARIABLE))


def check_local_cloud(environ: Mapping[str, str] | None = None) -> None:
    """Raises CloudError if the environment names a local cloud and nothing answers there."""
    address = (os.environ if environ is None else environ).get(VARIABLE)
    if not address:
        return
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        there = (parts.hostname or "", parts.port or 80)
        socket.create_connection(there, timeout=ANSWER_SEC).close()
    except (OSError, ValueError):
        raise CloudError(
            f"the local cloud of this shell ({VARIABLE} {address}) is stopped: nothing answers "
            'there; start one: eval "$(outlast cloud start)"'
        ) from None
