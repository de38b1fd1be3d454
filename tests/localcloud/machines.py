"""A local cloud without VMs, as a process: `python machines.py STATE [PORT [PARENT]]`.

Its machines do nothing and note in events.jsonl what they were asked. `vm-token-VM:EMAIL` is the
token of a VM of that name with that service account.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from outlast.localcloud.base.access import Caller  # noqa: E402
from outlast.localcloud.cloud import Cloud, Options, Service  # noqa: E402
from outlast.localcloud.server import SERVICES, serve  # noqa: E402


class NoMachines(Service):
    """Stands in for the compute part: it notes what it is asked for."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def routes(self) -> list[Any]:
        return []

    def caller(self, token: str) -> Caller | None:
        vm, _, email = token.removeprefix("vm-token-").partition(":")
        return Caller(email, vm) if email and token.startswith("vm-token-") else None

    def sender(self, inode: int) -> Caller | None:
        return None

    def vms(self) -> list[dict[str, Any]]:
        return []

    async def kill(self, name: str) -> None:
        self._note("kill", name)

    async def preempt(self, name: str) -> None:
        self._note("preempt", name)

    async def freeze(self, name: str) -> None:
        self._note("freeze", name)

    async def thaw(self, name: str) -> None:
        self._note("thaw", name)

    def _note(self, verb: str, name: str) -> None:
        if name == "no-such-vm":
            raise KeyError(name)
        self._cloud.events.write("machine", verb=verb, vm=name)

    def changed(self) -> None:
        return

    def audit(self) -> dict[str, Any]:
        return {"templates": [], "groups": [], "vms": [], "disks": [], "pids": []}


def main() -> None:
    state, port, parent = (*sys.argv[1:], "0", "0")[:3]
    options = Options(Path(state), port=int(port), provider=False, parent_pid=int(parent) or None)
    serve(options, services={**SERVICES, "compute": NoMachines})


if __name__ == "__main__":
    main()
