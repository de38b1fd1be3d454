"""A service of the local cloud: one class, and one entry in the list of services."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from outlast.localcloud.base.access import OWNER
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud, Options, Service
from outlast.localcloud.http.peers import Socket
from outlast.localcloud.server import SERVICES, assemble

PORT = 4321


class Topics(Service):
    """A service that someone has added: topics have names, and their number may be limited."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._topics = cloud.state.table("topics")
        self.most = 10
        self.runs = False

    def routes(self) -> list[BaseRoute]:
        return [Route("/topics/{name}", self._create, methods=["PUT"])]

    async def _create(self, request: Request) -> Response:
        self._cloud.authorize(request, "topics.create")
        self._topics[request.path_params["name"]] = {}
        return JSONResponse({"topics": list(self._topics)[: self.most]})

    def audit(self) -> Entry:
        return {"topics": list(self._topics)}

    def set_switch(self, name: str, value: Any) -> float:
        if name != "most_topics":
            raise KeyError(name)
        former, self.most = self.most, value
        return former

    async def start(self) -> None:
        self.runs = True

    async def reset(self) -> None:
        self.most = 10


async def ask(app: ASGIApp, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    """Status and JSON of a request of this user's."""
    answers: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        answers.append(message)

    headers = [(b"host", f"127.0.0.1:{PORT}".encode()), (b"content-type", b"application/json")]
    known = {"far": Socket(0, os.geteuid()), "sender": OWNER}
    scope: Any = {
        **{"type": "http", "method": method, "path": path, "raw_path": path.encode()},
        **{"headers": headers, "query_string": b"", "http_version": "1.1", "scheme": "http"},
        "state": {"connection": known},
    }
    await app(scope, receive, send)
    return answers[0]["status"], json.loads(answers[1]["body"])


def play(folder: Path, scene: Callable[[Cloud, ASGIApp], Awaitable[None]]) -> None:
    async def run() -> None:
        services = {**SERVICES, "topics": Topics}
        options = Options(folder, guests=False)
        cloud, app = assemble(options, f"http://127.0.0.1:{PORT}", services)
        for service in cloud.services.values():
            await service.start()
        await scene(cloud, app)
        for service in cloud.services.values():
            await service.stop()
        cloud.events.close()

    asyncio.run(run())


def test_a_service_is_added_by_one_entry(tmp_path: Path) -> None:
    async def first(cloud: Cloud, app: ASGIApp) -> None:
        assert cloud.services["topics"].runs  # type: ignore[attr-defined]
        assert await ask(app, "PUT", "/topics/a") == (200, {"topics": ["a"]})
        assert await ask(app, "POST", "/_local/switches", b'{"most_topics": 1}') == (200, {})
        assert await ask(app, "PUT", "/topics/b") == (200, {"topics": ["a"]})
        status, found = await ask(app, "GET", "/_local/audit")
        assert (status, found["topics"], found["buckets"]) == (200, ["a", "b"], [])

    async def again(cloud: Cloud, app: ASGIApp) -> None:
        assert await ask(app, "PUT", "/topics/c") == (200, {"topics": ["a", "b", "c"]})
        assert await ask(app, "POST", "/_local/switches", b'{"most_topics": 1}') == (200, {})
        assert (await ask(app, "POST", "/_local/reset"))[0] == 200
        assert await ask(app, "PUT", "/topics/d") == (200, {"topics": ["d"]})

    play(tmp_path, first)
    play(tmp_path, again)


def test_a_switch_of_no_service_is_named(tmp_path: Path) -> None:
    async def scene(cloud: Cloud, app: ASGIApp) -> None:
        status, answer = await ask(app, "POST", "/_local/switches", b'{"no_such": 1}')
        assert status == 400 and "switch 'no_such'" in answer["error"]["message"]

    play(tmp_path, scene)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_depends_on_another_at_import(name: str) -> None:
    """What a part asks of another is a protocol in cloud.py: no service imports another one."""
    root = Path(__file__).parents[2] / "outlast/localcloud"
    others = set(SERVICES) - {name}
    for file in (root / name).rglob("*.py"):
        for other in others:
            assert f"outlast.localcloud.{other}" not in file.read_text(), file
