"""Receives Outlast's messages, checks their signature and prints them: an example for your own.

    OUTLAST_WEBHOOK_KEY=… python examples/webhook_receiver.py 8080

It answers 204 to a message that it accepts, 401 to one with a wrong or old signature, and 400 to
one that it cannot read. Outlast sends a message again until it has an answer, so it may come twice:
the second one has the same `id`. It listens on this machine only; put it behind a proxy with TLS.
"""

import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OLD_SEC = 300
"""A signature that is older, or so far in the future, is refused: someone may be repeating it."""
BYTES_MAX = 65_536
SEEN_MAX = 10_000


def is_signed(key: bytes, timestamp: str, signature: str, body: bytes, now: float) -> bool:
    """Whether the body was signed with the key, not long ago."""
    if not (timestamp.isascii() and timestamp.isdigit()):
        return False
    expected = hmac.new(key, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    # In constant time, so that the answer's time says nothing about the right signature.
    is_right = hmac.compare_digest(f"sha256={expected}".encode(), signature.encode())
    return is_right and abs(now - int(timestamp)) <= OLD_SEC


def server(
    key: bytes, receive: Callable[[dict[str, Any]], object], port: int = 0
) -> ThreadingHTTPServer:
    """A server that passes each new message to `receive`, once."""
    seen: dict[str, None] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = self.headers.get("Content-Length", "")
            if not size.isdigit() or int(size) > BYTES_MAX:
                return self.answer(400)
            body = self.rfile.read(int(size))
            timestamp = self.headers.get("Outlast-Timestamp", "")
            signature = self.headers.get("Outlast-Signature", "")
            if not is_signed(key, timestamp, signature, body, time.time()):
                return self.answer(401)
            try:
                message = json.loads(body)
                identifier = str(message["id"])
            except (ValueError, KeyError, TypeError):
                return self.answer(400)
            if identifier not in seen:
                receive(message)
                seen[identifier] = None
                if len(seen) > SEEN_MAX:
                    del seen[next(iter(seen))]
            return self.answer(204)

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def show(message: dict[str, Any]) -> None:
    """Prints a message; yours would call a pager for `failed`, `lost`, `stuck` or `silent`."""
    print(f"{message['time']} {message['event']}: {message['text']}", flush=True)


def main() -> None:
    """Serves until Ctrl-C."""
    key = os.environ.get("OUTLAST_WEBHOOK_KEY", "").encode()
    if not key:
        sys.exit("OUTLAST_WEBHOOK_KEY: is not set; set it to the key in your secret")
    with server(key, show, int(sys.argv[1]) if len(sys.argv) > 1 else 8080) as receiver:
        receiver.serve_forever()


if __name__ == "__main__":
    main()
