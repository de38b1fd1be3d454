"""Clocks that do not wait, and the three kinds of store, as fixtures."""

import asyncio
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from outlast.bucket.boot import Claim
from outlast.bucket.layout import Layout
from outlast.bucket.store import (
    FolderStore,
    GcsStore,
    MemoryStore,
    PreconditionFailed,
    Store,
)

BUCKET = "runs"
START = datetime(2026, 11, 27, 12, 0, 0, tzinfo=UTC)


class FakeClock:
    """Time that passes only while a thread sleeps."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += seconds

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed)


@dataclass
class NoMachines:
    """A local cloud without a compute part: the storage tests need none."""

    cloud: Any

    kill = preempt = freeze = None

    def routes(self) -> list[Any]:
        return []

    def caller(self, token: str) -> None:
        return None

    def sender(self, inode: int) -> None:
        return None


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def layout() -> Layout:
    return Layout("experiments/demo", "0123456789")


def prove_stale_writes_are_refused(store: Store) -> None:
    """Every test of fencing needs this: over a store that let a stale write through, or a late
    deletion, it would prove nothing. Leaves the store as it was."""
    path = "stale-write-probe"
    found = store.put(path, b"there", if_generation_match=0)
    for stale in (0, found.generation - 1):
        with pytest.raises(PreconditionFailed):
            store.put(path, b"stale", if_generation_match=stale)
    with pytest.raises(PreconditionFailed):
        store.delete(path, generation=found.generation - 1)
    assert store.get(path) == (b"there", found)
    store.delete(path, generation=found.generation)
    with pytest.raises(PreconditionFailed):
        store.put(path, b"stale", if_generation_match=found.generation)
    assert list(store.list(path)) == []


@pytest.fixture
def memory(clock: FakeClock) -> MemoryStore:
    prove_stale_writes_are_refused(MemoryStore())
    return MemoryStore(clock=clock.now)


@pytest.fixture
def claim() -> Claim:
    deadline = START + timedelta(days=36_500)
    return Claim(owner="org/demo/dev", resume=0, placement=0, deadline=deadline)


@pytest.fixture(scope="session")
def storage_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the local cloud's storage API, served from a thread of this process."""
    from outlast.localcloud.cloud import Options
    from outlast.localcloud.http.listener import Protocol
    from outlast.localcloud.server import SERVICES, assemble

    state = tmp_path_factory.mktemp("cloud")
    config = uvicorn.Config(
        lambda scope, receive, send: app(scope, receive, send),
        host="127.0.0.1",
        port=0,
        lifespan="off",
        log_config=None,
        http=Protocol,
        interface="asgi3",
        timeout_graceful_shutdown=2,  # a stalled request would keep it forever
    )
    config.load()
    server = uvicorn.Server(config)
    sockets = [config.bind_socket()]
    sockets[0].listen()  # a connection waits from now on, however late the server looks
    address = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    ready = threading.Event()

    def serve() -> None:
        async def run() -> None:
            nonlocal app
            services: Any = {**SERVICES, "compute": NoMachines}
            cloud, app = assemble(Options(state=state), address, services)
            ready.set()
            await server.serve(sockets)
            cloud.events.close()

        asyncio.run(run())

    app: Any = None
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(60)
    request = urllib.request.Request(
        f"{address}/storage/v1/b?project=outlast-rehearsal",
        data=f'{{"name": "{BUCKET}"}}'.encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
    yield address
    server.should_exit = True
    thread.join(30)
    # One that is stuck all the same is a daemon's thread, and ends with this process.
    server.force_exit = True
    sockets[0].close()


@pytest.fixture(params=["memory", "folder", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each kind of store, empty."""
    if request.param == "memory":
        prove_stale_writes_are_refused(MemoryStore())
        yield MemoryStore()
    elif request.param == "folder":
        prove_stale_writes_are_refused(FolderStore(tmp_path / "probe"))
        yield FolderStore(tmp_path / "run")
    else:
        address = request.getfixturevalue("storage_api")
        patch = request.getfixturevalue("monkeypatch")
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        patch.delenv("GCE_METADATA_HOST", raising=False)
        gcs = GcsStore(BUCKET)
        prove_stale_writes_are_refused(Prefixed(gcs, f"probe-{time.time_ns()}/"))
        yield Prefixed(gcs, f"{time.time_ns()}/")
        gcs.close()


class Prefixed:
    """A store below a prefix, so that each test has an empty one in the shared bucket."""

    def __init__(self, store: GcsStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.url = store.url
        self.streams = store.streams
        self.rewrite_sec = store.rewrite_sec

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if name == "now":
            return operation

        def prefixed(path: str, *arguments: Any, **named: Any) -> Any:
            if name == "copy":
                arguments = (self._prefix + arguments[0],)
            if named.get("glob"):
                named["glob"] = self._prefix + named["glob"]
            answer = operation(self._prefix + path, *arguments, **named)
            if name == "get":
                return answer[0], self._cut(answer[1])
            if name == "list":
                return iter([self._cut(found) for found in answer])
            if name in ("read_range", "folders"):
                return answer
            return answer if answer is None else self._cut(answer)

        return prefixed

    def _cut(self, found: Any) -> Any:
        from dataclasses import replace

        return replace(found, path=found.path.removeprefix(self._prefix))
