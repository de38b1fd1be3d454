"""Tells an address of the user's choice how attempts end."""

import json
import threading
from typing import Any

from outlast.supervisor.group import Say


class Webhook:
    """Tells an address of the user's choice about ends; never waited for, never retried."""

    def __init__(self, url: str, say: Say) -> None:
        self._url = url
        self._say = say
        self._thread: threading.Thread | None = None

    def post(self, body: dict[str, Any]) -> None:
        """Send in the background; does nothing without an address."""
        if self._url:
            self._thread = threading.Thread(target=self._send, args=(body,), daemon=True)
            self._thread.start()

    def close(self, timeout_sec: float = 2.0) -> None:
        """Give the last message a moment."""
        if self._thread is not None:
            self._thread.join(timeout_sec)

    def _send(self, body: dict[str, Any]) -> None:
        import http.client
        import urllib.request

        try:
            request = urllib.request.Request(
                self._url,
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                method="POST",
            )
            urllib.request.urlopen(request, timeout=10.0).close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._say(f"webhook: {error}")
