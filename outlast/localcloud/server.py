"""The local cloud's process: puts the services together and serves them on loopback."""

import asyncio
import ctypes
import hashlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
import typing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from outlast.localcloud.base.clock import RealClock
from outlast.localcloud.base.errors import (
    ApiError,
    RehearsalError,
    UsageError,
    answer_api_error,
    not_implemented,
)
from outlast.localcloud.base.folder import claim
from outlast.localcloud.base.state import EventLog, State, write_atomically
from outlast.localcloud.control import Control
from outlast.localcloud.faults.rules import Faults
from outlast.localcloud.http.listener import MAX_HEAD_BYTES, Listener, Protocol
from outlast.localcloud.http.peers import Socket, far_end
from outlast.localcloud.iam.service import OWNER, Caller, Iam
from outlast.localcloud.scenarios.director import Director
from outlast.localcloud.scenarios.scenario import Scenario
from outlast.localcloud.secrets.service import SecretManager
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


class Machines(typing.Protocol):
    """What the other parts ask of the compute part; `Compute(cloud)` is one."""

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

    def sender(self, inode: int) -> Caller | None:
        """The VM of which a process has this socket open; None: none of them."""
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
        port = int(self.base_url.rpartition(":")[2])
        return Listener(self, self.faults.wrap(app), port)

    def admit(self, request: Request) -> None:
        """Lets requests of this user's processes and of VMs pass. ApiError 403: another user's;
        401: the sender has gone."""
        far: Socket | None = request.scope["state"]["connection"]["far"]
        if far is None:
            raise _gone()
        if far.uid != os.geteuid():
            self._sender(request)

    def caller(self, request: Request) -> Caller:
        """The sender of a request: the VM whose token it has, else the one whose process sent it.

        A VM without a token is its service account: Google's clients send none where
        STORAGE_EMULATOR_HOST is set. This user's processes outside of the VMs are the owner, with
        any token but one that only a VM can have had.
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
        state = request.scope["state"]
        known: dict[str, Any] = state["connection"]
        if "sender" not in known:
            far: Socket | None = known["far"]
            if far is None:
                raise _gone()
            sender = self.machines.sender(far.inode)
            if sender is None and far.uid != os.geteuid():
                raise ApiError(
                    403,
                    f"This local cloud serves user {os.geteuid()} alone; the request is of "
                    f"user {far.uid}.",
                    headers={"connection": "close"},
                )
            # A VM's process that has ended meanwhile would be missed, and pass for the owner's.
            if sender is None and far_end(state["transport"].get_extra_info("socket")) != far:
                raise _gone()
            known["sender"] = sender or OWNER
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


def _gone() -> ApiError:
    text = "The sender of this request has gone."
    return ApiError(401, text, headers={"connection": "close"})


async def _refuse(request: Request) -> Response:
    raise not_implemented(request.method, request.url.path)


async def _own_fault(request: Request, error: Exception) -> Response:
    """Beside this answer the traceback goes to the log of the process that started the cloud."""
    return ApiError(500, f"{request.method} {request.url.path}: {type(error).__name__}").response()


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the cloud has its own."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def serve(options: Options, machines: Callable[[Cloud], Machines]) -> None:
    """Serves until SIGTERM, SIGINT, `/_local/stop` or the parent's end.

    Raises UsageError if the port or the state folder is in use.
    """
    if options.parent_pid is not None and not _alive(options.parent_pid):
        raise UsageError(f"--parent-pid {options.parent_pid}: no such process")
    os.umask(0o077)  # what the cloud keeps, secrets among it, is its owner's alone
    with claim(options.state), _listen(options.port) as listener:
        asyncio.run(_serve(options, machines, listener))


def _listen(port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off only if the protocol is named.
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
        http=Protocol,
        proxy_headers=False,  # a header must not say who the sender is
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
