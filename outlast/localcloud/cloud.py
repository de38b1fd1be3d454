"""What the parts of the local cloud share, and what each of them is to the others.

A service is one folder and one class: it answers routes, keeps its state in tables of
`cloud.state`, and says what exists. `outlast.localcloud.server.SERVICES` lists them all. What one
part asks of another is a protocol here, so that no part imports another one's inside.
"""

import asyncio
import hashlib
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from outlast.localcloud.base.access import Caller, Target
from outlast.localcloud.base.clock import RealClock
from outlast.localcloud.base.state import Entry, EventLog, State
from outlast.localcloud.http.request_facts import RequestFacts
from outlast.localcloud.http.senders import Senders


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
    guests: bool = True
    """Whether VMs have processes; without, they boot and stop at once."""
    provider: bool = True
    parent_pid: int | None = None


class Service(Protocol):
    """One of Google's services. Only `routes` has no default."""

    def routes(self) -> list[BaseRoute]:
        """What it answers. Handlers raise ApiError, check permissions by `cloud.authorize` or
        `cloud.policies`, and may be async or plain (threads)."""
        ...

    def audit(self) -> Entry:
        """What exists, by kind: `{"buckets": […]}`."""
        return {}

    def set_switch(self, name: str, value: Any) -> None:
        """Changes how the service behaves. KeyError: it has no such switch; ValueError: the value
        is wrong."""
        raise KeyError(name)

    async def start(self) -> None:
        """Takes up what `cloud.state` holds, and starts whatever runs by itself."""

    async def stop(self) -> None:
        """Ends everything that runs; the state stays."""

    async def reset(self) -> None:
        """Forgets what is not in a table of `cloud.state`, which the cloud itself clears."""


class Permissions(Protocol):
    """Policies, as other services ask for them: `outlast.localcloud.iam.policies.Policies`."""

    def permits(self, caller: Caller, permission: str, target: Target, *resources: str) -> bool:
        """Whether the policies of the project and of these resources grant the permission."""
        ...

    def require(self, caller: Caller, permission: str) -> None:
        """ApiError 403 unless the caller has the permission on the project."""
        ...

    def held(
        self, caller: Caller, permissions: Iterable[str], target: Target, *resources: str
    ) -> list[str]:
        """Those of the permissions that the caller has."""
        ...

    def read(self, resource: str, version: int) -> Entry:
        """A resource's policy as a reader of this version sees it."""
        ...

    def kept(self, resource: str) -> Entry:
        """A resource's policy as it is kept; empty if it has none."""
        ...

    def write(self, resource: str, policy: Any, *, initial: bool = False) -> None:
        """Replaces a policy; ApiError if it is wrong or its etag is stale."""
        ...

    def drop(self, resource: str) -> None:
        """Forgets the policy of a resource that is gone."""
        ...


class Objects(Protocol):
    """What others ask of Cloud Storage: `outlast.localcloud.storage.service.Storage`."""

    def content(self, bucket: str, name: str) -> bytes | None:
        """The bytes of an object as it is now; None if it does not exist."""
        ...

    def session_object(self, upload_id: str) -> str | None:
        """The name of the object that a resumable upload is of."""
        ...

    def apply_lifecycle(self, at: float) -> list[Entry]:
        """Does what the buckets' lifecycle rules ask for at a moment; what was done."""
        ...


