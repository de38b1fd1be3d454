"""One request, and what each way to fail means."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from outlast.base.http_client import RequestFailed, ask
from outlast.base.retry import Trouble


class Server:
    """Answers each request with what the test says."""

    def __init__(self) -> None:
        self.status, self.body, self.location = 200, b"{}", ""
        self.asked: list[tuple[str, str, bytes, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                kind = self.headers.get("Content-Type")
                server.asked.append((self.command, self.path, sent, kind))
                is_moved = bool(server.location) and self.path != server.location
                self.send_response(server.status if is_moved or not server.location else 200)
                self.send_header("X-Named", "yes")
                if is_moved:
                    self.send_header("Location", server.location)
                self.end_headers()
                self.wfile.write(server.body)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://h/x", "data:,x", "/etc/passwd", ""])
def test_only_web_addresses_are_asked(url: str) -> None:
    assert str(failure(url)) == "thing: no answer (its address must begin with https://)"


def test_no_redirect_leads_away_from_the_web(server: Server) -> None:
    server.status, server.location = 302, "ftp://127.0.0.1/x"
    assert failure(server.url).words == "redirects, which is not followed"


def failure(url: str, **how) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        ask(url, what="thing", **how).object()
    return caught.value


def test_a_request_has_its_method_its_body_and_its_headers(server: Server):
    server.body = b'{"name": "a"}'
    answer = ask(f"{server.url}/x?y=1", what="thing", method="POST", body={"size": 3})
    assert (answer.object(), answer.headers["X-Named"]) == ({"name": "a"}, "yes")
    ask(f"{server.url}/x", what="thing", method="DELETE")
    assert server.asked == [
        ("POST", "/x?y=1", b'{"size": 3}', "application/json"),
        ("DELETE", "/x", b"", None),
    ]


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        (400, None),
        (404, None),
        (412, None),
        (401, Trouble.FORBIDDEN),
        (403, Trouble.FORBIDDEN),
        (408, Trouble.SILENT),
        (429, Trouble.SILENT),
        (500, Trouble.SILENT),
        (503, Trouble.SILENT),
    ],
)
def test_a_refusal_has_the_servers_words_and_says_whether_to_try_again(
    server: Server, status: int, trouble: Trouble | None
):
    server.status = status
    server.body = json.dumps({"error": {"message": "not today", "code": status}}).encode()
    error = failure(server.url)
    assert (error.status, error.words, error.trouble) == (status, "not today", trouble)
    assert str(error) == f"thing: {status} not today"
    server.body = b"plain words " * 100
    assert failure(server.url).words == (b"plain words " * 100).decode()[:300].strip()


@pytest.mark.parametrize(
    ("body", "why"), [(b"no json", "is not JSON ("), (b"[1]", "is not a JSON object")]
)
def test_an_answer_of_another_form_is_rejected(server: Server, body: bytes, why: str):
    server.body = body
    error = failure(server.url)
    assert f"thing: the answer {why}" in str(error) and error.trouble is Trouble.SILENT


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_only_a_get_without_credentials_follows_a_redirect(server: Server, status: int):
    """A webhook's message would be sent as a GET without a body, and count as delivered."""
    server.status, server.location = status, "/there"
    assert ask(f"{server.url}/here", what="thing").object() == {}
    assert [path for _, path, *_ in server.asked] == ["/here", "/there"]
    for how in ({"method": "POST", "body": b"{}"}, {"headers": {"Authorization": "Bearer x"}}):
        server.asked.clear()
        found = failure(f"{server.url}/here", **how)
        assert str(found) == f"thing: {status} redirects, which is not followed"
        assert found.trouble is None and len(server.asked) == 1


def test_an_empty_answer_is_an_empty_object(server: Server):
    server.body = b""
    assert ask(server.url, what="thing").object() == {}


def test_no_answer_says_why():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        error = failure(url)
    assert str(error).startswith("thing: no answer (") and "refused" in str(error)
    assert (error.status, error.trouble) == (0, Trouble.SILENT)
    assert str(failure("no address")).startswith("thing: no answer (")


def test_a_silent_server_is_given_up(server: Server):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "timed out" in str(failure(url, timeout_sec=0.2))


def test_a_direct_request_uses_no_proxy(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert ask(server.url, what="thing", direct=True).object() == {}
    assert failure(server.url).status == 0
