"""What the machine tells about itself: the metadata server.

Every absolute path of the VM goes through ``rooted``, every call to the metadata server through
``Metadata``.

Errors: MetadataError
        ├── Absent        the key is not set
        └── Unreachable   no usable answer within the tries
"""

import http.client
import json
import os
import platform
import random
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOST = "metadata.google.internal"
ANSWER_TIMEOUT_SEC = 10.0
WAIT_TIMEOUT_SEC = 60
TRIES = 8
TOKEN_SPARE_SEC = 60.0


class MetadataError(Exception):
    """The machine could not tell."""


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
    """Seconds since this machine was started; since this process was, if none tells."""
    try:
        return float(rooted("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _STARTED_AT


class Metadata:
    """Client of the metadata server. Safe to share between threads."""

    def __init__(self, base: str | None = None) -> None:
        """``base`` as in ``http://metadata.google.internal/computeMetadata/v1``; by default from
        ``METADATA_BASE``, else ``GCE_METADATA_HOST``, else Google's own name."""
        host = os.environ.get("GCE_METADATA_HOST", DEFAULT_HOST)
        base = base or os.environ.get("METADATA_BASE") or f"http://{host}/computeMetadata/v1"
        self.base = base.rstrip("/")
        # Metadata is on the host's own link: a proxy from the environment never applies.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._token = ""
        self._token_until = 0.0
        self._token_lock = threading.Lock()

    def get(self, path: str, *, tries: int = TRIES) -> str:
        """The value at ``path``, such as ``instance/zone``. Absent for a key that is not set."""
        return self._get(path, {}, timeout_sec=ANSWER_TIMEOUT_SEC, tries=tries)[0]

    def wait_for_change(
        self, path: str, *, last_etag: str, timeout_sec: int = WAIT_TIMEOUT_SEC
    ) -> tuple[str, str]:
        """Value and etag once they differ from ``last_etag`` ("0": at once), or unchanged after
        ``timeout_sec``. One try: the caller loops anyway."""
        query = {
            "wait_for_change": "true",
            "last_etag": last_etag,
            "timeout_sec": str(timeout_sec),
        }
        return self._get(path, query, timeout_sec=timeout_sec + ANSWER_TIMEOUT_SEC, tries=1)

    def attributes(self) -> dict[str, str]:
        """All attributes of the instance."""
        query = {"recursive": "true", "alt": "json"}
        text, _ = self._get(
            "instance/attributes/", query, timeout_sec=ANSWER_TIMEOUT_SEC, tries=TRIES
        )
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
                text = self.get("instance/service-accounts/default/token", tries=3)
                try:
                    body = json.loads(text)
                    self._token = str(body["access_token"])
                    lives_sec = float(body["expires_in"])
                except (ValueError, KeyError, TypeError) as error:
                    raise Unreachable(f"token: the answer makes no sense ({error!r})") from None
                self._token_until = time.monotonic() + max(0.0, lives_sec - TOKEN_SPARE_SEC)
            return self._token

    def email(self) -> str:
        """The address of the VM's service account; EMAIL if it cannot be asked."""
        try:
            return self.get("instance/service-accounts/default/email", tries=1).strip()
        except MetadataError:
            return "EMAIL"

    def forget_token(self) -> None:
        """Ask for a new token next time; after a 401."""
        with self._token_lock:
            self._token_until = 0.0

    def _get(
        self, path: str, query: Mapping[str, str], *, timeout_sec: float, tries: int
    ) -> tuple[str, str]:
        url = f"{self.base}/{path}"
        if query:
            url += "?" + urllib.parse.urlencode(query)
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        problem = ""
        for attempt in range(tries):
            if attempt:
                time.sleep(min(5.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.0))
            try:
                with self._opener.open(request, timeout=timeout_sec) as answer:
                    if answer.headers.get("Metadata-Flavor") != "Google":
                        problem = "the answer does not come from a metadata server"
                        continue
                    return answer.read().decode(), answer.headers.get("ETag", "0")
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    raise Absent(f"metadata key {path}: not set") from None
                problem = f"status {error.code}"
                if error.code not in (429, 500, 502, 503, 504):
                    break
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
        raise Unreachable(f"metadata key {path}: no usable answer from {self.base} ({problem})")


@dataclass(frozen=True)
class Machine:
    """What the machine is, for the records."""

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
    """A machine without a metadata server."""
    return Machine(
        instance=socket.gethostname(),
        instance_id="",
        boot_id="",
        zone="",
        machine_type=platform.machine(),
        image="",
    )
