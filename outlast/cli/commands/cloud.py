"""`outlast cloud`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.commands.guests import guest_images, guest_options, guest_variables
from outlast.cli.commands.options import provider_option
from outlast.cli.terminal import say

if TYPE_CHECKING:
    from outlast.cli.cloud import LocalCloud


@click.group()
def cloud() -> None:
    """Run a small Compute Engine on this machine, for `pulumi up` without an account.

    \b
    eval "$(outlast cloud start)"
    """


def _state_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of the local cloud; default .outlast/cloud in the project.",
    )(function)


def _state_folder(state: Path | None) -> Path:
    from outlast.cli.engine import project

    return (state or project() / ".outlast" / "cloud").absolute()


def _stack_ready(found: "LocalCloud", plugin: Path | None = None) -> dict[str, str]:
    """Adds the checkout's stack to the cloud's backend; returns the variables that lead there, with
    Google's provider `plugin` or the stand-in.
    """
    from outlast.cli import engine
    from outlast.cli.rehearsal import settings

    path = os.environ.get("PATH", os.defpath)
    home = found.state / "pulumi"
    variables = found.variables(engine.find_parts(), home, path, plugin)
    engine.ensure_stack(settings.STACK, {**engine.scrubbed(), **variables})
    return variables


def _running(state: Path | None) -> "LocalCloud":
    from outlast.cli.cloud import find
    from outlast.cli.errors import CloudError

    found = find(_state_folder(state))
    if found is None:
        raise CloudError(
            f"local cloud: none is running on {_state_folder(state)}; start one: outlast cloud"
            " start."
        )
    return found


@cloud.command()
@_state_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port; default: any free one."
)
@guest_options
@provider_option
def start(
    state: Path | None, port: int, guest: str, guest_image: Path | None, provider: str
) -> None:
    """Serve the local cloud in the background and print what to export.

    If it is already running, only print that.

    \b
    eval "$(outlast cloud start)"
    pulumi up
    """
    import shlex

    from outlast.cli import cloud as clouds
    from outlast.cli import engine
    from outlast.cli.errors import CloudError
    from outlast.cli.rehearsal import settings

    images = guest_images(guest, guest_image)
    parts = engine.find_parts()
    plugin = engine.chosen_plugin(provider)
    folder = _state_folder(state)
    found = clouds.find(folder)
    if found is not None and port not in (0, found.port):
        raise CloudError(
            f"--port {port}: the local cloud {found.pid} is already running at {found.url}; "
            "stop it first (outlast cloud stop)."
        )
    started = found is None
    if found is None:
        pace = settings.pace_of(settings.local_settings(vm=bool(images)))
        found = clouds.start(
            folder,
            parts,
            port=port,
            pace=pace,
            guest_env=guest_variables(guest, guest_image),
            guest_images=images,
            dies_with_us=False,
        )
    try:
        variables = _stack_ready(found, plugin)
    except BaseException:
        if started:
            found.stop()
        raise
    for name in sorted(engine.foreign(os.environ, variables)):
        say(f"unset {name}")
    for name, value in variables.items():
        say(f"export {name}={shlex.quote(value)}")
    say(
        f"# local cloud {found.pid} at {found.url}, state in {folder}\n"
        f"# provider: {plugin or 'stand-in'}\n"
        '# to use it in this shell: eval "$(outlast cloud start)"; to end it: outlast cloud stop',
    )


@cloud.command()
@_state_option
def stop(state: Path | None) -> None:
    """End the local cloud and its VMs; its state is kept.

    \b
    outlast cloud stop
    """
    found = _running(state)
    found.stop()
    say(f"local cloud {found.pid}: ended; its state is kept in {found.state}")


@cloud.command()
@_state_option
def reset(state: Path | None) -> None:
    """End every VM and delete everything in the local cloud, including buckets and stacks.

    The local cloud keeps its address; the next `pulumi up` starts from scratch.

    \b
    outlast cloud reset
    """
    import shutil

    found = _running(state)
    found.reset()
    # The engine's record of its resources, none of which exist any more.
    shutil.rmtree(found.state / "pulumi" / "backend", ignore_errors=True)
    _stack_ready(found)
    say(f"local cloud {found.pid}: empty, at {found.url} as before")


@cloud.command(name="status")
@_state_option
def cloud_status(state: Path | None) -> None:
    """List the local cloud's VMs, groups and buckets.

    \b
    outlast cloud status
    """
    from outlast.base import numbers

    found = _running(state)
    say(f"local cloud {found.pid} at {found.url}, state in {found.state}")
    for note in found.notes():
        say(note)
    vms = found.vms()
    for vm in vms:
        group = f"group {vm['group']}" if vm["group"] else "no group"
        say(f"{vm['name']}  {vm['status']}  {vm['zone']}  {group}")
    if not vms:
        say("no VMs")
    exists = found.audit()
    for group in exists["groups"]:
        say(f"group {group}")
    for bucket in exists["buckets"]:
        say(f"bucket {bucket['name']}: {numbers.count(bucket['objects'], 'object')}")


@cloud.command()
@click.argument("vm", required=False)
@_state_option
def kill(vm: str | None, state: Path | None) -> None:
    """Kill a VM, by default the only one, without a notice, as a host error does.

    \b
    outlast cloud kill first-0123456789-x1y2
    """
    vm = _running(state).act(vm, "kill")
    say(f"{vm}: killed")


@cloud.command()
@click.argument("vm", required=False)
@_state_option
def preempt(vm: str | None, state: Path | None) -> None:
    """Preempt a VM, by default the only one: the notice, then SIGTERM, then SIGKILL.

    \b
    outlast cloud preempt first-0123456789-x1y2
    """
    vm = _running(state).act(vm, "preempt")
    say(f"{vm}: preempted")


@cloud.command()
@click.argument("vm", required=False)
@_state_option
def freeze(vm: str | None, state: Path | None) -> None:
    """Stop the time of a VM, by default the only one.

    It gives no sign of life, and is not recreated.

    \b
    outlast cloud freeze first-0123456789-x1y2
    """
    vm = _running(state).act(vm, "freeze")
    say(f"{vm}: frozen; `outlast cloud thaw {vm}` lets it work again")


@cloud.command()
@click.argument("vm", required=False)
@_state_option
def thaw(vm: str | None, state: Path | None) -> None:
    """Let a frozen VM, by default the only one, work again.

    \b
    outlast cloud thaw first-0123456789-x1y2
    """
    vm = _running(state).act(vm, "thaw")
    say(f"{vm}: works again")
