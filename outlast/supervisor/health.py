"""Answers the platform's health checks in a separate process: whether this VM makes progress.

    python -I health.py ADDRESS PORT LIMIT_SEC SIGN

Answers 200 if the file SIGN was touched at most LIMIT_SEC ago, else 503. The startup scripts start
it before anything that takes long, and each part that makes progress touches the file: the scripts
with each line they log, the supervisor with each step, tick and byte. The outcome of the training
does not matter: a failing run makes progress too.

Standard library only and no imports from the bundle, so that any interpreter can run it.
"""

import contextlib
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOUCH_SEC = 1.0
"""Signs that follow faster count as one."""
READ_TIMEOUT_SEC = 10.0


class Life:
    """Records the supervisor's signs of progress. Safe to share between threads."""

    def __init__(self, path: Path | None) -> None:
        """``path``: the file to touch; None without health checks."""
        self._path = path
        self._touched = -TOUCH_SEC
        self._lock = threading.Lock()

    def sign(self) -> None:
        """Records progress. Never fails: others report a full disk."""
        now = time.monotonic()
        with self._lock:
            if self._path is None or now - self._touched < TOUCH_SEC:
                return
            self._touched = now
        with contextlib.suppress(OSError):
            self._path.touch()


class Ages:
    """The age of the last sign, by a clock that cannot be set: a jump of the wall clock is neither
    a sign nor an age."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self._at = time.monotonic()
        self._lock = threading.Lock()

    def age_sec(self) -> float:
        """Seconds since the file was last seen to change."""
        stamp, now = self._stamp(), time.monotonic()
        with self._lock:
            if stamp != self._seen:
                self._seen, self._at = stamp, now
            return now - self._at

    def watch(self) -> None:
        """Checks often enough for the age to be right between two questions; never returns."""
        while True:
            self.age_sec()
            time.sleep(TOUCH_SEC)

    def _stamp(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0


def serve(address: str, port: int, limit_sec: float, path: Path) -> ThreadingHTTPServer:
    """Returns the server, ready to run."""
    ages = Ages(path)
    threading.Thread(target=ages.watch, daemon=True).start()

    class Handler(BaseHTTPRequestHandler):
        timeout = READ_TIMEOUT_SEC

        def do_GET(self) -> None:
            age_sec = ages.age_sec()
            body = f"last sign of progress {age_sec:.0f} s ago, limit {limit_sec:.0f} s\n".encode()
            self.send_response(200 if age_sec <= limit_sec else 503)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing: health checks never stop."""

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    return server


def main(argv: list[str]) -> int:
    """Answers until it is killed."""
    if len(argv) != 4:
        print("usage: health.py ADDRESS PORT LIMIT_SEC SIGN", file=sys.stderr)
        return 64
    address, port, limit_sec, path = argv
    with contextlib.suppress(OSError):
        os.nice(-5)  # A busy trainer must not delay it.
    serve(address, int(port), float(limit_sec), Path(path)).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
