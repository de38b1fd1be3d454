"""A shell on the VM that works on an experiment now.

On Google it is `gcloud compute ssh` through Identity-Aware Proxy. A VM of the local cloud is a
process tree: there it is a shell with that VM's environment, in its root folder, and it ends with
the VM.
"""

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.base.http_client import RequestFailed, ask
from outlast.cli import boots, endpoint, experiments
from outlast.cli.boots import Vm
from outlast.cli.errors import CloudError, OperateError
from outlast.cloud.compute import Group

ROOT_VARIABLE = "OUTLAST_ROOT"
"""Names the root folder of a VM that is a process tree, to all its processes."""
IAP = "iap"


@dataclass(frozen=True)
class Session:
    """A program to become."""

    argv: tuple[str, ...]
    cwd: Path | None
    """None: this folder."""
    env: Mapping[str, str]
    vm: str
    note: str = ""
    """What may keep it from working; empty if nothing is known."""


def session(stack: str, group: Group | None, command: Sequence[str] = ()) -> Session:
    """The session on the group's VM: a shell, or a command. Raises OperateError if the group has no
    VM or cannot be asked, gcloud is missing, or the local VM has no shell to open.
    """
    seen = boots.look(group) if group is not None else None
    if group is None or seen is None:
        raise OperateError(
            f"{stack}: its group cannot be asked which VM it has; outlast status {stack} shows how"
            " its run stands"
        )
    if seen.vm is None:
        why = boots.stuck(group)
        raise OperateError(
            f"{stack}: its group has no VM now{f': {why}' if why else ''}; outlast status {stack}"
            " shows what its run waits for"
        )
    if endpoint.is_local():
        return _in_process_tree(stack, seen.vm, command)
    return _through_iap(stack, group, seen.vm, command)


def _through_iap(stack: str, group: Group, vm: Vm, command: Sequence[str]) -> Session:
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        raise OperateError(
            "gcloud: is not on PATH, and it opens the tunnel to the VM; install the Google Cloud"
            f" CLI; outlast logs {stack} --boot shows the serial port without it"
        )
    argv = [gcloud, *through_iap(group.project, vm)]
    argv += ["--command", shlex.join(command)] if command else []
    ways = {one.ssh for one in experiments.settings() if one.stack == stack}
    note = ""
    if ways and IAP not in ways:
        note = (
            f"outlast:ssh of stack {stack} is not iap, so its firewall may refuse this; pulumi"
            f" config set outlast:ssh iap -s {stack}, then outlast up {stack}, for its next VM"
        )
    return Session(tuple(argv), None, os.environ, vm.name, note)


def through_iap(project: str, vm: Vm, user: str = "") -> list[str]:
    """Arguments of gcloud for a shell on the VM; `user`: instead of gcloud's own choice.

    Flags of `gcloud compute ssh`: its reference page, read in November 2026.
    """
    who = f"{user}@{vm.name}" if user else vm.name
    at = ["--zone", vm.path.split("/")[1], "--project", project, "--tunnel-through-iap"]
    return ["compute", "ssh", who, *at]


def _in_process_tree(stack: str, vm: Vm, command: Sequence[str]) -> Session:
    environment = local_environment(vm)
    root = environment.get(ROOT_VARIABLE)
    if not root:
        raise OperateError(
            f"{stack}: VM {vm.name} of the local cloud is a QEMU machine without a way to log"
            f" in; outlast logs {stack} --boot --follow shows its serial port"
        )
    shell = environment.get("SHELL", "/bin/bash")
    argv = (shell, "-c", shlex.join(command)) if command else (shell,)
    terminal = {"TERM": os.environ.get("TERM", "dumb")}
    return Session(argv, Path(root), {**environment, **terminal}, vm.name)


def local_environment(vm: Vm) -> dict[str, str]:
    """The environment of everything that runs on a local VM. Raises CloudError."""
    return _environment(_first_process(vm))


def _first_process(vm: Vm) -> int:
    """The pid of a local VM's first process. Raises CloudError."""
    url = os.environ[endpoint.VARIABLE].rstrip("/")
    try:
        vms = ask(f"{url}/_local/vms", what="the local cloud", direct=True).json()
    except RequestFailed as error:
        raise CloudError(f"VM {vm.name}: {error}; see outlast cloud status") from None
    pids = [one["pid"] for one in vms if one["name"] == vm.name and one["pid"]]
    if not pids:
        raise CloudError(f"VM {vm.name}: is not running now; see outlast cloud status")
    return int(pids[0])


def _environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with. Raises CloudError."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        raise CloudError(
            f"process {pid} of the VM: its environment cannot be read ({error.strerror})"
        ) from None
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in text.split(b"\0"))
    return {name: value for name, _, value in pairs if name}


def become(found: Session) -> None:
    """Replaces this process by the session. Raises OperateError if it cannot be started."""
    try:
        if found.cwd is not None:
            os.chdir(found.cwd)
        os.execve(found.argv[0], found.argv, dict(found.env))
    except OSError as error:
        raise OperateError(f"{found.argv[0]}: {error.strerror}") from None
