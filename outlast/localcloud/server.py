"""The local cloud's process: puts the services together and serves them on loopback."""

import asyncio
import ctypes
import fcntl
import hashlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from outlast.localcloud.clock import RealClock
from outlast.localcloud.control import Control
from outlast.localcloud.director import Director
from outlast.localcloud.errors import (
    ApiError,
    RehearsalError,
    UsageError,
    answer_api_error,
    not_implemented,
)
from outlast.localcloud.faults import Faults
from outlast.localcloud.iam import OWNER, Caller, Iam
from outlast.localcloud.peers import Address
from outlast.localcloud.scenario import Scenario
from outlast.localcloud.secretmanager import SecretManager
from outlast.localcloud.state import EventLog, State, write_atomically
from outlast.localcloud.storage import Storage

__all__ = ["OWNER", "Caller", "Cloud", "Machines", "Options", "serve"]

HOST = "127.0.0.1"
VM_TOKEN_PREFIX = "vm-token-"
ALL_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
PROVIDER_START_SEC = 60.0
POLL_SEC = 0.05
PARENT_POLL_SEC = 0.2
CLOSE_SEC = 1
PR_SET_PDEATHSIG = 1

MAX_BODY_BYTES = 10 << 20
"""Of a request's body that is no object's bytes."""
MAX_HEAD_BYTES = 64 << 10
"""Of a request's line and headers together."""
CORK_BYTES = 16 << 10


MARK = ".outlast-local-cloud"
"""File that tells a state folder from any other folder."""
LOG = "cloud.log"
"""Where whoever starts the cloud may send its output before there is a state."""


@dataclass(frozen=True)
class Options:
    """What `serve` was asked for."""

    state: Path
    port: int = 0
    project: str = "outlast-rehearsal"
    images: dict[str, Path] = field(default_factory=dict)
    """Image folders by `PROJECT/FAMILY`."""
    guest_env: dict[str, str] = field(default_factory=dict)
    """Added to the environment of every guest."""
    notice_sec: float = 3.0
    """From the `preempted` flag to SIGTERM; a template's own preemptionNoticeDuration of 0 wins."""
    grace_sec: float = 2.0
    """From SIGTERM to SIGKILL."""
    scenario: Scenario | None = None
    """What goes wrong from the start, for every VM."""
    guests: bool = True
    """Whether VMs have processes; without, they boot and stop at once."""
    provider: bool = True
    parent_pid: int | None = None


class Machines(Protocol):
    """What the other parts ask of the compute part; `outlast.localcloud.compute.Compute(cloud)` is
    one."""

    def routes(self) -> list[BaseRoute]:
        """Routes of /compute/v1 and /compute/beta; they raise ApiError, check permissions by
        `cloud.authorize(request, permission)` and may be async or plain (threads)."""
        ...

    async def start(self) -> None:
        """Takes up the groups of the state and starts whatever runs on its own (ticks)."""
        ...

    async def stop(self) -> None:
        """Kills every VM's tree and waits for it; the state stays."""
        ...

    async def reset(self) -> None:
        """Kills every VM and forgets everything."""
        ...

    def caller(self, token: str) -> Caller | None:
        """The VM that holds this metadata server's token; None for any other."""
        ...

    def sender(self, far: Address, near: Address) -> Caller | None:
        """The VM whose process is at the far end of a connection; None: none of them. LookupError:
        nobody is any more, and it may have been a VM's."""
        ...

    def vms(self) -> list[dict[str, Any]]:
        """[{name, id, group, zone, status, pid, boots, started}] of what exists."""
        ...

    async def kill(self, name: str) -> None:
        """SIGKILL of the VM's whole tree now: its host has vanished. KeyError: no such VM."""
        ...

    async def preempt(self, name: str) -> None:
        """Starts a preemption (flag, notice, SIGTERM, SIGKILL); returns at the flag."""
        ...

    async def freeze(self, name: str) -> None:
        """SIGSTOP of the whole tree."""
        ...

    async def thaw(self, name: str) -> None:
        """SIGCONT of the whole tree."""
        ...

    def set_switch(self, name: str, value: Any) -> None:
        """Changes how groups behave (`no_capacity`, `retry_delay_sec`, …). KeyError: no such
        switch; ValueError: wrong type."""
        ...

    def changed(self) -> None:
        """Does what has become due: the clock or a limit has changed."""
        ...

    def audit(self) -> dict[str, Any]:
        """{templates, groups, vms, disks: [names], pids: [every live process of VM trees]}."""
        ...


