"""The local cloud's process: assembles the services and serves them on loopback."""

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from outlast.localcloud.base.errors import (
    ApiError,
    RehearsalError,
    UsageError,
    answer_api_error,
    is_full,
    not_implemented,
)
from outlast.localcloud.base.folder import claim
from outlast.localcloud.base.state import write_atomically
from outlast.localcloud.cloud import Cloud, Options, Service
from outlast.localcloud.compute.service import Compute
from outlast.localcloud.control import Control
from outlast.localcloud.faults.layer import FaultLayer
from outlast.localcloud.http.listener import MAX_HEAD_BYTES, NAMES, Listener, Protocol
from outlast.localcloud.http.senders import Senders
from outlast.localcloud.iam.service import Iam
from outlast.localcloud.scenarios.directors import Directors
from outlast.localcloud.scenarios.scenario import Scenario
from outlast.localcloud.secrets.service import SecretManager
from outlast.localcloud.storage.service import Storage
from outlast.localcloud.vm.qemu_guest import GATEWAY

SERVICES: Mapping[str, Callable[[Cloud], Service]] = {
    "compute": Compute,
    "storage": Storage,
    "iam": Iam,
    "secrets": SecretManager,
}
"""All services, in the order in which they start and are reset."""
HOST = "127.0.0.1"
ALL_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
PROVIDER_START_SEC = 60.0
POLL_SEC = 0.05
PARENT_POLL_SEC = 0.2
CLOSE_SEC = 1
PR_SET_PDEATHSIG = 1


def assemble(
    options: Options,
    base_url: str,
    services: Mapping[str, Callable[[Cloud], Service]] = SERVICES,
) -> tuple[Cloud, ASGIApp]:
    """A cloud with its services, and the app that answers for them; other paths get a 501.

    `base_url` is `http://127.0.0.1:PORT`.
    """
    cloud = Cloud(options, base_url)
    cloud.services = {name: make(cloud) for name, make in services.items()}
    offered: Any = cloud.services
    cloud.machines, cloud.storage = offered["compute"], offered["storage"]
    cloud.policies, cloud.org_policies = offered["iam"].policies, offered["iam"].org_policies
    cloud.senders = Senders(cloud.machines, offered["iam"].impersonation.caller)
    faults = cloud.faults = FaultLayer(cloud)
    director = cloud.director = Directors(cloud)
    routes: list[BaseRoute] = [
        *(route for service in cloud.services.values() for route in service.routes()),
        *Control(cloud, faults, director).routes(),
        Route("/{rest:path}", _refuse, methods=ALL_METHODS),
    ]
    handlers = {ApiError: answer_api_error, ClientDisconnect: _answer_disconnected, 500: _own_fault}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    port = int(base_url.rpartition(":")[2])
    names = (*NAMES, GATEWAY) if options.guest == "vm" else NAMES
    return cloud, Listener(cloud.senders, faults.wrap(app), port, names)


async def _refuse(request: Request) -> Response:
    raise not_implemented(request.method, request.url.path)


async def _own_fault(request: Request, error: Exception) -> Response:
    """Answers 500; the traceback goes to the log of the process that started the cloud."""
    return ApiError(500, f"{request.method} {request.url.path}: {type(error).__name__}").response()


async def _answer_disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, because the cloud has its own."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def serve(
    options: Options,
    scenario: Scenario | None = None,
    services: Mapping[str, Callable[[Cloud], Service]] = SERVICES,
) -> None:
    """Serves until SIGTERM, SIGINT, `/_local/stop` or the parent's end, under a scenario if given.

    Raises UsageError if the port or the state folder is in use.
    """
    if options.parent_pid is not None and not _alive(options.parent_pid):
        raise UsageError(f"--parent-pid {options.parent_pid}: no such process")
    os.umask(0o077)  # only the owner may read the state, which includes secrets
    with claim(options.state), _listen(options.port) as listener:
        asyncio.run(_serve(options, scenario, services, listener))


def _listen(port: int) -> socket.socket:
    # asyncio turns off Nagle's algorithm only if the protocol is given.
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
    options: Options,
    scenario: Scenario | None,
    services: Mapping[str, Callable[[Cloud], Service]],
    listener: socket.socket,
) -> None:
    port = listener.getsockname()[1]
    cloud, app = assemble(options, f"http://{HOST}:{port}", services)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, cloud.stop)
    config = uvicorn.Config(
        app,
        http=Protocol,
        proxy_headers=False,  # a header must not set the sender
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
        if scenario:
            cloud.director.install(scenario)
        for service in cloud.services.values():
            await service.start()
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
        # VMs first, so that the last requests of a stopping guest can still be answered.
        for service in cloud.services.values():
            await service.stop()
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
    if is_full(cloud.failure):
        raise RehearsalError(
            f"{cloud.options.state}: its disk is full ({cloud.failure.strerror}), and the local "
            "cloud cannot continue; free some space there"
        )
    if cloud.failure:
        kind = type(cloud.failure).__name__
        raise RehearsalError(f"the local cloud has a defect and cannot continue ({kind})")
    if gone and gone.done() and not cloud.stopping.is_set():
        raise RehearsalError(f"the engine's provider adapter ended with exit code {gone.result()}")


async def _watch_parent(cloud: Cloud) -> None:
    """Stops the cloud after the end of the process that started it."""
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
    """Starts the engine's provider adapter and waits for its port. The port is None if the cloud
    stops first. Raises RehearsalError."""
    with tempfile.TemporaryDirectory(prefix="provider-", dir=cloud.options.state) as folder:
        ready = Path(folder) / "ready"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outlast.localcloud.provider"),
            *("--endpoint", cloud.base_url, "--ready-file", str(ready)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            preexec_fn=_die_with_parent,
            start_new_session=True,  # the cloud handles Ctrl-C in a terminal
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
    """Ends a process with SIGTERM, and with SIGKILL if it does not end."""
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
    """Runs in the child: lets the kernel kill it when the cloud ends in any way."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
