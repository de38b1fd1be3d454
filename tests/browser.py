"""A real browser for tests of web pages: Chromium, if one that runs is installed."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")


def _runs(path: str) -> bool:
    """Some systems have only a stub that asks for another kind of package."""
    with suppress(OSError, subprocess.TimeoutExpired):
        return not subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode
    return False


BROWSER = next((found for name in BROWSERS if (found := shutil.which(name)) and _runs(found)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"no Chromium that runs: none of {', '.join(BROWSERS)}; install one"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)


@contextmanager
def served(answer: Any) -> Iterator[int]:
    """A server on loopback that answers everything with (type, body) of `answer(method, path,
    body)`; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind, data = answer(self.command, self.path, body.decode(errors="replace"))
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            for what in ("Origin", "Methods", "Headers"):
                self.send_header(f"Access-Control-Allow-{what}", "*")
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_DELETE = do_OPTIONS = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@contextmanager
def browser(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Chromium with a new profile; every process of it has ended afterwards."""
    assert BROWSER
    process = subprocess.Popen(
        [BROWSER, *FLAGS, f"--user-data-dir={folder}", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
