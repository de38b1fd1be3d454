"""Sends announcements to the user's webhook, in the background."""

import logging
import queue
import threading
from urllib.parse import urlsplit

from outlast.base import webhook
from outlast.base.http_client import RequestFailed
from outlast.base.webhook import SENT, Announcement
from outlast.supervisor.secrets import Mask, SecretReader, SecretRefused, SecretUnavailable

_log = logging.getLogger(__name__)

LAST_WORDS_SEC = 30.0
"""Seconds that a VM waits for its last message before it leaves, unless its machine stops."""


class Webhook:
    """Sends each announcement once, in order; the same one is never sent twice. The supervisor only
    waits for an answer in `close`."""

    def __init__(self, url: str, key: bytes = b"") -> None:
        self._url = url
        self._key = key
        self._reading: threading.Thread | None = None
        self._queue: queue.SimpleQueue[Announcement] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._posted: set[str] = set()
        self._left = 0
        """Announcements that are not sent yet."""
        self._changed = threading.Condition()

    @classmethod
    def of_secrets(
        cls, url: str, name: str, key_name: str, reader: SecretReader, mask: Mask
    ) -> "Webhook":
        """A webhook whose address, or whose key, is the value of a secret, which is read now in the
        background. `name` and `key_name` are empty for none; then `url` is the address."""
        found = cls(url)
        found._reading = threading.Thread(
            target=found._read, args=(name, key_name, reader, mask), daemon=True
        )
        found._reading.start()
        return found

    def post(self, announcement: Announcement) -> None:
        """Sends it in the background, unless there is no address or the event is only for the
        console."""
        is_new = announcement.id not in self._posted
        if announcement.event in SENT and is_new and (self._url or self._reading):
            self._posted.add(announcement.id)
            with self._changed:
                self._left += 1
            self._queue.put(announcement)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
                self._thread.start()

    def close(self, within_sec: float = LAST_WORDS_SEC) -> None:
        """Waits until everything was sent, at most `within_sec`."""
        with self._changed:
            self._changed.wait_for(lambda: self._left == 0, max(within_sec, 0.0))

    def _read(self, name: str, key_name: str, reader: SecretReader, mask: Mask) -> None:
        try:
            url = self._read_address(name, reader, mask) if name else self._url
            if url and key_name:
                self._key = reader.read("webhookKeySecret", key_name).strip()
                mask.add(self._key)
                if not self._key:
                    url = ""
                    _log.info(f"webhook: webhookKeySecret {key_name}: is empty; no message is sent")
        except (SecretRefused, SecretUnavailable) as error:
            _log.info(f"webhook: {error}; no message is sent")
            url = ""
        self._url = url

    def _read_address(self, name: str, reader: SecretReader, mask: Mask) -> str:
        """The address in the secret; empty if it holds none."""
        value = reader.read("webhookSecret", name).strip()
        mask.add(value)
        url = value.decode(errors="replace")
        if not webhook.is_address(url):
            _log.info(
                f"webhook: webhookSecret {name}: does not hold an https address; add a version that"
                " does; no message is sent"
            )
            return ""
        mask.add(url.partition(urlsplit(url).netloc)[2].encode())  # some errors repeat it
        return url

    def _run(self) -> None:
        if self._reading is not None:
            self._reading.join()
        while True:
            announcement = self._queue.get()
            try:
                if self._url:
                    webhook.send(self._url, self._key, announcement)
            except RequestFailed as error:
                _log.info(f"{error}; the message {announcement.event} was not delivered")
            with self._changed:
                self._left -= 1
                self._changed.notify_all()
