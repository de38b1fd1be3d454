"""Finds out what a run without a working attempt waits for: no VM yet, a VM that boots, or VMs that
fail.

The boot records show which VMs reached the startup script; the group, if it can be asked, shows the
others. `wait_of` is the rule, `look` asks.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from outlast.base.codec import format_time, parse_time
from outlast.base.exits import BOOT_SEC
from outlast.base.visible import one_line
from outlast.bucket.history import Boot
from outlast.bucket.standing import Standing
from outlast.cloud import refusals
from outlast.cloud.compute import Compute, ComputeError, Group

POLL_SEC = 0.5
_BOOT = timedelta(seconds=BOOT_SEC)
_FIRST_VM = timedelta(seconds=300)
"""Seconds within which a group creates its first VM, unless it reports an error."""

_LEFT = "its group has target size 0"
_LEFT_SILENTLY = (
    f"{_LEFT}, and no record says why: a VM leaves like this if storage or the metadata server"
    " gives no answer for outlast:silenceSec, or if its metadata is incomplete"
)
_AGAIN = (
    "nothing runs or costs any more; once the cause is gone, raise outlast:resume, and outlast up"
    " starts it again"
)

SERIAL_LINES = 10
SERIAL_BYTES = 8192
"""What is read of the end of the serial port. A negative `start` counts from the end: Compute's
reference of instances.getSerialPortOutput, 2026-11."""
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What colours a system's boot messages."""


@dataclass(frozen=True)
class Vm:
    """A VM of the group."""

    name: str
    id: str
    created: datetime
    path: str = field(default="", compare=False)
    """`zones/<zone>/instances/<name>`."""


@dataclass(frozen=True)
class Refusal:
    """Why a group could not create a VM."""

    at: datetime
    code: str
    message: str
    """The platform's own words, on one line; they name the quota or the policy."""


@dataclass(frozen=True)
class Seen:
    """What a group reports."""

    made: datetime
    """When the group was asked."""
    size: int
    """Its target size."""
    vm: Vm | None
    """The newest."""
    errors: tuple[Refusal, ...] = ()
    """What kept it from creating VMs, oldest first."""


@dataclass(frozen=True)
class Wait:
    """What the run waits for, since when, and why."""

    what: Standing
    since: datetime | None
    why: str
    serial: tuple[str, ...] = ()
    """The last lines on the serial port of a VM that never started its training."""

    def as_json(self) -> dict[str, Any]:
        since = format_time(self.since) if self.since else None
        serial = {"serial": list(self.serial)} if self.serial else {}
        return {"what": self.what, "since": since, "why": self.why, **serial}


def wait_of(
    boots: Sequence[Boot], seen: Seen | None, *, now: datetime, attempt: datetime | None = None
) -> Wait:
    """Decides what a run waits for.

    `attempt`: the start of its newest attempt, or None; `boots`: those since, oldest first;
    `seen`: None if the group could not be asked.
    """
    failed = [boot for boot in boots if boot.reason]
    said = ""
    if failed:
        count = f"{len(failed)} boots have" if len(failed) > 1 else "1 boot has"
        said = f"{count} failed, the last with {failed[-1].reason}"
    if seen and seen.size == 0:
        what = Standing.WAITING if attempt and not boots else Standing.NEVER_STARTED
        why = f": {one_line(failed[-1].why)}" if failed and failed[-1].why else ""
        return Wait(
            what, None, _joined(f"{said}{why}", _LEFT if failed else _LEFT_SILENTLY, _AGAIN)
        )
    if seen and seen.vm is None:
        last = boots[-1].start if boots else attempt or seen.made
        errors = [error for error in seen.errors if error.at >= last]
        since = errors[0].at if errors else None
        return Wait(Standing.WAITING, since, _joined(said, _refused(errors)))
    if seen and seen.vm:
        again = bool(boots) and boots[-1].instance_id == seen.vm.id
        since = boots[-1].start if again else seen.vm.created
        name = f"VM {seen.vm.name}"
        unseen = not boots and not attempt and not seen.errors
        if unseen and since - seen.made > _FIRST_VM:
            gone = f"VMs before {seen.vm.name} disappeared without a boot record"
            late = now - seen.made >= _BOOT
            return Wait(
                Standing.NEVER_STARTED if late else Standing.BOOTING,
                seen.made if late else since,
                gone,
            )
    elif boots and not boots[-1].reason:
        since, name = boots[-1].start, f"VM {boots[-1].instance_id}"
    else:
        return Wait(Standing.NEVER_STARTED if boots else Standing.WAITING, None, said)
    if now - since >= _BOOT:
        why = f"{name} has not reached an attempt in {BOOT_SEC // 60} minutes"
        return Wait(Standing.NEVER_STARTED, since, _joined(said, why))
    return Wait(Standing.BOOTING, since, _joined(said, f"{name} boots"))