class Cloud:
    """What the services share. Everything runs on one asyncio loop unless it says otherwise."""

    def __init__(
        self, options: Options, base_url: str, machines: Callable[["Cloud"], Machines]
    ) -> None:
        """`base_url` is `http://127.0.0.1:PORT`, `machines` builds the compute part."""
        self.options = options
        self.base_url = base_url
        self.project = options.project
        self.project_number = str(int(hashlib.sha256(self.project.encode()).hexdigest(), 16))[:12]
        self.state = State(options.state)
        self.events = EventLog(options.state / "events.jsonl")
        self.iam = Iam(self)
        self.secrets = SecretManager(self)
        self.storage = Storage(self)
        self.clock = RealClock()
        self.faults = Faults(self)
        self.director = Director(self)
        self.control = Control(self)
        self.machines = machines(self)
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None

    def app(self) -> ASGIApp:
        """Every service's routes below the fault layer; anything else is 501."""
        routes: list[BaseRoute] = [
            *self.storage.routes(),
            *self.machines.routes(),
            *self.iam.routes(),
            *self.secrets.routes(),
            *self.control.routes(),
            Route("/{rest:path}", _refuse, methods=ALL_METHODS),
        ]
        handlers = {ApiError: answer_api_error, ClientDisconnect: _answer_nobody, 500: _own_fault}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return _Door(self, self.faults.wrap(app))

    def caller(self, request: Request) -> Caller:
        """The sender of a request: who holds its token, else whose process has sent it.

        A VM without a token is its service account: Google's clients send none where
        STORAGE_EMULATOR_HOST is set. Anybody outside of the VMs is the owner, with any token but
        one that only a VM can have had.
        """
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        if token and (caller := self.machines.caller(token)):
            return caller
        sender = self._sender(request)
        if token.startswith(VM_TOKEN_PREFIX) or (token and sender is not OWNER):
            raise ApiError(401, "Invalid Credentials")
        return sender

    def _sender(self, request: Request) -> Caller:
        """Whose process is at the other end, looked up once a connection."""
        known: dict[str, Caller] = request.scope["state"]["connection"]
        if "sender" not in known:
            far, near = request.scope["client"], request.scope["server"]
            try:
                known["sender"] = self.machines.sender(tuple(far), tuple(near)) or OWNER
            except LookupError:
                raise ApiError(401, "The sender of this request has gone.") from None
        return known["sender"]

    def authorize(self, request: Request, permission: str) -> None:
        """403 unless the sender has the permission on the project."""
        self.iam.require(self.caller(request), permission)

    def stop(self) -> None:
        """Makes `serve` end as a signal does."""
        self.stopping.set()

    def fail(self, error: BaseException) -> None:
        """Makes `serve` end with what a part of the cloud has failed of, and its trace."""
        traceback.print_exception(error)
        self.failure = self.failure or error
        self.stop()

    async def reset(self) -> None:
        """Kills every VM and forgets everything but the events."""
        self.director.clear()
        self.faults.clear()
        await self.machines.reset()
        self.storage.reset()
        self.state.clear()
        self.events.write("reset")


async def _refuse(request: Request) -> Response:
    raise not_implemented(request.method, request.url.path)


async def _own_fault(request: Request, error: Exception) -> Response:
    """Beside this answer the trace goes to the log of whoever started the cloud."""
    return ApiError(500, f"{request.method} {request.url.path}: {type(error).__name__}").response()


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