class Machines(Protocol):
    """What others ask of Compute Engine: `outlast.localcloud.compute.service.Compute`."""

    def caller(self, token: str) -> Caller | None:
        """The VM that holds this metadata server's token; None for any other token."""
        ...

    def sender(self, inode: int) -> Caller | None:
        """The VM of which a process has this socket open; None if none has."""
        ...

    def vms(self) -> list[Entry]:
        """[{name, id, group, zone, status, pid, boots, started}] of what exists."""
        ...

    async def kill(self, name: str) -> None:
        """SIGKILL of the VM's whole process tree: its host has vanished. KeyError: no such VM."""
        ...

    async def preempt(self, name: str) -> None:
        """Starts a preemption (flag, notice, SIGTERM, SIGKILL); returns at the flag."""
        ...

    async def freeze(self, name: str) -> None:
        """SIGSTOP of the whole process tree."""
        ...

    async def thaw(self, name: str) -> None:
        """SIGCONT of the whole process tree."""
        ...

    def set_switch(self, name: str, value: Any) -> None:
        """As `Service.set_switch`."""
        ...

    def changed(self) -> None:
        """Does what has become due: the clock or a limit has changed."""
        ...


class Faults(Protocol):
    """The fault rules: `outlast.localcloud.faults.layer.FaultLayer`."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The app with the rules applied to every request."""
        ...

    def add(self, document: Entry, applies: Callable[[RequestFacts], bool] | None = None) -> str:
        """Adds a rule, which may hit the requests that `applies` holds for; its id."""
        ...

    def remove(self, rule_id: str) -> bool:
        """Whether there was such a rule."""
        ...


class Director(Protocol):
    """The scenario in force: `outlast.localcloud.scenarios.director.ScenarioDirector`."""

    def install(self, scenario: Any, target: str = "") -> None:
        """Puts a scenario in force, for the experiment `target` or for all."""
        ...

    @property
    def playing(self) -> bool:
        """Whether a scenario is in force."""
        ...

    def trying(self, properties: Mapping[str, Any]) -> None:
        """A VM of these properties is about to be created."""
        ...

    def booting(self, instance: Any) -> Entry:
        """A VM is about to boot: what `vm.hypervisor.Machine` has to have for it."""
        ...

    def on_report(self, instance_id: str, event: str) -> None:
        """The hypervisor says that a VM is running, stopping or has exited."""
        ...

    def notice(self, instance_id: str) -> tuple[float | None, float | None]:
        """Seconds of notice and grace of a VM's preemption, if the scenario says them."""
        ...

    def bound(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Members have got roles that they had not."""
        ...

    def in_force(self, key: tuple[str, ...], caller: Caller) -> bool:
        """Whether a binding works already for the VM that asks."""
        ...

    def is_cut_off(self, call: RequestFacts) -> bool:
        """Whether the sender has no network."""
        ...

    def watch(self, call: RequestFacts, app: ASGIApp) -> ASGIApp:
        """The app, with the moments of a VM's request noticed on the way."""
        ...


class Cloud:
    """What the parts share. Everything runs on one asyncio loop unless it says otherwise.

    `outlast.localcloud.server.assemble` sets the parts.
    """

    services: dict[str, Service]
    """By name, in the order in which they start and are reset."""
    senders: Senders
    policies: Permissions
    storage: Objects
    machines: Machines
    faults: Faults
    director: Director

    def __init__(self, options: Options, base_url: str) -> None:
        """`base_url` is `http://127.0.0.1:PORT`."""
        self.options = options
        self.base_url = base_url
        self.project = options.project
        self.project_number = str(int(hashlib.sha256(self.project.encode()).hexdigest(), 16))[:12]
        self.state = State(options.state)
        self.events = EventLog(options.state / "events.jsonl")
        self.clock = RealClock()
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None

    def caller(self, request: Request) -> Caller:
        """The sender of a request; ApiError 401 or 403 if it cannot be known or let in."""
        return self.senders.caller(request)

    def authorize(self, request: Request, permission: str) -> None:
        """ApiError 403 unless the sender has the permission on the project."""
        self.policies.require(self.caller(request), permission)

    def stop(self) -> None:
        """Makes `serve` end as a signal does."""
        self.stopping.set()

    def fail(self, error: BaseException) -> None:
        """Makes `serve` end with the error of a part of the cloud, and its trace."""
        traceback.print_exception(error)
        self.failure = self.failure or error
        self.stop()