def _refused(errors: Sequence[Refusal]) -> str:
    """Every code once, the platform's newest message, and what to do about it."""
    if not errors:
        return ""
    codes = ", ".join(dict.fromkeys(error.code for error in errors))
    last = errors[-1]
    said = f": {last.message}" if last.message else ""
    why = f"its group cannot create a VM: {codes} (tries: {len(errors)}){said}"
    return _joined(why.rstrip("."), refusals.remedy(last.code, last.message))


def stuck(group: Group, *, patience_sec: float = 0.0) -> str:
    """Why the group has no VM, in the platform's own words, and what to do; empty if it has one,
    needs none, or does not answer. Waits for a VM or an error, if `patience_sec` is given.
    """
    deadline = time.monotonic() + patience_sec
    while True:
        seen = look(group)
        if seen is None or seen.size == 0 or seen.vm:
            return ""
        if seen.errors or time.monotonic() >= deadline:
            return _refused(seen.errors)
        time.sleep(POLL_SEC)


def look(group: Group) -> Seen | None:
    """Asks the group; None if the API does not answer or the group does not exist."""
    compute = Compute(group.project)
    path = f"{group.place}/instanceGroupManagers/{group.name}"
    try:
        found = compute.call("GET", path)
        members = compute.call("POST", f"{path}/listManagedInstances").get("managedInstances") or []
        addresses = [member["instance"] for member in members if member.get("instanceStatus")]
        vms = [_vm(compute, address) for address in addresses]
        errors = [
            Refusal(
                parse_time(error["timestamp"]),
                str(error["error"]["code"]),
                " ".join(str(error["error"].get("message") or "").split()),
            )
            for error in compute.listed(f"{path}/listErrors")
        ]
        return Seen(
            parse_time(found["creationTimestamp"]),
            int(found["targetSize"]),
            max(vms, key=lambda vm: vm.created, default=None),
            tuple(sorted(errors, key=lambda error: error.at)),
        )
    except (ComputeError, KeyError, TypeError, ValueError):
        return None


def with_serial(wait: Wait, group: Group, vm: Vm) -> Wait:
    """Adds the last lines on the serial port of a VM that never started its training; nothing if
    the API does not answer."""
    if wait.what is not Standing.NEVER_STARTED:
        return wait
    try:
        path = f"{vm.path}/serialPort?start=-{SERIAL_BYTES}"
        contents = str(Compute(group.project).call("GET", path)["contents"])
    except (ComputeError, KeyError):
        return wait
    # The first line may be half a line.
    lines = [one_line(ESCAPE.sub("", line)).strip() for line in contents.splitlines()[1:]]
    return replace(wait, serial=tuple([line for line in lines if line][-SERIAL_LINES:]))


def _vm(compute: Compute, address: str) -> Vm:
    path = address[address.index("zones/") :]
    found = compute.call("GET", path)
    return Vm(found["name"], str(found["id"]), parse_time(found["creationTimestamp"]), path)


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
