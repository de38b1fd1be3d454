"""Reports the ends of attempts to the user's webhook."""

import logging
import threading
from typing import Any
from urllib.parse import urlsplit

from outlast.base.http_client import RequestFailed, ask
from outlast.supervisor.secrets import Mask, SecretReader, SecretRefused, SecretUnavailable

_log = logging.getLogger(__name__)

ANSWER_SEC = 10.0


class Webhook:
    """Sends the ends of attempts. The supervisor never waits for an answer, and nothing is sent
    twice."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._reading: threading.Thread | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def of_secret(cls, name: str, reader: SecretReader, mask: Mask) -> "Webhook":
        """A webhook whose address is the value of a secret, which is read now in the background."""
        found = cls("")
        found._reading = threading.Thread(
            target=found._read, args=(name, reader, mask), daemon=True
        )
        found._reading.start()
        return found

    def post(self, body: dict[str, Any]) -> None:
        """Sends in the background; does nothing without an address."""
        if self._url or self._reading:
            self._thread = threading.Thread(target=self._send, args=(body,), daemon=True)
            self._thread.start()

    def close(self, timeout_sec: float = 2.0) -> None:
        """Waits a moment for the last message."""
        if self._thread is not None:
            self._thread.join(timeout_sec)

    def _read(self, name: str, reader: SecretReader, mask: Mask) -> None:
        try:
            value = reader.read("webhookSecret", name).strip()
        except (SecretRefused, SecretUnavailable) as error:
            _log.info(f"webhook: {error}; no message is sent")
            return
        mask.add(value)
        url = value.decode(errors="replace")
        try:
            parts = urlsplit(url)
            good = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            _log.info(
                f"webhook: webhookSecret {name}: does not hold an https address; add a version that"
                " does; no message is sent"
            )
            return
        mask.add(url.partition(parts.netloc)[2].encode())  # some errors repeat it
        self._url = url

    def _send(self, body: dict[str, Any]) -> None:
        if self._reading is not None:
            self._reading.join()
        if not self._url:
            return
        try:
            ask(self._url, what="webhook", method="POST", body=body, timeout_sec=ANSWER_SEC)
        except RequestFailed as error:
            _log.info(str(error))