class _Door:
    """What holds for every request: bodies that are kept in memory have a limit, and the control
    API is for no VM."""

    def __init__(self, cloud: Cloud, app: ASGIApp) -> None:
        self._cloud = cloud
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            if scope["path"].startswith("/_local/") and self._cloud.caller(request) is not OWNER:
                raise ApiError(403, "The control API of the local cloud is not for its VMs.")
            length = request.headers.get("content-length", "")
            if _is_kept(request) and length.isdigit() and int(length) > MAX_BODY_BYTES:
                raise _too_large()
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self._app(scope, _bounded(receive) if _is_kept(request) else receive, send)


def _is_kept(request: Request) -> bool:
    """Whether the body is no object's bytes, which go to the disk as they come."""
    query = request.query_params
    if "upload_id" in query:
        return request.method != "PUT"
    return query.get("uploadType") not in ("media", "multipart")


def _bounded(receive: Receive) -> Receive:
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise _too_large()
        return message

    return bounded


def _too_large() -> ApiError:
    text = f"Request Entity Too Large: at most {MAX_BODY_BYTES} bytes."
    return ApiError(413, text, headers={"connection": "close"})


class _Corked:
    """A connection's transport that sends an answer's head and a small body in one piece: two
    calls of the system, and two turns of the client, cost more than all else of a small answer."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held += data
        if len(self._held) > CORK_BYTES:  # whoever sends more waits for the client to take it
            self._flush()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, bytearray()
            self._transport.write(held)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._flush()
        self._transport.abort()


class _Protocol(H11Protocol):
    """Gives a request its connection: `transport` and what is known of it, in `scope["state"]`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        corked: Any = _Corked(transport)
        super().connection_made(corked)
        self.app_state = {**self.app_state, "transport": corked, "connection": {}}

    def send_400_response(self, msg: str) -> None:
        """Called while the error of what is no request is handled; it knows the status."""
        if self.cycle and not self.cycle.response_complete:  # a body went bad under its request
            self.cycle.disconnected = True  # whose own answer would be a second one
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # part of another answer is out
            return
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        body = json.dumps(ApiError(status, msg).body()).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the cloud has its own."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def serve(options: Options, machines: Callable[[Cloud], Machines]) -> None:
    """Serves until SIGTERM, SIGINT, `/_local/stop` or the parent's end.

    Raises UsageError where the port or the state folder is in use.
    """
    if options.parent_pid is not None and not _alive(options.parent_pid):
        raise UsageError(f"--parent-pid {options.parent_pid}: no such process")
    try:
        _claim(options.state)
    except OSError as error:
        raise UsageError(f"--state {options.state}: {error.strerror}; name another") from None
    with _lock(options.state), _listen(options.port) as listener:
        asyncio.run(_serve(options, machines, listener))


