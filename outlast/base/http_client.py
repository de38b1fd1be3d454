"""One HTTP request with the standard library, and what may go wrong with it.

All requests of ours go through `ask`, except those of Google's own storage client, and the question
that a trainer's user asks, which runs without this package. There is one try; `outlast.base.retry`
knows from the error whether another one may help.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.base.retry import Trouble

ANSWER_SEC = 30.0
"""Without a byte for so long, a request has failed."""
SHOWN_CHARACTERS = 300
"""Of a server's words."""
_JSON = {"Content-Type": "application/json"}
_WEB = ("https://", "http://")


class RequestFailed(Exception):
    """An answer that is not a success, or none: `status` is 0. Its text says which request, and
    quotes the server's words."""

    def __init__(self, status: int, why: str, words: str = "") -> None:
        super().__init__(why)
        self.status = status
        self.words = words
        """What the server said about it."""

    @property
    def trouble(self) -> Trouble | None:
        """None for an answer that another try would get again."""
        if self.status in (401, 403):
            return Trouble.FORBIDDEN
        passing = self.status in (0, 408, 429) or self.status >= 500
        return Trouble.SILENT if passing else None


@dataclass(frozen=True)
class Answer:
    """A successful answer."""

    what: str
    """Which request's, for errors."""
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; an empty one is an empty object. Raises RequestFailed."""
        try:
            return json.loads(self.body or b"{}")
        except ValueError as error:
            raise RequestFailed(0, f"{self.what}: the answer is not JSON ({error})") from None

    def object(self) -> dict[str, Any]:
        """The body as a JSON object. Raises RequestFailed."""
        found = self.json()
        if not isinstance(found, dict):
            raise RequestFailed(0, f"{self.what}: the answer is not a JSON object")
        return found


def ask(
    url: str,
    *,
    what: str,
    method: str = "GET",
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout_sec: float = ANSWER_SEC,
    direct: bool = False,
) -> Answer:
    """The answer to one request. Raises RequestFailed, whose text begins with ``what``.

    ``body`` is sent as JSON, or as it is if it is bytes; None sends none. With ``direct`` a proxy
    that the environment names is not used: for addresses of this machine, or of its host. Only a
    GET without credentials follows a redirect: urllib would send a POST again as a GET without its
    body, and credentials to another host.
    """
    # Here, as most commands send no request and should start fast.
    import http.client
    import urllib.error
    import urllib.request

    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    sent = {**({} if body is None else _JSON), **(headers or {})}
    follows = method == "GET" and "Authorization" not in sent

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(
            self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
        ) -> urllib.request.Request | None:
            to = super().redirect_request(req, fp, code, msg, headers, newurl)
            return to if follows and newurl.startswith(_WEB) else None

    if not url.startswith(_WEB):  # urllib would also read a file
        raise RequestFailed(0, f"{what}: no answer (its address must begin with https://)")
    proxies = [urllib.request.ProxyHandler({})] if direct else []
    try:
        request = urllib.request.Request(url, data=data, headers=sent, method=method)  # noqa: S310
        opener = urllib.request.build_opener(Redirects, *proxies)
        with opener.open(request, timeout=timeout_sec) as answer:
            return Answer(what, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            is_redirect = 300 <= error.code < 400
            words = "redirects, which is not followed" if is_redirect else _words(error)
        raise RequestFailed(error.code, f"{what}: {error.code} {words}".rstrip(), words) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        raise RequestFailed(0, f"{what}: no answer ({why})") from None


def _words(answer: Any) -> str:
    """What an error says in its body: the message of Google's APIs, or its beginning."""
    try:
        body = answer.read()
    except Exception:  # the rest of an answer that was cut; its status is what counts
        return ""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])[:SHOWN_CHARACTERS]
    return body.decode(errors="replace")[:SHOWN_CHARACTERS].strip()
