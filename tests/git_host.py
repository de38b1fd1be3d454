"""A git host on loopback: git's own smart HTTP, behind a name and a token where it asks for one."""

import base64
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def git(folder: Path, *argv: str) -> str:
    """What git printed, without any configuration."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_NAME": "Tess" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "tess@localhost" for who in ("AUTHOR", "COMMITTER")},
    }
    done = subprocess.run(
        ["git", *argv], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder: Path, files: Mapping[str, str], *, programs: tuple[str, ...] = ()) -> str:
    """The name of a commit of these files in the folder's repository, made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name in programs else 0o644)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "next")
    return git(folder, "rev-parse", "HEAD")


class GitHost:
    """Serves the repositories below a folder."""

    def __init__(self, folder: Path, token: str = "") -> None:
        """With a token, a client that does not send it as the password gets 401."""
        self.token = token
        self.users: list[str] = []
        """Who has named the right token."""
        self.requests: list[str] = []
        self.speaks_newer = True
        """Whether it has heard of protocol 2."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(folder))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _let_in(self, header: str) -> bool:
        if not self.token:
            return True
        try:
            user, _, password = (
                base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
            )
        except ValueError:
            return False
        if password == self.token:
            self.users.append(user)
        return password == self.token

    def _handler(self, folder: Path) -> type[BaseHTTPRequestHandler]:
        host = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                host.requests.append(format % args)

            def do_GET(self) -> None:  # noqa: N802
                if not host._let_in(self.headers.get("Authorization", "")):
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="git"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                path, _, query = self.path.partition("?")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                env = {
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(folder),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": "safe.directory",
                    "GIT_CONFIG_VALUE_0": "*",
                    "REQUEST_METHOD": self.command,
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", "") * host.speaks_newer,
                }
                done = subprocess.run(
                    ["git", "http-backend"], input=body, env=env, capture_output=True, timeout=60
                )
                head, _, answer = done.stdout.partition(b"\r\n\r\n")
                headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
                self.send_response(int(headers.pop("Status", "200").split()[0]))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_GET  # noqa: N815

        return Handler


@contextmanager
def serving(folder: Path, token: str = "") -> Iterator[GitHost]:
    host = GitHost(folder, token)
    try:
        yield host
    finally:
        host.stop()
