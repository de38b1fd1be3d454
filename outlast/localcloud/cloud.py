"""The shared state of the local cloud's parts, and their protocols.

A service is one folder and one class: it answers routes, keeps its state in tables of
`cloud.state`, and lists what exists. `outlast.localcloud.server.SERVICES` lists all services. The
interface of each part for the others is a protocol here, so that no part imports another part's
internals."""

import asyncio
import hashlib
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from outlast.localcloud.base.access import Caller, Target
from outlast.localcloud.base.clock import RealClock
from outlast.localcloud.base.errors import is_full
from outlast.localcloud.base.state import Entry, EventLog, State
from outlast.localcloud.http.request_facts import RequestFacts
from outlast.localcloud.http.senders import Senders

ADDRESSED: ContextVar[str] = ContextVar("addressed", default="")
"""The cloud's address in the current request. A QEMU machine reaches it by another one."""


@dataclass(frozen=True)
class Options:
    """The options of `serve`."""

    state: Path
    port: int = 0
    project: str = "outlast-rehearsal"
    images: dict[str, Path] = field(default_factory=dict)
    """Image folders by `PROJECT/FAMILY`."""
    guest_env: dict[str, str] = field(default_factory=dict)
    """Added to the environment of every guest."""
    notice_sec: float = 3.0
    """Seconds from the `preempted` flag to SIGTERM, for VMs with a preemptionNoticeDuration above
    0; for others there is no notice."""
    grace_sec: float = 2.0
    """Seconds from SIGTERM to SIGKILL."""
    guests: bool = True
    """Whether VMs run anything; otherwise they boot and stop at once."""
    guest: Literal["process", "vm"] = "process"
    """What a VM is: a process tree, or a QEMU machine."""
    provider: bool = True
    parent_pid: int | None = None


class Service(Protocol):
    """One of Google's services. Only `routes` has no default."""

    def routes(self) -> list[BaseRoute]:
        """The routes. Handlers raise ApiError, check permissions with `cloud.authorize` or
        `cloud.policies`, and may be async or plain (threads)."""
        ...

    def audit(self) -> Entry:
        """Everything that exists, by kind: `{"buckets": […]}`."""
        return {}

    def set_switch(self, name: str, value: Any) -> bool | float:
        """Changes the behaviour of the service; returns the switch's former value. Raises KeyError
        for an unknown switch, ValueError for a wrong value."""
        raise KeyError(name)

    async def start(self) -> None:
        """Loads the content of `cloud.state`, and starts the service's tasks."""

    async def stop(self) -> None:
        """Ends all tasks and processes; keeps the state."""

    async def reset(self) -> None:
        """Forgets the state outside of the tables of `cloud.state`, which the cloud clears
        itself."""


class OrgPolicies(Protocol):
    """Organization policies: `outlast.localcloud.iam.org_policies.OrgPolicies`."""

    def violation(self, properties: Mapping[str, Any]) -> str:
        """Why no VM of these properties may be created; empty if one may."""
        ...


class Permissions(Protocol):
    """Policies, for other services: `outlast.localcloud.iam.policies.Policies`."""

    def permits(self, caller: Caller, permission: str, target: Target, *resources: str) -> bool:
        """Whether the policies of the project and of these resources grant the permission."""
        ...

    def require(self, caller: Caller, permission: str) -> None:
        """Raises ApiError 403 unless the caller has the permission on the project."""
        ...

    def held(
        self, caller: Caller, permissions: Iterable[str], target: Target, *resources: str
    ) -> list[str]:
        """The permissions among these that the caller has."""
        ...

    def read(self, resource: str, version: int) -> Entry:
        """A resource's policy as shown to a reader that requests this version."""
        ...

    def kept(self, resource: str) -> Entry:
        """A resource's stored policy; empty if it has none."""
        ...

    def write(self, resource: str, policy: Any, *, initial: bool = False) -> None:
        """Checks and replaces a policy; raises ApiError if it is wrong or its etag is stale."""
        ...

    def drop(self, resource: str) -> None:
        """Forgets the policy of a deleted resource."""
        ...


class Objects(Protocol):
    """Cloud Storage, for other parts: `outlast.localcloud.storage.service.Storage`."""

    def content(self, bucket: str, name: str) -> bytes | None:
        """The current bytes of an object; None if it does not exist."""
        ...

    def session_object(self, upload_id: str) -> str | None:
        """The name of a resumable upload's object; None if unknown."""
        ...

    def apply_lifecycle(self, at: float) -> list[Entry]:
        """Applies the buckets' lifecycle rules as of a moment; returns the changes."""
        ...