def _claim(folder: Path) -> None:
    """Makes the folder, or makes sure that it is a local cloud's: what lies in ours is deleted."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    if not mark.exists() and {entry.name for entry in folder.iterdir()} - {LOG}:
        raise UsageError(
            f"--state {folder}: holds files and is no local cloud's folder; name an empty one"
        )
    mark.touch()


def _lock(folder: Path) -> Any:
    """Holds the state folder for this process; the lock ends with it."""
    file = (folder / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise UsageError(
            f"--state {folder}: in use by the local cloud of process {holder}; stop that or name "
            "another folder"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _listen(port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off only where the protocol is named.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"--port {port}: {reason.lower()}; name another, or 0 for any that is free"
        ) from None
    return listener


async def _serve(
    options: Options, machines: Callable[[Cloud], Machines], listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    cloud = Cloud(options, f"http://{HOST}:{port}", machines)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, cloud.stop)
    config = uvicorn.Config(
        cloud.app(),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        backlog=512,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=CLOSE_SEC,
    )
    server = _Server(config)
    endpoint = options.state / "endpoint.json"
    endpoint.unlink(missing_ok=True)
    serving = loop.create_task(server.serve(sockets=[listener]))
    watching = loop.create_task(_watch_parent(cloud))
    provider: asyncio.subprocess.Process | None = None
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        if options.scenario:
            cloud.director.install(options.scenario)
        await cloud.machines.start()
        provider_port = None
        if options.provider:
            provider, provider_port = await _start_provider(cloud)
        if not cloud.stopping.is_set():
            _announce(endpoint, port, provider_port)
            cloud.events.write("started", port=port, provider_port=provider_port)
        await _wait_for_end(cloud, serving, provider)
    finally:
        endpoint.unlink(missing_ok=True)
        watching.cancel()
        # VMs first: the last requests of a dying guest may still be answered.
        await cloud.machines.stop()
        if provider:
            await _end(provider)
        server.should_exit = True
        await serving
        cloud.events.write("stopped")
        cloud.events.close()


def _announce(endpoint: Path, port: int, provider_port: int | None) -> None:
    document = {
        "pid": os.getpid(),
        "port": port,
        "provider_port": provider_port,
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    write_atomically(endpoint, json.dumps(document).encode())
    print(f"local cloud on http://{HOST}:{port} (process {os.getpid()})", flush=True)


async def _wait_for_end(
    cloud: Cloud, serving: "asyncio.Task[None]", provider: asyncio.subprocess.Process | None
) -> None:
    stopping = asyncio.create_task(cloud.stopping.wait())
    waits: set[asyncio.Task[Any]] = {stopping, serving}
    gone = asyncio.create_task(provider.wait()) if provider else None
    if gone:
        waits.add(gone)
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits - {serving}:
        task.cancel()
    if cloud.failure:
        kind = type(cloud.failure).__name__
        raise RehearsalError(f"the local cloud has a defect and cannot go on ({kind})")
    if gone and gone.done() and not cloud.stopping.is_set():
        raise RehearsalError(f"the engine's provider adapter ended with exit code {gone.result()}")


async def _watch_parent(cloud: Cloud) -> None:
    """Stops the cloud once the process that wanted it is gone."""
    pid = cloud.options.parent_pid
    while pid is not None and _alive(pid):
        await asyncio.sleep(PARENT_POLL_SEC)
    if pid is not None:
        cloud.events.write("parent-gone", pid=pid)
        cloud.stop()


def _alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b") ")[2][:1] not in (b"Z", b"X")


async def _start_provider(cloud: Cloud) -> tuple[asyncio.subprocess.Process, int | None]:
    """Starts the engine's provider adapter and waits for its port, or until the cloud stops."""
    with tempfile.TemporaryDirectory(prefix="provider-", dir=cloud.options.state) as folder:
        ready = Path(folder) / "ready"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outlast.localcloud.provider"),
            *("--endpoint", cloud.base_url, "--ready-file", str(ready)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            preexec_fn=_die_with_parent,
            start_new_session=True,  # Ctrl-C in a terminal is the cloud's to answer
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PROVIDER_START_SEC
        try:
            while not ready.exists():
                if process.returncode is not None:
                    raise RehearsalError(
                        "the engine's provider adapter did not start: exit code "
                        f"{process.returncode}; --no-provider goes without it"
                    )
                if loop.time() > deadline:
                    raise RehearsalError(
                        f"the engine's provider adapter was not ready in {PROVIDER_START_SEC:.0f} s"
                    )
                if cloud.stopping.is_set():
                    return process, None
                await asyncio.sleep(POLL_SEC)
            return process, int(json.loads(ready.read_text())["port"])
        except BaseException:
            await _end(process)
            raise


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, then SIGKILL for a process that does not go."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), CLOSE_SEC)
    except TimeoutError:
        process.kill()
        await process.wait()


def _die_with_parent() -> None:
    """In the child: SIGKILL when the cloud dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
