"""The metadata server: what the machine knows about itself.

Every absolute path of the VM goes through ``rooted``, every call to the metadata server through
``Metadata``.

Errors: MetadataError
        ├── Absent        the key is not set
        └── Unreachable   no usable answer within the tries
"""

import json
import os
import platform
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outlast.base.clock import SYSTEM_CLOCK, Clock
from outlast.base.http_client import RequestFailed, ask
from outlast.base.retry import METADATA_SEC, ONCE, Limits, Patience

DEFAULT_HOST = "metadata.google.internal"
ANSWER_TIMEOUT_SEC = 10.0
WAIT_TIMEOUT_SEC = 60
PAUSE_SEC = 0.2
TOKEN_TRY_SEC = 2.0
"""Seconds; a caller that needs a token asks again."""
TOKEN_SPARE_SEC = 60.0


class MetadataError(Exception):
    """The metadata is not available."""


class Absent(MetadataError):
    """The metadata server knows no such key."""


class Unreachable(MetadataError):
    """The metadata server gave no usable answer."""


def rooted(path: str) -> Path:
    """An absolute path of the VM, under ``OUTLAST_ROOT`` if that is set."""
    root = os.environ.get("OUTLAST_ROOT", "")
    return Path(root + path) if root else Path(path)


_STARTED_AT = time.monotonic()


def machine_age_sec() -> float:
    """Seconds since this machine was started; since this process was started, if the machine does
    not say."""
    try:
        return float(rooted("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _STARTED_AT


class Metadata:
    """Client of the metadata server. Safe to share between threads."""

    def __init__(self, base: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """``base`` as in ``http://metadata.google.internal/computeMetadata/v1``; by default from
        ``METADATA_BASE``, else ``GCE_METADATA_HOST``, else Google's own name."""
        host = os.environ.get("GCE_METADATA_HOST", DEFAULT_HOST)
        base = base or os.environ.get("METADATA_BASE") or f"http://{host}/computeMetadata/v1"
        self.base = base.rstrip("/")
        limits = Limits(silent_sec=METADATA_SEC)
        self._patience = Patience(clock, limits=limits, pause_sec=PAUSE_SEC)
        self._token = ""
        self._token_until = 0.0
        self._token_lock = threading.Lock()

    def get(self, path: str, *, patience: Patience | None = None) -> str:
        """The value at ``path``, such as ``instance/zone``. Absent for a key that is not set."""
        return self._get(path, {}, ANSWER_TIMEOUT_SEC, patience or self._patience)[0]

    def wait_for_change(
        self, path: str, *, last_etag: str, timeout_sec: int = WAIT_TIMEOUT_SEC
    ) -> tuple[str, str]:
        """Returns the value and etag once they differ from ``last_etag`` ("0": at once), or
        unchanged after ``timeout_sec``. Tries once: the caller loops anyway."""
        query = {
            "wait_for_change": "true",
            "last_etag": last_etag,
            "timeout_sec": str(timeout_sec),
        }
        return self._get(path, query, timeout_sec + ANSWER_TIMEOUT_SEC, ONCE)

    def attributes(self) -> dict[str, str]:
        """All attributes of the instance."""
        query = {"recursive": "true", "alt": "json"}
        text, _ = self._get("instance/attributes/", query, ANSWER_TIMEOUT_SEC, self._patience)
        try:
            found = json.loads(text)
        except ValueError as error:
            raise Unreachable(f"instance/attributes: the answer is not JSON ({error})") from None
        if not isinstance(found, dict):
            raise Unreachable("instance/attributes: the answer is not a JSON object")
        return {
            str(key): value if isinstance(value, str) else json.dumps(value)
            for key, value in found.items()
        }

    def token(self) -> str:
        """An access token of the VM's service account, kept until shortly before its end."""
        with self._token_lock:
            if time.monotonic() >= self._token_until:
                text = self.get(
                    "instance/service-accounts/default/token",
                    patience=self._patience.within(TOKEN_TRY_SEC),
                )
                try:
                    body = json.loads(text)
                    self._token = str(body["access_token"])
                    lives_sec = float(body["expires_in"])
                except (ValueError, KeyError, TypeError) as error:
                    raise Unreachable(f"token: the answer makes no sense ({error!r})") from None
                self._token_until = time.monotonic() + max(0.0, lives_sec - TOKEN_SPARE_SEC)
            return self._token

    def email(self) -> str:
        """The address of the VM's service account; the word EMAIL if the server does not answer."""
        try:
            return self.get("instance/service-accounts/default/email", patience=ONCE).strip()
        except MetadataError:
            return "EMAIL"

    def forget_token(self) -> None:
        """Makes the next call ask for a new token; for use after a 401."""
        with self._token_lock:
            self._token_until = 0.0

    def _get(
        self, path: str, query: Mapping[str, str], timeout_sec: float, patience: Patience
    ) -> tuple[str, str]:
        what = f"metadata key {path}"
        url = f"{self.base}/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")

        def once() -> tuple[str, str]:
            # The server is on the host's own link, which no proxy serves.
            headers = {"Metadata-Flavor": "Google"}
            answer = ask(url, what=what, headers=headers, timeout_sec=timeout_sec, direct=True)
            if answer.headers.get("Metadata-Flavor") != "Google":
                raise RequestFailed(0, f"{what}: the answer does not come from a metadata server")
            return answer.body.decode(errors="replace"), answer.headers.get("ETag", "0")

        try:
            return patience(once)
        except RequestFailed as error:
            if error.status == 404:
                raise Absent(f"{what}: not set") from None
            raise Unreachable(f"{error}; asked was {self.base}") from None


@dataclass(frozen=True)
class Machine:
    """The machine, as the records describe it."""

    instance: str
    instance_id: str
    boot_id: str
    zone: str
    machine_type: str
    image: str


def read_machine(metadata: Metadata) -> Machine:
    """This VM, from its metadata server and its kernel."""

    def optional(path: str) -> str:
        try:
            return metadata.get(path)
        except Absent:
            return ""

    try:
        boot_id = rooted("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise MetadataError(f"boot id: cannot be read ({error})") from None
    return Machine(
        instance=metadata.get("instance/name"),
        instance_id=metadata.get("instance/id"),
        boot_id=boot_id,
        zone=metadata.get("instance/zone").rpartition("/")[2],
        machine_type=optional("instance/machine-type").rpartition("/")[2],
        image=optional("instance/image"),
    )


def this_computer() -> Machine:
    """This computer, without a metadata server."""
    return Machine(
        instance=socket.gethostname(),
        instance_id="",
        boot_id="",
        zone="",
        machine_type=platform.machine(),
        image="",
    )