class Machines(Protocol):
    """Compute Engine, for other parts: `outlast.localcloud.compute.service.Compute`."""

    def caller(self, token: str) -> Caller | None:
        """The VM to which its metadata server gave this token; None if there is none."""
        ...

    def sender(self, inode: int) -> Caller | None:
        """The VM with a process that has this socket open; None if there is none."""
        ...

    def vms(self) -> list[Entry]:
        """The VMs: [{name, id, group, zone, status, pid, pids, boots, started}]."""
        ...

    async def kill(self, name: str) -> None:
        """Kills the VM's whole process tree with SIGKILL, as if its host vanished. Raises KeyError
        for an unknown name."""
        ...

    async def preempt(self, name: str) -> None:
        """Starts a preemption (flag, notice, SIGTERM, SIGKILL); returns when the flag is set."""
        ...

    async def freeze(self, name: str) -> None:
        """Sends SIGSTOP to the VM's whole process tree."""
        ...

    async def thaw(self, name: str) -> None:
        """Sends SIGCONT to the VM's whole process tree."""
        ...

    def enter(self, name: str, pid: int) -> None:
        """Takes a process of this machine for one of the VM. Raises KeyError for an unknown name,
        LookupError if the process cannot be one."""
        ...

    def changed(self) -> None:
        """Does what is due, after a change of the clock or a limit."""
        ...


class Faults(Protocol):
    """The fault rules: `outlast.localcloud.faults.layer.FaultLayer`."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The app with the rules applied to every request."""
        ...

    def add(self, document: Entry, applies: Callable[[RequestFacts], bool] | None = None) -> str:
        """Adds a rule for the requests that `applies` accepts; returns its id."""
        ...

    def remove(self, rule_id: str) -> bool:
        """Removes a rule; returns whether it existed."""
        ...


class Director(Protocol):
    """The active scenarios: `outlast.localcloud.scenarios.directors.Directors`."""

    def install(self, scenario: Any, target: str = "") -> None:
        """Starts a scenario, for the experiment `target` or for all."""
        ...

    @property
    def playing(self) -> bool:
        """Whether a scenario is active."""
        ...

    def trying(self, properties: Mapping[str, Any]) -> None:
        """Notes that a VM of these properties is about to be created."""
        ...

    def booting(self, instance: Any) -> Entry:
        """Notes that a VM is about to boot; returns extra fields of its `vm.machine.Machine`."""
        ...

    def on_report(self, instance_id: str, event: str) -> None:
        """Notes that a VM is running, is stopping or has exited."""
        ...

    def notice(self, instance_id: str) -> tuple[float | None, float | None]:
        """Seconds of notice and grace of a VM's preemption; None if the scenario does not set
        them."""
        ...

    def bound(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Notes that members were granted new roles."""
        ...

    def in_force(self, key: tuple[str, ...], caller: Caller) -> bool:
        """Whether a binding is already effective for the VM that sends a request."""
        ...

    def is_cut_off(self, call: RequestFacts) -> bool:
        """Whether the sender has no network."""
        ...

    def watch(self, call: RequestFacts, app: ASGIApp) -> ASGIApp:
        """The app, which also notices the moments of a VM's request."""
        ...


class Cloud:
    """The shared state of the parts. Everything runs on one asyncio loop unless stated otherwise.

    `outlast.localcloud.server.assemble` sets the parts."""

    services: dict[str, Service]
    """Services by name, in the order in which they start and are reset."""
    senders: Senders
    policies: Permissions
    org_policies: OrgPolicies
    storage: Objects
    machines: Machines
    faults: Faults
    director: Director

    def __init__(self, options: Options, base_url: str) -> None:
        """`base_url` is `http://127.0.0.1:PORT`."""
        self.options = options
        self._base_url = base_url
        self.notes: list[str] = []
        """Sentences for the person who runs the cloud, oldest first."""
        self.project = options.project
        self.project_number = str(int(hashlib.sha256(self.project.encode()).hexdigest(), 16))[:12]
        self.state = State(options.state)
        self.events = EventLog(options.state / "events.jsonl")
        self.clock = RealClock()
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None

    @property
    def base_url(self) -> str:
        """The address at which the current request's sender reaches the cloud."""
        return ADDRESSED.get() or self._base_url

    def note(self, sentence: str) -> None:
        """Tells the person who runs the cloud one sentence."""
        self.notes.append(sentence)
        self.events.write("note", sentence=sentence)
        print(f"local cloud: {sentence}", flush=True)

    def caller(self, request: Request) -> Caller:
        """The sender of a request; raises ApiError 401 or 403 if it is unknown or not admitted."""
        return self.senders.caller(request)

    def authorize(self, request: Request, permission: str) -> None:
        """Raises ApiError 403 unless the sender has the permission on the project."""
        self.policies.require(self.caller(request), permission)

    def set_switch(self, name: str, value: Any) -> bool | float:
        """Sets the switch of the service that has it, as `Service.set_switch`."""
        for service in self.services.values():
            with suppress(KeyError):
                return service.set_switch(name, value)
        raise KeyError(name)

    def stop(self) -> None:
        """Makes `serve` end, as a signal does."""
        self.stopping.set()

    def fail(self, error: BaseException) -> None:
        """Makes `serve` end with the error of a part of the cloud; prints its traceback, unless
        the disk is full."""
        if not is_full(error):
            traceback.print_exception(error)
        self.failure = self.failure or error
        self.stop()
